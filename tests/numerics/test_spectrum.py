"""What passes for a metric."""

import pytest
import torch

from robustmetric.errors import InputError
from robustmetric.numerics.spectrum import factor, repaired, spectrum


def test_the_spectrum_of_a_matrix_by_hand() -> None:
    # [[2, 1], [1, 2]] has the eigenvalues 1 along (1, -1) and 3 along (1, 1).
    values, vectors = spectrum(torch.tensor([[2.0, 1.0], [1.0, 2.0]]))
    assert values.tolist() == pytest.approx([1, 3]) and values.dtype == torch.float64
    assert vectors[:, 1].abs().tolist() == pytest.approx([0.5**0.5] * 2)


def test_negative_eigenvalues_within_rounding_are_zero_and_positive_ones_stay() -> None:
    root = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
    matrix = root @ root.T  # rank 2, in float32: eigenvalues of either sign around 1e-7
    exact = torch.linalg.eigvalsh(matrix.double())
    values, _ = spectrum(matrix)
    assert exact[0] < -1e-9 and exact[3] > 1e-9
    torch.testing.assert_close(values, exact.clamp_min(0), atol=1e-14, rtol=0)
    assert torch.linalg.eigvalsh(repaired(matrix))[0] > -1e-14


def test_units_of_features_hide_no_feature() -> None:
    # diag(1, 1e-20) is no less a metric of two features than diag(1, 1), in float32 too.
    for dtype in (torch.float32, torch.float64):
        matrix = torch.diag(torch.tensor([1.0, 1e-20], dtype=dtype))
        values, _ = spectrum(matrix)
        assert values.tolist() == pytest.approx([1e-20, 1], rel=1e-6)
        assert factor(matrix).shape == (2, 2)
    # The metric [[2, 1], [1, 2]] with the second feature in units 1e10 times as large.
    scale = torch.tensor([1.0, 1e-10], dtype=torch.float64)
    matrix = torch.tensor([[2.0, 1.0], [1.0, 2.0]], dtype=torch.float64) * scale[:, None] * scale
    root = factor(matrix)
    torch.testing.assert_close(root @ root.T, matrix, rtol=1e-14, atol=0)


@pytest.mark.parametrize("dim", [3, 8, 64, 256])
def test_exact_metrics_of_low_rank_are_accepted_and_their_rank_is_found(dim: int) -> None:
    for entry in torch.linspace(0.1, 2, 20, dtype=torch.float64):
        matrix = torch.full((dim, dim), float(entry**2), dtype=torch.float64)
        assert spectrum(matrix)[0][-1].item() == pytest.approx(dim * float(entry) ** 2)
        assert factor(matrix).shape == (dim, 1)


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
