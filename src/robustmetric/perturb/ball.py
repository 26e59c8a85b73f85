"""The threat model: all inputs within a radius of the clean one, inside the valid range."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.types import Inputs

Ascent = Callable[[Tensor, Tensor], Tensor]
"""(inputs, gradient) -> inputs, one step higher."""


@dataclass(frozen=True)
class Ball:
    """Inputs x with ||x - clean|| <= radius, clipped to `bounds`. Radii are in input units, `8 / 255`."""

    radius: float
    norm: Literal["linf", "l2"] = "linf"
    bounds: Sequence[float] = (0.0, 1.0)

    def __post_init__(self) -> None:
        if not (self.radius >= 0 and math.isfinite(self.radius)):
            raise InputError(f"radius {self.radius} is not a distance; expected a finite number >= 0, such as 8/255")
        if self.norm not in ("linf", "l2"):
            raise InputError(f"norm {self.norm!r} is not known; expected 'linf' or 'l2'")
        if len(self.bounds) != 2 or not self.bounds[0] < self.bounds[1]:
            raise InputError(f"bounds {self.bounds} are empty; expected (low, high) with low < high")

    def random_point(self, clean: Inputs, generator: torch.Generator | None = None) -> Inputs:
        """A point drawn uniformly from the ball, then clipped to the bounds."""
        if self.norm == "linf":
            offset = torch.empty_like(clean).uniform_(-self.radius, self.radius, generator=generator)
            return (clean + offset).clamp(*self.bounds)
        direction = torch.empty_like(clean).normal_(generator=generator)
        # Volume grows as r^d, so a uniform point lies at radius * u^(1/d).
        scale = torch.empty(len(clean), device=clean.device).uniform_(generator=generator) ** (1 / clean[0].numel())
        return (clean + _unit(direction) * _column(self.radius * scale, clean)).clamp(*self.bounds)

    def edge_point(self, clean: Inputs, generator: torch.Generator | None = None) -> Inputs:
        """A point in a random direction, drawn out until it meets the ball's edge, then clipped to the bounds."""
        if self.norm == "linf":
            direction = torch.empty_like(clean).uniform_(-1, 1, generator=generator)
            direction = direction / _column(direction.flatten(1).abs().amax(dim=1).clamp_min(1e-12), clean)
        else:
            direction = _unit(torch.empty_like(clean).normal_(generator=generator))
        return (clean + self.radius * direction).clamp(*self.bounds)

    def steepest(self, gradient: Inputs) -> Inputs:
        """The unit step of this norm that raises a linear function most: the sign, or the unit gradient."""
        return gradient.sign() if self.norm == "linf" else _unit(gradient)

    def project(self, x: Inputs, clean: Inputs) -> Inputs:
        """The nearest point of the ball, then of the bounds (which hold clean, so that clipping stays in the ball)."""
        offset = x - clean
        if self.norm == "linf":
            offset = offset.clamp(-self.radius, self.radius)
        else:
            length = offset.flatten(1).norm(dim=1)
            offset = offset * _column((self.radius / length.clamp_min(1e-12)).clamp_max(1), clean)
        return (clean + offset).clamp(*self.bounds)

    def ascent(self, clean: Inputs, step_size: float) -> Ascent:
        """The map (x, gradient) -> the projected step up, with what `clean` alone decides computed once."""
        if self.norm == "l2":
            return lambda x, gradient: self.project(x + step_size * self.steepest(gradient), clean)
        low = (clean - self.radius).clamp_min(self.bounds[0])
        high = (clean + self.radius).clamp_max(self.bounds[1])
        # On a GPU these kernels are all of the engine's own time: three, where the definition takes seven.
        return lambda x, gradient: torch.add(x, gradient.sign(), alpha=step_size).clamp_(low, high)

    def distance(self, x: Inputs, clean: Inputs) -> Float[Tensor, " batch"]:
        """How far each input is from its clean one, in this norm."""
        offset = (x - clean).flatten(1)
        return offset.abs().amax(dim=1) if self.norm == "linf" else offset.norm(dim=1)

    def to_bytes(self, x: Inputs, clean: Inputs) -> Inputs:
        """`x` as an 8-bit image would hold it, rounded towards `clean` so that it stays in the ball.

        `clean` must itself be 8-bit. Offsets within 1e-3 of a whole byte count as whole: float32 holds k/255 to 1e-7.
        """
        levels = (x - clean) * (255 / (self.bounds[1] - self.bounds[0]))
        whole = torch.where((levels - levels.round()).abs() < 1e-3, levels.round(), levels.trunc())
        return (clean + whole * ((self.bounds[1] - self.bounds[0]) / 255)).clamp(*self.bounds)


def _column(values: Tensor, like: Tensor) -> Tensor:
    """One value per row, shaped to multiply `like`."""
    return values.view(-1, *[1] * (like.dim() - 1))


def _unit(x: Tensor) -> Tensor:
    return x / _column(x.flatten(1).norm(dim=1).clamp_min(1e-12), x)
