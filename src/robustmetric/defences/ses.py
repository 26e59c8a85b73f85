"""Suppressed embedding shift, SES (Zhou et al., "Adversarial ranking attack and defense", ECCV 2020, supplement)."""

import math
from typing import get_args

import torch
from torch import Tensor, nn

from robustmetric.attacks.base import Engine
from robustmetric.attacks.objectives import shift
from robustmetric.defences.base import Defence, require, require_word
from robustmetric.defences.est import Nudge, shifted
from robustmetric.errors import InputError
from robustmetric.losses.base import MetricLoss
from robustmetric.types import Batch


class SuppressedShift(Defence):
    """The loss on the clean batch, plus `weight` times how far the ball lets its embeddings move: L + w mean d(z~, z).

    Triplets are mined on the clean batch; the moved images take no part in the loss, only their distance does.
    `nudge` is as in EST.
    """

    def __init__(self, loss: MetricLoss, attack: Engine, weight: float = 1.0, nudge: Nudge = "random") -> None:
        super().__init__()
        require(loss, MetricLoss, "loss")
        require(attack, Engine, "attack")
        if not 0 <= weight < math.inf:
            raise InputError(f"weight {weight} suppresses no shift; expected a finite number >= 0, such as 1")
        require_word(nudge, get_args(Nudge), "nudge")
        self.loss, self.attack, self.weight, self.nudge = loss, attack, weight, nudge

    def forward(self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        with self.attacked(model) as embed:
            with torch.no_grad():
                clean = embed(batch.inputs)
            triplets = self.loss.mine(clean, batch.labels, generator)
            adversarial = shifted(self.attack, embed, batch.inputs, clean, generator, self.nudge)
        # Gradient flows through both ends of the distance.
        z, moved = model(torch.cat([batch.inputs, adversarial])).chunk(2)
        self.note_triplets(triplets, clean, moved)
        metric = self.loss(z, batch.labels, triplets, generator)
        return {"metric": metric, "shift": self.weight * shift(moved, z).mean()}
