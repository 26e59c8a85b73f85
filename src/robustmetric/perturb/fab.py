"""FAB: the nearest point across a boundary, by projections on its linearisation (Croce & Hein, ICML 2020, Algorithm 1).

The form of AutoAttack: towards one class at a time, without the last line search.
"""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.perturb.active import Rowwise
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.gradient import evaluate, value_and_gradient
from robustmetric.perturb.search import Search, best_of, per_input
from robustmetric.types import Inputs, Value

LEAST = 1e-8
"""A projection shorter than this counts as this long."""


@dataclass(frozen=True)
class FAB:
    """Walk along the boundary `value = goal` towards the clean input.

    A step goes to the projection of the iterate on the linearised boundary, biased to that of the clean input, and a
    little too far; from across the boundary the iterate goes back towards the clean input. The value must be smooth up
    to the goal, such as the margin towards one class: one that jumps there (a lifted loss) has no linearisation.
    """

    ball: Ball
    steps: int = 100
    restarts: int = 1
    """The first starts at the clean input, the others at random, half a radius away."""
    alpha_max: float = 0.1
    """The largest weight of the clean input's projection."""
    eta: float = 1.05
    """How far a step goes, in lengths of the projection."""
    beta: float = 0.9
    """What is left of the offset after the step back."""
    goal: float = 0.0

    def __post_init__(self) -> None:
        if self.steps < 1 or self.restarts < 1:
            raise InputError(f"steps={self.steps}, restarts={self.restarts}; expected 1 or more of each")
        for name, share in (("alpha_max", self.alpha_max), ("beta", self.beta)):
            if not 0 <= share <= 1:
                raise InputError(f"{name}={share} is no share; expected a number in [0, 1]")
        if not (self.eta >= 1 and math.isfinite(self.eta)):
            raise InputError(f"eta={self.eta} stops before the boundary; expected a finite number >= 1, such as 1.05")

    def __call__(self, value: Value, clean: Inputs, generator: torch.Generator | None = None) -> Inputs:
        """A point of the ball across the boundary, else the clean input; rows that have one are done."""
        points, distances = self._search(value, clean.detach(), generator, enough=self.ball.radius)
        return torch.where(per_input(distances <= self.ball.radius, clean), points, clean)

    def closest(
        self, value: Value, clean: Inputs, generator: torch.Generator | None = None
    ) -> tuple[Inputs, Float[Tensor, " rows"]]:
        """The nearest point found across the boundary, and its distance, whatever the radius: infinite without one."""
        return self._search(value, clean.detach(), generator, enough=0.0)

    def _search(
        self, value: Value, clean: Inputs, generator: torch.Generator | None, *, enough: float
    ) -> tuple[Inputs, Tensor]:
        """Rows leave once they are across at a distance that is `enough`."""
        if isinstance(value, Rowwise) and value.width > 1:
            raise InputError(f"FAB moves one input per row, not {value.width}; use apgd for rows of several inputs")
        half = replace(self.ball, radius=self.ball.radius / 2)

        def walk(value: Value, clean: Inputs, before: int) -> tuple[Inputs, Tensor]:
            start = half.edge_point(clean, generator) if before else clean
            return self._walk(value, start, clean, enough)

        points, height = best_of(walk, value, clean, times=self.restarts, goal=-enough)
        return points, -height

    def _walk(self, value: Value, start: Inputs, clean: Inputs, enough: float) -> tuple[Inputs, Tensor]:
        """The nearest points and minus their distances."""
        across = evaluate(value, clean) >= self.goal
        search = Search(value, clean, torch.zeros_like(across, dtype=clean.dtype).where(across, -torch.inf), -enough)
        now = _Walk(clean=clean, x=start)
        for _ in range(self.steps):
            x = self._step(search.value, now.x, now.clean)
            across = evaluate(search.value, x) >= self.goal
            search.offer(x, torch.where(across, -self.ball.distance(x, now.clean), -torch.inf))
            back = now.clean + self.beta * (x - now.clean)
            now = search.narrowed(replace(now, x=torch.where(per_input(across, x), back, x)))
            if search.over:
                break
        return search.result()

    def _step(self, value: Value, x: Inputs, clean: Inputs) -> Inputs:
        """(1 - alpha) (x + eta d) + alpha (clean + eta d0), where d and d0 lead to the linearised boundary."""
        height, gradient = value_and_gradient(value, x)
        # value(y) = goal where <gradient, y> = level, to first order.
        level = self.goal - height + (gradient * x).flatten(1).sum(dim=1)
        to_x, to_clean = (self.to_hyperplane(y, gradient, level) for y in (x, clean))
        length, clean_length = (self.ball.distance(d, torch.zeros_like(d)).clamp_min(LEAST) for d in (to_x, to_clean))
        alpha = per_input((length / (length + clean_length)).clamp_max(self.alpha_max), x)
        return ((1 - alpha) * (x + self.eta * to_x) + alpha * (clean + self.eta * to_clean)).clamp(*self.ball.bounds)

    def to_hyperplane(self, x: Inputs, normal: Inputs, level: Float[Tensor, " batch"]) -> Inputs:
        """The shortest d with <normal, x + d> = level and x + d in the bounds; as near as these let it where none is.

        In both norms d_i = direction_i * min(t, most_i): the length t at which sum_i slope_i min(t, most_i) is the gap.
        """
        flat, weights = x.flatten(1), normal.flatten(1)
        gap = level - (weights * flat).sum(dim=1)
        towards = weights * gap.sign()[:, None]
        low, high = self.ball.bounds
        room = torch.where(towards > 0, high - flat, flat - low).clamp_min(0)
        if self.ball.norm == "linf":
            slope, most, direction = weights.abs(), room, towards.sign()
        else:
            slope, most, direction = weights.square(), room / weights.abs().clamp_min(1e-12), towards
        t = _filled(slope, most, gap.abs())
        return (direction * torch.minimum(t[:, None], most)).view_as(x)


@dataclass(frozen=True)
class _Walk:
    clean: Inputs
    x: Inputs


def _filled(
    slope: Float[Tensor, "batch features"], most: Float[Tensor, "batch features"], amount: Float[Tensor, " batch"]
) -> Float[Tensor, " batch"]:
    """The t with sum_i slope_i min(t, most_i) = amount, exact; the largest `most` where they do not add up to it."""
    most, order = most.sort(dim=1)
    slope = slope.gather(1, order)
    # Until t = most_k the features before k are at their most, and those from k on rise.
    before = (slope * most).cumsum(dim=1) - slope * most
    rising = slope.flip(1).cumsum(dim=1).flip(1)
    k = (before + rising * most < amount[:, None]).sum(dim=1).clamp_max(most.shape[1] - 1)[:, None]
    t = (amount[:, None] - before.gather(1, k)) / rising.gather(1, k).clamp_min(1e-30)
    return torch.minimum(t, most.gather(1, k)).clamp_min(0)[:, 0]
