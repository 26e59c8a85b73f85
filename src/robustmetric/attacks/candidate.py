"""Candidate attacks, CA+ and CA- (Zhou et al., ECCV 2020): move an item up or down in the lists of chosen queries."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from robustmetric.attacks.base import Scores, Targets, check_direction, draw, draw_near, percentile
from robustmetric.attacks.modes import Mode, check_mode, strict_percentile
from robustmetric.attacks.objectives import demotion, promotion
from robustmetric.numerics.distances import paired, pairwise
from robustmetric.types import Batch, Embeddings, Gallery


@dataclass(frozen=True)
class Candidate:
    """Up: W random queries should find the candidate first. Down: W of its near neighbours should find it last.

    Score: CA+ or CA-, the candidate's mean percentile rank in those lists (unattacked: about 50, about 1).
    `compat`: CA-'s queries are drawn with replacement, and ranks count the items strictly closer.
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
        if self.direction == "up":
            index = draw(len(gallery), len(batch), self.queries, clean.device, generator)
        else:
            again = self.mode == "compat"
            index = draw_near(clean, batch.index, gallery, self.pool, self.queries, generator, replacement=again)
        queries = gallery.embeddings[index]
        # The queries stand still, so their distances to the gallery are constants of the climb.
        lists = pairwise(queries.flatten(0, 1), gallery.embeddings).view(*index.shape, -1)
        return {"index": index, "queries": queries, "lists": lists}

    def value(self, z: Embeddings, targets: Targets, gallery: Gallery) -> Float[Tensor, " batch"]:
        objective = promotion if self.direction == "up" else demotion
        return objective(distances_to_queries(z, targets["queries"]), targets["lists"])

    def score(self, z: Embeddings, targets: Targets, batch: Batch, gallery: Gallery) -> Scores:
        name = "CA+" if self.direction == "up" else "CA-"
        rank = percentile if self.mode == "fixed" else strict_percentile
        return {name: rank(distances_to_queries(z, targets["queries"]), targets["lists"])}


def distances_to_queries(z: Embeddings, queries: Float[Tensor, "batch queries dim"]) -> Float[Tensor, "batch queries"]:
    """d(q_w, z) for each candidate's own queries."""
    width = queries.shape[1]
    return paired(z.repeat_interleave(width, dim=0), queries.flatten(0, 1)).view(-1, width)
