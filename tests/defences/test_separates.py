"""Defences of clean and perturbed images: each pass is through its own batch norms, where a model keeps them in two."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from small import CLASSES, DIM, paired_batch, pgd, seeded
from torch import Tensor, nn

from robustmetric import recipe
from robustmetric.defences.base import Defence
from robustmetric.defences.eat import EnsembleAdversarial
from robustmetric.defences.iat import InterpolatedAdversarial
from robustmetric.defences.madry import Madry
from robustmetric.defences.naive_ensemble import NaiveEnsemble
from robustmetric.defences.one_student import OneStudent
from robustmetric.defences.plain import Plain
from robustmetric.defences.trades import Trades
from robustmetric.errors import InputError
from robustmetric.jobs.train import train
from robustmetric.losses.proxy_anchor import ProxyAnchor
from robustmetric.models.encoder import Encoder
from robustmetric.models.ensemble import Ensemble


def loss() -> ProxyAnchor:
    return ProxyAnchor(CLASSES, DIM)


def member(norms: str = "auxiliary") -> Encoder:
    """A batch norm on the pixels, which takes over the statistics of each batch whole, and a linear map."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        trunk = nn.Sequential(nn.Flatten(), nn.BatchNorm1d(64, momentum=1.0), nn.Linear(64, DIM))
        return Encoder(trunk, dim=DIM, batch_norm=norms)  # type: ignore[arg-type]


DEFENCES = {
    "madry": (lambda: Madry(loss(), pgd(0.3), clean_share=0.5), 1),
    "trades": (lambda: Trades(loss(), pgd(0.3)), 0),
    "iat": (lambda: InterpolatedAdversarial(loss(), pgd(0.3)), 0),
    "eat": (lambda: EnsembleAdversarial([loss()], pgd(0.3), divided=False), 1),
    "naive": (lambda: NaiveEnsemble([Madry(loss(), pgd(0.3), clean_share=0.5)]), 1),
}
"""By name, how it is made and which of its two training passes is the clean one."""


@pytest.mark.parametrize("name", DEFENCES)
def test_each_set_of_norms_has_the_statistics_of_its_images(name: str) -> None:
    made, clean = DEFENCES[name]
    own, defence = member(), made()
    assert defence.separates
    model = Ensemble([own]) if name in ("eat", "naive") else own
    passes: list[Tensor] = []
    own.register_forward_pre_hook(lambda module, given: passes.append(given[0]) if module.training else None)
    torch.stack(list(defence(model, paired_batch(), seeded()).values())).sum().backward()
    assert len(passes) == 2
    means = [inputs.flatten(1).mean(dim=0) for inputs in passes]
    torch.testing.assert_close(own.trunk[1].running_mean, means[clean])
    torch.testing.assert_close(own.auxiliary[0].running_mean, means[1 - clean])
    assert (means[0] - means[1]).abs().max() > 0.01
    assert all(parameter.grad.abs().sum() > 0 for parameter in own.parameters())


@pytest.mark.parametrize("name", DEFENCES)
def test_without_auxiliary_norms_nothing_changes_hands(name: str) -> None:
    own, defence = member("live"), DEFENCES[name][0]()
    weight = own.trunk[1].weight
    defence(Ensemble([own]) if name in ("eat", "naive") else own, paired_batch(), seeded())
    assert own.trunk[1].weight is weight and not len(own.auxiliary)


def test_the_attack_is_on_the_norms_of_perturbed_images() -> None:
    model, batch = member(), paired_batch()
    model.auxiliary[0].running_mean.fill_(0.9)
    with Madry(loss(), pgd(0.1), clean_share=0.5).attacked(model) as embed:
        found = embed(batch.inputs)
    model.eval()
    linear = model.trunk[2]
    by_hand = linear((batch.inputs.flatten(1) - 0.9) / (1 + model.trunk[1].eps) ** 0.5)
    torch.testing.assert_close(found, nn.functional.normalize(by_hand, dim=1))


@pytest.mark.parametrize(
    "defence",
    [
        lambda: Plain(loss()),
        lambda: Madry(loss(), pgd(0.1)),
        lambda: EnsembleAdversarial([loss()], pgd(0.1), clean_share=0.0, divided=False),
        lambda: NaiveEnsemble([Madry(loss(), pgd(0.1), clean_share=0.5), Plain(loss())]),
    ],
)
def test_a_defence_of_one_kind_of_images_does_not_separate(defence: Callable[[], Defence]) -> None:
    assert not defence().separates


def test_a_recipe_trains_both_and_one_that_has_no_clean_images_is_refused(tmp_path: Path) -> None:
    model = "{name: encoder, trunk: {name: small_resnet, channels: 1}, batch_norm: auxiliary}"
    attack = "{name: pgd, ball: {name: ball, radius: 0.1}, steps: 2, step_size: 0.05}"
    file = tmp_path / "own.yaml"
    file.write_text(
        f"base: {recipe.shelf() / 'digits' / 'plain.yaml'}\nmodel: {model}\nepochs: 1\n"
        f"defence: {{name: madry, loss: {{name: proxy_anchor, classes: $classes, dim: $dim}}, attack: {attack}, "
        "objective: shift, clean_share: 0.5}\nsampler: {name: balanced, batch: 60, per_class: 12}\n"
    )
    with pytest.raises(InputError, match="batch_norm 'auxiliary' keeps clean and perturbed images apart, and Madry"):
        train(str(file), ["defence.clean_share=0"], tmp_path / "none")
    weights = load_file(train(str(file), [], tmp_path / "run") / "model.safetensors")
    pairs = [name for name in weights if name.startswith("auxiliary.0.running")]
    first = next(name for name in weights if name.startswith("trunk.") and name.endswith("running_mean"))
    assert pairs and not torch.allclose(weights["auxiliary.0.running_mean"], weights[first])


def test_an_ensemble_beside_a_student_is_refused_where_its_second_norms_would_never_learn() -> None:
    made = [EnsembleAdversarial([loss()], pgd(0.3), clean_share=share, divided=False) for share in (0.0, 0.5)]
    with pytest.raises(InputError, match="expected trained_by with a clean_share between 0 and 1"):
        OneStudent(loss(), Ensemble([member()]), made[0])
    OneStudent(loss(), Ensemble([member("live")]), made[0])
    OneStudent(loss(), Ensemble([member()]), made[1])
