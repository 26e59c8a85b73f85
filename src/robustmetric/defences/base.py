"""A defence turns a batch into named loss terms, whose sum is minimised."""

from abc import ABC, abstractmethod
from contextlib import AbstractContextManager

import torch
from torch import Tensor, nn

from robustmetric.errors import InputError
from robustmetric.perturb.pgd import View, frozen
from robustmetric.types import Batch, Embed


class Defence(nn.Module, ABC):
    """One training method. State that must survive a restart is a buffer; proxies are parameters of its loss."""

    replays: int = 1
    """Optimiser steps per batch (free adversarial training: 4)."""
    view: View = "exact"
    """How attacks inside the defence see the model; the training job sets it from the recipe."""

    def __init__(self) -> None:
        super().__init__()
        self.measures: dict[str, Tensor] = {}
        """Figures of the last step that are worth a curve but no part of the loss; see `note`."""

    def note(self, **figures: Tensor | float) -> None:
        """Keep the means of these for the log: on the device, detached, so that the step does not wait for them."""
        self.measures = {name: torch.as_tensor(figure).detach().float().mean() for name, figure in figures.items()}

    def attacked(self, model: nn.Module) -> AbstractContextManager[Embed]:
        """The model to attack, as `view` says."""
        return frozen(model, self.view)

    @abstractmethod
    def forward(self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        """Named terms of this batch; `generator` holds all of the step's randomness, so that a step can be repeated."""


def require(part: object, kind: type, role: str) -> None:
    """Refuse a part of another kind when the defence is built, not at its first step."""
    if isinstance(part, str):
        raise InputError(f"{role} {part!r} is a word; write {{name: {part}}}")
    if not isinstance(part, kind):
        raise InputError(f"{role}: {type(part).__name__} is not of the kind {kind.__name__}")
