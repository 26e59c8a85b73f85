"""Greedy local search over pixels (Narodytska & Kasiviswanathan, CVPR workshops 2017), as foolbox has it.

Probes may leave the bounds, as in the paper; the image they lead to may not.
"""

import math
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from robustmetric.errors import InputError
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.gradient import evaluate
from robustmetric.perturb.gradient_free import as_images, ask
from robustmetric.perturb.search import Search
from robustmetric.types import Inputs, Value

FIRST = 0.1
"""The share of the pixels that the first round draws from."""


@dataclass(frozen=True)
class LocalSearch:
    """Each round, probe pixels near those changed last, and change the `pixels` whose probes raise the value most.

    Images are on a scale from -1/2 to 1/2: a probe sets a pixel's channels to p times their sign, a change multiplies
    them by r and wraps them around the ends. The best image of all rounds is kept, the clean one included.
    """

    ball: Ball
    rounds: int = 150
    r: float = 1.5
    p: float = 10.0
    half_side: int = 5
    """The next round probes squares of 2 half_side + 1 pixels a side around those changed."""
    pixels: int = 5
    probes: int = 128
    """Per round at most."""
    clipped: bool = True
    """Whether changes are clipped to the ball. Without, few pixels change by any amount: the attack is unbounded."""
    goal: float | None = None
    """A row whose value reaches this is done."""
    together: int = 16
    """Probes of the batch asked at one time: memory grows with it, results stay."""
    queries: int = field(init=False)
    """Per input, at most: the probes and the image of each round, and the clean input."""

    def __post_init__(self) -> None:
        if min(self.rounds, self.pixels, self.probes, self.together) < 1 or self.half_side < 0:
            raise InputError(
                f"rounds={self.rounds}, pixels={self.pixels}, probes={self.probes}, together={self.together}, "
                f"half_side={self.half_side}; expected 1 or more of each, and half_side >= 0"
            )
        if not 0 <= self.r <= 2:
            raise InputError(f"r={self.r} wraps past the other end of the scale; expected a number in [0, 2]")
        if not math.isfinite(self.p):
            raise InputError(f"p={self.p} is no pixel; expected a finite number, such as 10")
        object.__setattr__(self, "queries", self.rounds * (self.probes + 1) + 1)

    @torch.no_grad()
    def __call__(self, value: Value, clean: Inputs, generator: torch.Generator | None = None) -> Inputs:
        """The perturbed inputs: in the ball around `clean` where `clipped`, else in the bounds alone."""
        clean = clean.detach()
        height = evaluate(value, clean)
        search = Search(value, clean, height, self.goal)
        everywhere = torch.ones(len(height), *as_images(clean).shape[2:], dtype=torch.bool, device=clean.device)
        now = _Round(clean=clean, x=clean, pool=everywhere)
        most = max(1, min(int(FIRST * everywhere[0].numel()), self.probes))
        for _ in range(self.rounds):
            now = search.narrowed(now)
            if search.over:
                break
            chosen = self._best(search.value, now, _draw(now.pool, most, generator))
            x = self._changed(now, chosen)
            search.offer(x, evaluate(search.value, x))
            now = replace(now, x=x, pool=_squares(chosen, self.half_side))
            most = self.probes
        return search.result()[0]

    def _best(self, value: Value, now: "_Round", drawn: tuple[Tensor, Tensor]) -> Bool[Tensor, "rows height width"]:
        """The pixels whose probes have the largest values."""
        places, is_drawn = drawn
        middle, span = self._scale
        probed = middle + span * self.p * (now.x - middle).sign()
        heights = [
            ask(value, [_painted(now, probed, place) for place in some], self.together)
            for some in places.T[:, :, None].split(self.together)
        ]
        height = torch.cat(heights).T.nan_to_num(nan=-torch.inf).masked_fill(~is_drawn, -torch.inf)
        best = height.topk(min(self.pixels, height.shape[1]), dim=1).indices
        return _marked(now.pool, places.gather(1, best), is_drawn.gather(1, best))

    def _changed(self, now: "_Round", chosen: Bool[Tensor, "rows height width"]) -> Inputs:
        """The image with its chosen pixels multiplied by r on the scale from -1/2 to 1/2, wrapped around the ends."""
        middle, span = self._scale
        x = torch.where(_of_images(chosen, now.x), middle + span * wrapped(self.r * (now.x - middle) / span), now.x)
        return self.ball.project(x, now.clean) if self.clipped else x.clamp(*self.ball.bounds)

    @property
    def _scale(self) -> tuple[float, float]:
        """What lies at 0, and how far the ends are apart."""
        low, high = self.ball.bounds
        return (low + high) / 2, high - low


@dataclass(frozen=True)
class _Round:
    """Where each row stands; the pool are the pixels to draw probes from."""

    clean: Inputs
    x: Inputs
    pool: Bool[Tensor, "rows height width"]


def wrapped(v: Float[Tensor, "*shape"]) -> Float[Tensor, "*shape"]:
    """Values past one end of the scale from -1/2 to 1/2, moved in from the other."""
    return v - (v > 0.5).to(v.dtype) + (v < -0.5).to(v.dtype)


def _draw(
    pool: Bool[Tensor, "rows height width"], most: int, generator: torch.Generator | None
) -> tuple[Int[Tensor, "rows drawn"], Bool[Tensor, "rows drawn"]]:
    """At most so many pixels of each pool at random, and which of those listed are of the pool."""
    lots = torch.empty(pool.flatten(1).shape, device=pool.device).uniform_(generator=generator)
    lots, places = lots.masked_fill(~pool.flatten(1), -1).topk(min(most, lots.shape[1]), dim=1)
    return places, lots >= 0


def _marked(
    like: Bool[Tensor, "rows height width"], places: Int[Tensor, "rows some"], is_meant: Bool[Tensor, "rows some"]
) -> Bool[Tensor, "rows height width"]:
    """True at these pixels of each row."""
    return torch.zeros_like(like).flatten(1).scatter(1, places, is_meant).view_as(like)


def _painted(now: _Round, probed: Inputs, place: Int[Tensor, "rows 1"]) -> Inputs:
    """The image with one pixel per row probed."""
    return torch.where(_of_images(_marked(now.pool, place, torch.ones_like(place).bool()), now.x), probed, now.x)


def _of_images(marked: Bool[Tensor, "rows height width"], x: Inputs) -> Bool[Tensor, "batch *_"]:
    """The marks of each row at all of its inputs and channels, shaped to select from `x`."""
    images = as_images(x)
    return marked.repeat(len(x) // len(marked), 1, 1)[:, None].expand_as(images).reshape(x.shape)


def _squares(chosen: Bool[Tensor, "rows height width"], half_side: int) -> Bool[Tensor, "rows height width"]:
    """The squares around the chosen pixels, inside the image."""
    grown = functional.max_pool2d(chosen.float()[:, None], 2 * half_side + 1, stride=1, padding=half_side)
    return grown[:, 0] > 0
