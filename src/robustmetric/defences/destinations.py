"""Where hardness manipulation drives its triplets: a goal for d(a,p) - d(a,n), per triplet (Zhou & Patel 2022)."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from robustmetric.defences.groups import check_miner, mine_in_groups
from robustmetric.errors import InputError
from robustmetric.losses.mining import Miner
from robustmetric.losses.triplet import hardness
from robustmetric.types import Embeddings, Labels

Hardness = Float[Tensor, " triplets"]


@dataclass(frozen=True)
class Moment:
    """What a destination may look at: the clean batch, and the adversarial loss of the step before, per triplet."""

    embeddings: Embeddings
    labels: Labels
    last_loss: Float[Tensor, " triplets"]
    groups: int = 1
    generator: torch.Generator | None = None

    def mined(self, miner: Miner) -> Hardness:
        """The hardness of this miner's triplets, one per anchor."""
        triplets = mine_in_groups(miner, self.embeddings, self.labels, self.groups, self.generator)
        return hardness(*triplets.of(self.embeddings))

    def level(self, cap: float) -> Float[Tensor, " triplets"]:
        """The last loss, cut to [0, cap], as a share of cap: 1 at the start of training, 0 when all is learnt."""
        return self.last_loss.clamp(0, cap) / cap


class Destination(ABC):
    """A goal per triplet; triplets already as hard, or harder, are left alone."""

    @abstractmethod
    def __call__(self, moment: Moment) -> Hardness:
        """In the order of the batch's anchors."""


@dataclass(frozen=True)
class Mined(Destination):
    """HM[.,D]: as hard as another miner's triplet of the same anchor."""

    miner: Miner

    def __post_init__(self) -> None:
        check_miner(self.miner, "miner")

    def __call__(self, moment: Moment) -> Hardness:
        return moment.mined(self.miner)


@dataclass(frozen=True)
class Fixed(Destination):
    """The same for all: 0 collapses, -margin / 2 and -margin do not; 2 is min-max."""

    value: float

    def __post_init__(self) -> None:
        _check_finite(value=self.value)

    def __call__(self, moment: Moment) -> Hardness:
        return torch.full_like(moment.last_loss, self.value)


@dataclass(frozen=True)
class Gradual(Destination):
    """-margin * (loss / cap)^power: the goal rises from -margin to 0 as the loss falls from `cap` to 0.

    Power 1 is g_LGA, the linear gradual adversary; 2 and 1/2 are g_2 and g_1/2 of the supplement. `cap` (u) is the
    margin unless given; 2.2, the largest loss there is, makes a stronger adversary.
    """

    margin: float = 0.2
    cap: float | None = None
    power: float = 1.0

    def __post_init__(self) -> None:
        _check_positive(margin=self.margin, cap=self._cap, power=self.power)

    @property
    def _cap(self) -> float:
        return self.margin if self.cap is None else self.cap

    def __call__(self, moment: Moment) -> Hardness:
        return -self.margin * moment.level(self._cap) ** self.power


@dataclass(frozen=True)
class Boosted(Destination):
    """g_B: a miner's hardness, raised by up to `boost` (xi) as the loss falls from `cap` to 0."""

    miner: Miner
    boost: float = 0.1
    cap: float = 0.2

    def __post_init__(self) -> None:
        check_miner(self.miner, "miner")
        _check_finite(boost=self.boost)
        _check_positive(cap=self.cap)

    def __call__(self, moment: Moment) -> Hardness:
        return moment.mined(self.miner) + self.boost * (1 - moment.level(self.cap))


@dataclass(frozen=True)
class Between(Destination):
    """A point on the way from one miner's hardness to another's: `share` 0 is `start`, 1 is `end`."""

    start: Miner
    end: Miner
    share: float = 0.5

    def __post_init__(self) -> None:
        check_miner(self.start, "start")
        check_miner(self.end, "end")
        _check_finite(share=self.share)

    def __call__(self, moment: Moment) -> Hardness:
        return torch.lerp(moment.mined(self.start), moment.mined(self.end), self.share)


def _check_finite(**numbers: float) -> None:
    for name, number in numbers.items():
        if not math.isfinite(number):
            raise InputError(f"{name} {number} gives no goal; expected a finite number")


def _check_positive(**numbers: float) -> None:
    for name, number in numbers.items():
        if not 0 < number < math.inf:
            raise InputError(f"{name} {number} gives no goal; expected a finite number > 0, such as 0.2")
