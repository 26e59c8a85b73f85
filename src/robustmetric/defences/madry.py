"""Adversarial training, AT (Madry et al., ICLR 2018), on any metric loss: train on inputs that raise the loss most."""

from typing import Literal, get_args

import torch
from torch import Tensor, nn

from robustmetric.attacks.base import Engine
from robustmetric.defences.adversary import Adversary, Objective
from robustmetric.defences.base import Defence, require, require_share, require_word
from robustmetric.losses.base import MetricLoss
from robustmetric.models.encoder import perturbed
from robustmetric.numerics.distances import paired
from robustmetric.perturb.pgd import frozen
from robustmetric.types import Batch

Goal = Literal["label", "embedding"]
"""What an adversarial input shall be: of its class, or where its clean input is."""


class Madry(Defence):
    """min over the model, max over the perturbation, of one metric loss.

    A loss that mines does so once, on clean embeddings, so that climb and descent see the same triplets.
    `clean_share` mixes in the loss on clean inputs: 0 is pure adversarial training, 0.5 the 1:1 mixture. `objective`
    names another climb than that of the loss. `goal="embedding"` puts the clean embedding in the label's place,
    |F(x~) - F(x)|^2 with F(x) held fixed: with a `clean_share` of 0 a constant embedding is its minimum. `climbed` is
    the loss that the attack raises where it is another than the one trained on (hard labels under smoothed ones).
    `growing` as in `Adversary`.
    """

    def __init__(
        self,
        loss: MetricLoss,
        attack: Engine,
        clean_share: float = 0.0,
        objective: Objective = "label",
        goal: Goal = "label",
        climbed: MetricLoss | None = None,
        growing: float = 0.0,
    ) -> None:
        super().__init__()
        require(loss, MetricLoss, "loss")
        require(attack, Engine, "attack")
        require_share(clean_share, "clean_share")
        require_word(goal, get_args(Goal), "goal")
        if climbed is not None:
            require(climbed, MetricLoss, "climbed")
        self.loss, self.climbed = loss, climbed
        self.adversary = Adversary(attack, objective, growing)
        self.clean_share, self.goal = clean_share, goal

    @property
    def separates(self) -> bool:
        """With a share of clean images."""
        return 0 < self.clean_share < 1

    def forward(self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        labels = batch.labels
        climbed = self.loss if self.climbed is None else self.climbed
        with self.attacked(model) as embed, frozen(climbed):
            clean = origin = triplets = None
            # A classifier's loss has nothing to choose: its clean pass would be for nobody.
            if self.loss.mines or self.adversary.has_origin:
                with torch.no_grad():
                    clean = embed(batch.inputs)
                triplets = self.loss.mine(clean, labels, generator)
                origin = self.adversary.origin(clean, generator)
            adversarial = self.adversary.at(self.progress)(embed, batch, origin, [climbed], [triplets], generator)
        with perturbed(model):
            z = model(adversarial)
        if clean is not None:
            self.note_triplets(triplets, clean, z)
        if self.goal == "label" and not self.clean_share:
            return {"adversarial": self.loss(z, labels, triplets)}
        still = model(batch.inputs)
        raised = self.loss(z, labels, triplets) if self.goal == "label" else paired(z, still.detach()).square().mean()
        terms = {"adversarial": (1 - self.clean_share) * raised}
        if self.clean_share:
            terms["clean"] = self.clean_share * self.loss(still, labels, triplets)
        return terms
