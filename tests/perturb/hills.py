"""What the tests of engines climb."""

import torch
from torch import Tensor

from robustmetric.types import Value


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(rows: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.rand(rows, *shape, generator=seeded(seed))


def bumpy(x: Tensor) -> Tensor:
    """Many hills of different heights per row."""
    return (torch.sin(9 * x) + x).flatten(1).sum(dim=1)


def watched(value: Value) -> tuple[Value, list[Tensor]]:
    """The same value, and a list that fills with the points it is asked at."""
    points: list[Tensor] = []

    def watching(x: Tensor) -> Tensor:
        points.append(x.detach().clone())
        return value(x)

    return watching, points
