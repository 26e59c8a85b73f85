"""What passes for a metric."""

import pytest
import torch

from robustmetric.errors import InputError
from robustmetric.numerics.spectrum import spectrum


def test_the_spectrum_of_a_matrix_by_hand() -> None:
    # [[2, 1], [1, 2]] has the eigenvalues 1 along (1, -1) and 3 along (1, 1).
    values, vectors = spectrum(torch.tensor([[2.0, 1.0], [1.0, 2.0]]))
    assert values.tolist() == pytest.approx([1, 3]) and values.dtype == torch.float64
    assert vectors[:, 1].abs().tolist() == pytest.approx([0.5**0.5] * 2)


def test_what_is_zero_up_to_rounding_is_zero() -> None:
    factor = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
    values, _ = spectrum(factor @ factor.T)  # rank 2, in float32: eigenvalues of either sign around 1e-7
    assert (values[:4] == 0).all() and (values[4:] > 0.1).all()


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (torch.tensor([[1.0, 0.1], [0.0, 1.0]]), "not symmetric .*0.1"),
        (torch.tensor([[1.0, 0.0], [0.0, -0.5]]), "eigenvalue -0.5"),
        (torch.tensor([[1.0, float("nan")], [float("nan"), 1.0]]), "NaN"),
        # Within float32's rounding, but this one is float64.
        (torch.tensor([[1.0, 1e-8], [0.0, 1.0]], dtype=torch.float64), "not symmetric"),
    ],
)
def test_what_is_no_metric_is_refused(matrix: torch.Tensor, message: str) -> None:
    with pytest.raises(InputError, match=message):
        spectrum(matrix)
