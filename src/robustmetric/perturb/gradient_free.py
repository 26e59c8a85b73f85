"""Engines that ask for values alone: NES (Ilyas et al., ICML 2018) and Square (Andriushchenko et al., ECCV 2020)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.perturb.active import FINER, Rowwise, Tally, size_for
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.gradient import evaluate
from robustmetric.perturb.search import kept, per_input
from robustmetric.types import Inputs, Value

LARGE, COARSE = 64, 32
"""NES: images of more than LARGE pixels a side get noise of COARSE x COARSE, enlarged."""
MARKS = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)
"""Square: after how many queries the squares' area is halved; of 10,000, where the schedule is rescaled."""


@dataclass(frozen=True)
class NES:
    """Climb `value` inside a ball along gradients estimated from its values at Gaussian samples around each iterate.

    Samples come in pairs x + d, x - d, moved into the ball. It starts from the clean input. `keep="best"` gives the
    iterate with the largest value instead of the last; it costs one query more per step, and one at the end.
    """

    ball: Ball
    steps: int
    step_size: float
    samples: int = 100
    """Queries per input and step: an even number."""
    sigma: float = 2.0
    """Standard deviation of the noise in radii, before it is clipped to the ball's size."""
    keep: Literal["last", "best"] = "last"
    together: int = 1
    """Samples of the batch asked at one time: memory grows with it, results stay. Values that are no `Rowwise`: 1."""
    queries: int = field(init=False)
    """Per input, in all."""

    def __post_init__(self) -> None:
        if self.steps < 0 or self.samples < 2 or self.samples % 2 or self.together < 1:
            raise InputError(
                f"steps={self.steps}, samples={self.samples}, together={self.together}; expected steps >= 0, an even "
                "number of samples >= 2, and together >= 1"
            )
        for name, number in (("step_size", self.step_size), ("sigma", self.sigma)):
            if not (number >= 0 and math.isfinite(number)):
                raise InputError(f"{name} {number} cannot be climbed with; expected a finite number >= 0")
        if self.keep not in ("last", "best"):
            raise InputError(f"keep {self.keep!r} is not known; expected 'last' or 'best'")
        extra = self.steps + 1 if self.keep == "best" else 0
        object.__setattr__(self, "queries", self.steps * self.samples + extra)

    @torch.no_grad()
    def __call__(self, value: Value, clean: Inputs, generator: torch.Generator | None = None) -> Inputs:
        """The perturbed inputs, in the ball around `clean`."""
        clean = clean.detach()
        move = self.ball.ascent(clean, self.step_size)
        x = best = clean
        height = evaluate(value, x) if self.keep == "best" else None
        for _ in range(self.steps):
            x = move(x, self._gradient(value, x, clean, generator))
            if height is None:
                best = x
            else:
                best, height = kept(best, height, x, evaluate(value, x))
        return best

    def _gradient(self, value: Value, x: Inputs, clean: Inputs, generator: torch.Generator | None) -> Inputs:
        """Up to a factor, the sum over pairs of (value(x + d) - value(x - d)) d."""
        total = torch.zeros_like(x)
        pairs, most = self.samples // 2, max(1, self.together // 2)
        for first in range(0, pairs, most):
            noise = [self._noise(x, generator) for _ in range(min(most, pairs - first))]
            points = [self.ball.project(x + sign * d, clean) for sign in (1, -1) for d in noise]
            above, below = ask(value, points, self.together).chunk(2)
            for difference, d in zip(above - below, noise, strict=True):
                total += per_input(difference, x) * d
        return total

    def _noise(self, x: Inputs, generator: torch.Generator | None) -> Inputs:
        coarse = x.dim() == 4 and x.shape[-1] > LARGE
        shape = (*x.shape[:2], COARSE, COARSE) if coarse else x.shape
        noise = torch.empty(shape, dtype=x.dtype, device=x.device).normal_(generator=generator)
        if coarse:
            noise = torch.nn.functional.interpolate(noise, size=x.shape[2:], mode="nearest")
        around_zero = replace(self.ball, bounds=(-math.inf, math.inf))
        return around_zero.project(self.sigma * self.ball.radius * noise, torch.zeros_like(x))


