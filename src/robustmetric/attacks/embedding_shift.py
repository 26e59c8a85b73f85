"""Embedding shift, ES (Zhou et al., "Adversarial ranking attack and defense", ECCV 2020): move the query away."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from robustmetric.attacks.base import Scores, Targets, recall_at_1
from robustmetric.attacks.modes import Mode, check_mode
from robustmetric.attacks.objectives import nudged, shift
from robustmetric.numerics.distances import paired
from robustmetric.types import Batch, Embeddings, Gallery


@dataclass(frozen=True)
class EmbeddingShift:
    """Maximise d(z, z_clean). Scores: ES:D, the distance reached; ES:R, R@1 of the moved query in percent.

    `compat`: the first step is along (1, ..., 1), and ES:D is measured one step before the last.
    """

    mode: Mode = field(default="fixed", repr=False)
    role: ClassVar[Literal["query", "candidate"]] = "query"

    def __post_init__(self) -> None:
        check_mode(self.mode)

    def choose(self, clean: Embeddings, batch: Batch, gallery: Gallery, generator: torch.Generator | None) -> Targets:
        return {"clean": clean, "origin": clean + 1e-7 if self.mode == "compat" else nudged(clean, generator)}

    def value(self, z: Embeddings, targets: Targets, gallery: Gallery) -> Float[Tensor, " batch"]:
        if self.mode == "compat":
            # Torch's own distance adds 1e-6 to every difference, ten times the nudge: the first step is along +1.
            return functional.pairwise_distance(z, targets["origin"])
        return shift(z, targets["origin"])

    def score(self, z: Embeddings, targets: Targets, batch: Batch, gallery: Gallery) -> Scores:
        return {"ES:D": paired(z, targets["clean"]), "ES:R": recall_at_1(z, batch, gallery)}

    def score_early(self, z: Embeddings, targets: Targets) -> Scores:
        """`compat`: ES:D before the last step."""
        return {"ES:D": paired(z, targets["clean"])}
