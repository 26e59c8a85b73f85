"""Feature matching (Lin, "FeatureAttack", 2019): towards the penultimate features of images of other classes.

It broke feature scattering, whose cross entropy and margins lead nowhere: the published figure is 100 target images.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from robustmetric.attacks.base import Attack, Scores, Targets
from robustmetric.attacks.margin import accuracy, check_logits, is_wrong, lifted
from robustmetric.errors import InputError
from robustmetric.perturb.pgd import frozen
from robustmetric.types import Batch, Embeddings, Gallery, Inputs


@runtime_checkable
class Featured(Protocol):
    """A classifier whose penultimate features can be asked for."""

    classes: int

    def features(self, inputs: Inputs) -> Embeddings: ...

    def logits(self, features: Embeddings) -> Embeddings: ...


def shows_features(model: nn.Module, inputs: Inputs) -> bool:
    """Whether features can be matched: a wrapper has the method, whether or not what it wraps does."""
    if not isinstance(model, Featured):
        return False
    try:
        with frozen(model), torch.no_grad():
            model.features(inputs[:1])
    except InputError:
        return False
    return True


class Exposed(nn.Module):
    """A classifier as this attack sees it: its logits and, behind them, the features they were made of."""

    def __init__(self, classifier: nn.Module) -> None:
        super().__init__()
        if not isinstance(classifier, Featured):
            raise InputError(
                f"{type(classifier).__name__} does not show its features; expected a classifier with features(x) and "
                "logits(features), or a suite without feature_match"
            )
        self.classifier, self.classes = classifier, classifier.classes

    def forward(self, inputs: Inputs) -> Float[Tensor, "batch _"]:
        features: object = self.classifier.features(inputs)
        if not isinstance(features, Tensor) or features.dim() != 2:
            found = (
                f"has shape {tuple(features.shape)}"
                if isinstance(features, Tensor)
                else f"is a {type(features).__name__}"
            )
            raise InputError(
                f"features(x) of {type(self.classifier).__name__} {found}; expected one vector per image, which "
                "logits(features) reads"
            )
        return torch.cat([self.classifier.logits(features), features.float()], dim=1)


@dataclass(frozen=True)
class FeatureMatch:
    """Climb the cosine between the features of x and those of a random image of another class; several such, in turn.

    The model is an `Exposed` classifier and the gallery holds what it says of the images to draw from. Score: accuracy
    in percent. A misclassified row is lifted (`keep: best`, or `goal: 1e4`).
    """

    classes: int = 0
    """How many of the model's outputs are logits; `for_classes` fills it in."""
    targets: int = 100
    role: ClassVar[Literal["query", "candidate"]] = "query"

    def __post_init__(self) -> None:
        if self.targets < 1 or self.classes < 0:
            raise InputError(f"targets={self.targets}, classes={self.classes}; expected at least 1 target")

    def for_classes(self, classes: int) -> "FeatureMatch":
        """The attack on a classifier of so many classes."""
        return replace(self, classes=classes)

    def each(self) -> Sequence[Attack]:
        """One climb for each target image; which one, each draws for itself."""
        return [self] * self.targets

    def choose(self, clean: Embeddings, batch: Batch, gallery: Gallery, generator: torch.Generator | None) -> Targets:
        if not 0 < self.classes < clean.shape[1]:
            raise InputError(
                f"{clean.shape[1]} outputs are no {self.classes} logits with features behind them; expected an Exposed "
                "classifier"
            )
        check_logits(clean[:, : self.classes], batch.labels)
        others = (gallery.labels[None] != batch.labels[:, None]).float()
        # One host synchronisation per climb: a row of zeros cannot be drawn from.
        if not bool(others.any(dim=1).all()):
            raise InputError("the images to match are of one class only; expected some of another class")
        index = torch.multinomial(others, 1, generator=generator)[:, 0]
        return {"label": batch.labels, "index": index, "target": gallery.embeddings[index]}

    def value(self, z: Embeddings, targets: Targets, gallery: Gallery) -> Float[Tensor, " batch"]:
        matched = functional.cosine_similarity(z[:, self.classes :], targets["target"][:, self.classes :])
        return lifted(matched, is_wrong(z[:, : self.classes], targets["label"]))

    def score(self, z: Embeddings, targets: Targets, batch: Batch, gallery: Gallery) -> Scores:
        return {"accuracy": accuracy(z[:, : self.classes], batch.labels)}
