"""Expectation over transformation (Athalye et al., ICML 2018): climb the mean value of a model that draws at random."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.perturb.active import Rowwise
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.engine import Engine, goal_of, in_ball
from robustmetric.perturb.gradient import evaluate, value_and_gradient
from robustmetric.perturb.search import per_input
from robustmetric.types import Inputs, Value


@dataclass(frozen=True)
class Expectation:
    """Another engine, climbing the mean of several draws of the value, each a pass of a model that is random inside.

    Such a model draws from torch's global generator, so what it draws repeats after `torch.manual_seed`. A goal is
    reached where the mean reaches it. Memory is that of one draw.
    """

    ball: Ball
    engine: Engine
    """Its ball is replaced by this one's, its step size scaled with the radius."""
    draws: int = 20

    def __post_init__(self) -> None:
        if self.draws < 1:
            raise InputError(f"draws={self.draws} have no mean; expected 1 or more, such as 20")

    @property
    def goal(self) -> float | None:
        """That of the engine it runs."""
        return goal_of(self.engine)

    def __call__(self, value: Value, clean: Inputs, generator: torch.Generator | None = None) -> Inputs:
        """The perturbed inputs, as the engine gives them."""
        return in_ball(self.engine, self.ball)(mean_of(value, self.draws), clean, generator)


def mean_of(value: Value, draws: int) -> Value:
    """The mean of so many calls of a value; of a `Rowwise` one, still of any of its rows."""
    if isinstance(value, Rowwise):
        drawn = value.value
        return replace(value, value=lambda x, *constants: _mean(lambda y: drawn(y, *constants), x, draws))
    return lambda x: _mean(value, x, draws)


def _mean(value: Callable[[Tensor], Tensor], x: Inputs, draws: int) -> Tensor:
    if not x.requires_grad:
        return torch.stack([evaluate(value, x) for _ in range(draws)]).mean(dim=0)
    return cast(Tensor, _Mean.apply(x, value, draws))


class _Mean(torch.autograd.Function):
    """The gradient is taken draw by draw on the way forward, so that one graph is in memory at a time."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, value: Value, draws: int) -> Tensor:
        height, gradient = value_and_gradient(value, x)
        for _ in range(draws - 1):
            other_height, other_gradient = value_and_gradient(value, x)
            height, gradient = height + other_height, gradient + other_gradient
        ctx.save_for_backward(gradient / draws)
        return height / draws

    @staticmethod
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor, None, None]:
        (gradient,) = ctx.saved_tensors
        return gradient * per_input(outer[0], gradient), None, None
