"""NCA: its objective by hand, its gradient by autograd, and scikit-learn's answer."""

import math
import warnings

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits, make_blobs
from sklearn.exceptions import ConvergenceWarning
from sklearn.neighbors import NeighborhoodComponentsAnalysis
from torch import Tensor

from robustmetric.learn import NCA
from robustmetric.learn.nca import rightly_labelled


def sample(n: int = 40, dim: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    x, y = make_blobs(n, n_features=dim, centers=3, cluster_std=2.0, random_state=seed)
    return torch.from_numpy(x - x.mean(axis=0)), torch.from_numpy(y)


def plainly(factor: Tensor, x: Tensor, labels: Tensor) -> Tensor:
    """The sum of p_i as it is defined."""
    z = x @ factor.T
    squared = (z[:, None] - z).square().sum(dim=2)
    squared = squared + torch.diag(torch.full((len(x),), torch.inf, dtype=x.dtype))
    return ((-squared).softmax(dim=1) * (labels[:, None] == labels)).sum()


def test_three_rows_by_hand() -> None:
    """Rows 0, 1, 3 on a line, labels a a b: p_0 = e^-1 / (e^-1 + e^-9), p_1 = e^-1 / (e^-1 + e^-4), p_2 = 0."""
    x = torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64)
    value, _ = rightly_labelled(torch.eye(1, dtype=torch.float64), x, torch.tensor([0, 0, 1]))
    assert value == pytest.approx(1 / (1 + math.exp(-8)) + 1 / (1 + math.exp(-3)))


@pytest.mark.parametrize("rank", [2, 4])
def test_the_gradient_is_that_of_autograd(rank: int) -> None:
    x, labels = sample()
    factor = 0.1 * torch.randn((rank, 4), dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    value, gradient = rightly_labelled(factor, x, labels)
    factor.requires_grad_()
    expected = plainly(factor, x, labels)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, factor)[0])
    assert value == pytest.approx(expected.item())


def test_parts_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x, labels = sample()
    factor = 0.1 * torch.eye(4, dtype=torch.float64)
    whole, gradient = rightly_labelled(factor, x, labels)
    monkeypatch.setattr("robustmetric.numerics.distances.BLOCK", 7 * len(x))  # seven rows at a time, then five
    value, again = rightly_labelled(factor, x, labels)
    assert value == pytest.approx(whole)
    torch.testing.assert_close(again, gradient)


@pytest.mark.parametrize("rank", [None, 2])
def test_the_metric_is_that_of_scikit_learn(rank: int | None) -> None:
    """Rounding grows from step to step; seven of them agree to many digits."""
    x, y = load_digits(return_X_y=True)
    x = x[:300] / 16
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        expected = NeighborhoodComponentsAnalysis(rank, init="identity", max_iter=7).fit(x, y[:300])
    found = NCA(rank, max_iter=7).fit(x, y[:300])
    np.testing.assert_allclose(found.components_, expected.components_, atol=1e-6)
    assert found.n_iter_ == 7 == len(found.loss_curve_)
    assert (np.diff(found.loss_curve_) <= 0).all()


@pytest.mark.gpu
def test_a_gpu_learns_the_same() -> None:
    x, y = load_digits(return_X_y=True)
    cpu, gpu = (NCA(max_iter=5, device=device).fit(x[:300] / 16, y[:300]) for device in ("cpu", "cuda"))
    np.testing.assert_allclose(gpu.components_, cpu.components_, atol=1e-6)
