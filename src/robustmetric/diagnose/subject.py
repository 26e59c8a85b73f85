"""Who is diagnosed: a classifier, an encoder or an ensemble that votes, each with what its attackers climb."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from robustmetric.attacks.base import Attack, Scores, Targets, recall_at_1
from robustmetric.attacks.embedding_shift import EmbeddingShift
from robustmetric.attacks.feature_match import Exposed, Featured
from robustmetric.attacks.margin import Misclassify, cross_entropy, dlr, is_wrong, lifted, margin
from robustmetric.attacks.transfer import Surrogate
from robustmetric.attacks.vote import NeighbourMargin, SoftVote, voted_recall_at_1
from robustmetric.diagnose.unlifted import OfLogits
from robustmetric.errors import InputError
from robustmetric.numerics.distances import chunks
from robustmetric.perturb.pgd import View
from robustmetric.perturb.seeking import Search
from robustmetric.types import Batch, Embeddings, Gallery

Right = Callable[[Tensor, Batch, Gallery], Tensor]
"""(embeddings, batch, gallery) -> whether the model is right about each row."""


@dataclass(frozen=True)
class Subject:
    """A model on some test inputs, and what to climb to make it wrong."""

    model: nn.Module
    batch: Batch
    gallery: Gallery
    """Empty for a classifier."""
    loss: Attack
    """What the usual attack climbs: the cross entropy of a classifier, the margin of neighbours. As `margin` and the
    others, it is lifted where the model is wrong (`goal: 1e4`)."""
    margin: Attack
    others: Mapping[str, Attack]
    """Further losses by name."""
    watched: Attack
    """The margin without a lift: what climbs are followed by."""
    right: Right
    score: str
    chance: float
    """The score in percent of a model that knows nothing."""
    view: View = "exact"
    search: Search = "fp32"
    """What attacks climb in; whether the model is right is asked in fp32 (in the check of steps, as it is climbed)."""
    surrogates: Mapping[str, Surrogate] = field(default_factory=dict)
    """Other models, on which transferred perturbations are found."""
    features: nn.Module | None = None
    """Inputs to what a linear readout may read (the penultimate layer); None: the embedding."""
    followed: Mapping[str, Attack] = field(default_factory=dict)
    """Losses by name, none of them lifted, whose climbs are drawn side by side."""
    exposed: nn.Module | None = None
    """A classifier that shows features, its logits with these behind them: they are aimed at too."""
    together: int = 128
    """Inputs attacked at a time."""

    @property
    def alone(self) -> Right:
        """Whether another model is right by itself; one with members by their mean."""
        return _right_neighbour if len(self.gallery) else _right_class

    def climbed_on(self, source: Surrogate) -> Attack:
        """What the usual attack climbs on another model: of neighbours by that model's own members, be it one."""
        return _margin_of_neighbours(source.members) if len(self.gallery) else self.loss

    def batches(self) -> Iterator[Batch]:
        """The inputs, some at a time; always the same ones together."""
        for part in chunks(len(self.batch), self.together):
            yield Batch(self.batch.inputs[part], self.batch.labels[part], self.batch.index[part])


@dataclass(frozen=True)
class Lifted:
    """Another attack's value, lifted where the model itself is wrong (`goal: 1e4`).

    A vote is lost at margins on either side of 0, so that no margin of its members tells an engine where to stop.
    """

    attack: Attack
    right: Right
    role: ClassVar[Literal["query", "candidate"]] = "query"

    def choose(self, clean: Embeddings, batch: Batch, gallery: Gallery, generator: torch.Generator | None) -> Targets:
        return {**self.attack.choose(clean, batch, gallery, generator), "label": batch.labels, "exclude": batch.index}

    def value(self, z: Embeddings, targets: Targets, gallery: Gallery) -> Float[Tensor, " batch"]:
        rows = Batch(z.detach(), targets["label"], targets["exclude"])
        return lifted(self.attack.value(z, targets, gallery), ~self.right(z.detach(), rows, gallery))

    def score(self, z: Embeddings, targets: Targets, batch: Batch, gallery: Gallery) -> Scores:
        return self.attack.score(z, targets, batch, gallery)


