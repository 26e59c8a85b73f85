"""Training under Gaussian noise (Cohen et al., ICML 2019): the base of an encoder that will be smoothed."""

import math

import torch
from torch import Tensor, nn

from robustmetric.defences.base import Defence, require
from robustmetric.errors import InputError
from robustmetric.losses.base import MetricLoss
from robustmetric.types import Batch


class Noise(Defence):
    """The metric loss on inputs with Gaussian noise of deviation `sigma`, in input units.

    The noise is not clipped to valid inputs, as it is not where the encoder is smoothed.
    """

    def __init__(self, loss: MetricLoss, sigma: float) -> None:
        super().__init__()
        require(loss, MetricLoss, "loss")
        if not (sigma >= 0 and math.isfinite(sigma)):
            raise InputError(f"sigma {sigma} is no deviation of noise; expected a finite number >= 0, such as 0.25")
        self.loss = loss
        self.sigma = sigma

    def forward(self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        noise = torch.empty_like(batch.inputs).normal_(generator=generator)
        return {"metric": self.loss(model(batch.inputs + self.sigma * noise), batch.labels, generator=generator)}