@dataclass(frozen=True)
class Square:
    """Random search inside an l-inf ball: repaint one square per query, keep what has the larger value.

    Pixels lie at either end of the ball. Squares begin at a share `p` of the image and shrink with the queries (the
    paper's schedule). The clean input is asked too, and given back where nothing better was found.
    """

    ball: Ball
    queries: int = 5000
    """Per input, in all: the clean input, the first pattern (vertical stripes), then squares."""
    p: float = 0.8
    """AutoAttack's; the paper has 0.05 for undefended models and more for defended ones."""
    goal: float | None = None
    """A row whose value reaches this is done; the values of the ranking attacks, which end at 0, have such a goal."""
    ties: bool = False
    """Whether an equal value is moved to as well: lets the search cross the plateaus that ranks have."""
    rescaled: bool = True
    """Whether the schedule, of 10,000 queries in the paper, is fitted to `queries`; AutoAttack's Square does not."""

    def __post_init__(self) -> None:
        if self.ball.norm != "linf":
            raise InputError(f"Square searches l-inf balls, not {self.ball.norm!r}; set norm: linf, or use nes")
        if self.queries < 2:
            raise InputError(f"{self.queries} queries leave nothing to search; expected at least 2")
        if not 0 < self.p <= 1:
            raise InputError(f"p={self.p} is no share of an image; expected a number in (0, 1]")

    @torch.no_grad()
    def __call__(self, value: Value, clean: Inputs, generator: torch.Generator | None = None) -> Inputs:
        """The perturbed inputs, in the ball around `clean`."""
        clean = clean.detach()
        start = self._stripes(clean, generator)
        height = evaluate(value, start)
        found, found_height = self._search(value, start, height, clean, generator)
        return kept(found, found_height, clean, evaluate(value, clean), ties=True)[0]

    def _search(
        self, value: Value, x: Inputs, height: Tensor, clean: Inputs, generator: torch.Generator | None
    ) -> tuple[Inputs, Tensor]:
        """One square per query; rows at their goal leave the batch, as in `climb_active`."""
        whole, whole_height, rows = x, height, torch.arange(len(height), device=x.device)
        ends, now, tally = self._ends(clean), value, Tally(x.device)
        for query in range(self.queries - 2):
            proposal = _repaint(x, ends, self._window(query, x), generator)
            x, height = kept(x, height, proposal, evaluate(now, proposal), ties=self.ties)
            if self.goal is None:
                continue
            searching = ~(height >= self.goal)
            left = tally.left(searching)
            if left == 0:
                break
            size = size_for(left, len(whole_height), FINER)
            if size < len(rows) and isinstance(value, Rowwise):
                whole, whole_height = _put(value, rows, whole, x), whole_height.index_copy(0, rows, height)
                rows = rows[searching.argsort(descending=True, stable=True)[:size]]
                places = value.inputs_of(rows, len(whole_height))
                x, height, now = whole[places], whole_height[rows], value.some(rows)
                ends = self._ends(clean[places])
        if not isinstance(value, Rowwise):
            return x, height
        return _put(value, rows, whole, x), whole_height.index_copy(0, rows, height)

    def _ends(self, clean: Inputs) -> tuple[Inputs, Inputs]:
        """The lowest and the highest each pixel may be."""
        low, high = self.ball.bounds
        return (clean - self.ball.radius).clamp_min(low), (clean + self.ball.radius).clamp_max(high)

    def _stripes(self, clean: Inputs, generator: torch.Generator | None) -> Inputs:
        """Each column of each channel at one end of the ball."""
        low, high = self._ends(clean)
        columns = as_images(clean)[:, :, :1]
        is_high = _coins(columns.shape, clean.device, generator)
        return torch.where(is_high, as_images(high), as_images(low)).view_as(clean)

    def _window(self, query: int, x: Inputs) -> tuple[int, int]:
        """Height and width of the square painted at this query; of a flat input, a run of features."""
        height, width = as_images(x).shape[2:]
        time = int(query / self.queries * 10_000) if self.rescaled else query
        halvings = sum(time > mark for mark in MARKS)
        area = self.p / 2**halvings * height * width
        if height == 1:
            return 1, _between(round(area), 1, width - 1)
        side = _between(round(math.sqrt(area)), 1, min(height, width) - 1)
        return side, side


def _repaint(
    x: Inputs, ends: tuple[Inputs, Inputs], window: tuple[int, int], generator: torch.Generator | None
) -> Inputs:
    """`x` with one window per input, placed at random, at one end of the ball, drawn per channel.

    A window that has these colours already is given others (the paper draws again): no query is spent on it.
    """
    images, (low, high) = as_images(x), map(as_images, ends)
    inside = _windows(images, window, generator)
    is_high = _coins((*images.shape[:2], 1, 1), x.device, generator)
    others = _coins(is_high.shape, x.device, generator)
    channel = torch.randint(images.shape[1], (len(x), 1, 1, 1), device=x.device, generator=generator)
    others.scatter_(1, channel, torch.ones_like(others[:, :1]))
    same = (torch.where(is_high, high, low) == images).logical_or(~inside).flatten(1).all(dim=1)
    is_high = is_high ^ (others & same[:, None, None, None])
    return torch.where(inside, torch.where(is_high, high, low), images).view_as(x)


def _windows(
    images: Float[Tensor, "batch channels height width"], window: Sequence[int], generator: torch.Generator | None
) -> Bool[Tensor, "batch 1 height width"]:
    """One window per image; unlike in the authors' code, the last row and column are reached too."""
    marked = []
    for length, size in zip(images.shape[2:], window, strict=True):
        first = torch.randint(length - size + 1, (len(images), 1), device=images.device, generator=generator)
        place = torch.arange(length, device=images.device)
        marked.append((place >= first) & (place < first + size))
    return (marked[0][:, :, None] & marked[1][:, None])[:, None]


def as_images(x: Tensor) -> Float[Tensor, "batch channels height width"]:
    """Images as they are; anything else as one row of pixels."""
    return x if x.dim() == 4 else x.flatten(1)[:, None, None]


def _coins(shape: Sequence[int], device: torch.device, generator: torch.Generator | None) -> Tensor:
    return torch.randint(2, tuple(shape), device=device, generator=generator).bool()


def _between(number: int, least: int, most: int) -> int:
    return max(min(number, most), least)


def _put(value: Rowwise, rows: Tensor, whole: Inputs, x: Tensor) -> Inputs:
    """`whole` with the inputs of these rows replaced."""
    return whole.index_copy(0, value.inputs_of(rows, len(whole) // value.width), x)


def ask(value: Value, points: list[Inputs], together: int) -> Float[Tensor, "points rows"]:
    """The value of every row at each of several points, so many points at one time."""
    if together == 1 or not isinstance(value, Rowwise):
        return torch.stack([evaluate(value, x) for x in points])
    found = []
    for first in range(0, len(points), together):
        some = torch.stack(points[first : first + together])
        count = some.shape[1] // value.width
        rows = torch.arange(count, device=some.device).repeat(len(some))
        # From (points, width x rows) to the order of a Rowwise of points x rows rows: (width, points, rows).
        inputs = some.unflatten(1, (value.width, count)).transpose(0, 1).flatten(0, 2)
        found.append(evaluate(value.some(rows), inputs).view(len(some), count))
    return torch.cat(found)
