"""Learning to misrank, LTM (Wang et al., CVPR 2020): every other class nearer than the own one."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from robustmetric.attacks.base import Scores, Targets, recall_at_1, to_gallery
from robustmetric.attacks.modes import Mode, check_mode, left_out
from robustmetric.attacks.objectives import misranking
from robustmetric.types import Batch, Embeddings, Gallery


@dataclass(frozen=True)
class LearnToMisrank:
    """Bring the farthest item of another class nearer than the nearest of the own class (the query itself left out).

    Score: LTM, R@1 of the moved query in percent. `compat`: the query itself is not left out of its class, so the climb
    first leads away from its own clean copy.
    """

    mode: Mode = field(default="fixed", repr=False)
    role: ClassVar[Literal["query", "candidate"]] = "query"
    climbs_alike: ClassVar[Literal[True]] = True

    def __post_init__(self) -> None:
        check_mode(self.mode)

    def choose(self, clean: Embeddings, batch: Batch, gallery: Gallery, generator: torch.Generator | None) -> Targets:
        return {"same": gallery.labels[None] == batch.labels[:, None], "exclude": left_out(batch, self.mode)}

    def value(self, z: Embeddings, targets: Targets, gallery: Gallery) -> Float[Tensor, " batch"]:
        return misranking(to_gallery(z, gallery, targets["exclude"]), targets["same"])

    def score(self, z: Embeddings, targets: Targets, batch: Batch, gallery: Gallery) -> Scores:
        return {"LTM": recall_at_1(z, batch, gallery)}
