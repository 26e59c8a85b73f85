"""Query attacks, QA+ and QA- (Zhou et al., ECCV 2020): make a query find chosen items first, or last."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from robustmetric.attacks.base import Scores, Targets, check_direction, draw, draw_near, percentile, to_gallery
from robustmetric.attacks.modes import Mode, check_mode, left_out, strict_percentile
from robustmetric.attacks.objectives import demotion, promotion
from robustmetric.types import Batch, Embeddings, Gallery


@dataclass(frozen=True)
class Query:
    """Up: M random items should come first in the query's list. Down: M of its near neighbours should come last.

    The query itself is no part of its list. Score: QA+ or QA-, the mean percentile rank of those items among the others
    in it (unattacked: about 50, about 1). `compat`: the query's own copy stays in its list and may be drawn, and a rank
    is the share of all items, themselves among them, that is strictly closer.
    """

    direction: Literal["up", "down"]
    candidates: int = 1
    pool: float = 0.01
    """QA-: items are drawn from this share of the gallery (at least M), the query's nearest neighbours."""
    mode: Mode = field(default="fixed", repr=False)
    role: ClassVar[Literal["query", "candidate"]] = "query"
    climbs_alike: ClassVar[Literal[True]] = True

    def __post_init__(self) -> None:
        check_direction(self.direction, self.candidates, "candidates")
        check_mode(self.mode)

    def choose(self, clean: Embeddings, batch: Batch, gallery: Gallery, generator: torch.Generator | None) -> Targets:
        if self.direction == "up":
            exclude = batch.index if self.mode == "fixed" else None
            index = draw(len(gallery), len(batch), self.candidates, clean.device, generator, exclude)
        else:
            index = draw_near(clean, batch.index, gallery, self.pool, self.candidates, generator)
        return {"index": index, "exclude": left_out(batch, self.mode)}

    def value(self, z: Embeddings, targets: Targets, gallery: Gallery) -> Float[Tensor, " batch"]:
        distances = to_gallery(z, gallery, targets["exclude"])
        objective = promotion if self.direction == "up" else demotion
        return objective(distances.gather(1, targets["index"]), distances[:, None])

    def score(self, z: Embeddings, targets: Targets, batch: Batch, gallery: Gallery) -> Scores:
        name = "QA+" if self.direction == "up" else "QA-"
        return {name: rank_in_list(to_gallery(z, gallery, targets["exclude"]), targets["index"], self.mode)}


def rank_in_list(
    distances: Float[Tensor, "batch items"], index: Int[Tensor, "batch chosen"], mode: Mode
) -> Float[Tensor, " batch"]:
    """The mean percentile rank of chosen items in the query's own list."""
    chosen = distances.gather(1, index)
    if mode == "compat":
        return strict_percentile(chosen, distances[:, None])
    return percentile(chosen, distances[:, None], is_listed=True)
