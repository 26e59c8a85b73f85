"""A model that is its own surrogate is refused, however it is named; one that only looks like it is not."""

import shutil
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import robustmetric
from commands import Command
from robustmetric import records
from robustmetric.attacks.embedding_shift import EmbeddingShift
from robustmetric.attacks.suite import Suite, Trial
from robustmetric.attacks.transfer import AtHand, Transfer
from robustmetric.errors import InputError
from robustmetric.jobs.assemble import load_run
from robustmetric.jobs.surrogate import refuse_itself
from robustmetric.models.convnet import ConvNet
from robustmetric.models.encoder import Encoder
from robustmetric.models.input_transforms import BitDepth, Transformed
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD

ITSELF = "is the model under attack itself, with the same weights, so that transfer from it is white-box"


@pytest.mark.parametrize("suite", ["transfer28", "masking", "clustering_adaptive"])
@pytest.mark.parametrize("name", ["run", "copy"])
def test_a_run_is_no_surrogate_of_itself(
    suite: str, name: str, trained: Path, tmp_path: Path, command: Command
) -> None:
    run = shutil.copytree(trained, tmp_path / "run")
    shutil.copytree(trained, tmp_path / "copy")
    before = (run / "results.jsonl").read_bytes()
    error = command("evaluate", "run", suite, "--queries", 4, "--surrogate", tmp_path / name).error
    assert f"{name}' {ITSELF}" in error
    assert error.endswith("expected another model: name an undefended run, or one of another seed")
    assert (run / "results.jsonl").read_bytes() == before


@pytest.mark.parametrize(
    "attack",
    ["{name: transfer, attack: {name: embedding_shift}, surrogate: run}", "{name: masking, surrogates: [other, run]}"],
)
def test_nor_is_one_that_a_suites_file_names(
    attack: str, trained: Path, sibling: Path, tmp_path: Path, command: Command
) -> None:
    shutil.copytree(trained, tmp_path / "run")
    shutil.copytree(sibling, tmp_path / "other")
    ball = "engine: {name: pgd, ball: {name: ball, radius: 0.1}, steps: 1, step_size: 0.1}\n"
    (tmp_path / "own.yaml").write_text(f"{ball}attacks:\n  own: {{attack: {attack}}}\n")
    assert f"the surrogate 'run' {ITSELF}" in command("evaluate", "run", "own.yaml", "--queries", 4).error


class Means(nn.Module):
    """The brightness of each quadrant: a model without weights."""

    def forward(self, images: Tensor) -> Tensor:
        return nn.functional.adaptive_avg_pool2d(images, 2).flatten(1)


def images_and_labels() -> tuple[Tensor, Tensor]:
    return torch.rand(12, 1, 8, 8, generator=torch.Generator().manual_seed(0)), torch.arange(12) % 3


def test_a_module_is_no_surrogate_of_itself(trained: Path) -> None:
    network, bare = nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), Means()
    pairs = [(network, network), (network, deepcopy(network)), (network.eval(), deepcopy(network).train())]
    pairs += [(bare, bare), (robustmetric.load(trained), robustmetric.load(trained))]
    for model, surrogate in pairs:
        with pytest.raises(InputError, match=ITSELF):
            robustmetric.evaluate(model, *images_and_labels(), "transfer28", 0.1, surrogate=surrogate)
        with pytest.raises(InputError, match=ITSELF):
            robustmetric.attack(model, *images_and_labels(), "ES", "transfer28", 0.1, surrogate=surrogate)
    with pytest.raises(InputError, match=ITSELF):
        robustmetric.evaluate(robustmetric.load(trained), *images_and_labels(), "transfer28", 0.1, surrogate=trained)


def transferring(surrogate: nn.Module | str) -> Suite:
    source = surrogate if isinstance(surrogate, str) else AtHand("other", surrogate)
    return Suite("s", [Trial("ES", Transfer(EmbeddingShift(), source), PGD(Ball(0.1), 1, 0.1))])


def test_equal_weights_in_another_model_are_another_model(trained: Path, sibling: Path) -> None:
    encoder = Encoder(ConvNet(side=8, kernel=3, widths=(4,), hidden=16, dim=8))
    rounding = Transformed(encoder, [BitDepth(3)])
    # What an adaptive attacker climbs instead of a rounding defence: the gradients are another's.
    for other in (
        Transformed(encoder, [BitDepth(3)], gradient="straight"),
        Transformed(encoder, [BitDepth(2)]),
        encoder,
    ):
        refuse_itself(transferring(other), rounding)
    refuse_itself(transferring(str(sibling)), load_run(trained)[0])
    # Pixel statistics are no weights, and in no checkpoint.
    refuse_itself(transferring(Encoder(encoder.trunk, mean=[0.5], std=[0.5])), encoder)
    # No weights are the same in all models that have none.
    refuse_itself(transferring(Encoder(nn.Flatten())), Encoder(Means()))
    for same in (rounding, deepcopy(rounding)):
        with pytest.raises(InputError, match=f"'other' {ITSELF}"):
            refuse_itself(transferring(same), rounding)


class Rounded(Means):
    """The same, in steps that autograd cannot follow."""

    def forward(self, images: Tensor) -> Tensor:
        return super().forward(images.detach())


@pytest.mark.parametrize("suite", ["transfer28", "masking"])
def test_a_surrogate_without_a_gradient_is_named_before_anything_is_climbed(suite: str, tmp_path: Path) -> None:
    network, out = nn.Sequential(nn.Flatten(), nn.Linear(64, 4)), tmp_path / "run"
    with pytest.raises(InputError, match="the surrogate 'Rounded' gives no gradient of its output"):
        robustmetric.evaluate(network, *images_and_labels(), suite, 0.1, surrogate=Rounded(), out=out)
    assert not out.exists() or {record.kind for record in records.read(out / "results.jsonl")} <= {"clean"}
