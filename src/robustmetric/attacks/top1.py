"""Greedy top-1 attacks, GTM and GTT (Li et al. 2021, as evaluated by Zhou & Patel 2022): change the first answer."""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from robustmetric.attacks.base import Scores, Targets, recall_at_1, to_gallery
from robustmetric.attacks.objectives import approach, demotion
from robustmetric.errors import InputError
from robustmetric.numerics.distances import nearest, pairwise
from robustmetric.types import Batch, Embeddings, Gallery


@dataclass(frozen=True)
class TopOneMisranking:
    """Approach the nearest item whose label differs from the query's. Score: GTM, R@1 in percent."""

    role: ClassVar[Literal["query", "candidate"]] = "query"

    def choose(self, clean: Embeddings, batch: Batch, gallery: Gallery, generator: torch.Generator | None) -> Targets:
        same = gallery.labels[None] == batch.labels[:, None]
        # One host synchronisation per batch: the target would otherwise be an item of the query's own class.
        if bool(same.all(dim=1).any()):
            raise InputError("the gallery holds one class only; expected items of another class to misrank towards")
        index = pairwise(clean, gallery.embeddings).masked_fill(same, torch.inf).argmin(dim=1)
        return {"index": index, "target": gallery.embeddings[index]}

    def value(self, z: Embeddings, targets: Targets, gallery: Gallery) -> Float[Tensor, " batch"]:
        return approach(z, targets["target"])

    def score(self, z: Embeddings, targets: Targets, batch: Batch, gallery: Gallery) -> Scores:
        return {"GTM": recall_at_1(z, batch, gallery)}


@dataclass(frozen=True)
class TopOneTranslocation:
    """Push the clean first answer down the list. Score: GTT, percent of queries that keep it among the first `keep`.

    A gallery of fewer items is a list of all of them.
    """

    keep: int = 4
    role: ClassVar[Literal["query", "candidate"]] = "query"

    def choose(self, clean: Embeddings, batch: Batch, gallery: Gallery, generator: torch.Generator | None) -> Targets:
        return {"index": to_gallery(clean, gallery, batch.index).argmin(dim=1, keepdim=True)}

    def value(self, z: Embeddings, targets: Targets, gallery: Gallery) -> Float[Tensor, " batch"]:
        distances = pairwise(z, gallery.embeddings)
        return demotion(distances.gather(1, targets["index"]), distances[:, None])

    def score(self, z: Embeddings, targets: Targets, batch: Batch, gallery: Gallery) -> Scores:
        listed = len(gallery) - int((batch.index >= 0).any())
        _, top = nearest(z, gallery.embeddings, k=min(self.keep, listed), exclude=batch.index)
        return {"GTT": 100.0 * (top == targets["index"]).any(dim=1).float()}
