"""Hardness manipulation remembers the adversarial loss of the step before, of each group of the batch."""

import pytest
import torch
from small import encoder, paired_batch, seeded
from torch import Tensor, nn

from robustmetric.defences.destinations import Destination, Gradual, Moment
from robustmetric.defences.hardness import HardnessManipulation
from robustmetric.defences.structure import Structure
from robustmetric.losses.mining import Hardest, Random, SoftHard
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD
from robustmetric.types import Batch

LABELS = torch.tensor([0, 0, 1, 1])
# With the nearest negatives: (0, 1, 3) of hardness 1 - 3 = -2, and (3, 3.5, 1) of hardness 0.5 - 2 = -1.5.
LINE = Batch(torch.tensor([[0.0], [1.0], [3.0], [3.5]]), LABELS, torch.arange(4))


def quarters(steps: int = 8) -> PGD:
    """Steps of 0.25, which floats hold exactly, from a clean start."""
    return PGD(Ball(9.0, bounds=(-9.0, 9.0)), steps=steps, step_size=0.25, random_start=False)


def still_start(radius: float = 0.2, steps: int = 6, step_size: float = 0.05) -> PGD:
    return PGD(Ball(radius), steps=steps, step_size=step_size, random_start=False)


class Seen(Destination):
    """A fixed goal that keeps what it was shown."""

    def __init__(self, value: float) -> None:
        self.value, self.losses = value, list[list[float]]()

    def __call__(self, moment: Moment) -> Tensor:
        self.losses.append(moment.last_loss.tolist())
        return torch.full_like(moment.last_loss, self.value)


def test_the_last_loss_starts_high_and_is_the_adversarial_loss_without_structure() -> None:
    seen = Seen(-1.0)
    # The triplets reach -1 (in two steps of 0.5) and -0.5 (in one of 1, as this anchor lies between p and n).
    # The structure term, of the clean ones and with margin 9, is far larger.
    structure = Structure(weight=1.0, margin=9.0, triplet=("a", "p", "n"))
    defence = HardnessManipulation(Hardest(), seen, quarters(), margin=1.5, structure=structure)
    assert defence.last_loss.tolist() == [2.0]
    terms = defence(nn.Identity(), LINE, seeded())
    assert terms["structure"].item() == pytest.approx((9 - 2 + 9 - 1.5) / 2)
    defence(nn.Identity(), LINE, seeded())
    assert defence.last_loss.tolist() == [0.75] and not defence.last_loss.requires_grad
    assert seen.losses == [[2.0, 2.0], [0.75, 0.75]], "one per triplet"


def in_groups(points: list[float], labels: list[int]) -> Batch:
    return Batch(torch.tensor(points)[:, None], torch.tensor(labels), torch.arange(len(points)))


def test_groups_mine_and_remember_each_for_itself_also_where_uneven() -> None:
    # Three pairs and two, no step taken. Hardness: 1 - 3, 0.5 - 2, 1 - 1.5 | 1 - 4, 2 - 3; the loss adds margin 3.
    points = [0.0, 1.0, 3.0, 3.5, 5.0, 6.0, 0.0, 1.0, 4.0, 6.0]
    batch = in_groups(points, [0, 0, 1, 1, 0, 0, 0, 0, 1, 1])
    seen = Seen(-9.0)
    defence = HardnessManipulation(Hardest(), seen, quarters(steps=0), margin=3.0, groups=2)
    assert defence.last_loss.tolist() == [2.0, 2.0]
    terms = defence(nn.Identity(), batch, seeded())
    first, second = (1 + 1.5 + 2.5) / 3, (0 + 2) / 2
    assert defence.last_loss.tolist() == pytest.approx([first, second])
    assert terms["triplet"].item() == pytest.approx((first + second) / 2), "the mean of means, not of all"
    defence(nn.Identity(), batch, seeded())
    assert seen.losses[1] == pytest.approx([first] * 3 + [second] * 2)


def test_a_last_batch_with_fewer_pairs_than_groups_is_trained_on() -> None:
    defence = HardnessManipulation(Random(), Gradual(), quarters(), groups=3)
    terms = defence(nn.Identity(), LINE, seeded())
    assert terms["triplet"].isfinite()
    assert defence.last_loss[2] == 2.0, "a group that had no pair remembers what it knew"
    assert (defence.last_loss[:2] != 2.0).all()


def test_the_last_loss_survives_save_and_load_and_decides_the_next_step() -> None:
    model, batch = encoder(), paired_batch()

    def defence() -> HardnessManipulation:
        return HardnessManipulation(SoftHard(), Gradual(), still_start(), groups=2)

    first = defence()
    first(model, batch, seeded(1))
    other, fresh = defence(), defence()
    other.load_state_dict(first.state_dict())
    assert torch.equal(other.last_loss, first.last_loss) and len(first.last_loss.unique()) == 2
    # Below the margin, so that the goal is another one than at the start.
    for one in (first, other):
        one.last_loss.mul_(0.1)
        one(model, batch, seeded(2))
    fresh(model, batch, seeded(2))
    assert torch.equal(first.measures["goal"], other.measures["goal"])
    assert fresh.measures["goal"].item() == pytest.approx(-0.2) and first.measures["goal"] > -0.19


def test_the_goal_of_a_training_rises_as_the_loss_falls() -> None:
    model, batch = encoder(), paired_batch(4)
    defence = HardnessManipulation(SoftHard(), Gradual(), still_start(0.05, steps=2, step_size=0.02))
    optimiser, goals, losses = torch.optim.Adam(model.parameters(), lr=5e-3), [], []
    for step in range(60):
        loss = defence(model, batch, seeded(step))["triplet"]
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        goals.append(defence.measures["goal"].item())
        losses.append(loss.item())
    assert goals[0] == pytest.approx(-0.2) and goals[-1] > -0.1
    # The goal of a step is minus the loss of the one before, cut at the margin.
    assert goals[1:] == pytest.approx([-min(loss, 0.2) for loss in losses[:-1]], abs=1e-6)
