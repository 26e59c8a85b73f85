"""Embedding-shifted triplets, EST (Zhou et al., "Adversarial ranking attack and defense", ECCV 2020)."""

import torch
from torch import Tensor, nn

from robustmetric.attacks.base import Engine
from robustmetric.attacks.objectives import nudged, shift
from robustmetric.defences.base import Defence, require
from robustmetric.losses.base import MetricLoss
from robustmetric.types import Batch, Embed, Embeddings, Inputs


class EmbeddingShiftedTriplet(Defence):
    """Move every image's embedding as far as the ball allows, then mine and train on the moved batch.

    The hardness that is noted is that of the triplets mined on the moved batch, in the clean batch and in the moved.
    """

    def __init__(self, loss: MetricLoss, attack: Engine) -> None:
        super().__init__()
        require(loss, MetricLoss, "loss")
        require(attack, Engine, "attack")
        self.loss = loss
        self.attack = attack

    def forward(self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        with self.attacked(model) as embed:
            with torch.no_grad():
                clean = embed(batch.inputs)
            adversarial = shifted(self.attack, embed, batch.inputs, clean, generator)
        z = model(adversarial)
        triplets = self.loss.mine(z.detach(), batch.labels, generator)
        self.note_triplets(triplets, clean, z)
        return {"metric": self.loss(z, batch.labels, triplets, generator)}


def shifted(
    attack: Engine, embed: Embed, inputs: Inputs, clean: Embeddings, generator: torch.Generator | None
) -> Inputs:
    """The inputs moved so that their embeddings lie as far from the clean ones as the ball allows."""
    origin = nudged(clean, generator)
    return attack(lambda x: shift(embed(x), origin), inputs, generator)
