"""What every metric loss is: a function of embeddings and labels that may choose triplets first."""

from abc import ABC, abstractmethod

import torch
from jaxtyping import Float
from torch import Tensor, nn

from robustmetric.types import Embeddings, Labels, Triplets


class MetricLoss(nn.Module, ABC):
    """One number to minimise for a batch of embeddings. Proxies and the like are parameters of the loss."""

    def mine(self, embeddings: Embeddings, labels: Labels, generator: torch.Generator | None = None) -> Triplets | None:
        """The triplets this loss would use, for a defence that perturbs them first; None if it uses none."""
        return None

    @property
    def mines(self) -> bool:
        """Whether it has a choice of its own: others need no clean embeddings before an attack."""
        return type(self).mine is not MetricLoss.mine

    @abstractmethod
    def forward(
        self,
        embeddings: Embeddings,
        labels: Labels,
        triplets: Triplets | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, ""]:
        """The loss of the batch; `triplets` mined before are used instead of new ones."""
