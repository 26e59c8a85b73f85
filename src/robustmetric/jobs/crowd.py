"""The crowd: all images that an attack on clustering moves, and a sample of them to draw pictures of."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.jobs.arena import Arena, as_bytes
from robustmetric.jobs.feed import Feed
from robustmetric.metrics.average_precision import without_positives
from robustmetric.numerics.distances import chunks
from robustmetric.types import Batch

CLASSES, EACH = 10, 50
"""Of a sample: classes, evenly spread over all, and images of each at most."""


@dataclass(frozen=True)
class Crowd:
    """All images that an attack on clustering moves; where the gallery is apart, queries first and then the gallery."""

    batch: Batch
    queries: Int[Tensor, " queries"]
    items: Int[Tensor, " items"]
    exclude: Int[Tensor, " queries"]
    """Each query's own place among the items, -1 where it has none."""

    @staticmethod
    def of(arena: Arena) -> "Crowd":
        """The arena's images, as a model sees them."""
        device = arena.workers.device
        labels = arena.gallery.labels
        if len(labels.unique()) < 2:
            raise InputError(
                "the test images are of one class only; expected two or more, or nothing can be told apart"
            )
        rows, exclude = arena.rows.to(device), arena.places.to(device)
        items = torch.arange(len(labels), device=device)
        inputs = _inputs(arena, arena.items, torch.arange(len(labels)))
        if arena.items is not arena.queries:
            inputs = torch.cat([_inputs(arena, arena.queries, arena.rows), inputs])
            labels = torch.cat([arena.queries.labels.to(device)[rows], labels])
            items, rows = items + len(rows), torch.arange(len(rows), device=device)
        return Crowd(Batch(inputs, labels, torch.arange(len(labels), device=device)), rows, items, exclude)

    @property
    def lonely(self) -> int:
        """Queries that have no item of their class to find: they cannot hit, whatever the model."""
        labels = self.batch.labels
        return int(without_positives(labels[self.queries], labels[self.items], self.exclude).sum())

    @property
    def chance(self) -> float:
        """R@1 in percent of an embedding that knows nothing."""
        labels = self.batch.labels
        _, numbers = labels.unique(return_inverse=True)
        sizes = torch.bincount(numbers[self.items], minlength=int(numbers.max()) + 1)
        own = (self.exclude >= 0).long()
        share = (sizes[numbers[self.queries]] - own) / (len(self.items) - own)
        return 100 * float(share.double().mean())

    @property
    def sample(self) -> Int[Tensor, " rows"]:
        """Some items of some classes: the first of each."""
        labels = self.batch.labels[self.items]
        classes = labels.unique()
        count = min(CLASSES, len(classes))
        chosen = classes[torch.arange(count, device=labels.device) * len(classes) // count]
        return torch.cat([self.items[labels == number][:EACH] for number in chosen])


def sampled(
    crowd: Crowd, clean: Float[Tensor, "n dim"], moved: Float[Tensor, "n dim"], names: tuple[str, ...]
) -> dict[str, npt.NDArray[Any]]:
    """The sample's embeddings before and after, in half precision, and the names of its classes, image by image."""
    rows = crowd.sample
    labels = crowd.batch.labels[rows].tolist()
    return {
        "clean": clean[rows].half().cpu().numpy(),
        "moved": moved[rows].half().cpu().numpy(),
        # A class that only the gallery has is behind those that have names.
        "classes": np.array([names[label] if label < len(names) else str(label) for label in labels]),
    }


def _inputs(arena: Arena, feed: Feed, rows: Int[Tensor, " rows"]) -> Tensor:
    parts = [as_bytes(feed.batch(rows[part], arena.view)).inputs for part in chunks(len(rows), arena.batch_size)]
    return torch.cat(parts)
