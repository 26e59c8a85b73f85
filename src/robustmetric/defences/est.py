"""Embedding-shifted triplets, EST (Zhou et al., "Adversarial ranking attack and defense", ECCV 2020)."""

import torch
from torch import Tensor, nn

from robustmetric.attacks.base import Engine
from robustmetric.attacks.objectives import nudged, shift
from robustmetric.defences.base import Defence, require
from robustmetric.losses.base import MetricLoss
from robustmetric.types import Batch


class EmbeddingShiftedTriplet(Defence):
    """Move every image's embedding as far as the ball allows, then mine and train on the moved batch."""

    def __init__(self, loss: MetricLoss, attack: Engine) -> None:
        super().__init__()
        require(loss, MetricLoss, "loss")
        require(attack, Engine, "attack")
        self.loss = loss
        self.attack = attack

    def forward(self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        with self.attacked(model) as embed:
            with torch.no_grad():
                origin = nudged(embed(batch.inputs), generator)
            adversarial = self.attack(lambda x: shift(embed(x), origin), batch.inputs, generator)
        return {"metric": self.loss(model(adversarial), batch.labels, generator=generator)}
