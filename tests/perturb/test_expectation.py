"""Expectation over transformation: the mean and its gradient by hand, memory of one draw, and what it is for."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.perturb.active import Rowwise
from robustmetric.perturb.apgd import APGD
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.engine import in_ball
from robustmetric.perturb.expectation import Expectation, mean_of
from robustmetric.perturb.gradient import evaluate, value_and_gradient
from robustmetric.perturb.gradient_free import Square
from robustmetric.perturb.pgd import PGD

BALL = Ball(0.1)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(autouse=True)
def own_random_numbers() -> Iterator[None]:
    """Randomised models draw from torch's global generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def in_turn(*factors: float) -> tuple[Rowwise, list[float]]:
    """factor * sum(x) - offset of the row, each call with the next factor; and the factors used."""
    used: list[float] = []

    def rows(x: Tensor, offset: Tensor) -> Tensor:
        used.append(factors[len(used) % len(factors)])
        return used[-1] * x.flatten(1).sum(dim=1) - offset

    return Rowwise(rows, (torch.tensor([0.0, 1.0]),)), used


def test_mean_and_gradient_by_hand() -> None:
    value, used = in_turn(1.0, 2.0, 6.0)
    x = torch.tensor([[1.0, 1.0], [2.0, 0.0]])
    # The factors' mean is 3: 3 * 2 - 0 and 3 * 2 - 1, with slope 3.
    height, gradient = value_and_gradient(mean_of(value, 3), x)
    assert height.tolist() == [6, 5] and torch.equal(gradient, torch.full((2, 2), 3.0)) and len(used) == 3
    assert evaluate(mean_of(value, 3), x).tolist() == [6, 5] and len(used) == 6
    # One row alone, with its own offset; and a value that is not Rowwise.
    mean = mean_of(value, 3)
    assert isinstance(mean, Rowwise)
    assert evaluate(mean.some(torch.tensor([1])), x[1:]).tolist() == [5]
    height, gradient = value_and_gradient(mean_of(lambda y: value(y), 3), x)
    assert height.tolist() == [6, 5] and torch.equal(gradient, torch.full((2, 2), 3.0))


def test_each_row_keeps_its_own_slope_where_something_is_done_with_the_mean() -> None:
    value, _ = in_turn(1.0, 3.0)
    x = torch.tensor([[1.0], [2.0]])
    # (mean)^2 with mean 2 x - offset: slope 2 (2 x - offset) 2, which is 8 and 12.
    _, gradient = value_and_gradient(lambda y: mean_of(value, 2)(y).square(), x)
    assert gradient[:, 0].tolist() == [8, 12]


def test_one_graph_is_held_at_a_time() -> None:
    alive = most = 0

    class Held(torch.autograd.Function):
        @staticmethod
        def forward(ctx: object, x: Tensor) -> Tensor:
            nonlocal alive, most
            alive += 1
            most = max(most, alive)
            return x.sum(dim=1)

        @staticmethod
        def backward(ctx: object, outer: Tensor) -> Tensor:
            nonlocal alive
            alive -= 1
            return outer[:, None].expand(-1, 3)

    value_and_gradient(mean_of(Held.apply, 8), torch.zeros(2, 3))
    assert most == 1 and alive == 0


def test_one_draw_of_a_model_without_chance_is_the_engine_itself() -> None:
    clean = torch.rand(4, 1, 6, 6, generator=seeded())

    def value(x: Tensor) -> Tensor:
        return torch.sin(9 * x).flatten(1).sum(dim=1)

    for engine in (PGD(BALL, 5, 0.03), APGD(BALL, steps=5), Square(BALL, queries=20)):
        for draws in (1, 4):
            moved = Expectation(BALL, engine, draws)(value, clean, seeded(1))
            torch.testing.assert_close(moved, engine(value, clean, seeded(1)))


def test_it_climbs_what_one_draw_at_a_time_hardly_does() -> None:
    """The slope is the weights, in noise of ten times their size: signs of single draws are near chance."""
    weights = torch.randn(1, 200, generator=seeded(2))

    def value(x: Tensor) -> Tensor:
        noise = 10 * torch.randn(x.shape)
        return ((weights + noise) * x).sum(dim=1)

    clean = torch.full((4, 200), 0.5)
    engine = PGD(BALL, steps=3, step_size=0.07, random_start=False)

    def gain(moved: Tensor) -> float:
        return float((weights * (moved - clean)).sum(dim=1).mean() / (0.1 * weights.abs().sum()))

    assert gain(engine(value, clean)) < 0.4
    assert gain(Expectation(BALL, engine, draws=400)(value, clean)) > 0.8


def test_rows_reach_a_goal_by_their_mean() -> None:
    """Heads in one draw of two is not enough: the goal is 1, and the mean of 0 and 1 is 1/2."""
    value, _ = in_turn(0.0, 1.0)
    clean = torch.full((2, 1), 0.95)
    engine = APGD(Ball(0.5), steps=4, goal=1.0)
    moved = Expectation(Ball(0.5), engine, draws=2)(value, clean, seeded())
    assert (evaluate(mean_of(value, 2), moved) < 1).all() and moved[0].item() == 1


def test_its_ball_is_the_engines_with_the_step_in_proportion() -> None:
    engine = PGD(Ball(0.25), steps=3, step_size=0.5)
    assert in_ball(engine, Ball(0.125, norm="l2")) == PGD(Ball(0.125, norm="l2"), steps=3, step_size=0.25)
    assert in_ball(Square(Ball(0.2)), BALL) == Square(BALL)
    clean = torch.full((2, 1), 0.5)
    small = PGD(Ball(0.2), steps=1, step_size=0.1, random_start=False)
    moved = Expectation(BALL, small, draws=2)(lambda x: x[:, 0], clean)
    torch.testing.assert_close(moved, torch.full((2, 1), 0.55))
    # A radius of 0 has no step to scale.
    assert in_ball(PGD(Ball(0.0), steps=3, step_size=0.1), BALL) == PGD(BALL, steps=3, step_size=0.1)


def test_the_same_seeds_give_the_same_result() -> None:
    def value(x: Tensor) -> Tensor:
        return (x * torch.randn(x.shape)).sum(dim=1)

    clean = torch.full((2, 5), 0.5)
    engine = Expectation(BALL, APGD(BALL, steps=4), draws=3)
    results = []
    for seed in (7, 7, 8):
        torch.manual_seed(seed)
        results.append(engine(value, clean, seeded()))
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])


def test_no_draws_have_no_mean() -> None:
    with pytest.raises(InputError, match="draws=0 have no mean"):
        Expectation(BALL, APGD(BALL), draws=0)
