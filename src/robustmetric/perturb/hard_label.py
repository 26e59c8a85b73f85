"""RayS: the nearest boundary along sign directions, found from labels alone (Chen & Gu, KDD 2020)."""

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.gradient import evaluate
from robustmetric.perturb.search import Search, per_input
from robustmetric.types import Inputs, Value

TOLERANCE = 1e-3
"""Where the search along a ray ends, as l2 distance."""


@dataclass(frozen=True)
class RayS:
    """Search l-inf balls with a value's answer to one question: does it reach the goal?

    A direction is a sign per input feature. Blocks of it are turned over, halves of the last level's blocks; a turned
    direction that still wins at the distance of the best one is searched for its boundary by halving. Every row asks
    one question at a time, for its own block and distance: the batch waits for nobody.
    """

    ball: Ball
    queries: int = 10_000
    """Per input, in all: the first is the clean input."""
    goal: float = 0.0
    """A row whose value reaches this has won; margins and minus ranks end at 0."""

    def __post_init__(self) -> None:
        if self.ball.norm != "linf":
            raise InputError(f"RayS searches l-inf balls, not {self.ball.norm!r}; set norm: linf, or use fab")
        if self.queries < 2:
            raise InputError(f"{self.queries} queries leave nothing to search; expected at least 2")

    def __call__(self, value: Value, clean: Inputs, generator: torch.Generator | None = None) -> Inputs:
        """A point of the ball where a row has won, else the clean input; nothing is drawn at random."""
        points, distances = self._search(value, clean.detach(), enough=self.ball.radius)
        return torch.where(per_input(distances <= self.ball.radius, clean), points, clean)

    def closest(self, value: Value, clean: Inputs) -> tuple[Inputs, Float[Tensor, " rows"]]:
        """The nearest winning point of each row, and its distance, whatever the radius: infinite without one."""
        return self._search(value, clean.detach(), enough=0.0)

    @torch.no_grad()
    def _search(self, value: Value, clean: Inputs, *, enough: float) -> tuple[Inputs, Tensor]:
        """Rows leave once they have won at a distance that is `enough`."""
        won = evaluate(value, clean) >= self.goal
        search = Search(value, clean, torch.zeros_like(won, dtype=clean.dtype).where(won, -torch.inf), -enough)
        now = _Rays.start(clean, rows=len(won))
        span = self.ball.bounds[1] - self.ball.bounds[0]
        tolerance = TOLERANCE / math.sqrt(clean[0].numel())
        for _ in range(self.queries - 1):
            now = search.narrowed(now)
            if search.over:
                break
            asked = torch.where(now.is_halving, (now.low + now.high) / 2, now.distance).clamp_max(span)
            turned = torch.where(now.block(), -now.signs, now.signs)
            x = (now.clean + per_input(asked, now.clean) * turned).clamp(*self.ball.bounds)
            won = evaluate(search.value, x) >= self.goal
            search.offer(x, torch.where(won, -_farthest(x - now.clean, len(won)), -torch.inf))
            now = now.answered(won, asked, turned, tolerance)
        points, height = search.result()
        return points, -height


@dataclass(frozen=True)
class _Rays:
    """Where each row's search stands."""

    clean: Inputs
    signs: Inputs
    """Of the best direction."""
    distance: Float[Tensor, " rows"]
    """Along it, to the boundary."""
    level: Int[Tensor, " rows"]
    """Blocks are the features over 2^level."""
    place: Int[Tensor, " rows"]
    """Which block is turned over."""
    is_halving: Bool[Tensor, " rows"]
    """Whether the turned direction has been found to be better, and its boundary is searched for."""
    low: Float[Tensor, " rows"]
    high: Float[Tensor, " rows"]
    """Distances at which the turned direction loses and wins."""

    @classmethod
    def start(cls, clean: Inputs, *, rows: int) -> "_Rays":
        zero = torch.zeros(rows, dtype=clean.dtype, device=clean.device)
        none = torch.zeros(rows, dtype=torch.long, device=clean.device)
        return cls(
            clean=clean,
            signs=torch.ones_like(clean),
            distance=zero + torch.inf,
            level=none,
            place=none,
            is_halving=none.bool(),
            low=zero,
            high=zero,
        )

    @property
    def size(self) -> Int[Tensor, " rows"]:
        """Of a block."""
        # Integer division rounded up; past the finest level every block is one feature.
        return -(-self.clean[0].numel() // 2 ** self.level.clamp_max(62))

    def block(self) -> Bool[Tensor, "batch *shape"]:
        """The features of each row's present block."""
        feature = torch.arange(self.clean[0].numel(), device=self.clean.device).view(1, *self.clean.shape[1:])
        first = per_input(self.place * self.size, self.clean)
        return (feature >= first) & (feature < first + per_input(self.size, self.clean))

    def answered(
        self, won: Bool[Tensor, " rows"], asked: Float[Tensor, " rows"], turned: Inputs, tolerance: float
    ) -> "_Rays":
        """After each row's answer: begin to halve, go on halving, or turn to the next block."""
        begins = ~self.is_halving & won
        low = torch.where(begins, 0.0, torch.where(self.is_halving & ~won, asked, self.low))
        high = torch.where(won, asked, self.high)
        ends = self.is_halving & (high - low <= tolerance)
        better = ends & (high < self.distance)
        is_next = ends | (~self.is_halving & ~won)
        last = (self.place + 1) * self.size >= self.clean[0].numel()
        return replace(
            self,
            signs=torch.where(per_input(better, turned), turned, self.signs),
            distance=torch.where(better, high, self.distance),
            level=self.level + (is_next & last),
            place=torch.where(is_next, torch.where(last, 0, self.place + 1), self.place),
            is_halving=(self.is_halving | begins) & ~ends,
            low=low,
            high=high,
        )


def _farthest(offset: Inputs, rows: int) -> Float[Tensor, " rows"]:
    """The l-inf length of each row."""
    return offset.flatten(1).abs().amax(dim=1).view(-1, rows).amax(dim=0)
