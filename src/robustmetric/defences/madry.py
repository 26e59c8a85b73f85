"""Adversarial training, AT (Madry et al., ICLR 2018), on any metric loss: train on inputs that raise the loss most."""

import torch
from torch import Tensor, nn

from robustmetric.attacks.base import Engine
from robustmetric.defences.base import Defence, require
from robustmetric.errors import InputError
from robustmetric.losses.base import MetricLoss
from robustmetric.perturb.pgd import frozen
from robustmetric.types import Batch


class Madry(Defence):
    """min over the model, max over the perturbation, of one metric loss.

    A loss that mines does so once, on clean embeddings, so that climb and descent see the same triplets.
    `clean_share` mixes in the loss on clean inputs: 0 is pure adversarial training, 0.5 the 1:1 mixture.
    """

    def __init__(self, loss: MetricLoss, attack: Engine, clean_share: float = 0.0) -> None:
        super().__init__()
        require(loss, MetricLoss, "loss")
        require(attack, Engine, "attack")
        if not 0 <= clean_share <= 1:
            raise InputError(f"clean_share {clean_share} is not a share of the loss; expected 0 to 1, such as 0.5")
        self.loss = loss
        self.attack = attack
        self.clean_share = clean_share

    def forward(self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        labels = batch.labels
        with self.attacked(model) as embed, frozen(self.loss):
            with torch.no_grad():
                clean = embed(batch.inputs)
            triplets = self.loss.mine(clean, labels, generator)
            # The loss couples the rows of a batch, so every row climbs the same number.
            adversarial = self.attack(
                lambda x: self.loss(embed(x), labels, triplets).expand(len(x)), batch.inputs, generator
            )
        z = model(adversarial)
        self.note_triplets(triplets, clean, z)
        terms = {"adversarial": (1 - self.clean_share) * self.loss(z, labels, triplets)}
        if self.clean_share:
            terms["clean"] = self.clean_share * self.loss(model(batch.inputs), labels, triplets)
        return terms
