"""The linear model's Euclidean distance is the Mahalanobis distance."""

import pytest
import torch
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.models.mahalanobis import Mahalanobis
from robustmetric.numerics.distances import pairwise


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_by_hand() -> None:
    model = Mahalanobis.from_matrix(torch.tensor([[4.0, 0.0], [0.0, 9.0]]))
    # (1, 1)^T diag(4, 9) (1, 1) = 13
    distance = pairwise(model(torch.tensor([[1.0, 1.0]])), model(torch.zeros(1, 2)))
    assert distance.item() == pytest.approx(13**0.5)


def test_distance_of_outputs_is_the_distance_under_the_matrix() -> None:
    factor = random(5, 5)
    matrix = factor @ factor.T
    model = Mahalanobis.from_matrix(matrix)
    torch.testing.assert_close(model.matrix.detach(), matrix)
    x, y = random(6, 5, seed=1), random(7, 5, seed=2)
    difference = x[:, None] - y
    expected = torch.einsum("nmi,ij,nmj->nm", difference, matrix, difference).sqrt()
    torch.testing.assert_close(pairwise(model(x), model(y)).detach(), expected)


def test_a_singular_matrix_ignores_its_null_space() -> None:
    model = Mahalanobis.from_matrix(torch.tensor([[1.0, 1.0], [1.0, 1.0]]))
    torch.testing.assert_close(model(torch.tensor([[5.0, -5.0]])), torch.zeros(1, 2), atol=1e-5, rtol=0)


def test_starts_as_the_euclidean_distance_of_the_first_coordinates() -> None:
    x = random(3, 4).float()
    torch.testing.assert_close(Mahalanobis(4)(x), x)
    torch.testing.assert_close(Mahalanobis(4, rank=2)(x), x[:, :2])
    assert Mahalanobis(4, rank=2).dim == 2 and Mahalanobis(4).dim == 4


def test_inputs_are_flattened_and_outputs_keep_their_length() -> None:
    x = 10 * random(3, 1, 2, 2).float()
    torch.testing.assert_close(Mahalanobis(4)(x), x.flatten(1))


def test_rounding_is_forgiven_and_asymmetry_is_not() -> None:
    matrix = torch.tensor([[2.0, 1.0], [1.0 + 1e-7, 2.0]])
    assert Mahalanobis.from_matrix(matrix).matrix[0, 1].item() == pytest.approx(1.0)
    with pytest.raises(InputError, match=r"not symmetric \(entries differ by up to 0.01\)"):
        Mahalanobis.from_matrix(torch.tensor([[2.0, 1.0], [1.01, 2.0]]))


@pytest.mark.parametrize("value", [-0.1, float("nan")])
def test_what_is_no_metric_is_refused(value: float) -> None:
    with pytest.raises(InputError, match=r"eigenvalue -0.1|not symmetric"):
        Mahalanobis.from_matrix(torch.diag(torch.tensor([1.0, value])))


@pytest.mark.parametrize("rank", [0, 5])
def test_an_impossible_rank_is_refused(rank: int) -> None:
    with pytest.raises(InputError, match="expected 1 to 4"):
        Mahalanobis(4, rank=rank)


def test_other_inputs_are_refused() -> None:
    with pytest.raises(InputError, match="3 features; expected 4"):
        Mahalanobis(4)(torch.zeros(2, 3))