class Attached(nn.Module):
    """A model that answers without a gradient (it counts votes, say) as one whose gradient is zero."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, inputs: Tensor) -> Tensor:
        return self.model(inputs) + 0 * inputs.flatten(1).sum(dim=1, keepdim=True)


class Penultimate(nn.Module):
    """A classifier's `features` as a model of their own."""

    def __init__(self, model: nn.Module, features: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.model = model
        self.read = features

    def forward(self, inputs: Tensor) -> Tensor:
        return self.read(inputs)


def classifier_subject(
    model: nn.Module,
    batch: Batch,
    classes: int,
    *,
    features: Callable[[Tensor], Tensor] | None = None,
    view: View = "exact",
    surrogates: Mapping[str, nn.Module] | None = None,
) -> Subject:
    """A model whose embedding is its logits; DLR is climbed too where there are the three classes that it compares."""
    empty = Gallery(torch.zeros(0, classes, device=batch.inputs.device), batch.labels[:0])
    losses = {"cross entropy": cross_entropy, "margin": margin, **({"DLR": dlr} if classes > 2 else {})}
    return Subject(
        model=model,
        batch=batch,
        gallery=empty,
        loss=Misclassify("cross_entropy"),
        margin=Lifted(Misclassify("margin"), _right_class),
        others={"DLR": Misclassify("dlr")} if classes > 2 else {},
        watched=Misclassify("margin"),
        right=_right_class,
        score="accuracy",
        chance=100 / classes,
        view=view,
        surrogates={name: Surrogate(other, empty) for name, other in (surrogates or {}).items()},
        features=None if features is None else Penultimate(model, features),
        followed={name: OfLogits(loss) for name, loss in losses.items()},
        exposed=Exposed(model) if features is not None and isinstance(model, Featured) else None,
    )


def retrieval_subject(
    model: nn.Module,
    batch: Batch,
    gallery: Gallery,
    chance: float,
    *,
    members: int = 1,
    view: View = "exact",
    surrogates: Mapping[str, Surrogate] | None = None,
) -> Subject:
    """An encoder that searches a gallery, or, with `members`, an ensemble whose members vote on the first neighbour.

    The usual attack climbs the margin of its neighbours. A soft vote leaves more than it on some honest models and less
    on others, and the embedding shift more on all measured (`docs/masking.md`): both stand among the other losses,
    where they count if they win.
    """
    if not len(gallery):
        raise InputError("retrieval needs a gallery to search; expected at least one item")
    loss = _margin_of_neighbours(members)
    nearer, right, vote = loss.attack, loss.right, SoftVote(members, straight_through=False)
    return Subject(
        model=model,
        batch=batch,
        gallery=gallery,
        loss=loss,
        margin=loss,
        others={"soft vote": Lifted(vote, right), "ES": Lifted(EmbeddingShift(), right)},
        watched=nearer,
        right=right,
        score="R@1" if members == 1 else "V1:R",
        chance=chance,
        view=view,
        surrogates=surrogates or {},
        followed={"margin of neighbours": nearer, "soft vote": vote, "ES": EmbeddingShift()},
    )


@dataclass(frozen=True)
class Decision:
    """1 where the model is wrong, -1 where it is right, and no more: what a hard-label attack may ask (`goal: 0`)."""

    right: Right
    role: ClassVar[Literal["query", "candidate"]] = "query"

    def choose(self, clean: Embeddings, batch: Batch, gallery: Gallery, generator: torch.Generator | None) -> Targets:
        return {"label": batch.labels, "exclude": batch.index}

    def value(self, z: Embeddings, targets: Targets, gallery: Gallery) -> Float[Tensor, " batch"]:
        rows = Batch(z, targets["label"], targets["exclude"])  # the decision is made of embeddings, not of inputs
        return torch.where(self.right(z, rows, gallery), -1.0, 1.0)

    def score(self, z: Embeddings, targets: Targets, batch: Batch, gallery: Gallery) -> Scores:
        return {"right": 100.0 * self.right(z, batch, gallery).float()}


class Recorder:
    """An attack that remembers, at every value an engine asked for, what another is there and if the model was right.

    The other is the margin, say, not lifted, which does not saturate where the loss of a confident model does. For
    engines that ask about all rows at every step (PGD with `keep: best`). Of a climb that is made again, as in fp32
    where float16 failed, the last `count` values are those of the second.
    """

    role: ClassVar[Literal["query", "candidate"]] = "query"

    def __init__(self, attack: Attack, watched: Attack, right: Right, count: int) -> None:
        self.attack, self.watched, self.right, self.count = attack, watched, right, count
        self._parts: list[list[tuple[Tensor, Tensor]]] = []

    def choose(self, clean: Embeddings, batch: Batch, gallery: Gallery, generator: torch.Generator | None) -> Targets:
        self._parts.append([])
        own = self.attack.choose(clean, batch, gallery, generator)
        return {**own, "label": batch.labels, "exclude": batch.index}

    def value(self, z: Embeddings, targets: Targets, gallery: Gallery) -> Float[Tensor, " batch"]:
        value = self.attack.value(z, targets, gallery)
        rows = Batch(z.detach(), targets["label"], targets["exclude"])
        is_climbed = self.watched is self.attack
        watched = value.detach() if is_climbed else self.watched.value(z.detach(), targets, gallery)
        self._parts[-1].append((watched, self.right(z.detach(), rows, gallery)))
        return value

    def score(self, z: Embeddings, targets: Targets, batch: Batch, gallery: Gallery) -> Scores:
        return self.attack.score(z, targets, batch, gallery)

    @property
    def values(self) -> Float[Tensor, "steps images"]:
        """What was watched, at every step."""
        return torch.cat([torch.stack([value for value, _ in part[-self.count :]]) for part in self._parts], dim=1)

    @property
    def is_right(self) -> Bool[Tensor, "steps images"]:
        """Whether the model was right at every step."""
        return torch.cat([torch.stack([right for _, right in part[-self.count :]]) for part in self._parts], dim=1)


def _margin_of_neighbours(members: int) -> Lifted:
    """By so many members, lifted where the model that they are is wrong."""
    right: Right = _right_neighbour if members == 1 else partial(_right_vote, members=members)
    return Lifted(NeighbourMargin(members), right)


def _right_class(z: Embeddings, batch: Batch, gallery: Gallery) -> Bool[Tensor, " batch"]:
    return ~is_wrong(z, batch.labels)


def _right_neighbour(z: Embeddings, batch: Batch, gallery: Gallery) -> Bool[Tensor, " batch"]:
    return recall_at_1(z, batch, gallery) > 50


def _right_vote(z: Embeddings, batch: Batch, gallery: Gallery, members: int) -> Bool[Tensor, " batch"]:
    return voted_recall_at_1(z, batch, gallery, members)["V1:R"] > 50
