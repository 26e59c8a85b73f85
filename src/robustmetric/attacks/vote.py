"""Attacks through an ensemble's vote: pairs of members, soft vote with BPDA (Athalye et al. 2018), neighbour margin.

The sum of members, sum_i D(z_i, origin_i), needs no attack of its own: it is k D of the embeddings side by side, so its
signed steps are those of `embedding_shift` on the ensemble.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Any, ClassVar, Literal, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from robustmetric.attacks.base import Attack, Scores, Targets
from robustmetric.attacks.objectives import nudged, shift
from robustmetric.errors import InputError
from robustmetric.numerics.vote import majority, unit_members
from robustmetric.types import Batch, Embeddings, Gallery

LEAST = -1.0
"""The smallest cosine: stands for "no such item" in a maximum."""


@runtime_checkable
class Voted(Protocol):
    """An attack that tells the members of an ensemble apart: a frozen dataclass with a field `members`."""

    @property
    def members(self) -> int: ...


@runtime_checkable
class Several(Protocol):
    """An attack of several climbs, of which each image keeps the one that hurts most (`damage`)."""

    def each(self) -> Sequence[Attack]: ...


@runtime_checkable
class Capped(Protocol):
    """An attack whose value has a largest one, at which a row is as wrong as it wants it."""

    @property
    def ceiling(self) -> float: ...


def for_members(attack: Attack, members: int) -> Attack:
    """The attack on an ensemble of so many members; one that does not tell them apart is left as it is."""
    if not isinstance(attack, Voted) or not is_dataclass(attack):
        return attack
    return cast(Attack, replace(cast(Any, attack), members=members))


def climbs_of(attack: Attack) -> Sequence[Attack]:
    """The attack's climbs; of most there is one."""
    return attack.each() if isinstance(attack, Several) else [attack]


@dataclass(frozen=True)
class PairShift:
    """Move two members away from where they were: a vote of three falls with them. All pairs are tried."""

    members: int = 1
    pair: int = 0
    """Which pair, in the order of `itertools.combinations`."""
    role: ClassVar[Literal["query", "candidate"]] = "query"

    def __post_init__(self) -> None:
        check_members(self.members)
        if not 0 <= self.pair < len(self.pairs):
            raise InputError(f"pair {self.pair} of {len(self.pairs)} pairs; expected 0 <= pair < {len(self.pairs)}")

    @property
    def pairs(self) -> list[tuple[int, ...]]:
        """Of one member, that one."""
        return list(itertools.combinations(range(self.members), min(2, self.members)))

    def each(self) -> Sequence[Attack]:
        """One climb for each pair."""
        return [replace(self, pair=pair) for pair in range(len(self.pairs))]

    def choose(self, clean: Embeddings, batch: Batch, gallery: Gallery, generator: torch.Generator | None) -> Targets:
        return {"origin": nudged(self._chosen(clean), generator), **_rows(batch)}

    def value(self, z: Embeddings, targets: Targets, gallery: Gallery) -> Float[Tensor, " batch"]:
        return shift(self._chosen(z), targets["origin"])

    def score(self, z: Embeddings, targets: Targets, batch: Batch, gallery: Gallery) -> Scores:
        return voted_recall_at_1(z, batch, gallery, self.members)

    def _chosen(self, z: Embeddings) -> Float[Tensor, "batch _"]:
        parts = unit_members(z, self.members)
        return torch.cat([parts[i] for i in self.pairs[self.pair]], dim=1)


@dataclass(frozen=True)
class SoftVote:
    """Climb -log p(y), p(c) = mean_i softmax_c(max_{j of class c} s_i(x, x_j) / temperature): a vote that has slopes.

    `straight_through` (BPDA): the value is 1 where the hard vote is wrong, else 0; the slope is that of the soft one.
    """

    members: int = 1
    temperature: float = 0.05
    straight_through: bool = True
    role: ClassVar[Literal["query", "candidate"]] = "query"

    def __post_init__(self) -> None:
        check_members(self.members)
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise InputError(f"temperature {self.temperature} has no softmax; expected a number > 0, such as 0.05")

    def choose(self, clean: Embeddings, batch: Batch, gallery: Gallery, generator: torch.Generator | None) -> Targets:
        # Counted here, not at every step: the device would have to wait for the host. One row serves all.
        classes = int(torch.maximum(gallery.labels.max(), batch.labels.max())) + 1
        return {**_rows(batch), "floor": clean.new_full((1, 1), LEAST).expand(len(batch), classes)}

    def value(self, z: Embeddings, targets: Targets, gallery: Gallery) -> Float[Tensor, " batch"]:
        similarity = similarities(z, gallery, targets["exclude"], self.members)
        heights, floor = similarity / self.temperature, targets["floor"] / self.temperature
        soft = -log_soft_vote(heights, gallery.labels, targets["label"], floor)
        if not self.straight_through:
            return soft
        wrong = (hard_vote(similarity, gallery.labels) != targets["label"]).to(soft.dtype)
        return soft + (wrong - soft).detach()

    def score(self, z: Embeddings, targets: Targets, batch: Batch, gallery: Gallery) -> Scores:
        return voted_recall_at_1(z, batch, gallery, self.members)


