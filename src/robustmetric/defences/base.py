"""A defence turns a batch into named loss terms, whose sum is minimised."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from robustmetric.types import Batch


class Defence(nn.Module, ABC):
    """One training method. State that must survive a restart is a buffer; proxies are parameters of its loss."""

    replays: int = 1
    """Optimiser steps per batch (free adversarial training: 4)."""

    @abstractmethod
    def forward(self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Named terms of this batch; `generator` holds all of the step's randomness, so that a step can be repeated."""
