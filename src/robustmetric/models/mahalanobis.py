"""Mahalanobis metric as a linear model: x -> xL, whose outputs' Euclidean distance is the one under M = L L^T."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from robustmetric.errors import InputError
from robustmetric.numerics.spectrum import factor
from robustmetric.types import Embeddings, Inputs


class Mahalanobis(nn.Module):
    """`d(x, y) = sqrt((x - y)^T M (x - y))` as `|xL - yL|`; inputs are flattened, outputs keep their length.

    `dim` numbers go in; `rank` (by default as many) come out, and that is the model's `dim`. Starts as the Euclidean
    distance of the first `rank` coordinates.
    """

    def __init__(self, dim: int, rank: int | None = None) -> None:
        super().__init__()
        rank = dim if rank is None else rank
        if not 1 <= rank <= dim:
            raise InputError(f"rank {rank} does not fit {dim} features; expected 1 to {dim}")
        self.features, self.dim = dim, rank
        self.factor = nn.Parameter(torch.eye(dim, rank))

    @classmethod
    def from_matrix(cls, matrix: Float[Tensor, "features features"]) -> "Mahalanobis":
        """The model whose metric is the symmetric positive semi-definite `matrix`."""
        root = factor(matrix)
        model = cls(len(matrix)).to(matrix.dtype)
        with torch.no_grad():
            model.factor.zero_()[:, : root.shape[1]] = root
        return model.to(matrix.device)

    @property
    def matrix(self) -> Float[Tensor, "features features"]:
        """M = L L^T."""
        return self.factor @ self.factor.T

    def forward(self, inputs: Inputs) -> Embeddings:
        flat = inputs.flatten(1)
        if flat.shape[1] != self.features:
            raise InputError(
                f"inputs of shape {tuple(inputs.shape)} have {flat.shape[1]} features; expected {self.features}"
            )
        return flat @ self.factor
