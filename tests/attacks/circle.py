"""Galleries on the unit circle and an encoder that only normalises: all of an attack can be worked by hand."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from robustmetric.types import Batch, Gallery


class Circle(nn.Module):
    """2-D inputs to unit length. The identity matrix is a parameter, so that a stray parameter gradient would show."""

    dim = 2

    def __init__(self) -> None:
        super().__init__()
        self.matrix = nn.Parameter(torch.eye(2, dtype=torch.float64))

    def forward(self, inputs: Tensor) -> Tensor:
        return functional.normalize(inputs @ self.matrix, dim=1)


def at(*degrees: float) -> Tensor:
    """Points of the unit circle."""
    angles = torch.tensor(degrees, dtype=torch.float64).deg2rad()
    return torch.stack([angles.cos(), angles.sin()], dim=1)


def chord(degrees: float) -> float:
    """The distance of two points of the unit circle so many degrees apart."""
    return 2 * math.sin(math.radians(abs(degrees)) / 2)


def angle(z: Tensor) -> list[float]:
    """Where on the circle, in degrees."""
    return torch.atan2(z[:, 1], z[:, 0]).rad2deg().tolist()


def gallery(degrees: list[float], labels: list[int]) -> Gallery:
    return Gallery(at(*degrees), torch.tensor(labels))


def queries(degrees: list[float], labels: list[int], index: list[int] | None = None) -> Batch:
    """`index`: each query's place in the gallery; by default none is in it."""
    places = [-1] * len(labels) if index is None else index
    return Batch(at(*degrees), torch.tensor(labels), torch.tensor(places))


def slope(value: Tensor, z: Tensor) -> Tensor:
    """How each row's value changes as its point turns counter-clockwise."""
    (gradient,) = torch.autograd.grad(value.sum(), z)
    tangent = torch.stack([-z[:, 1], z[:, 0]], dim=1).detach()
    return (gradient * tangent).sum(dim=1)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)
