"""Targeted mismatch, TMA (Tolias et al., ICCV 2019): give the query the embedding of a random other image."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from robustmetric.attacks.base import Scores, Targets, draw
from robustmetric.attacks.modes import Mode, check_mode
from robustmetric.attacks.objectives import alignment
from robustmetric.types import Batch, Embeddings, Gallery


@dataclass(frozen=True)
class TargetedMismatch:
    """Maximise cos(z, t) for one random other item t. Score: TMA, that cosine; collapsed models score high unattacked.

    `compat`: t may be the query itself.
    """

    mode: Mode = field(default="fixed", repr=False)
    role: ClassVar[Literal["query", "candidate"]] = "query"
    climbs_alike: ClassVar[Literal[True]] = True

    def __post_init__(self) -> None:
        check_mode(self.mode)

    def choose(self, clean: Embeddings, batch: Batch, gallery: Gallery, generator: torch.Generator | None) -> Targets:
        exclude = batch.index if self.mode == "fixed" else None
        index = draw(len(gallery), len(batch), 1, clean.device, generator, exclude)[:, 0]
        return {"index": index, "target": gallery.embeddings[index]}

    def value(self, z: Embeddings, targets: Targets, gallery: Gallery) -> Float[Tensor, " batch"]:
        return alignment(z, targets["target"])

    def score(self, z: Embeddings, targets: Targets, batch: Batch, gallery: Gallery) -> Scores:
        return {"TMA": alignment(z, targets["target"])}
