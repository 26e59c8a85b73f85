"""Embedding-shifted triplets, EST (Zhou et al., "Adversarial ranking attack and defense", ECCV 2020)."""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from robustmetric.attacks.base import Engine
from robustmetric.attacks.objectives import beside, nudged, shift
from robustmetric.defences.base import Defence, require, require_word
from robustmetric.losses.base import MetricLoss
from robustmetric.types import Batch, Embed, Embeddings, Inputs

Nudge = Literal["random", "diagonal"]
"""Which way to leave a clean start, where the distance has no gradient; see `shifted`."""


class EmbeddingShiftedTriplet(Defence):
    """Move every image's embedding as far as the ball allows, then mine and train on the moved batch.

    `nudge` "diagonal" is the reference code's way to begin, which its published rows depend on; see `shifted`.
    The hardness that is noted is that of the triplets mined on the moved batch, in the clean batch and in the moved.
    """

    def __init__(self, loss: MetricLoss, attack: Engine, nudge: Nudge = "random") -> None:
        super().__init__()
        require(loss, MetricLoss, "loss")
        require(attack, Engine, "attack")
        require_word(nudge, get_args(Nudge), "nudge")
        self.loss, self.attack, self.nudge = loss, attack, nudge

    def forward(self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        with self.attacked(model) as embed:
            with torch.no_grad():
                clean = embed(batch.inputs)
            adversarial = shifted(self.attack, embed, batch.inputs, clean, generator, self.nudge)
        z = model(adversarial)
        triplets = self.loss.mine(z.detach(), batch.labels, generator)
        self.note_triplets(triplets, clean, z)
        return {"metric": self.loss(z, batch.labels, triplets, generator)}


def shifted(
    attack: Engine,
    embed: Embed,
    inputs: Inputs,
    clean: Embeddings,
    generator: torch.Generator | None,
    nudge: Nudge = "random",
) -> Inputs:
    """The inputs moved so that their embeddings lie as far from the clean ones as the ball allows.

    From a clean start the first step is in a random direction of each image's own or, `nudge` "diagonal", along
    (1, ..., 1) for all of them, as in the reference code.
    """
    origin = nudged(clean, generator) if nudge == "random" else beside(clean)
    return attack(lambda x: shift(embed(x), origin), inputs, generator)
