"""Projected gradient ascent (Madry et al. 2018) on any function of the input: the engine of attacks and defences."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Literal, get_args

import torch
from torch import Tensor, nn

from robustmetric.errors import InputError
from robustmetric.perturb.active import Rowwise, climb_active
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.fast import fast_view, folded_view
from robustmetric.perturb.gradient import evaluate, value_and_gradient
from robustmetric.types import Embed, Inputs, Value

__all__ = ["PGD", "Rowwise", "View", "evaluate", "frozen", "value_and_gradient"]

View = Literal["exact", "folded", "fast", "compiled"]
"""How an attack sees the model; see `frozen`."""


@dataclass(frozen=True)
class PGD:
    """Climb `value` inside a ball by signed (or unit-gradient) steps; each row climbs its own value.

    A `Rowwise` value is climbed by the rows that still move; the others, which no later step would move, are left out.
    `restarts` starts again at random and keeps the worst result per row. `keep="best"` keeps, per row, the iterate with
    the largest value seen instead of the last one; it costs one more forward pass.
    """

    ball: Ball
    steps: int
    step_size: float
    random_start: bool = True
    restarts: int = 1
    keep: Literal["last", "best"] = "last"

    def __post_init__(self) -> None:
        if self.steps < 0 or self.restarts < 1:
            raise InputError(f"steps={self.steps}, restarts={self.restarts}; expected steps >= 0 and restarts >= 1")
        if not (self.step_size >= 0 and math.isfinite(self.step_size)):
            raise InputError(f"step_size {self.step_size} is no step up; expected a finite number >= 0, such as 1/255")
        if self.restarts > 1 and not self.random_start:
            raise InputError(
                "restarts > 1 without random_start repeats one climb; set random_start: true or restarts: 1"
            )
        if self.keep not in ("last", "best"):
            raise InputError(f"keep {self.keep!r} is not known; expected 'last' or 'best'")

    def __call__(self, value: Value, clean: Inputs, generator: torch.Generator | None = None) -> Inputs:
        """The perturbed inputs, detached, in the ball around `clean`."""
        clean = clean.detach()
        worst, _ = self._climb(value, clean, generator)
        if self.restarts == 1:
            return worst
        worst_value = evaluate(value, worst)
        for _ in range(self.restarts - 1):
            other, _ = self._climb(value, clean, generator)
            other_value = evaluate(value, other)
            worst, worst_value = _keep_larger(worst, worst_value, other, other_value)
        return worst

    def go_on(self, value: Value, clean: Inputs, x: Inputs) -> Inputs:
        """So many steps from `x` on, inside the ball around `clean`."""
        return self._climb_from(x, value, clean.detach())[0]

    def _climb(self, value: Value, clean: Inputs, generator: torch.Generator | None) -> tuple[Inputs, Tensor | None]:
        """One ascent from one start: steps of forward + input gradient, no host synchronisation."""
        return self._climb_from(self.ball.random_point(clean, generator) if self.random_start else clean, value, clean)

    def _climb_from(self, x: Inputs, value: Value, clean: Inputs) -> tuple[Inputs, Tensor | None]:
        if isinstance(value, Rowwise) and self.keep == "last":
            return climb_active(value, x, clean, self.steps, partial(self.ball.ascent, step_size=self.step_size)), None
        best, best_value = x, None
        move = self.ball.ascent(clean, self.step_size)
        for _ in range(self.steps):
            height, gradient = value_and_gradient(value, x)
            if self.keep == "best":
                best, best_value = _keep_larger(best, best_value, x, height)
            x = move(x, gradient)
        if self.keep == "last":
            return x, None
        return _keep_larger(best, best_value, x, evaluate(value, x))


@contextmanager
def frozen(model: nn.Module, view: View = "exact") -> Iterator[Embed]:
    """The model as an attacker sees it: eval mode, no parameter gradients; both restored on exit.

    Other views than "exact" are shadows of the present weights: "folded" has batch norm multiplied into convolutions,
    in fp32, which changes nothing but rounding (evaluations); "fast" is also in bfloat16 on a GPU, on a CPU where the
    training is, and "compiled" also goes through `torch.compile` (training attacks).
    """
    if view not in get_args(View):
        raise InputError(f"view {view!r} is not known; expected {', '.join(map(repr, get_args(View)))}")
    shadow = _shadow(model, view)
    if shadow is not None:
        yield shadow
        return
    modes = [(module, module.training) for module in model.modules()]
    wanted = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    try:
        model.eval()
        for parameter, _ in wanted:
            parameter.requires_grad_(False)
        yield model
    finally:
        for parameter, required in wanted:
            parameter.requires_grad_(required)
        for module, training in modes:
            module.training = training


def _shadow(model: nn.Module, view: View) -> Embed | None:
    if view == "folded":
        return folded_view(model)
    return None if view == "exact" else fast_view(model, compiled=view == "compiled")


def _keep_larger(x: Inputs, value: Tensor | None, other: Inputs, other_value: Tensor) -> tuple[Inputs, Tensor]:
    """Per row, whichever has the larger value; NaN never wins."""
    if value is None:
        return other, other_value
    wins = (other_value > value) | (value.isnan() & ~other_value.isnan())
    # A row of several inputs (Rowwise.width) is kept whole.
    inputs = wins.repeat(len(x) // len(wins)).view(-1, *[1] * (x.dim() - 1))
    return torch.where(inputs, other, x), torch.where(wins, other_value, value)
