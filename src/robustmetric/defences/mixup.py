"""Mix-Up (Zhang et al., ICLR 2018) for metric losses: train on mixtures of two images, each with both of its labels."""

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from scipy.special import betaincinv
from torch import Tensor, nn

from robustmetric.defences.base import Defence, require, require_word
from robustmetric.errors import InputError
from robustmetric.losses.base import MetricLoss
from robustmetric.numerics.distances import paired
from robustmetric.types import Batch, Embeddings, Inputs, Labels

Goal = Literal["label", "embedding"]
"""What a mixture shall be: of both classes, or where the mixture of the embeddings is."""


@dataclass(frozen=True)
class Mixture:
    """Row i is `share[i]` of row `first[i]` and the rest of row `second[i]`."""

    first: Int[Tensor, " batch"]
    second: Int[Tensor, " batch"]
    share: Float[Tensor, " batch"]

    def of(self, rows: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch *shape"]:
        """The mixtures of these rows."""
        share = self.share.view(-1, *[1] * (rows.dim() - 1))
        return share * rows[self.first] + (1 - share) * rows[self.second]

    def loss(
        self, loss: MetricLoss, z: Embeddings, labels: Labels, generator: torch.Generator | None
    ) -> Float[Tensor, ""]:
        """Of mixtures with embeddings z: share L(z, y_first) + (1 - share) L(z, y_second).

        A metric loss couples rows, so it has no value of one row; its gradient has. Where shares differ, the mean share
        weighs the value, and each row's own share the gradient of that row.
        """
        parts = ((self.share, labels[self.first]), (1 - self.share, labels[self.second]))
        terms = []
        for share, y in parts:
            mean = share.mean()
            terms.append(mean * loss(weighed(z, share / mean.clamp_min(1e-12)), y, generator=generator))
        return torch.stack(terms).sum()


@dataclass(frozen=True)
class Mixer:
    """How mixtures are drawn: shares from Beta(concentration, concentration), one per image or per batch.

    `in_pairs`: rows 2i and 2i + 1 go together, so that a loss that mines in pairs finds them.
    """

    concentration: float = 1.0
    per_image: bool = True
    in_pairs: bool = False

    def __post_init__(self) -> None:
        if not 0 < self.concentration < math.inf:
            raise InputError(
                f"concentration {self.concentration} makes no Beta distribution; expected a number > 0, such as 1"
            )

    def __call__(self, inputs: Inputs, generator: torch.Generator | None) -> Mixture:
        """Two random orders of the batch, and the share of the first."""
        first, second = (self._order(inputs, generator) for _ in range(2))
        count = len(inputs) if self.per_image else 1
        share = torch.rand(count, generator=generator, device=inputs.device).expand(len(inputs))
        if self.concentration != 1:  # Beta(1, 1) is uniform; any other is its inverse distribution function of that.
            quantile = betaincinv(self.concentration, self.concentration, share.double().cpu().numpy())
            share = torch.from_numpy(quantile).to(share)
        return Mixture(first, second, share)

    def _order(self, inputs: Inputs, generator: torch.Generator | None) -> Int[Tensor, " batch"]:
        if not self.in_pairs:
            return torch.randperm(len(inputs), generator=generator, device=inputs.device)
        if len(inputs) % 2:
            raise InputError(f"a batch of {len(inputs)} cannot be mixed in pairs; expected an even number")
        pairs = torch.randperm(len(inputs) // 2, generator=generator, device=inputs.device)
        return torch.stack([2 * pairs, 2 * pairs + 1], dim=1).flatten()


class MixUp(Defence):
    """The metric loss of mixed images; `concentration`, `per_image` and `in_pairs` are those of `Mixer`.

    `goal="embedding"` trains on the batch itself and draws F(mixture) to the mixture of embeddings instead:
    L(F(x), y) + |F(share x0 + (1 - share) x1) - share F(x0) - (1 - share) F(x1)|^2.
    """

    def __init__(
        self,
        loss: MetricLoss,
        concentration: float = 1.0,
        per_image: bool = True,
        in_pairs: bool = False,
        goal: Goal = "label",
    ) -> None:
        super().__init__()
        require(loss, MetricLoss, "loss")
        require_word(goal, get_args(Goal), "goal")
        self.loss = loss
        self.mix = Mixer(concentration, per_image, in_pairs)
        self.goal = goal

    def forward(self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        mixture = self.mix(batch.inputs, generator)
        z = model(mixture.of(batch.inputs))
        if self.goal == "label":
            return {"mixed": mixture.loss(self.loss, z, batch.labels, generator)}
        still = model(batch.inputs)
        between = paired(z, mixture.of(still)).square().mean()
        return {"metric": self.loss(still, batch.labels, generator=generator), "mixed": between}


def weighed(z: Embeddings, weight: Float[Tensor, " batch"]) -> Embeddings:
    """z itself, its rows' gradients multiplied by `weight`."""
    return z.detach() + weight[:, None] * (z - z.detach())
