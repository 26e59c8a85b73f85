"""Optimisers and schedules as settings. A schedule is a function of progress, so resuming needs no state of it."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol, runtime_checkable

import torch
from torch import nn

from robustmetric.errors import InputError


@runtime_checkable
class Schedule(Protocol):
    """The factor on the learning rate after `progress` of `epochs` (both in epochs, progress may be fractional)."""

    def __call__(self, progress: float, epochs: int) -> float: ...


@dataclass(frozen=True)
class Constant:
    """Always 1."""

    def __call__(self, progress: float, epochs: int) -> float:
        return 1.0


@dataclass(frozen=True)
class Milestones:
    """Multiply by `factor` at each share of the training named in `at`: (0.5, 0.75)."""

    at: Sequence[float]
    factor: float = 0.1

    def __call__(self, progress: float, epochs: int) -> float:
        return math.prod((self.factor for share in self.at if progress >= share * epochs), start=1.0)


@dataclass(frozen=True)
class Cosine:
    """Half a cosine from 1 to 0, after a linear rise over `warmup` epochs."""

    warmup: float = 0.0

    def __call__(self, progress: float, epochs: int) -> float:
        if progress < self.warmup:
            return progress / self.warmup
        return 0.5 * (1 + math.cos(math.pi * (progress - self.warmup) / max(epochs - self.warmup, 1e-9)))


@dataclass(frozen=True)
class Optimiser:
    """How parameters move. The parameters of a defence (proxies) move at `loss_rate_factor` times the rate."""

    method: Literal["adam", "adamw", "sgd"]
    rate: float
    weight_decay: float = 0.0
    momentum: float = 0.9
    loss_rate_factor: float = 1.0
    clip: float | None = None
    """Clip each gradient entry to [-clip, clip]."""
    schedule: Schedule = Constant()

    def __post_init__(self) -> None:
        if self.rate <= 0:
            raise InputError(f"learning rate {self.rate} does not train; expected a number > 0, such as 1e-3")

    def build(self, model: nn.Module, defence: nn.Module) -> torch.optim.Optimizer:
        """The torch optimiser over model and defence parameters; each group remembers its base rate."""
        groups = [
            {"params": list(parameters), "lr": rate, "base_rate": rate}
            for parameters, rate in (
                (_trainable(model), self.rate),
                (_trainable(defence), self.rate * self.loss_rate_factor),
            )
        ]
        groups = [group for group in groups if group["params"]]
        if self.method == "sgd":
            return torch.optim.SGD(groups, momentum=self.momentum, weight_decay=self.weight_decay)
        kind = torch.optim.Adam if self.method == "adam" else torch.optim.AdamW
        return kind(groups, weight_decay=self.weight_decay)


adam = partial(Optimiser, "adam")
"""Adam with coupled (L2) weight decay."""
adamw = partial(Optimiser, "adamw")
"""Adam with decoupled weight decay."""
sgd = partial(Optimiser, "sgd")
"""Stochastic gradient descent with momentum."""


def _trainable(module: nn.Module) -> Iterable[nn.Parameter]:
    return (parameter for parameter in module.parameters() if parameter.requires_grad)
