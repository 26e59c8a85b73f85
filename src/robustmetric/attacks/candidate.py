"""Candidate attacks, CA+ and CA- (Zhou et al., ECCV 2020): move an item up or down in the lists of chosen queries."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from robustmetric.attacks.base import Scores, Targets, check_direction, draw, draw_near, percentile
from robustmetric.attacks.modes import Mode, check_mode, left_out, strict_percentile
from robustmetric.attacks.objectives import demotion, promotion
from robustmetric.numerics.distances import mask_excluded, paired, pairwise
from robustmetric.types import Batch, Embeddings, Gallery


@dataclass(frozen=True)
class Candidate:
    """Up: W random queries should find the candidate first. Down: W of its near neighbours should find it last.

    A list holds neither the query itself nor the candidate's clean copy. Score: CA+ or CA-, the candidate's mean
    percentile rank in those lists (unattacked: about 50, about 1). `compat`: both stay in the list, CA+'s queries may
    be the candidate itself, CA-'s are drawn with replacement, and ranks count the items strictly closer.
    """

    direction: Literal["up", "down"]
    queries: int = 1
    pool: float = 0.01
    """CA-: queries are drawn from this share of the gallery (at least W), the candidate's nearest neighbours."""
    mode: Mode = field(default="fixed", repr=False)
    role: ClassVar[Literal["query", "candidate"]] = "candidate"
    climbs_alike: ClassVar[Literal[True]] = True

    def __post_init__(self) -> None:
        check_direction(self.direction, self.queries, "queries")
        check_mode(self.mode)

    def choose(self, clean: Embeddings, batch: Batch, gallery: Gallery, generator: torch.Generator | None) -> Targets:
        compat = self.mode == "compat"
        exclude = None if compat else batch.index
        if self.direction == "up":
            index = draw(len(gallery), len(batch), self.queries, clean.device, generator, exclude)
        else:
            index = draw_near(clean, batch.index, gallery, self.pool, self.queries, generator, replacement=compat)
        # The queries stand still, so their distances to the gallery are constants of the climb.
        found = {"index": index, "queries": gallery.embeddings[index], "lists": lists_of(index, gallery, exclude)}
        return {**found, "exclude": left_out(batch, self.mode)}

    def value(self, z: Embeddings, targets: Targets, gallery: Gallery) -> Float[Tensor, " batch"]:
        objective = promotion if self.direction == "up" else demotion
        return objective(distances_to_queries(z, targets["queries"]), targets["lists"])

    def score(self, z: Embeddings, targets: Targets, batch: Batch, gallery: Gallery) -> Scores:
        name = "CA+" if self.direction == "up" else "CA-"
        rank = percentile if self.mode == "fixed" else strict_percentile
        return {name: rank(distances_to_queries(z, targets["queries"]), targets["lists"])}


def lists_of(
    index: Int[Tensor, "batch queries"], gallery: Gallery, exclude: Int[Tensor, " batch"] | None
) -> Float[Tensor, "batch queries items"]:
    """d(q_w, item) for each candidate's own queries, infinite at the query itself and at the excluded item.

    An item of -1 excludes the query alone, and None not even that.
    """
    distances = pairwise(gallery.embeddings[index.flatten()], gallery.embeddings)
    if exclude is not None:
        mask_excluded(distances, torch.stack([index, exclude[:, None].expand_as(index)], dim=2).flatten(0, 1))
    return distances.view(*index.shape, -1)


def distances_to_queries(z: Embeddings, queries: Float[Tensor, "batch queries dim"]) -> Float[Tensor, "batch queries"]:
    """d(q_w, z) for each candidate's own queries."""
    width = queries.shape[1]
    return paired(z.repeat_interleave(width, dim=0), queries.flatten(0, 1)).view(-1, width)
