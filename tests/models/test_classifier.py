"""Small classifiers: their sizes, worked by hand, and what they refuse."""

import pytest
import torch

from robustmetric.errors import InputError
from robustmetric.models.classifier import cnn, mlp


def test_mlp_has_the_parameters_of_its_definition() -> None:
    model = mlp(64, 10, widths=(20, 30))
    assert sum(p.numel() for p in model.parameters()) == (64 * 20 + 20) + (20 * 30 + 30) + (30 * 10 + 10)
    assert model(torch.rand(3, 1, 8, 8)).shape == (3, 10)
    assert mlp(4, 2, widths=())(torch.rand(5, 4)).shape == (5, 2)


def test_cnn_has_the_parameters_of_its_definition() -> None:
    model = cnn(3, 8, 5, widths=(4, 6), hidden=7)
    flat = 6 * 2 * 2
    expected = (3 * 16 * 4 + 4) + (4 * 16 * 6 + 6) + (flat * 7 + 7) + (7 * 5 + 5)
    assert sum(p.numel() for p in model.parameters()) == expected
    assert model(torch.rand(2, 3, 8, 8)).shape == (2, 5)


def test_logits_are_not_clipped() -> None:
    torch.manual_seed(0)
    assert (mlp(8, 6)(torch.randn(9, 8)) < 0).any() and (cnn(1, 8, 6)(torch.randn(9, 1, 8, 8)) < 0).any()


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="expected a multiple of 4"):
        cnn(1, 10, 3)
    with pytest.raises(InputError, match="2 classes or more"):
        mlp(4, 1)
    with pytest.raises(InputError, match="at least 1"):
        mlp(4, 3, widths=(0,))
