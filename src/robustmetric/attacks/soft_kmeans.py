"""Attack on k-means through soft assignments (soft k-means: MacKay 2003): they have slopes, clusters have none."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from robustmetric.attacks.base import Scores, Targets
from robustmetric.attacks.centroid import class_centroids, class_places
from robustmetric.attacks.vote import check_members, voted_recall_at_1
from robustmetric.errors import InputError
from robustmetric.numerics.kmeans import soft_assignments, soft_kmeans
from robustmetric.numerics.vote import unit_members
from robustmetric.types import Batch, Embeddings, Gallery


@dataclass(frozen=True)
class SoftKMeans:
    """Climb -log of the chance to fall into one cluster with an image of the own class, summed over the members.

    The chance is sum_k a_k q_k: a_k = softmax_k(-|z - c_k|^2 / temperature) is the image's share in cluster k, q_k the
    mean share of the other images of its class. The centres c are those of soft k-means on all items, from the
    classes' centroids. The chance of two images of one class is what pairwise F1 counts, and what mutual information
    needs to be large. An image alone in its class is driven from its own share.
    """

    members: int = 1
    temperature: float = 0.05
    iterations: int = 10
    """Of soft k-means, each time the bank is seen."""
    role: ClassVar[Literal["query", "candidate"]] = "query"

    def __post_init__(self) -> None:
        check_members(self.members)
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise InputError(f"temperature {self.temperature} has no softmax; expected a number > 0, such as 0.05")
        if self.iterations < 0:
            raise InputError(f"iterations={self.iterations}; expected 0 or more")

    def choose(self, clean: Embeddings, batch: Batch, gallery: Gallery, generator: torch.Generator | None) -> Targets:
        found = [
            self._of_member(Gallery(items, gallery.labels), batch)
            for items in unit_members(gallery.embeddings, self.members)
        ]
        centres, shares = zip(*found, strict=True)
        # One entry per row, as of all targets; the centres of all rows are the same memory.
        return {
            "centres": torch.stack(centres).expand(len(batch), *[-1] * 3),
            "shares": torch.stack(shares, dim=1),
        }

    def value(self, z: Embeddings, targets: Targets, gallery: Gallery) -> Float[Tensor, " batch"]:
        parts = zip(unit_members(z, self.members), targets["centres"][0], targets["shares"].unbind(1), strict=True)
        chances = [
            together(soft_assignments(part, centres, self.temperature), shares) for part, centres, shares in parts
        ]
        return -torch.stack(chances).sum(dim=0)

    def score(self, z: Embeddings, targets: Targets, batch: Batch, gallery: Gallery) -> Scores:
        return voted_recall_at_1(z, batch, gallery, self.members)

    @torch.no_grad()
    def _of_member(self, bank: Gallery, batch: Batch) -> tuple[Tensor, Tensor]:
        """The centres of one member's items, and each row's class as shares in them."""
        classes, centroids = class_centroids(bank)
        centres = soft_kmeans(bank.embeddings, centroids, self.temperature, self.iterations)
        shares = soft_assignments(bank.embeddings, centres, self.temperature).exp()
        return centres, shares_of_class(shares, class_places(bank.labels, classes), batch, classes)


def together(
    log_shares: Float[Tensor, "batch clusters"], others: Float[Tensor, "batch clusters"]
) -> Float[Tensor, " batch"]:
    """log sum_k a_k q_k, with log a given."""
    return (log_shares + others.log()).logsumexp(dim=1)


def shares_of_class(
    shares: Float[Tensor, "items clusters"],
    places: Int[Tensor, " items"],
    batch: Batch,
    classes: Int[Tensor, " classes"],
) -> Float[Tensor, "batch clusters"]:
    """The mean shares of the items of each row's class, the row itself left out unless it is the only one."""
    own = class_places(batch.labels, classes)
    sums = torch.zeros(len(classes), shares.shape[1], dtype=shares.dtype, device=shares.device)
    sums.index_add_(0, places, shares)
    sizes = torch.bincount(places, minlength=len(classes))[own]
    leaves = (batch.index >= 0) & (sizes > 1)
    itself = shares[batch.index.clamp_min(0)] * leaves[:, None]
    # Rounding may leave a share a little below 0 where the row itself had nearly all of it.
    return ((sums[own] - itself) / (sizes - leaves.long())[:, None]).clamp_min(0)
