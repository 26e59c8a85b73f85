"""Losses of a classifier as they are, not lifted where it is wrong: what is drawn of a climb is what was climbed."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from robustmetric.attacks.base import Scores, Targets
from robustmetric.attacks.feature_match import FeatureMatch
from robustmetric.attacks.margin import Classes, Logits, accuracy, check_logits
from robustmetric.types import Batch, Embeddings, Gallery


@dataclass(frozen=True)
class OfLogits:
    """Away from the label, by any loss of logits and labels."""

    loss: Callable[[Logits, Classes], Float[Tensor, " batch"]]
    role: ClassVar[Literal["query", "candidate"]] = "query"

    def choose(self, clean: Embeddings, batch: Batch, gallery: Gallery, generator: torch.Generator | None) -> Targets:
        check_logits(clean, batch.labels)
        return {"label": batch.labels}

    def value(self, z: Embeddings, targets: Targets, gallery: Gallery) -> Float[Tensor, " batch"]:
        return self.loss(z, targets["label"])

    def score(self, z: Embeddings, targets: Targets, batch: Batch, gallery: Gallery) -> Scores:
        return {"accuracy": accuracy(z, batch.labels)}


@dataclass(frozen=True)
class ToFeatures:
    """cos - 1 to the features of an image of another class, drawn as `FeatureMatch` draws it, of what that sees."""

    classes: int
    role: ClassVar[Literal["query", "candidate"]] = "query"

    def choose(self, clean: Embeddings, batch: Batch, gallery: Gallery, generator: torch.Generator | None) -> Targets:
        return FeatureMatch(self.classes).choose(clean, batch, gallery, generator)

    def value(self, z: Embeddings, targets: Targets, gallery: Gallery) -> Float[Tensor, " batch"]:
        return functional.cosine_similarity(z[:, self.classes :], targets["target"][:, self.classes :]) - 1

    def score(self, z: Embeddings, targets: Targets, batch: Batch, gallery: Gallery) -> Scores:
        return {"accuracy": accuracy(z[:, : self.classes], batch.labels)}