@dataclass(frozen=True)
class NeighbourMargin:
    """Climb sum_i min(confidence, max_{y_j != y} s_i - max_{y_j = y} s_i): a member that is fooled pulls no more."""

    members: int = 1
    confidence: float = 0.02
    """How much more similar the wrong neighbour must be: room for rounding to bytes."""
    role: ClassVar[Literal["query", "candidate"]] = "query"

    def __post_init__(self) -> None:
        check_members(self.members)

    def choose(self, clean: Embeddings, batch: Batch, gallery: Gallery, generator: torch.Generator | None) -> Targets:
        return _rows(batch)

    def value(self, z: Embeddings, targets: Targets, gallery: Gallery) -> Float[Tensor, " batch"]:
        similarity = similarities(z, gallery, targets["exclude"], self.members)
        return margins(similarity, gallery.labels, targets["label"]).clamp_max(self.confidence).sum(dim=0)

    def score(self, z: Embeddings, targets: Targets, batch: Batch, gallery: Gallery) -> Scores:
        return voted_recall_at_1(z, batch, gallery, self.members)

    @property
    def ceiling(self) -> float:
        """The value of a row whose members are all fooled, less what rounding may take: nothing is gained beyond."""
        return self.members * self.confidence * (1 - 1e-6)


def similarities(
    z: Embeddings, gallery: Gallery, exclude: Int[Tensor, " batch"], members: int
) -> Float[Tensor, "members batch items"]:
    """Each member's cosine of every row with every item, `LEAST` with the excluded one (-1: none)."""
    sides = zip(unit_members(z, members), unit_members(gallery.embeddings, members), strict=True)
    cosine = torch.stack([rows @ items.T.to(rows.dtype) for rows, items in sides])
    own = torch.arange(len(gallery), device=z.device) == exclude[:, None]
    return cosine.masked_fill(own, LEAST)


def log_soft_vote(
    similarity: Float[Tensor, "members batch items"],
    item_labels: Int[Tensor, " items"],
    labels: Int[Tensor, " batch"],
    floor: Float[Tensor, "batch classes"],
) -> Float[Tensor, " batch"]:
    """log of the mean over members of softmax_y(the class's most similar item); a class without items has its floor."""
    least = floor.to(similarity.dtype).expand(len(similarity), -1, -1)
    best = least.scatter_reduce(2, item_labels.expand_as(similarity), similarity, "amax")
    own = best.log_softmax(dim=2).gather(2, labels.expand(len(similarity), -1)[..., None])[..., 0]
    return own.logsumexp(dim=0) - math.log(len(similarity))


def hard_vote(
    similarity: Float[Tensor, "members batch items"], item_labels: Int[Tensor, " items"]
) -> Int[Tensor, " batch"]:
    """The label most members find first; of a tie, that of the most similar item."""
    best, place = similarity.detach().max(dim=2)
    return majority(item_labels[place].T, -best.T)


def margins(
    similarity: Float[Tensor, "members batch items"], item_labels: Int[Tensor, " items"], labels: Int[Tensor, " batch"]
) -> Float[Tensor, "members batch"]:
    """By member, how much more similar the nearest item of another class is than that of the own class."""
    same = item_labels == labels[:, None]
    other = similarity.masked_fill(same, LEAST).amax(dim=2)
    return other - similarity.masked_fill(~same, LEAST).amax(dim=2)


@torch.no_grad()
def damage(z: Embeddings, batch: Batch, gallery: Gallery, members: int) -> Float[Tensor, " batch"]:
    """How badly a row fares: 1 where the vote is wrong, plus its mean margin over members, scaled into [-1/2, 1/2]."""
    similarity = similarities(z, gallery, batch.index, members)
    wrong = hard_vote(similarity, gallery.labels) != batch.labels
    return wrong + margins(similarity, gallery.labels, batch.labels).mean(dim=0) / 4


@torch.no_grad()
def voted_recall_at_1(z: Embeddings, batch: Batch, gallery: Gallery, members: int) -> Scores:
    """ "V1:R": 100 where the members' vote on the first neighbour is right, else 0."""
    voted = hard_vote(similarities(z, gallery, batch.index, members), gallery.labels)
    return {"V1:R": 100.0 * (voted == batch.labels).float()}


def check_members(members: int) -> None:
    """Refuse an ensemble of nobody."""
    if members < 1:
        raise InputError(f"members={members}; expected 1 or more")


def _rows(batch: Batch) -> dict[str, Tensor]:
    return {"label": batch.labels, "exclude": batch.index}
