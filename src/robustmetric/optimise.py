"""Optimisers and schedules as settings. A schedule is a function of progress, so resuming needs no state of it."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, runtime_checkable

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
    """Multiply by `factor` at each share of the training named in `at`: (0.5, 0.75), after a rise as that of Cosine."""

    at: Sequence[float]
    factor: float = 0.1
    warmup: float = 0.0

    def __call__(self, progress: float, epochs: int) -> float:
        dropped = math.prod((self.factor for share in self.at if progress >= share * epochs), start=1.0)
        return dropped * (progress / self.warmup if progress < self.warmup else 1.0)


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
    warmup: float = 0.0
    """For so many epochs only the model's heads and the parameters of a defence move (Kim et al. 2020)."""
    head: str = "head"
    """What a head is called in the names of the model's parameters: `trunk.head.weight`."""

    def __post_init__(self) -> None:
        if self.rate <= 0:
            raise InputError(f"learning rate {self.rate} does not train; expected a number > 0, such as 1e-3")
        if not 0 <= self.warmup < math.inf:
            raise InputError(f"warmup {self.warmup} is no number of epochs; expected a number >= 0, such as 1")

    def build(self, model: nn.Module, defence: nn.Module, beside: Sequence[nn.Module] = ()) -> torch.optim.Optimizer:
        """The torch optimiser over model and defence parameters; each group remembers its base rate.

        `beside` are networks of the defence that move as the model does.
        """
        networks = nn.ModuleList([model, *beside])
        parts = [self._group(list(_trainable(networks)), self.rate)]
        if self.warmup:
            heads, others = self._heads_and_others(networks)
            parts = [self._group(heads, self.rate), self._group(others, self.rate, waits=True)]
        known = set(networks.parameters())
        proxies = [parameter for parameter in _trainable(defence) if parameter not in known]
        parts.append(self._group(proxies, self.rate * self.loss_rate_factor))
        groups = [group for group in parts if group["params"]]
        if not groups:
            raise InputError(f"{type(model).__name__} has no parameters that want a gradient; expected some to train")
        if self.method == "sgd":
            return torch.optim.SGD(groups, momentum=self.momentum, weight_decay=self.weight_decay)
        kind = torch.optim.Adam if self.method == "adam" else torch.optim.AdamW
        return kind(groups, weight_decay=self.weight_decay)

    def hold_back(self, optimizer: torch.optim.Optimizer, progress: float) -> None:
        """Between backward pass and step: take the gradients from what waits for the end of the warm-up.

        Without a gradient an optimiser leaves a parameter and its averages alone; a rate of 0 would spoil the latter.
        """
        if progress < self.warmup:
            for group in optimizer.param_groups:
                if group.get("waits"):
                    for parameter in group["params"]:
                        parameter.grad = None

    def _heads_and_others(self, model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        named = [
            (name.split("."), parameter) for name, parameter in model.named_parameters() if parameter.requires_grad
        ]
        heads = [parameter for name, parameter in named if self.head in name]
        if not heads:
            raise InputError(
                f"no parameter of the model belongs to a {self.head!r}; set head: to what its head is called"
            )
        return heads, [parameter for name, parameter in named if self.head not in name]

    @staticmethod
    def _group(parameters: list[nn.Parameter], rate: float, waits: bool = False) -> dict[str, Any]:
        group = {"params": parameters, "lr": rate, "base_rate": rate}
        return {**group, "waits": True} if waits else group


adam = partial(Optimiser, "adam")
"""Adam with coupled (L2) weight decay."""
adamw = partial(Optimiser, "adamw")
"""Adam with decoupled weight decay."""
sgd = partial(Optimiser, "sgd")
"""Stochastic gradient descent with momentum."""


def _trainable(module: nn.Module) -> Iterable[nn.Parameter]:
    return (parameter for parameter in module.parameters() if parameter.requires_grad)
