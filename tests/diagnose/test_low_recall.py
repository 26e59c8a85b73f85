"""The examination of honest encoders that find few neighbours without any attack."""

import pytest
import torch
from torch import Tensor, nn

from robustmetric.attacks.transfer import Surrogate
from robustmetric.diagnose.examine import examine
from robustmetric.diagnose.masking import Examination, Masking
from robustmetric.diagnose.subject import Subject, retrieval_subject
from robustmetric.diagnose.verdict import overall
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD
from robustmetric.types import Batch, Gallery

EFFORT = Masking(
    restarts=2, starts=3, start_steps=20, counts=(1, 10, 50), sizes=(0.5, 1.0, 2.0), apgd_steps=20, queries=100
)
ENGINE = PGD(Ball(0.03), steps=10, step_size=0.0075)


class Linear(nn.Module):
    """Pixels in [0, 1] through one matrix: nothing about it could hide a gradient. Several side by side, if asked."""

    def __init__(self, members: int = 1, seed: int = 0) -> None:
        super().__init__()
        weight = torch.randn(members, 64, 32, generator=torch.Generator().manual_seed(seed))
        self.weight = nn.Parameter(weight)

    def forward(self, inputs: Tensor) -> Tensor:
        z = (inputs.flatten(1) - 0.5) @ self.weight
        return nn.functional.normalize(z, dim=2).transpose(0, 1).flatten(1) / len(self.weight) ** 0.5


def faint(share: float, count: int = 200, classes: int = 20) -> Batch:
    """Images of classes that show through noise alone."""
    source = torch.Generator().manual_seed(1)
    points, labels = torch.rand(classes, 64, generator=source), torch.arange(count) % classes
    inputs = share * points[labels] + (1 - share) * torch.rand(count, 64, generator=source)
    return Batch(inputs.view(-1, 1, 8, 8), labels, torch.arange(count))


def searched(model: nn.Module, batch: Batch, **how: object) -> Subject:
    with torch.no_grad():
        gallery = Gallery(model(batch.inputs), batch.labels)
    return retrieval_subject(model, batch, gallery, chance=4.5, **how)  # type: ignore[arg-type]  # given by each test


@pytest.mark.parametrize("share", [0.2, 0.3])
def test_an_honest_encoder_that_is_often_wrong_is_not_said_to_be_masked(share: float) -> None:
    one = searched(Linear(), faint(share))
    generator = torch.Generator().manual_seed(0)
    right = Examination(one, ENGINE, EFFORT, generator).right()
    assert 0.05 < float(right.float().mean()) < 0.5, "its neighbours are wrong more often than not"
    found = {verdict.name: verdict for verdict in examine(one, ENGINE, EFFORT, generator)}
    failed = {name: verdict.said for name, verdict in found.items() if verdict.verdict == "fail"}
    assert not failed and overall(list(found.values())) != "masked"
    assert found["zero_gradients"].verdict == found["loss_curves"].verdict == "pass"


def test_a_vote_is_transferred_to_from_a_model_with_other_members_or_none() -> None:
    batch, model = faint(0.5, count=60), Linear(members=3)
    others = {"one": Linear(seed=5), "two": Linear(members=2, seed=6), "five": Linear(members=5, seed=7)}
    # The target's 96 numbers are no five members side by side.
    others["own"] = Linear(members=3)
    with torch.no_grad():
        sources = {
            name: Surrogate(other, Gallery(other(batch.inputs), batch.labels), len(other.weight))
            for name, other in others.items()
        }
    one = searched(model, batch, members=3, surrogates=sources)
    verdicts = examine(one, PGD(Ball(0.15), 10, 0.04), EFFORT, torch.Generator().manual_seed(0))
    found = {verdict.name: verdict for verdict in verdicts}["black_box"]
    clean = 100 * float(Examination(one, ENGINE, EFFORT, None).right().float().mean())
    # What is found on the same weights is what the white-box attack finds; on others, less, but not nothing.
    assert found.numbers["own"] == pytest.approx(found.numbers["white-box"], abs=5)
    for name in ("one", "two", "five"):
        assert found.numbers["own"] <= found.numbers[name] < clean
