"""The nouns: batches, galleries, triplets, and the shapes of the functions between them."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

Inputs = Float[Tensor, "batch *shape"]
Embeddings = Float[Tensor, "batch dim"]
Labels = Int[Tensor, " batch"]
Embed = Callable[[Tensor], Tensor]
"""A model as a function: inputs to unit-length embeddings."""
Value = Callable[[Tensor], Tensor]
"""What an attack climbs: inputs to one number per row; larger is worse for the model."""
Progress = Callable[[int, int], None]
"""Called by long work as (done, in all): queries, epochs, ..."""


@dataclass(frozen=True)
class Batch:
    """Inputs with labels; `index` is each row's place in the gallery (or training set), -1 where it has none."""

    inputs: Inputs
    labels: Labels
    index: Int[Tensor, " batch"]

    def __len__(self) -> int:
        return len(self.labels)

    def to(self, device: torch.device | str) -> "Batch":
        """The same batch on another device."""
        return Batch(self.inputs.to(device), self.labels.to(device), self.index.to(device))


@dataclass(frozen=True)
class Gallery:
    """The embedded items that queries are compared with."""

    embeddings: Float[Tensor, "items dim"]
    labels: Int[Tensor, " items"]

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Triplets:
    """Positions in a batch: row t is (anchor[t], positive[t], negative[t])."""

    anchor: Int[Tensor, " triplets"]
    positive: Int[Tensor, " triplets"]
    negative: Int[Tensor, " triplets"]

    def of(self, rows: Float[Tensor, "batch *shape"]) -> tuple[Tensor, Tensor, Tensor]:
        """The anchors, positives and negatives among `rows`."""
        return rows[self.anchor], rows[self.positive], rows[self.negative]
