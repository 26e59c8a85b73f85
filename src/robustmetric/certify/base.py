"""What a certifier is: a proof, per query, that no smaller perturbation changes what the model retrieves."""

from typing import Protocol

from jaxtyping import Float
from torch import Tensor, nn

from robustmetric.types import Batch
from robustmetric.types import Progress as Progress


class Certifier(Protocol):
    """Proves radii for the queries of a model that looks them up among labelled references."""

    def radius(self, model: nn.Module, queries: Batch, references: Batch) -> Float[Tensor, " batch"]:
        """A sound lower bound of the smallest perturbation that changes the label; 0 where it is already wrong."""
        ...
