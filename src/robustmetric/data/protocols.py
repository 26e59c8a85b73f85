"""What jobs ask of a data set, a sampler and a transform; anything of this shape fits a recipe."""

from collections.abc import Iterable
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from robustmetric.data.base import Dataset


@runtime_checkable
class Source(Protocol):
    """Settings of a data set that know how to load it."""

    def load(self) -> Dataset: ...


@runtime_checkable
class Sampler(Protocol):
    """The batches of an epoch, as rows of a split; the same seed, epoch and rank give the same batches."""

    def steps(self, labels: Tensor, ranks: int = 1) -> int: ...

    def batches(self, labels: Tensor, epoch: int, seed: int, rank: int = 0, ranks: int = 1) -> Iterable[Tensor]: ...


@runtime_checkable
class Transform(Protocol):
    """uint8 images and their original sizes to float images in [0, 1], on the device of the images."""

    def __call__(self, images: Tensor, sizes: Tensor, generator: torch.Generator | None = None) -> Tensor: ...
