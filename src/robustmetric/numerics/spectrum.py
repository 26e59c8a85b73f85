"""The check every metric passes: symmetric and positive semi-definite up to its own rounding, or refused."""

import math

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from robustmetric.errors import InputError

Square = Float[Tensor, "features features"]
FORGIVEN = 4.0
"""Eigenvalues are known to within `FORGIVEN * features * epsilon` of the largest."""


def tensor_of(matrix: np.ndarray) -> Tensor:
    """An array as a tensor of its own type, whose rounding is forgiven; what is not float32 is float64."""
    return torch.from_numpy(np.array(matrix, dtype=np.float32 if matrix.dtype == np.float32 else np.float64))


def spectrum(matrix: Square) -> tuple[Float[Tensor, " features"], Square]:
    """Eigenvalues (ascending, none negative) and eigenvectors (columns) of a metric M = M^T >= 0, in float64.

    What lies within the rounding of the matrix's own type is repaired: a skew part is left out, and eigenvalues that
    are negative are 0. What lies beyond is refused. A positive eigenvalue stays, however small: next to a feature in
    small units, one in large units has a small one, and counts as much.
    """
    values, vectors = torch.linalg.eigh(_symmetric(matrix))
    _check_sign(values, matrix.dtype)
    return values.clamp_min(0), vectors


def repaired(matrix: Square) -> Square:
    """The metric in float64, symmetric, without eigenvalues that are negative beyond the rounding of float64."""
    symmetric = _symmetric(matrix)
    values, vectors = torch.linalg.eigh(symmetric)
    _check_sign(values, matrix.dtype)
    if values[0] >= -_rounding(values, torch.float64):
        return symmetric
    product = (vectors * values.clamp_min(0)) @ vectors.T
    return (product + product.T) / 2


def of_size_one(matrix: Square) -> Square:
    """M times the power of two that makes its largest entry about 1: the same neighbours, no overflow on the way."""
    _, exponent = math.frexp(float(matrix.abs().max()))
    return torch.ldexp(matrix, torch.tensor(-exponent)) if exponent else matrix


def factor(matrix: Square) -> Float[Tensor, "features rank"]:
    """L of M = L L^T, each entry of M to within rounding of its own features' scale: the rank is judged there.

    The eigenvectors of M / sqrt(M_ii M_jj), scaled back: units of features, however different, do not matter.
    """
    whole = repaired(matrix)
    diagonal = whole.diagonal()
    scale = torch.where(diagonal > 0, diagonal, 1.0).sqrt()
    values, vectors = torch.linalg.eigh(whole / scale[:, None] / scale)
    kept = values > _rounding(values, torch.float64)
    return scale[:, None] * vectors[:, kept] * values[kept].sqrt()


def _symmetric(matrix: Square) -> Square:
    if not bool(torch.isfinite(matrix).all()):
        raise InputError("the matrix holds NaN or infinity and is not symmetric; expected a finite metric M = M^T")
    rounding = len(matrix) * torch.finfo(matrix.dtype).eps * matrix.abs().max().double()
    matrix = matrix.double()
    skew = (matrix - matrix.T).abs().max()
    if not skew <= rounding:
        raise InputError(f"the matrix is not symmetric (entries differ by up to {skew:.3g}); expected a metric M = M^T")
    return (matrix + matrix.T) / 2


def _check_sign(values: Float[Tensor, " features"], dtype: torch.dtype) -> None:
    if not values[0] >= -_rounding(values, dtype):
        raise InputError(f"the matrix has the eigenvalue {values[0]:.3g}; expected a positive semi-definite metric")


def _rounding(values: Float[Tensor, " features"], dtype: torch.dtype) -> Float[Tensor, ""]:
    return FORGIVEN * len(values) * torch.finfo(dtype).eps * values.abs().max()
