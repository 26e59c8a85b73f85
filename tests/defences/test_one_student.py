"""One student on an ensemble's adversaries: whose images it sees, who is attacked, and what is left of the ensemble."""

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from small import CLASSES, DIM, Watched, encoder, paired_batch, pgd, quarters, seeded
from torch import Tensor, nn

from robustmetric import recipe
from robustmetric.defences.eat import EnsembleAdversarial
from robustmetric.defences.naive_ensemble import NaiveEnsemble
from robustmetric.defences.one_student import OneStudent
from robustmetric.defences.plain import Plain
from robustmetric.errors import InputError
from robustmetric.jobs.assemble import load_run
from robustmetric.jobs.train import train
from robustmetric.losses.proxy_anchor import ProxyAnchor
from robustmetric.models.encoder import Encoder
from robustmetric.models.ensemble import Ensemble
from robustmetric.types import Batch


def members() -> Ensemble:
    return Ensemble([encoder(seed) for seed in (1, 2, 3)])


def eat(attack: object, **settings: object) -> EnsembleAdversarial:
    return EnsembleAdversarial([ProxyAnchor(CLASSES, DIM, seed=seed) for seed in range(3)], attack, **settings)  # type: ignore[arg-type]


def whole_batch() -> Batch:
    """All rows of a small training set."""
    rows = paired_batch(3)
    return Batch(rows.inputs, rows.labels, torch.arange(len(rows)))


def seen_by(model: nn.Module) -> list[Tensor]:
    """A list that every input of the model will be added to."""
    found: list[Tensor] = []
    model.register_forward_pre_hook(lambda module, given: found.append(given[0]))
    return found


def test_one_image_by_hand() -> None:
    def proxies() -> ProxyAnchor:
        loss = ProxyAnchor(classes=2, dim=2, margin=0.0, scale=1.0)
        loss.proxies.data = torch.eye(2)
        return loss

    member, student = (Encoder(nn.Identity(), dim=2) for _ in range(2))
    inner = EnsembleAdversarial([proxies()], quarters(1), clean_share=0.0, divided=False, objective="label")
    batch = Batch(torch.tensor([[0.5, 0.5]]), torch.tensor([0]), torch.tensor([0]))
    terms = OneStudent(proxies(), Ensemble([member]), inner)(student, batch, seeded())
    # The member's loss rises away from (1, 0) and towards (0, 1): a step of 0.25 leads to (0.25, 0.75), whose cosines
    # to the two proxies are 0.25 / sqrt(0.625) and 0.75 / sqrt(0.625).
    near, far = 0.25 / math.sqrt(0.625), 0.75 / math.sqrt(0.625)
    expected = math.log(1 + math.exp(-near)) + math.log(1 + math.exp(far)) / 2
    assert {name: term.item() for name, term in terms.items()} == {
        "student": pytest.approx(expected),
        "ensemble_adversarial": pytest.approx(expected),
    }


@pytest.mark.parametrize("settings", [{}, {"shared": False}, {"by_class": True}, {"divided": False}])
def test_the_student_sees_every_image_of_the_batch_perturbed(settings: dict[str, bool]) -> None:
    batch, student, attack = whole_batch(), encoder(), Watched(pgd(0.2))
    defence = OneStudent(ProxyAnchor(CLASSES, DIM), members(), eat(attack, **settings))
    defence.prepare(batch.labels)
    found = seen_by(student)
    defence(student, batch, seeded())
    (images,) = found
    moved = (images - batch.inputs).flatten(1).abs().amax(dim=1)
    assert (moved > 0.05).all() and (moved <= 0.2 + 1e-6).all()
    if settings.get("shared", True):
        assert torch.equal(images, attack.moved[0]), "the very images that members train on"


def test_the_ensemble_knows_nothing_of_the_student() -> None:
    batch, attack = whole_batch(), pgd(0.2)
    alone, beside = members(), members()
    inner, own = eat(attack), eat(attack)
    for defence in (inner, own):
        defence.prepare(batch.labels)
    torch.stack(list(own(alone, batch, seeded()).values())).sum().backward()
    for seed in (4, 5):
        student = encoder(seed)
        both = OneStudent(ProxyAnchor(CLASSES, DIM), beside, inner)
        both.zero_grad()
        terms = both(student, batch, seeded())
        torch.stack(list(terms.values())).sum().backward()
        for one, other in zip(alone.parameters(), beside.parameters(), strict=True):
            assert torch.equal(one.grad, other.grad)
        assert all(parameter.grad.abs().sum() > 0 for parameter in student.parameters())
    assert list(terms) == ["student", "ensemble_adversarial", "ensemble_clean"]


def test_view_and_progress_reach_the_ensembles_training_and_all_networks_are_compiled() -> None:
    inner, student = eat(pgd(0.1), divided=False), encoder()
    defence = OneStudent(ProxyAnchor(CLASSES, DIM), members(), inner)
    defence.view, defence.progress = "folded", 0.25
    defence(student, paired_batch(), seeded())
    assert (inner.view, inner.progress) == ("folded", 0.25)
    assert defence.repeated(student) == [student, *defence.ensemble.members]
    assert defence.beside == NaiveEnsemble([defence, Plain(ProxyAnchor(CLASSES, DIM))]).beside == [defence.ensemble]


def test_an_ensemble_that_does_not_fit_is_refused() -> None:
    with pytest.raises(InputError, match="an ensemble of 2 has 3 losses"):
        OneStudent(ProxyAnchor(CLASSES, DIM), Ensemble([encoder(1), encoder(2)]), eat(pgd(0.1)))
    with pytest.raises(InputError, match="ensemble: Encoder is not of the kind Ensemble"):
        OneStudent(ProxyAnchor(CLASSES, DIM), encoder(), eat(pgd(0.1)))


def test_a_run_keeps_the_student_alone_and_is_taken_up_again_with_the_ensemble(tmp_path: Path) -> None:
    trunk = "{name: encoder, trunk: {name: convnet, side: 8, kernel: 3, widths: [4, 8], hidden: 16, dim: 8}}"
    loss = "{name: proxy_anchor, classes: $classes, dim: 8}"
    attack = "{name: pgd, ball: {name: ball, radius: 0.1}, steps: 2, step_size: 0.05}"
    file = tmp_path / "one.yaml"
    file.write_text(
        f"base: {recipe.shelf() / 'digits' / 'plain.yaml'}\nmodel: {trunk}\nepochs: 2\n"
        f"defence: {{name: one_student, loss: {loss}, ensemble: {{name: ensemble, members: [{trunk}, {trunk}]}}, "
        f"trained_by: {{name: eat, losses: [{loss}, {loss}], attack: {attack}}}}}\n"
        "optimiser: {name: adamw, rate: 1e-3, loss_rate_factor: 100, clip: 10, warmup: 1}\n"
        "sampler: {name: balanced, batch: 60, per_class: 12}\n"
    )
    run = train(str(file), [], tmp_path / "whole")
    train(str(file), ["epochs=1"], tmp_path / "parts")
    resumed = load_file(train(str(file), [], tmp_path / "parts", resume=True) / "model.safetensors")
    whole = load_file(run / "model.safetensors")
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    model, _ = load_run(run)
    assert isinstance(model, Encoder) and set(whole) == set(model.state_dict())
