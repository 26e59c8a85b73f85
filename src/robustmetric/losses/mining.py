"""Which triplets to learn from: the five samplers of Zhou & Patel 2022 (after Schroff 2015, Wu 2017, Roth 2020).

Batches are laid out a0, p0, a1, p1, ...: each even row is an anchor and the next row its positive. There is one triplet
per anchor, and its negative may be any row of the batch. Every inequality is strict.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.numerics.distances import from_even_rows
from robustmetric.types import Embeddings, Labels, Triplets

Miner = Callable[..., Triplets]
"""(embeddings, labels, generator=None) -> Triplets."""


@dataclass(frozen=True)
class Anchors:
    """What every sampler looks at: one row per anchor, one column per row of the batch."""

    index: Int[Tensor, " anchors"]
    distance: Float[Tensor, "anchors batch"]
    negative: Bool[Tensor, "anchors batch"]
    """Of another class. The others, the anchor itself among them, are of the same class."""

    @property
    def partner(self) -> Int[Tensor, " anchors"]:
        """The positive that follows each anchor in the batch."""
        return self.index + 1

    @property
    def partner_distance(self) -> Float[Tensor, "anchors 1"]:
        return self.distance.gather(1, self.index[:, None] + 1)


@dataclass(frozen=True)
class Random:
    """Any negative; the whole batch if it has none. Needs no distances, so the embeddings are not looked at."""

    def __call__(self, embeddings: Embeddings, labels: Labels, generator: torch.Generator | None = None) -> Triplets:
        index, negative = pairs_of(labels)
        return Triplets(index, index + 1, draw(negative, generator=generator))


@dataclass(frozen=True)
class SemiHard:
    """A negative farther than the positive, by less than margin: -margin < d(a,p) - d(a,n) < 0; else any negative."""

    margin: float = 0.2

    def __call__(self, embeddings: Embeddings, labels: Labels, generator: torch.Generator | None = None) -> Triplets:
        anchors = anchors_of(embeddings, labels)
        hardness = anchors.partner_distance - anchors.distance
        semi_hard = anchors.negative & (hardness < 0) & (hardness + self.margin > 0)
        negative = draw(semi_hard, anchors.negative, generator=generator)
        return Triplets(anchors.index, anchors.partner, negative)


@dataclass(frozen=True)
class SoftHard:
    """A positive farther than the nearest negative, and a negative nearer than the farthest positive; else any of each.

    "Any positive" includes the anchor itself, as in the reference.
    """

    def __call__(self, embeddings: Embeddings, labels: Labels, generator: torch.Generator | None = None) -> Triplets:
        anchors = anchors_of(embeddings, labels)
        same = ~anchors.negative
        of_negatives = anchors.distance.masked_fill(same, math.inf)
        of_positives = anchors.distance.masked_fill(anchors.negative, -math.inf)
        nearest_negative = of_negatives.amin(dim=1, keepdim=True)
        any_positive = draw(of_positives > nearest_negative, same, generator=generator)
        positive = torch.where(nearest_negative.squeeze(1) < math.inf, any_positive, anchors.partner)
        hard = of_negatives < of_positives.amax(dim=1, keepdim=True)
        negative = draw(hard, anchors.negative, generator=generator)
        return Triplets(anchors.index, positive, negative)


@dataclass(frozen=True)
class DistanceWeighted:
    """A negative drawn with weight one over the density of distances between random points of the unit sphere.

    No cut-offs, as in the reference: in high dimension this is nearly always the closest negative. A negative at
    distance 0, or diametrically opposite, has no finite weight and is passed over; with none left, the whole batch.
    """

    def __call__(self, embeddings: Embeddings, labels: Labels, generator: torch.Generator | None = None) -> Triplets:
        anchors = anchors_of(embeddings, labels)
        weights = self.weights(anchors, dim=embeddings.shape[1])
        # In whole numbers, so that what has no weight is never drawn; a chance below 2^-40 counts as none.
        negative = draw((weights * 2**40).long(), generator=generator)
        return Triplets(anchors.index, anchors.partner, negative)

    @staticmethod
    def weights(anchors: Anchors, dim: int) -> Float[Tensor, "anchors batch"]:
        """exp(l - max l) with l = (2 - dim) ln D - (dim - 3)/2 ln(1 - D^2/4); 0 for all but usable negatives."""
        distance = anchors.distance
        logarithm = (2 - dim) * distance.log() - (dim - 3) / 2 * (1 - distance.square() / 4).log()
        logarithm = logarithm.nan_to_num(nan=-math.inf, posinf=-math.inf).masked_fill(~anchors.negative, -math.inf)
        largest = logarithm.amax(dim=1, keepdim=True)
        return (logarithm - largest.masked_fill(largest == -math.inf, 0)).exp()


@dataclass(frozen=True)
class Hardest:
    """The nearest negative that is no copy of the anchor; else any negative; the whole batch if it has none."""

    def __call__(self, embeddings: Embeddings, labels: Labels, generator: torch.Generator | None = None) -> Triplets:
        anchors = anchors_of(embeddings, labels)
        apart = anchors.negative & (anchors.distance > 0)
        distance, nearest = anchors.distance.masked_fill(~apart, math.inf).min(dim=1)
        otherwise = draw(anchors.negative, generator=generator)
        return Triplets(anchors.index, anchors.partner, torch.where(distance < math.inf, nearest, otherwise))


def pairs_of(labels: Labels) -> tuple[Int[Tensor, " anchors"], Bool[Tensor, "anchors batch"]]:
    """The anchors of a paired batch, and which rows are of another class than each."""
    if len(labels) < 2 or len(labels) % 2:
        raise InputError(f"a batch of {len(labels)} cannot be mined in pairs; expected an even number: sampler `pairs`")
    own = labels[0::2]
    # One host synchronisation per batch: a wrong sampler would otherwise train on wrong positives in silence.
    if not torch.equal(own, labels[1::2]):
        raise InputError("rows 2i and 2i + 1 of the batch differ in class; mining expects the sampler `pairs`")
    return torch.arange(0, len(labels), 2, device=labels.device), own[:, None] != labels


@torch.no_grad()
def anchors_of(embeddings: Embeddings, labels: Labels) -> Anchors:
    """The anchors of a paired batch and how far everything lies from them."""
    index, negative = pairs_of(labels)
    return Anchors(index, from_even_rows(embeddings), negative)


def draw(
    *choices: Bool[Tensor, "rows batch"] | Int[Tensor, "rows batch"], generator: torch.Generator | None
) -> Int[Tensor, " rows"]:
    """Per row, a column drawn from the first mask (or whole-number weights) that has any there; else any column."""
    rows, columns = choices[0].shape
    share = torch.rand((rows, 1), dtype=torch.float64, device=choices[0].device, generator=generator)
    drawn = (share * columns).long()
    for choice in reversed(choices):
        # The column where the running total passes that share of the whole; whole numbers are exact.
        running = choice.cumsum(dim=1)
        total = running[:, -1:]
        drawn = torch.where(total > 0, torch.searchsorted(running, (share * total).long(), right=True), drawn)
    return drawn.squeeze(1)
