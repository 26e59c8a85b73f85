"""Embedding shift, ES (Zhou et al., "Adversarial ranking attack and defense", ECCV 2020): move the query away."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from robustmetric.attacks.base import Scores, Targets, recall_at_1
from robustmetric.attacks.objectives import nudged, shift
from robustmetric.numerics.distances import paired
from robustmetric.types import Batch, Embeddings, Gallery


@dataclass(frozen=True)
class EmbeddingShift:
    """Maximise d(z, z_clean). Scores: ES:D, the distance reached; ES:R, R@1 of the moved query in percent."""

    role: ClassVar[Literal["query", "candidate"]] = "query"

    def choose(self, clean: Embeddings, batch: Batch, gallery: Gallery, generator: torch.Generator | None) -> Targets:
        return {"clean": clean, "origin": nudged(clean, generator)}

    def value(self, z: Embeddings, targets: Targets, gallery: Gallery) -> Float[Tensor, " batch"]:
        return shift(z, targets["origin"])

    def score(self, z: Embeddings, targets: Targets, batch: Batch, gallery: Gallery) -> Scores:
        return {"ES:D": paired(z, targets["clean"]), "ES:R": recall_at_1(z, batch, gallery)}
