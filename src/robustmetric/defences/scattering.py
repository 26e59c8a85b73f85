"""Feature scattering, FS (Zhang & Wang, NeurIPS 2019): move a batch as one from the clean batch, without labels."""

from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from robustmetric.attacks.base import Engine
from robustmetric.defences.base import Defence, require, require_word
from robustmetric.errors import InputError
from robustmetric.losses.base import MetricLoss
from robustmetric.models.classifier import Classifier
from robustmetric.numerics.transport import Cost, Matching, Sinkhorn, cost_matrix
from robustmetric.types import Batch, Inputs

Space = Literal["logits", "features"]
"""Where the batches are matched: in what the model gives (a metric model's embeddings), or in front of its head."""


class FeatureScattering(Defence):
    """Train on X' alone, where X' maximises D(X, X') = <T, C>, the transport between clean and perturbed outputs.

    C_ij is the `cost` of moving clean output i to perturbed output j, T the plan of `matching`: each input is pushed
    from every clean one it is coupled with. The gradient goes through the plan as well, or with `detached` through C
    alone. `group` solves one problem for every so many rows instead of one for the batch (the paper: batches of 60).
    The paper's attack is one step of the radius from a random start, which here is clipped to valid inputs.
    """

    def __init__(
        self,
        loss: MetricLoss,
        attack: Engine,
        matching: Matching = Sinkhorn(),  # noqa: B008  # frozen
        cost: Cost = "cosine",
        space: Space = "logits",
        detached: bool = False,
        group: int | None = None,
    ) -> None:
        super().__init__()
        require(loss, MetricLoss, "loss")
        require(attack, Engine, "attack")
        require(matching, Matching, "matching")
        require_word(cost, get_args(Cost), "cost")
        require_word(space, get_args(Space), "space")
        if group is not None and group < 1:
            raise InputError(f"group {group} is no number of rows; expected 1 or more, or none for the whole batch")
        self.loss, self.attack, self.matching = loss, attack, matching
        self.cost, self.space, self.detached, self.group = cost, space, detached, group

    def forward(self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        if not len(batch):
            raise InputError("a batch of 0 inputs has nothing to scatter; expected at least one")
        with self.attacked(self._seen(model)) as embed:
            with torch.no_grad():
                clean = embed(batch.inputs)
            triplets = self.loss.mine(clean, batch.labels, generator)

            moved = torch.zeros((), device=batch.inputs.device)

            def value(x: Inputs) -> Float[Tensor, " batch"]:
                nonlocal moved
                shares = self._scattering(clean, embed(x), batch.labels)
                moved = moved + shares.detach().sum()
                return shares

            adversarial = self.attack(value, batch.inputs, generator)
        # A step along a gradient of NaN goes nowhere, and nothing would tell: so NaN in D is NaN in the loss, at which
        # training stops.
        return {"scattered": self.loss(model(adversarial), batch.labels, triplets, generator) + 0 * moved}

    def _scattering(self, clean: Tensor, moved: Tensor, labels: Tensor) -> Float[Tensor, " batch"]:
        """Each perturbed row's share of D, sum_i T_ij C_ij; also notes where the plan's mass lies."""
        shares, own, alike = [], [], []
        # Whole groups as one problem of three dimensions, the rest of the batch as another.
        size = min(self.group or len(clean), len(clean))
        whole = len(clean) // size * size
        for rows in (slice(0, whole), slice(whole, len(clean))):
            if rows.start == rows.stop:
                continue
            width = min(size, rows.stop - rows.start)
            a, b, y = (part[rows].unflatten(0, (-1, width)) for part in (clean, moved, labels))
            cost = cost_matrix(a, b, self.cost)
            plan = self.matching(cost.detach()).detach() if self.detached else self.matching(cost)
            shares.append((plan * cost).sum(dim=-2).flatten())
            mass = plan.detach() / plan.detach().sum(dim=(-2, -1), keepdim=True)
            own.append(mass.diagonal(dim1=-2, dim2=-1).sum(dim=-1))
            alike.append((mass * (y[..., :, None] == y[..., None, :])).sum(dim=(-2, -1)))
        self.note(own=torch.cat(own), own_class=torch.cat(alike))
        return torch.cat(shares)

    def _seen(self, model: nn.Module) -> nn.Module:
        """What the attack looks at."""
        if self.space == "logits":
            return model
        if not isinstance(model, Classifier):
            raise InputError(
                f"{type(model).__name__} has no features before a head; expected a classifier, or space: logits"
            )
        return model.encoder
