"""Ordinary metric learning: no defence, the row every other one is compared with."""

import torch
from torch import Tensor, nn

from robustmetric.defences.base import Defence, require
from robustmetric.losses.base import MetricLoss
from robustmetric.types import Batch


class Plain(Defence):
    """The metric loss on clean inputs."""

    def __init__(self, loss: MetricLoss) -> None:
        super().__init__()
        require(loss, MetricLoss, "loss")
        self.loss = loss

    def forward(self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        return {"metric": self.loss(model(batch.inputs), batch.labels, generator=generator)}
