"""Interpolated adversarial training, IAT (Lamb et al. 2019), for metric losses: Mix-Up, clean and adversarial."""

import torch
from torch import Tensor, nn

from robustmetric.attacks.base import Engine
from robustmetric.defences.adversary import Adversary, Objective
from robustmetric.defences.base import Defence, require
from robustmetric.defences.mixup import Mixer
from robustmetric.losses.base import MetricLoss
from robustmetric.models.encoder import mixes_rows, perturbed
from robustmetric.perturb.pgd import frozen
from robustmetric.types import Batch


class InterpolatedAdversarial(Defence):
    """Half the Mix-Up loss of clean images and half that of the same mixtures of adversarial ones.

    `concentration`, `per_image` and `in_pairs` are those of Mix-Up.
    `summed`: the sum instead of the mean (the ensemble paper's Eq. 7). `separate`: the adversarial images are mixed
    anew, in an order and with shares of their own (Pang et al. 2020). `growing` as in `Adversary`.
    """

    def __init__(
        self,
        loss: MetricLoss,
        attack: Engine,
        concentration: float = 1.0,
        per_image: bool = True,
        in_pairs: bool = False,
        objective: Objective = "shift",
        summed: bool = False,
        separate: bool = False,
        growing: float = 0.0,
    ) -> None:
        super().__init__()
        require(loss, MetricLoss, "loss")
        require(attack, Engine, "attack")
        self.loss = loss
        self.adversary = Adversary(attack, objective, growing)
        self.mix = Mixer(concentration, per_image, in_pairs)
        self.summed, self.separate = summed, separate

    @property
    def separates(self) -> bool:
        """Always."""
        return True

    def forward(self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        clean = adversarial = self.mix(batch.inputs, generator)
        if self.separate:
            adversarial = self.mix(batch.inputs, generator)
        with self.attacked(model) as embed, frozen(self.loss):
            with torch.no_grad():
                embeddings = embed(batch.inputs)
            triplets = self.loss.mine(embeddings, batch.labels, generator)
            origin = self.adversary.origin(embeddings, generator)
            moved = self.adversary.at(self.progress)(embed, batch, origin, [self.loss], [triplets], generator)
        weight = 1.0 if self.summed else 0.5
        halves = [clean.of(batch.inputs), adversarial.of(moved)]
        if mixes_rows(model):
            still = model(halves[0])
            with perturbed(model):
                z = model(halves[1])
        else:
            still, z = model(torch.cat(halves)).chunk(2)
        return {
            "clean": weight * clean.loss(self.loss, still, batch.labels, generator),
            "adversarial": weight * adversarial.loss(self.loss, z, batch.labels, generator),
        }
