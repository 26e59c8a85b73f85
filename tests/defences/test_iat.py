"""Interpolated adversarial training: Mix-Up at radius 0, the same mixtures of clean and adversarial images else."""

import pytest
import torch
from small import CLASSES, DIM, Watched, encoder, paired_batch, pgd, seeded

from robustmetric.defences.iat import InterpolatedAdversarial
from robustmetric.defences.mixup import Mixer, MixUp
from robustmetric.errors import InputError
from robustmetric.losses.proxy_anchor import ProxyAnchor


def test_radius_zero_is_mix_up_also_in_its_gradient() -> None:
    gradients, values = [], []
    for kind in (lambda loss: MixUp(loss), lambda loss: InterpolatedAdversarial(loss, pgd(0.0))):
        model, loss = encoder(), ProxyAnchor(CLASSES, DIM)
        value = sum(kind(loss)(model, paired_batch(), seeded(2)).values())
        value.backward()
        values.append(value.detach())
        gradients.append([p.grad for p in (*model.parameters(), *loss.parameters())])
    assert values[0] > 0
    torch.testing.assert_close(values[0], values[1])
    torch.testing.assert_close(gradients[0], gradients[1])


def test_both_halves_mix_the_same_rows_by_the_same_shares() -> None:
    attack, model, batch, loss = Watched(pgd(0.2)), encoder(), paired_batch(), ProxyAnchor(CLASSES, DIM)
    terms = InterpolatedAdversarial(loss, attack)(model, batch, seeded(2))
    mixture = Mixer()(batch.inputs, seeded(2))
    assert list(terms) == ["clean", "adversarial"]
    for name, inputs in (("clean", batch.inputs), ("adversarial", attack.moved[0])):
        expected = mixture.loss(loss, model(mixture.of(inputs)), batch.labels, None)
        torch.testing.assert_close(terms[name], 0.5 * expected)
    assert (attack.moved[0] - batch.inputs).abs().max() == pytest.approx(0.2, abs=1e-6)
    assert (attack.after[0] > attack.before[0] + 0.01).all()


def test_summed_counts_both_halves_whole() -> None:
    parts = [
        InterpolatedAdversarial(ProxyAnchor(CLASSES, DIM), pgd(0.1), summed=summed)(encoder(), paired_batch(), seeded())
        for summed in (False, True)
    ]
    for name in ("clean", "adversarial"):
        torch.testing.assert_close(2 * parts[0][name], parts[1][name])


def test_separate_mixes_the_adversarial_images_anew() -> None:
    attack, model, batch, loss = Watched(pgd(0.1)), encoder(), paired_batch(), ProxyAnchor(CLASSES, DIM)
    terms = InterpolatedAdversarial(loss, attack, separate=True)(model, batch, seeded(4))
    generator = seeded(4)
    mixtures = [Mixer()(batch.inputs, generator) for _ in range(2)]
    assert not torch.equal(mixtures[0].first, mixtures[1].first)
    for (name, term), mixture, inputs in zip(terms.items(), mixtures, (batch.inputs, attack.moved[0]), strict=True):
        expected = 0.5 * mixture.loss(loss, model(mixture.of(inputs)), batch.labels, None)
        torch.testing.assert_close(term, expected, msg=name)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(InputError, match="Beta"):
        InterpolatedAdversarial(ProxyAnchor(CLASSES, DIM), pgd(0.1), concentration=-1.0)
