"""Attacks that see ranks alone: the ordered list that a search engine shows, without distances or embeddings."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from robustmetric.attacks.base import Attack, Scores, Targets, percentile, to_gallery
from robustmetric.attacks.candidate import Candidate, distances_to_queries
from robustmetric.attacks.embedding_shift import EmbeddingShift
from robustmetric.attacks.mismatch import TargetedMismatch
from robustmetric.attacks.misrank import LearnToMisrank
from robustmetric.attacks.objectives import FAR
from robustmetric.attacks.query import Query
from robustmetric.attacks.top1 import TopOneMisranking, TopOneTranslocation
from robustmetric.attacks.transfer import check_fixed
from robustmetric.errors import InputError
from robustmetric.types import Batch, Embeddings, Gallery

RankOf = Callable[[Embeddings, Targets, Gallery], Tensor]
"""A percentile rank per row: 0 is first, 100 is last."""


@dataclass(frozen=True)
class RankOnly:
    """Another attack's targets and scores, climbed by what the order of the list says.

    The value is minus the percentile rank still to go: that of the chosen items on their way to the top (QA+, TMA, GTM)
    or to the end (QA-, GTT), that of the candidate in the lists of its queries (CA), or that of the first item of the
    query's own class on its way to the end (ES, LTM). It ends at 0. It is piecewise constant: only engines that ask for
    values alone climb it.
    """

    attack: Attack

    def __post_init__(self) -> None:
        _goal(self.attack)
        check_fixed(self.attack)

    @property
    def role(self) -> Literal["query", "candidate"]:
        return self.attack.role

    def choose(self, clean: Embeddings, batch: Batch, gallery: Gallery, generator: torch.Generator | None) -> Targets:
        targets = {**self.attack.choose(clean, batch, gallery, generator), "exclude": batch.index}
        if _goal(self.attack)[0] is _of_own_class:
            targets["same"] = gallery.labels[None] == batch.labels[:, None]
        return targets

    def value(self, z: Embeddings, targets: Targets, gallery: Gallery) -> Float[Tensor, " batch"]:
        if z.requires_grad:
            raise InputError(
                f"ranks have no gradient to climb, but the engine asks {self.attack!r} for one; expected an engine "
                "that asks for values alone: set the engine's name to nes or square"
            )
        rank_of, direction = _goal(self.attack)
        rank = rank_of(z, targets, gallery)
        return -rank if direction == "up" else rank - 100

    def score(self, z: Embeddings, targets: Targets, batch: Batch, gallery: Gallery) -> Scores:
        return self.attack.score(z, targets, batch, gallery)


def _goal(attack: Attack) -> tuple[RankOf, Literal["up", "down"]]:
    """Whose rank tells how far the attack is, and which way it should go."""
    match attack:
        case Query(direction=direction):
            return _of_items, direction
        case Candidate(direction=direction):
            return _of_candidate, direction
        case TargetedMismatch() | TopOneMisranking():
            return _of_items, "up"
        case TopOneTranslocation():
            return _of_items, "down"
        case EmbeddingShift() | LearnToMisrank():
            return _of_own_class, "down"
    raise InputError(
        f"{attack!r} has no goal among ranks; expected query, candidate, targeted_mismatch, top1_misranking, "
        "top1_translocation, embedding_shift or learn_to_misrank"
    )


def _of_items(z: Embeddings, targets: Targets, gallery: Gallery) -> Tensor:
    """The mean rank of the chosen items in the query's list, itself left out."""
    distances = to_gallery(z, gallery, targets["exclude"])
    return percentile(distances.gather(1, targets["index"].view(len(z), -1)), distances[:, None], is_listed=True)


def _of_candidate(z: Embeddings, targets: Targets, gallery: Gallery) -> Tensor:
    """The mean rank of the candidate in the lists of its queries."""
    return percentile(distances_to_queries(z, targets["queries"]), targets["lists"])


def _of_own_class(z: Embeddings, targets: Targets, gallery: Gallery) -> Tensor:
    """The rank of the first item of the query's own class, itself left out; above 0, R@1 is lost."""
    distances = to_gallery(z, gallery, targets["exclude"])
    first = distances.masked_fill(~targets["same"], FAR).amin(dim=1, keepdim=True).clamp_max(FAR)
    # Without such an item (a class of one) all others are before it: 100, and no more.
    return percentile(first, distances[:, None], is_listed=True).clamp_max(100)
