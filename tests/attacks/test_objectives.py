"""The formula sheet against arithmetic, and the direction in which each formula pulls."""

import math

import pytest
import torch
from circle import at, chord, seeded, slope
from torch import Tensor

from robustmetric.attacks.objectives import (
    FAR,
    alignment,
    approach,
    demotion,
    misranking,
    nudged,
    promotion,
    shift,
)

OTHERS = torch.tensor([[[1.0, 2.0, 4.0]]])
INFINITY = math.inf


def test_shift_is_the_distance_moved_and_grows_away_from_the_origin() -> None:
    z = at(60, 30).requires_grad_()
    value = shift(z, at(0, 90))
    assert value.tolist() == pytest.approx([chord(60), chord(60)])
    # Row 0 lies counter-clockwise of its origin, row 1 clockwise. d chord(t)/dt = cos(t/2).
    assert slope(value, z).tolist() == pytest.approx([math.cos(math.radians(30)), -math.cos(math.radians(30))])


def test_approach_is_minus_the_distance_and_pulls_to_the_target() -> None:
    z = at(60, 30).requires_grad_()
    value = approach(z, at(0, 90))
    assert value.tolist() == pytest.approx([-chord(60), -chord(60)])
    assert slope(value, z).tolist() == pytest.approx([-math.cos(math.radians(30)), math.cos(math.radians(30))])


def test_alignment_is_the_cosine_and_pulls_to_the_target() -> None:
    z = at(60, 60).requires_grad_()
    value = alignment(z, at(0, 90))
    assert value.tolist() == pytest.approx([0.5, math.sqrt(3) / 2])
    # d cos(t)/dt = -sin(t): away from 0 degrees it falls, towards 90 it rises.
    assert slope(value, z).tolist() == pytest.approx([-math.sqrt(3) / 2, 0.5])


def test_alignment_does_not_depend_on_lengths() -> None:
    torch.testing.assert_close(alignment(3 * at(60, 60), 5 * at(0, 90)), alignment(at(60, 60), at(0, 90)))


def test_nudge_is_a_hundred_thousandth_long_in_any_direction() -> None:
    origin = at(*range(0, 360, 2))
    moved = nudged(origin, seeded(0)) - origin
    torch.testing.assert_close(moved.norm(dim=1), torch.full((180,), 1e-5, dtype=torch.float64))
    assert (moved.mean(dim=0).abs() < 3e-6).all()
    assert torch.equal(nudged(origin, seeded(0)), nudged(origin, seeded(0)))


def test_promotion_by_hand() -> None:
    # 2 - (1, 2, 4): only 1 is before it: -(1 + 0 + 0) / 3
    assert promotion(torch.tensor([[2.0]]), OTHERS).item() == pytest.approx(-1 / 3)
    # and 3 - (1, 2, 4) gives 2 + 1 + 0: -(1 + 3) / 6
    assert promotion(torch.tensor([[2.0, 3.0]]), OTHERS).item() == pytest.approx(-4 / 6)
    assert promotion(torch.tensor([[1.0]]), OTHERS).item() == 0


def test_demotion_by_hand() -> None:
    # (1, 2, 4) - 2: only 4 is after it: -2 / 3
    assert demotion(torch.tensor([[2.0]]), OTHERS).item() == pytest.approx(-2 / 3)
    # and (1, 2, 4) - 3 gives 1: -(2 + 1) / 6
    assert demotion(torch.tensor([[2.0, 3.0]]), OTHERS).item() == pytest.approx(-3 / 6)
    assert demotion(torch.tensor([[4.0]]), OTHERS).item() == 0


def test_each_chosen_item_may_have_a_list_of_its_own() -> None:
    lists = torch.tensor([[[1.0, 2.0, 4.0], [0.0, 3.0, 9.0]]])
    chosen = torch.tensor([[2.0, 3.0]])
    # 2 in (1, 2, 4): 1 before, 2 to go; 3 in (0, 3, 9): 3 before, 6 to go
    assert promotion(chosen, lists).item() == pytest.approx(-(1 + 3) / 6)
    assert demotion(chosen, lists).item() == pytest.approx(-(2 + 6) / 6)


def test_items_infinitely_far_are_no_part_of_the_list() -> None:
    chosen = torch.tensor([[2.0, 3.0]], requires_grad=True)
    # 2 in (1, -, 4) and 3 in (-, 2, -): 1 and 1 before them, 2 and 0 to go, of lists of two and of one.
    lists = torch.tensor([[[1.0, INFINITY, 4.0], [INFINITY, 2.0, INFINITY]]], requires_grad=True)
    for objective, expected in ((promotion, -(1 / 2 + 1) / 2), (demotion, -(2 / 2 + 0) / 2)):
        value = objective(chosen, lists)
        assert value.item() == pytest.approx(expected)
        gradients = torch.autograd.grad(value.sum(), (chosen, lists))
        assert all(gradient.isfinite().all() for gradient in gradients)
        assert (gradients[1][lists.isinf()] == 0).all()
        # Of nobody but itself it is first and last.
        assert objective(chosen, torch.full((1, 1, 3), INFINITY)).item() == 0


def test_gradients_bring_the_chosen_nearer_or_farther() -> None:
    chosen = torch.tensor([[2.0]], requires_grad=True)
    (up,) = torch.autograd.grad(promotion(chosen, OTHERS).sum(), chosen)
    (down,) = torch.autograd.grad(demotion(chosen, OTHERS).sum(), chosen)
    # One of three items is before it, one after it.
    assert up.item() == pytest.approx(-1 / 3) and down.item() == pytest.approx(1 / 3)


def test_misranking_by_hand() -> None:
    same = torch.tensor([[True, True, False, False]])

    def value(*distances: float) -> Tensor:
        return misranking(torch.tensor([distances]), same)

    # farthest other 2.0, nearest own 0.5
    assert value(0.5, 0.7, 1.0, 2.0).item() == pytest.approx(-1.5)
    # every other class is nearer than the own one
    assert value(2.5, 2.6, 1.0, 2.0).item() == 0
    # the query itself (infinitely far) counts neither as own class nor as another
    assert value(0.5, INFINITY, 1.0, 2.0).item() == pytest.approx(-1.5)
    assert value(0.5, 0.7, 1.0, INFINITY).item() == pytest.approx(-0.5)
    assert value(0.5, 0.7, 1.0, FAR).item() == pytest.approx(-0.5)


def test_misranking_without_own_class_has_nothing_to_gain() -> None:
    distances = torch.tensor([[0.5, 0.7, 1.0]], requires_grad=True)
    value = misranking(distances, torch.zeros(1, 3, dtype=torch.bool))
    (gradient,) = torch.autograd.grad(value.sum(), distances)
    assert value.item() == 0 and torch.equal(gradient, torch.zeros(1, 3))


def test_misranking_without_other_classes_has_nothing_to_gain() -> None:
    assert misranking(torch.tensor([[0.5, 0.7]]), torch.ones(1, 2, dtype=torch.bool)).item() == 0


def test_misranking_pushes_the_own_class_away_and_pulls_the_farthest_other() -> None:
    distances = torch.tensor([[0.5, 0.7, 1.0, 2.0]], requires_grad=True)
    value = misranking(distances, torch.tensor([[True, True, False, False]]))
    (gradient,) = torch.autograd.grad(value.sum(), distances)
    assert gradient.tolist() == [[1.0, 0.0, 0.0, -1.0]]
