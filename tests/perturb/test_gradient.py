"""A value and its gradient; a value without one is refused in words."""

import pytest
import torch
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.perturb.apgd import APGD
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.engine import Engine
from robustmetric.perturb.expectation import Expectation
from robustmetric.perturb.fab import FAB
from robustmetric.perturb.gradient import value_and_gradient
from robustmetric.perturb.gradient_free import NES, Square
from robustmetric.perturb.hard_label import RayS
from robustmetric.perturb.local_search import LocalSearch
from robustmetric.perturb.pgd import PGD
from robustmetric.types import Value

WEIGHT = torch.ones((), requires_grad=True)


def test_value_and_gradient_by_hand() -> None:
    height, gradient = value_and_gradient(lambda x: x.square().sum(dim=1), torch.tensor([[1.0, 2.0], [3.0, 0.0]]))
    assert height.tolist() == [5, 9] and gradient.tolist() == [[2, 4], [6, 0]]


@pytest.mark.parametrize(
    "engine",
    [
        PGD(Ball(0.1), steps=2, step_size=0.05, keep="best"),
        APGD(Ball(0.1), steps=4),
        FAB(Ball(0.1), steps=2),
        Square(Ball(0.1), queries=5),
        RayS(Ball(0.1), queries=5),
        LocalSearch(Ball(0.1), rounds=2),
        NES(Ball(0.1), steps=2, step_size=0.05, samples=2),
        Expectation(Ball(0.1), APGD(Ball(0.1), steps=4), draws=2),
    ],
)
def test_a_value_of_double_precision_leaves_the_inputs_as_they_are(engine: Engine) -> None:
    seen = set()

    def value(x: Tensor) -> Tensor:
        seen.add(x.dtype)
        return x.flatten(1).sum(dim=1).double() - 8

    moved = engine(value, torch.full((2, 1, 4, 4), 0.5), torch.Generator().manual_seed(0))
    assert seen == {torch.float32} and moved.dtype == torch.float32


@torch.no_grad()
def severed(x: Tensor) -> Tensor:
    return x.flatten(1).sum(dim=1)


@pytest.mark.parametrize("value", [severed, lambda x: WEIGHT * severed(x)])
def test_a_value_without_a_gradient_is_refused_where_one_is_needed(value: Value) -> None:
    clean = torch.full((2, 1, 4, 4), 0.5)
    with pytest.raises(InputError, match=r"gives no gradient .* engine that asks for values alone: square"):
        APGD(Ball(0.1), steps=2)(value, clean, torch.Generator().manual_seed(0))
    moved = Square(Ball(0.1), queries=20)(value, clean, torch.Generator().manual_seed(0))
    assert (severed(moved) > severed(clean)).all()


def in_place(x: Tensor) -> Tensor:
    x.mul_(2)
    return x.flatten(1).sum(dim=1)


@pytest.mark.parametrize("value", [in_place, lambda x: torch.from_numpy(x.numpy()).flatten(1).sum(dim=1)])
def test_a_value_that_fails_for_the_gradient_s_sake_is_told_so(value: Value) -> None:
    x = torch.ones(2, 1, 2, 2)
    with pytest.raises(InputError, match=r"fails where its input asks for a gradient \(.+\); expected one that"):
        value_and_gradient(value, x)
    assert torch.equal(x, torch.ones(2, 1, 2, 2))
    with pytest.raises(RuntimeError, match="mat1 and mat2"):  # not the gradient's fault: as it is
        value_and_gradient(lambda x: (x.flatten(1) @ torch.ones(3, 1))[:, 0], x)
