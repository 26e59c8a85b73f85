"""Attacks that keep the top of the list as it was: SPQA (Zhou et al., ECCV 2020) and SPFOA, with a dynamic balance.

A list whose first answers make no sense gives an attack away. So besides its own goal the attacker keeps the items that
were nearest near: value - xi * (what QA+ would minimise for them), where xi grows with how far they have fallen.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from robustmetric.attacks.base import Attack, Scores, Targets, check_direction, to_gallery
from robustmetric.attacks.modes import Mode, check_mode, left_out
from robustmetric.attacks.objectives import promotion
from robustmetric.attacks.order import Order
from robustmetric.attacks.query import Query, rank_in_list
from robustmetric.errors import InputError
from robustmetric.numerics.distances import nearest
from robustmetric.types import Batch, Embeddings, Gallery

MOST = 1e9
"""Where the balance xi stops growing."""


class SemanticsPreserving(ABC):
    """An attack on a query that also keeps the nearest `kept` items near; its scores are named SP..., theirs SP...:G.

    xi = min(exp(strictness * fall), 1e9), where `fall` is what QA+ would minimise for them: per query, or (`compat`)
    its mean over the batch, which SPFOA of two items takes from the clean images and keeps. Published
    strictness: 2e4 for MNIST, 4e4 for Fashion and CUB, 7e4 for CARS and SOP.
    """

    mode: Mode
    kept: int
    strictness: float
    role: ClassVar[Literal["query", "candidate"]] = "query"

    @property
    @abstractmethod
    def attack(self) -> Attack:
        """The attack whose goal it pursues; it names its items under `index`."""

    @property
    def hides(self) -> bool:
        """Whether the attack's own items cannot be kept, as it moves them away."""
        return True

    @property
    def holds_balance(self) -> bool:
        """Whether xi is that of the clean images, and not of those on their way."""
        return False

    def check(self) -> None:
        """Refuse settings without a meaning."""
        check_mode(self.mode)
        if self.kept < 1 or not self.strictness >= 0:
            raise InputError(f"kept={self.kept}, strictness={self.strictness}; expected kept >= 1, strictness >= 0")

    def choose(self, clean: Embeddings, batch: Batch, gallery: Gallery, generator: torch.Generator | None) -> Targets:
        targets = self.attack.choose(clean, batch, gallery, generator)
        own = batch.index[:, None]
        but = torch.cat([own, targets["index"]], dim=1) if self.hides else own
        if len(gallery) < self.kept + but.shape[1]:
            raise InputError(
                f"{self.kept} items cannot be kept near in a gallery of {len(gallery)}; "
                f"expected at least {self.kept + but.shape[1]} items, or a smaller `kept`"
            )
        _, kept = nearest(clean, gallery.embeddings, k=self.kept, exclude=but)
        share = torch.full_like(clean[:, 0], 1 / len(batch))
        targets = {**targets, "kept": kept, "share": share, "exclude": left_out(batch, self.mode)}
        if not self.holds_balance:
            return targets
        return {**targets, "balance": self.balance(self.fall(clean, targets, gallery), targets)}

    def value(self, z: Embeddings, targets: Targets, gallery: Gallery) -> Float[Tensor, " batch"]:
        fall = self.fall(z, targets, gallery)
        balance = targets["balance"] if self.holds_balance else self.balance(fall, targets)
        return self.attack.value(z, targets, gallery) - balance * fall

    def fall(self, z: Embeddings, targets: Targets, gallery: Gallery) -> Float[Tensor, " batch"]:
        """How far the kept items are from the top: what QA+ would minimise for them."""
        distances = to_gallery(z, gallery, targets["exclude"])
        return -promotion(distances.gather(1, targets["kept"]), distances[:, None])

    def balance(self, fall: Float[Tensor, " batch"], targets: Targets) -> Float[Tensor, " batch"]:
        """xi, without a gradient."""
        # Rows that no longer move have nothing fallen, so that shares of the whole batch add up to its mean.
        felt = fall if self.mode == "fixed" else (targets["share"] * fall).sum().expand_as(fall)
        return (self.strictness * felt.detach()).exp().clamp_max(MOST)

    def score(self, z: Embeddings, targets: Targets, batch: Batch, gallery: Gallery) -> Scores:
        scores = self.attack.score(z, targets, batch, gallery)
        kept = rank_in_list(to_gallery(z, gallery, targets["exclude"]), targets["kept"], self.mode)
        name = next(iter(scores)).removesuffix(":tau")
        return {**{f"SP{key}": values for key, values in scores.items()}, f"SP{name}:G": kept}


@dataclass(frozen=True)
class SemanticsPreservingQuery(SemanticsPreserving):
    """SPQA+ and SPQA-: a query finds chosen items first, or last, and otherwise what it found before."""

    direction: Literal["up", "down"]
    candidates: int = 1
    pool: float = 0.01
    kept: int = 5
    strictness: float = 4e4
    mode: Mode = field(default="fixed", repr=False)

    def __post_init__(self) -> None:
        check_direction(self.direction, self.candidates, "candidates")
        self.check()

    @property
    def attack(self) -> Query:
        return Query(self.direction, self.candidates, self.pool, self.mode)

    @property
    def hides(self) -> bool:
        return self.direction == "down"


@dataclass(frozen=True)
class SemanticsPreservingOrder(SemanticsPreserving):
    """SPFOA: near items in the wanted order, and the others where they were."""

    items: int = 2
    pool: float = 0.01
    kept: int = 5
    strictness: float = 4e4
    mode: Mode = field(default="fixed", repr=False)

    def __post_init__(self) -> None:
        self.check()
        self.attack.__post_init__()

    @property
    def attack(self) -> Order:
        return Order(self.items, self.pool, self.mode)

    @property
    def holds_balance(self) -> bool:
        # The reference code's loop has no update of xi for two items; for more it has. The kept items' term is that of
        # QA+ in both: an order has no sign that would say otherwise.
        return self.mode == "compat" and self.items == 2
