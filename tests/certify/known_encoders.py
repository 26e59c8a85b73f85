"""Encoders whose smoothed first answer is known in closed form, and galleries for them."""

from typing import Any

import torch
from torch import Tensor, nn

from robustmetric.certify.smoothed_retrieval import SmoothedRetrieval
from robustmetric.types import Batch, Gallery


class Circle(nn.Module):
    """(cos t, sin t) of t = <a, x>: smoothing shrinks it and turns nothing."""

    def __init__(self, *slope: float) -> None:
        super().__init__()
        self.slope = torch.tensor(slope)

    def forward(self, x: Tensor) -> Tensor:
        return on_circle(x @ self.slope)


class Side(nn.Module):
    """(1, 0) right of the origin and (-1, 0) left of it: the first answer changes at distance |x_0|."""

    def forward(self, x: Tensor) -> Tensor:
        side = torch.where(x[:, 0] >= 0, 1.0, -1.0)
        return torch.stack([side, 0 * side], dim=1)


class Constant(nn.Module):
    """These numbers, or the first axis, whatever comes."""

    def __init__(self, *values: float) -> None:
        super().__init__()
        self.values = torch.tensor(values or (1.0, 0.0), dtype=torch.float64)

    def forward(self, x: Tensor) -> Tensor:
        return self.values.repeat(len(x), 1)


class Scaled(nn.Module):
    """An embedding of length 3."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.tensor([3.0, 0.0]).repeat(len(x), 1)


def on_circle(angles: Tensor) -> Tensor:
    return torch.stack([angles.cos(), angles.sin()], dim=1)


def batch(x: Tensor, labels: Tensor | None = None, index: Tensor | None = None) -> Batch:
    count = len(x)
    labels = torch.zeros(count, dtype=torch.long) if labels is None else labels
    return Batch(x, labels, torch.full((count,), -1) if index is None else index)


def certifier(**settings: Any) -> SmoothedRetrieval:
    return SmoothedRetrieval(**{"sigma": 0.5, "samples": 1000, "selection": 20, **settings})


AXES = Gallery(torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([0, 1]))
POLES = Gallery(torch.tensor([[1.0, 0.0], [-1.0, 0.0]]), torch.tensor([0, 1]))
