"""A defence turns a batch into named loss terms, whose sum is minimised."""

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from robustmetric.errors import InputError, nearest
from robustmetric.losses.triplet import hardness
from robustmetric.models.encoder import perturbed
from robustmetric.perturb.pgd import View, frozen
from robustmetric.types import Batch, Embed, Embeddings, Labels, Triplets


class Defence(nn.Module, ABC):
    """One training method. State that must survive a restart is a buffer, or extra state; proxies are parameters."""

    replays: int = 1
    """Optimiser steps per batch (free adversarial training: 4)."""
    view: View = "exact"
    """How attacks inside the defence see the model; the training job sets it from the recipe."""
    steady: bool = False
    """Whether updates are compiled, and should keep to one size; the training job sets it from the recipe."""
    progress: float = 1.0
    """The share of the training that is done, for an adversary that grows; the training job sets it at every step."""

    def __init__(self) -> None:
        super().__init__()
        self.measures: dict[str, Tensor] = {}
        """Figures of the last step that are worth a curve but no part of the loss; see `note`."""

    def note(self, **figures: Tensor | float) -> None:
        """Keep the means of these for the log: on the device, detached, so that the step does not wait for them."""
        self.measures = {name: torch.as_tensor(figure).detach().float().mean() for name, figure in figures.items()}

    def note_triplets(self, triplets: Triplets | None, before: Embeddings, after: Embeddings) -> None:
        """Keep the mean hardness of these triplets before and after the attack; of a loss that uses none, nothing."""
        if triplets is not None and len(triplets.anchor):
            self.note(before=hardness(*triplets.of(before)), after=hardness(*triplets.of(after)))

    @contextmanager
    def attacked(self, model: nn.Module) -> Iterator[Embed]:
        """The model to attack, as `view` says, with its batch norms for perturbed images."""
        with perturbed(model), frozen(model, self.view) as embed:
            yield embed

    @property
    def separates(self) -> bool:
        """Whether it learns from clean images and from perturbed ones, in passes of their own: auxiliary batch norms
        need both."""
        return False

    def repeated(self, model: nn.Module) -> Sequence[nn.Module]:
        """What every update calls with batches of one size: what is worth compiling."""
        return [model]

    @property
    def beside(self) -> Sequence[nn.Module]:
        """Networks of its own that train as the model does, at its rate and through its warm-up, and end with it."""
        return []

    def prepare(self, labels: Labels) -> None:
        """See the labels of the whole training set; the training job calls this once, before the first step."""
        return

    @abstractmethod
    def forward(self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Named terms of this batch; `generator` holds all of the step's randomness, so that a step can be repeated."""


def require(part: object, kind: type, role: str) -> None:
    """Refuse a part of another kind when the defence is built, not at its first step."""
    if isinstance(part, str):
        raise InputError(f"{role} {part!r} is a word; write {{name: {part}}}")
    if not isinstance(part, kind):
        raise InputError(f"{role}: {type(part).__name__} is not of the kind {kind.__name__}")


def require_word(word: str, known: Sequence[str], role: str) -> None:
    """Refuse a word that names no variant."""
    if word not in known:
        raise InputError(f"{role} {word!r} is not known{nearest(str(word), known)}")


def require_share(value: float, role: str) -> None:
    """Refuse what is no share of the loss."""
    if not 0 <= value <= 1:
        raise InputError(f"{role} {value} is not a share of the loss; expected 0 to 1, such as 0.5")


def require_weight(value: float, role: str) -> None:
    """Refuse what is no weight of a term."""
    if not 0 <= value < math.inf:
        raise InputError(f"{role} {value} is no weight of a term; expected a finite number >= 0, such as 1")


def require_each(parts: Sequence[object], kind: type, role: str) -> None:
    """Refuse an ensemble's parts, one per member, unless there is at least one and all are of this kind."""
    if isinstance(parts, str) or not isinstance(parts, Sequence) or not parts:
        raise InputError(f"{role} {parts!r} are not one per member; expected a list, [{{name: ...}}, ...]")
    for place, part in enumerate(parts):
        require(part, kind, f"{role}[{place}]")
