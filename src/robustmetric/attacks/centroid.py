"""Attacks on clusters: from the own class's centroid to a wrong one, and apart from the own class pair by pair."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from robustmetric.attacks.base import Attack, Scores, Targets, recall_at_1
from robustmetric.attacks.objectives import approach, shift
from robustmetric.errors import InputError, nearest
from robustmetric.numerics.distances import pairwise
from robustmetric.numerics.kmeans import cluster_means
from robustmetric.types import Batch, Embeddings, Gallery

Wrong = Literal["derangement", "random", "nearest"]
"""Which wrong class: one for all images of a class, no class its own; one drawn for each image; or the closest."""


@dataclass(frozen=True)
class Centroid:
    """Climb d(z, own centroid) - d(z, wrong centroid). Score: "R@1" of the moved query in percent.

    `away` leaves out the first term when it is false: a targeted attack. With `turns` above 1 the nearest class and
    `turns` - 1 drawn ones are tried, and each image keeps what hurts most.
    """

    target: Wrong = "derangement"
    away: bool = True
    turns: int = 1
    role: ClassVar[Literal["query", "candidate"]] = "query"

    def __post_init__(self) -> None:
        if self.target not in get_args(Wrong):
            raise InputError(f"target {self.target!r} is not known{nearest(self.target, get_args(Wrong))}")
        if self.turns < 1:
            raise InputError(f"turns={self.turns} tries nothing; expected 1 or more")

    def each(self) -> Sequence[Attack]:
        """The climbs: one, or the nearest class and then drawn ones."""
        if self.turns == 1:
            return [self]
        drawn = [replace(self, target="random", turns=1)] * (self.turns - 1)
        return [replace(self, target="nearest", turns=1), *drawn]

    def choose(self, clean: Embeddings, batch: Batch, gallery: Gallery, generator: torch.Generator | None) -> Targets:
        classes, centroids = class_centroids(gallery)
        if len(classes) < 2:
            raise InputError("the images are of one class only; expected another class to move towards")
        own = class_places(batch.labels, classes)
        wrong = self._wrong(clean, own, centroids, generator)
        return {"own": centroids[own], "wrong": centroids[wrong]}

    def value(self, z: Embeddings, targets: Targets, gallery: Gallery) -> Float[Tensor, " batch"]:
        towards = approach(z, targets["wrong"])
        return towards + shift(z, targets["own"]) if self.away else towards

    def score(self, z: Embeddings, targets: Targets, batch: Batch, gallery: Gallery) -> Scores:
        return {"R@1": recall_at_1(z, batch, gallery)}

    def _wrong(
        self, clean: Embeddings, own: Int[Tensor, " batch"], centroids: Tensor, generator: torch.Generator | None
    ) -> Int[Tensor, " batch"]:
        count = len(centroids)
        if self.target == "derangement":
            return derangement(count, own.device, generator)[own]
        if self.target == "random":
            step = torch.randint(1, count, own.shape, device=own.device, generator=generator)
            return (own + step) % count
        distances = pairwise(clean, centroids)
        return distances.scatter(1, own[:, None], torch.inf).argmin(dim=1)


@dataclass(frozen=True)
class PairSimilarity:
    """Climb the mean similarity with other classes less that with the own class: the pairs that F1 counts.

    Score: "R@1" of the moved query in percent.
    """

    role: ClassVar[Literal["query", "candidate"]] = "query"

    def choose(self, clean: Embeddings, batch: Batch, gallery: Gallery, generator: torch.Generator | None) -> Targets:
        classes, centroids = class_centroids(gallery)
        sizes = _sizes(gallery, classes)[:, None]
        own = class_places(batch.labels, classes)
        total, summed = gallery.embeddings.sum(dim=0), centroids[own] * sizes[own]
        listed = (batch.index >= 0)[:, None]
        # The image itself is no pair: its own place in the bank is taken out of its class.
        itself = gallery.embeddings[batch.index.clamp_min(0)] * listed
        same = (summed - itself) / (sizes[own] - listed.long()).clamp_min(1)
        return {"direction": (total - summed) / (len(gallery) - sizes[own]).clamp_min(1) - same}

    def value(self, z: Embeddings, targets: Targets, gallery: Gallery) -> Float[Tensor, " batch"]:
        return (z * targets["direction"]).sum(dim=1)

    def score(self, z: Embeddings, targets: Targets, batch: Batch, gallery: Gallery) -> Scores:
        return {"R@1": recall_at_1(z, batch, gallery)}


def class_centroids(gallery: Gallery) -> tuple[Int[Tensor, " classes"], Float[Tensor, "classes dim"]]:
    """The classes of the items, and the mean of each."""
    classes, place = gallery.labels.unique(return_inverse=True)
    centroids, _ = cluster_means(gallery.embeddings, place, len(classes))
    return classes, centroids


def derangement(count: int, device: torch.device, generator: torch.Generator | None) -> Int[Tensor, " count"]:
    """A permutation that leaves nothing in its place: a random cycle through all."""
    order = torch.randperm(count, device=device, generator=generator)
    return torch.empty_like(order).scatter(0, order, order.roll(1))


def class_places(labels: Int[Tensor, " batch"], classes: Int[Tensor, " classes"]) -> Int[Tensor, " batch"]:
    """Where each label stands among the classes, which must hold it."""
    place = torch.searchsorted(classes, labels).clamp_max(len(classes) - 1)
    # One host synchronisation per batch: a label that no item has would be taken for another class.
    if not bool((classes[place] == labels).all()):
        raise InputError("some images are of a class that no item has; expected their own class among the items")
    return place


def _sizes(gallery: Gallery, classes: Int[Tensor, " classes"]) -> Int[Tensor, " classes"]:
    return torch.bincount(torch.searchsorted(classes, gallery.labels), minlength=len(classes))
