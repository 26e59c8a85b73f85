"""Attacks on classifiers: cross entropy, margin (Carlini & Wagner, S&P 2017), DLR (Croce & Hein, ICML 2020).

A classifier is a model whose embedding is its logits, so its gallery is empty. Climbs lead away from the label, or
towards another class.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from robustmetric.attacks.base import Attack, Scores, Targets
from robustmetric.errors import InputError, nearest
from robustmetric.types import Batch, Embeddings, Gallery

Logits = Float[Tensor, "batch classes"]
Classes = Int[Tensor, " batch"]
"""One class per row."""

WON = 1e4
"""What a misclassified row is lifted by, where its loss alone does not tell: `goal: 1e4` stops an engine there."""
ENOUGH = 10
"""Rows that are not all probabilities by chance: each of a least-squares fit sums to one, and some lie in [0, 1]."""
FLOOR = 1e-12
"""Least denominator of DLR."""
SHORT = 1e-6
"""What a tie that the label wins falls short of a margin of 0: an engine that stops there must have won."""

Loss = Literal["cross_entropy", "margin", "dlr"]
TargetedLoss = Literal["margin", "dlr"]
NEEDED = {("cross_entropy", False): 2, ("margin", False): 2, ("dlr", False): 3, ("margin", True): 2, ("dlr", True): 4}
"""By loss and whether it is towards a class: how many classes there must be."""


def cross_entropy(logits: Logits, labels: Classes) -> Float[Tensor, " batch"]:
    """-log softmax_y(z)."""
    return functional.cross_entropy(_precise(logits), labels, reduction="none")


def margin(logits: Logits, labels: Classes) -> Float[Tensor, " batch"]:
    """max_{j != y} z_j - z_y: above 0 where misclassified."""
    logits = _precise(logits)
    return _without(logits, labels).amax(dim=1) - _at(logits, labels)


def dlr(logits: Logits, labels: Classes) -> Float[Tensor, " batch"]:
    """The margin over z_(1) - z_(3), largest first: the same whatever the logits are scaled by or shifted to."""
    logits = _precise(logits)
    ordered = logits.sort(dim=1, descending=True).values
    return margin(logits, labels) / (ordered[:, 0] - ordered[:, 2] + FLOOR)


def targeted_margin(logits: Logits, labels: Classes, targets: Classes) -> Float[Tensor, " batch"]:
    """z_t - z_y: above 0 the label is no longer first."""
    logits = _precise(logits)
    return _at(logits, targets) - _at(logits, labels)


def targeted_dlr(logits: Logits, labels: Classes, targets: Classes) -> Float[Tensor, " batch"]:
    """(z_t - z_y) / (z_(1) - (z_(3) + z_(4)) / 2)."""
    logits = _precise(logits)
    ordered = logits.sort(dim=1, descending=True).values
    scale = ordered[:, 0] - (ordered[:, 2] + ordered[:, 3]) / 2
    return targeted_margin(logits, labels, targets) / (scale + FLOOR)


def is_wrong(logits: Logits, labels: Classes) -> Bool[Tensor, " batch"]:
    """Whether the first of the largest logits is another class than the label; NaN or infinity is no right answer."""
    return (logits.argmax(dim=1) != labels) | ~logits.isfinite().all(dim=1)


def short_of(margin: Float[Tensor, " batch"], wrong: Bool[Tensor, " batch"]) -> Float[Tensor, " batch"]:
    """The margin, just below 0 where it is not and the row is right all the same: of a tie, the first class wins."""
    return torch.where(wrong, margin, margin - SHORT * (margin >= 0))


def lifted(loss: Float[Tensor, " batch"], won: Bool[Tensor, " batch"]) -> Float[Tensor, " batch"]:
    """The loss, and `WON` more where the row is won: the largest value is then a won one; slopes are the loss's.

    A won row has `WON` at least: objectives of rankings are below 0, and would fall short of the goal.
    """
    return torch.where(won, WON + loss.clamp_min(0), loss)


def accuracy(logits: Logits, labels: Classes) -> Float[Tensor, " batch"]:
    """100 where the label has the largest logit, else 0, as where a logit is NaN or infinite."""
    return 100.0 * (~is_wrong(logits, labels)).float()


def rank_of_classes(logits: Logits, labels: Classes) -> Int[Tensor, "batch others"]:
    """The other classes, the likeliest first."""
    return _without(logits, labels).argsort(dim=1, descending=True, stable=True)[:, :-1]


@dataclass(frozen=True)
class Misclassify:
    """Away from the label. Score: accuracy in percent.

    The margin ends at 0 (`goal: 0`). The others do not, and are lifted (`goal: 1e4`).
    """

    loss: Loss
    role: ClassVar[Literal["query", "candidate"]] = "query"
    towards: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_loss(self.loss, get_args(Loss))

    def for_classes(self, classes: int) -> "Misclassify":
        """Itself; a loss that needs more classes is refused."""
        _check_classes(self.loss, self.towards, classes)
        return self

    def choose(self, clean: Embeddings, batch: Batch, gallery: Gallery, generator: torch.Generator | None) -> Targets:
        check_logits(clean, batch.labels)
        _check_classes(self.loss, self.towards, clean.shape[1])
        return {"label": batch.labels}

    def value(self, z: Embeddings, targets: Targets, gallery: Gallery) -> Float[Tensor, " batch"]:
        label = targets["label"]
        if self.loss == "margin":
            return short_of(margin(z, label), is_wrong(z, label))
        climbed = cross_entropy(z, label) if self.loss == "cross_entropy" else dlr(z, label)
        return lifted(climbed, is_wrong(z, label))

    def score(self, z: Embeddings, targets: Targets, batch: Batch, gallery: Gallery) -> Scores:
        return {"accuracy": accuracy(z, batch.labels)}


@dataclass(frozen=True)
class MisclassifyTowards:
    """Towards the classes that the clean logits rank first after the label, one climb each. Score: accuracy in percent.

    The margin z_t - z_y ends at 0 (`goal: 0`); DLR is lifted as soon as the label is not first (`goal: 1e4`).
    """

    loss: TargetedLoss
    targets: int = 9
    """How many classes are tried; there is one fewer than the model tells apart at most."""
    rank: int = 1
    """Which of them a single climb is towards: 1 is the likeliest."""
    role: ClassVar[Literal["query", "candidate"]] = "query"
    towards: ClassVar[bool] = True

    def __post_init__(self) -> None:
        _check_loss(self.loss, get_args(TargetedLoss))
        if not 1 <= self.rank <= self.targets:
            raise InputError(f"rank={self.rank} of targets={self.targets}; expected 1 <= rank <= targets")

    def for_classes(self, classes: int) -> "MisclassifyTowards":
        """With no more targets than there are other classes; a loss that needs more classes is refused."""
        _check_classes(self.loss, self.towards, classes)
        return replace(self, targets=min(self.targets, classes - 1))

    def each(self) -> Sequence[Attack]:
        """One climb for each target."""
        return [replace(self, rank=rank) for rank in range(1, self.targets + 1)]

    def choose(self, clean: Embeddings, batch: Batch, gallery: Gallery, generator: torch.Generator | None) -> Targets:
        check_logits(clean, batch.labels)
        _check_classes(self.loss, self.towards, clean.shape[1])
        if self.rank >= clean.shape[1]:
            raise InputError(f"rank {self.rank} among {clean.shape[1] - 1} other classes; expected at most that many")
        return {"label": batch.labels, "class": rank_of_classes(clean, batch.labels)[:, self.rank - 1]}

    def value(self, z: Embeddings, targets: Targets, gallery: Gallery) -> Float[Tensor, " batch"]:
        label, towards = targets["label"], targets["class"]
        if self.loss == "margin":
            return short_of(targeted_margin(z, label, towards), is_wrong(z, label))
        return lifted(targeted_dlr(z, label, towards), is_wrong(z, label))

    def score(self, z: Embeddings, targets: Targets, batch: Batch, gallery: Gallery) -> Scores:
        return {"accuracy": accuracy(z, batch.labels)}


def check_logits(logits: Logits, labels: Classes, *, first: bool = False) -> None:
    """Refuse a clean batch that no attack here could climb from: NaN, probabilities, labels without a logit.

    What a few rows look like by chance refuses no model half way: of them, the `first` batch alone is asked whether it
    holds probabilities.
    """
    classes = logits.shape[1]
    if not bool(logits.isfinite().all()):
        raise InputError("the model's logits hold NaN or infinity; check its weights")
    strange = labels[(labels < 0) | (labels >= classes)]
    if len(strange):
        raise InputError(
            f"label {int(strange[0])} has no logit: the model tells {classes} classes apart; expected the classes it "
            "was trained on, in the same order"
        )
    if len(logits) < ENOUGH and not first:
        return
    # A softmax of half precision sums to one within some thousandths.
    if bool(((logits >= 0) & (logits <= 1)).all()) and bool(((logits.sum(dim=1) - 1).abs() < 1e-2).all()):
        raise InputError(
            "the model returns probabilities (every row is in [0, 1] and sums to one), whose gradients vanish where it "
            "is sure; expected logits: leave out its softmax"
        )


def _precise(logits: Logits) -> Logits:
    """In float32 or better: half precision knows neither `FLOOR` nor, in bfloat16, `WON`."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def _without(logits: Logits, labels: Classes) -> Logits:
    """The logits of the other classes; the label's is below all."""
    return logits.scatter(1, labels[:, None], -torch.inf)


def _at(logits: Logits, classes: Classes) -> Float[Tensor, " batch"]:
    return logits.gather(1, classes[:, None])[:, 0]


def _check_loss(loss: str, known: Sequence[str]) -> None:
    if loss not in known:
        raise InputError(f"loss {loss!r} is not known{nearest(loss, known)}")


def _check_classes(loss: Loss, towards: bool, classes: int) -> None:
    if classes < NEEDED[loss, towards]:
        kind = f"{'targeted ' if towards else ''}{loss}"
        raise InputError(
            f"{kind} compares the logits of {NEEDED[loss, towards]} classes, but the model tells {classes} apart; use "
            "loss: margin" + ("" if classes > 1 else " with at least 2 classes")
        )
