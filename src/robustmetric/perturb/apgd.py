"""APGD: ascent that sets its own step sizes (Croce & Hein, ICML 2020, Algorithm 1)."""

from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.gradient import evaluate, value_and_gradient
from robustmetric.perturb.search import Search, best_of, per_input
from robustmetric.types import Inputs, Value

FIRST, SHORTER, SHORTEST = 0.22, 0.03, 0.06
"""The first stretch between checkpoints, by how much each is shorter than the last, and the shortest: shares of all."""


@dataclass(frozen=True)
class APGD:
    """Climb `value` by steps of twice the radius with momentum, halved per row where they no longer help.

    At a checkpoint, a row whose value rose in too few of its steps (a share of `rho` or less), or whose best value and
    step size are those of the checkpoint before, halves its step and goes back to its best point. The best is kept.
    """

    ball: Ball
    steps: int = 100
    restarts: int = 1
    rho: float = 0.75
    momentum: float = 0.75
    """The weight of the new step; that of the last one is 1 - momentum."""
    goal: float | None = None
    """A row whose value reaches this is done, and keeps the point at which it did."""

    def __post_init__(self) -> None:
        if self.steps < 1 or self.restarts < 1:
            raise InputError(f"steps={self.steps}, restarts={self.restarts}; expected 1 or more of each")
        for name, share in (("rho", self.rho), ("momentum", self.momentum)):
            if not 0 <= share <= 1:
                raise InputError(f"{name}={share} is no share; expected a number in [0, 1], such as 0.75")

    def __call__(self, value: Value, clean: Inputs, generator: torch.Generator | None = None) -> Inputs:
        """The perturbed inputs, detached, in the ball around `clean`."""
        return best_of(
            lambda value, clean, _: self._climb(value, clean, generator),
            value,
            clean.detach(),
            times=self.restarts,
            goal=self.goal,
        )[0]

    def _climb(self, value: Value, clean: Inputs, generator: torch.Generator | None) -> tuple[Inputs, Tensor]:
        """One ascent from a random start, no host synchronisation but that of rows that leave."""
        start = self.ball.edge_point(clean, generator)
        height, gradient = value_and_gradient(value, start)
        search = Search(value, *self._unless_won(value, clean, start, height), self.goal)
        now = _Climb.start(clean, start, height, gradient, step_size=2 * self.ball.radius)
        for step, stretch in enumerate(stretches(self.steps)):
            now = self._step(now, search, momentum=self.momentum if step else 1.0)
            if stretch:
                now = self._check(now, search, stretch)
            now = search.narrowed(now)
            if search.over:
                break
        return search.result()

    def _unless_won(self, value: Value, clean: Inputs, start: Inputs, height: Tensor) -> tuple[Inputs, Tensor]:
        """The start and its height, or the clean input's where that is at the goal already."""
        if self.goal is None:
            return start, height
        at_clean = evaluate(value, clean)
        won = at_clean >= self.goal
        return torch.where(per_input(won, clean), clean, start), torch.where(won, at_clean, height)

    def _step(self, now: "_Climb", search: Search, *, momentum: float) -> "_Climb":
        """x' = P(x + momentum (P(x + step * steepest) - x) + (1 - momentum) (x - previous))."""
        x = now.x
        ahead = self.ball.project(x + per_input(now.step_size, x) * self.ball.steepest(now.gradient), now.clean)
        new = self.ball.project(x + momentum * (ahead - x) + (1 - momentum) * (x - now.previous), now.clean)
        height, gradient = value_and_gradient(search.value, new)
        better = search.offer(new, height)
        return replace(
            now,
            x=new,
            previous=x,
            gradient=gradient,
            best_gradient=torch.where(per_input(better, x), gradient, now.best_gradient),
            height=height,
            rises=now.rises + (height > now.height),
        )

    def _check(self, now: "_Climb", search: Search, stretch: int) -> "_Climb":
        """Where condition 1 or 2 of the paper holds, halve the step and go back to the best point."""
        # The first step is compared with the start; the authors' code compares it with 0.
        few_rises = now.rises <= self.rho * stretch
        stands_still = ~now.is_halved & ~(search.height > now.best_before)
        halve = few_rises | stands_still
        back = per_input(halve, now.x)
        return replace(
            now,
            x=torch.where(back, search.best, now.x),
            gradient=torch.where(back, now.best_gradient, now.gradient),
            step_size=torch.where(halve, now.step_size / 2, now.step_size),
            rises=torch.zeros_like(now.rises),
            best_before=search.height,
            is_halved=halve,
        )


@dataclass(frozen=True)
class _Climb:
    """Where the rows of a climb stand."""

    clean: Inputs
    x: Inputs
    previous: Inputs
    gradient: Inputs
    best_gradient: Inputs
    height: Float[Tensor, " rows"]
    step_size: Float[Tensor, " rows"]
    rises: Int[Tensor, " rows"]
    """Steps since the last checkpoint that led higher than the one before."""
    best_before: Float[Tensor, " rows"]
    """The best height at the last checkpoint."""
    is_halved: Bool[Tensor, " rows"]
    """Whether the step was halved there."""

    @classmethod
    def start(cls, clean: Inputs, x: Inputs, height: Tensor, gradient: Inputs, *, step_size: float) -> "_Climb":
        return cls(
            clean=clean,
            x=x,
            previous=x,
            gradient=gradient,
            best_gradient=gradient,
            height=height,
            step_size=torch.full_like(height, step_size),
            rises=torch.zeros_like(height, dtype=torch.long),
            best_before=height,
            is_halved=torch.ones_like(height, dtype=torch.bool),
        )


def stretches(steps: int) -> list[int]:
    """For each step, how many have passed since the checkpoint before where one is due after it, else 0.

    p_1 = 0.22 and p_(j+1) = p_j + max(p_j - p_(j-1) - 0.03, 0.06), in whole steps rounded as in the authors' code.
    """
    length, shorter, shortest = (max(int(share * steps), 1) for share in (FIRST, SHORTER, SHORTEST))
    due = [0] * steps
    last = -1
    while last + length < steps:
        last += length
        due[last] = length
        length = max(length - shorter, shortest)
    return due
