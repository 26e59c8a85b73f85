"""The intra-class structure term, ICS (Zhou & Patel 2022), and its alternatives: one more triplet loss."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor

from robustmetric.errors import InputError, nearest
from robustmetric.losses.triplet import triplet_values

PLACES = ("a", "p", "n")
NAMES = (*PLACES, *(f"{place}~" for place in PLACES))
"""Embeddings of the clean triplet, and of the perturbed one."""


@dataclass(frozen=True)
class Structure:
    """`weight` times the triplet loss of three of a, p, n, a~, p~, n~ (perturbed ones have a tilde).

    (a, a~, p) is ICS: the perturbed anchor stays nearer than the positive is. The supplement's alternatives are
    (a, a~, p~), (p, p~, a), (a, a~, n~), and with `margin` 0.2 (a, p, n) and (a, p, n~).
    """

    weight: float = 0.5
    margin: float = 0.0
    triplet: Sequence[str] = ("a", "a~", "p")

    def __post_init__(self) -> None:
        if len(self.triplet) != 3:
            raise InputError(f"triplet {list(self.triplet)} has {len(self.triplet)} parts; expected three of {NAMES}")
        for name in self.triplet:
            if name not in NAMES:
                raise InputError(f"{name!r} is no part of a triplet{nearest(str(name), NAMES)}")
        if not (0 <= self.weight < math.inf and 0 <= self.margin < math.inf):
            raise InputError(f"weight {self.weight}, margin {self.margin}; expected numbers >= 0, such as 0.5 and 0")

    @property
    def clean(self) -> tuple[str, ...]:
        """Which clean images it needs, in the order a, p, n."""
        return tuple(place for place in PLACES if place in self.triplet)

    def __call__(self, embeddings: Mapping[str, Tensor]) -> Float[Tensor, ""]:
        """The weighted term, of embeddings by name."""
        first, second, third = (embeddings[name] for name in self.triplet)
        return self.weight * triplet_values(first, second, third, self.margin).mean()
