"""Any attack of the formula sheet turned on one question, whether the query still finds its class first (R@1)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from robustmetric.attacks.base import Attack, Scores, Targets, recall_at_1
from robustmetric.attacks.margin import lifted
from robustmetric.attacks.transfer import check_fixed
from robustmetric.types import Batch, Embeddings, Gallery


@dataclass(frozen=True)
class Misretrieve:
    """Another attack's targets and value, climbed on the query until its first answer is of another class.

    The value is lifted where that is so (`goal: 1e4`), so objectives that differ in kind end at the same event, and a
    suite can ask which queries survive them all. Score: R@1 in percent.
    """

    attack: Attack
    role: ClassVar[Literal["query", "candidate"]] = "query"

    def __post_init__(self) -> None:
        check_fixed(self.attack)

    def choose(self, clean: Embeddings, batch: Batch, gallery: Gallery, generator: torch.Generator | None) -> Targets:
        own = {"query label": batch.labels, "query place": batch.index}
        return {**self.attack.choose(clean, batch, gallery, generator), **own}

    def value(self, z: Embeddings, targets: Targets, gallery: Gallery) -> Float[Tensor, " batch"]:
        height = self.attack.value(z, targets, gallery)
        query = Batch(z, targets["query label"], targets["query place"])
        return lifted(height, recall_at_1(z.detach(), query, gallery) == 0)

    def score(self, z: Embeddings, targets: Targets, batch: Batch, gallery: Gallery) -> Scores:
        return {"R@1": recall_at_1(z, batch, gallery)}
