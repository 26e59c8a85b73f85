"""Greedy top-1 attacks, GTM and GTT (Li et al. 2021, as evaluated by Zhou & Patel 2022): change the first answer."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from robustmetric.attacks.base import Scores, Targets, recall_at_1, to_gallery
from robustmetric.attacks.modes import Mode, check_mode
from robustmetric.attacks.objectives import approach, demotion
from robustmetric.errors import InputError
from robustmetric.numerics.distances import nearest, pairwise
from robustmetric.types import Batch, Embeddings, Gallery


@dataclass(frozen=True)
class TopOneMisranking:
    """Approach the nearest item whose label differs from the query's. Score: GTM, R@1 in percent.

    `compat`: the label to differ from is that of the clean first answer, and the item is looked up at the wrong place;
    its label may be the query's own, which keeps R@1 above 0 however strong the attack is.
    """

    mode: Mode = field(default="fixed", repr=False)
    role: ClassVar[Literal["query", "candidate"]] = "query"
    climbs_alike: ClassVar[Literal[True]] = True

    def __post_init__(self) -> None:
        check_mode(self.mode)

    def choose(self, clean: Embeddings, batch: Batch, gallery: Gallery, generator: torch.Generator | None) -> Targets:
        distances = to_gallery(clean, gallery, batch.index)
        label = batch.labels if self.mode == "fixed" else gallery.labels[distances.argmin(dim=1)]
        other = gallery.labels[None] != label[:, None]
        # One host synchronisation per batch: the target would otherwise be an item of the query's own class.
        if not bool(other.any(dim=1).all()):
            raise InputError("the gallery holds one class only; expected items of another class to misrank towards")
        index = distances.masked_fill(~other, torch.inf).argmin(dim=1)
        if self.mode == "compat":
            # The reference counts its place among the items of other labels, and takes the item at that place of all.
            index = other.cumsum(dim=1).gather(1, index[:, None])[:, 0].sub(1).clamp_min(0)
        return {"index": index, "target": gallery.embeddings[index]}

    def value(self, z: Embeddings, targets: Targets, gallery: Gallery) -> Float[Tensor, " batch"]:
        return approach(z, targets["target"])

    def score(self, z: Embeddings, targets: Targets, batch: Batch, gallery: Gallery) -> Scores:
        return {"GTM": recall_at_1(z, batch, gallery)}


@dataclass(frozen=True)
class TopOneTranslocation:
    """Push the clean first answer down the list. Score: GTT, percent of queries that keep it among the first `keep`.

    A gallery of fewer items is a list of all of them. `compat` differs only in what all attacks share.
    """

    keep: int = 4
    mode: Mode = field(default="fixed", repr=False)
    role: ClassVar[Literal["query", "candidate"]] = "query"
    climbs_alike: ClassVar[Literal[True]] = True

    def __post_init__(self) -> None:
        check_mode(self.mode)

    def choose(self, clean: Embeddings, batch: Batch, gallery: Gallery, generator: torch.Generator | None) -> Targets:
        return {"index": to_gallery(clean, gallery, batch.index).argmin(dim=1, keepdim=True)}

    def value(self, z: Embeddings, targets: Targets, gallery: Gallery) -> Float[Tensor, " batch"]:
        distances = pairwise(z, gallery.embeddings)
        return demotion(distances.gather(1, targets["index"]), distances[:, None])

    def score(self, z: Embeddings, targets: Targets, batch: Batch, gallery: Gallery) -> Scores:
        listed = len(gallery) - int((batch.index >= 0).any())
        _, top = nearest(z, gallery.embeddings, k=min(self.keep, listed), exclude=batch.index)
        return {"GTT": 100.0 * (top == targets["index"]).any(dim=1).float()}
