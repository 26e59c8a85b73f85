"""The check every metric passes: symmetric and positive semi-definite up to its own rounding, or refused."""

import torch
from jaxtyping import Float
from torch import Tensor

from robustmetric.errors import InputError


def spectrum(
    matrix: Float[Tensor, "features features"],
) -> tuple[Float[Tensor, " features"], Float[Tensor, "features features"]]:
    """Eigenvalues (ascending, none negative) and eigenvectors (columns) of a metric M = M^T >= 0, in float64.

    What lies within the rounding of the matrix's own type is repaired: a skew part is left out, and eigenvalues that
    are zero up to rounding are exactly 0. What lies beyond is refused.
    """
    if not bool(torch.isfinite(matrix).all()):
        raise InputError("the matrix holds NaN or infinity and is not symmetric; expected a finite metric M = M^T")
    rounding = len(matrix) * torch.finfo(matrix.dtype).eps * matrix.abs().max().double()
    matrix = matrix.double()
    skew = (matrix - matrix.T).abs().max()
    if not skew <= rounding:
        raise InputError(f"the matrix is not symmetric (entries differ by up to {skew:.3g}); expected a metric M = M^T")
    values, vectors = torch.linalg.eigh((matrix + matrix.T) / 2)
    if not values[0] >= -rounding:
        raise InputError(f"the matrix has the eigenvalue {values[0]:.3g}; expected a positive semi-definite metric")
    return torch.where(values > rounding, values, 0.0), vectors
