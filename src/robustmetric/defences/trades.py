"""TRADES (Zhang et al., ICML 2019) for embeddings: the clean loss, and how far the adversary moves the embedding."""

import torch
from torch import Tensor, nn

from robustmetric.attacks.base import Engine
from robustmetric.attacks.objectives import clean_proxies
from robustmetric.defences.adversary import Adversary, Objective
from robustmetric.defences.base import Defence, require, require_weight
from robustmetric.losses.base import MetricLoss
from robustmetric.models.encoder import perturbed
from robustmetric.numerics.distances import paired
from robustmetric.perturb.pgd import frozen
from robustmetric.types import Batch


class Trades(Defence):
    """L(F(x), y) + weight * |F(x~) - F(x)|^2, with a gradient through both embeddings.

    `as_proxies`: the second term is Proxy-Anchor with the clean embeddings for proxies instead. Of a loss that
    mines, the triplets are those of the clean batch. `growing` as in `Adversary`.
    """

    def __init__(
        self,
        loss: MetricLoss,
        attack: Engine,
        weight: float = 6.0,
        objective: Objective = "shift",
        as_proxies: bool = False,
        growing: float = 0.0,
    ) -> None:
        super().__init__()
        require(loss, MetricLoss, "loss")
        require(attack, Engine, "attack")
        require_weight(weight, "weight")
        self.loss = loss
        self.adversary = Adversary(attack, objective, growing)
        self.weight, self.as_proxies = weight, as_proxies

    @property
    def separates(self) -> bool:
        """Always."""
        return True

    def forward(self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        still = model(batch.inputs)
        triplets = self.loss.mine(still.detach(), batch.labels, generator)
        with self.attacked(model) as embed, frozen(self.loss):
            with torch.no_grad():
                clean = embed(batch.inputs)
            origin = self.adversary.origin(clean, generator)
            adversarial = self.adversary.at(self.progress)(embed, batch, origin, [self.loss], [triplets], generator)
        with perturbed(model):
            z = model(adversarial)
        if self.as_proxies:
            own = torch.eye(len(batch), device=z.device).bool()
            moved = clean_proxies(z, still, own).mean()
        else:
            moved = paired(z, still).square().mean()
        self.note(shift=paired(z, still))
        return {"metric": self.loss(still, batch.labels, triplets), "stability": self.weight * moved}
