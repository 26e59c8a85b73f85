"""C2F2: its published size and its variants for small images."""

import pytest
import torch

from robustmetric.errors import InputError
from robustmetric.models.convnet import ConvNet


def test_c2f2_has_the_parameters_of_its_definition() -> None:
    model = ConvNet()
    # 5x5 convolutions 1->32 and 32->64, linear 64*7*7 -> 1024 -> 512, each with bias.
    expected = (25 * 1 * 32 + 32) + (25 * 32 * 64 + 64) + (64 * 7 * 7 * 1024 + 1024) + (1024 * 512 + 512)
    assert sum(p.numel() for p in model.parameters()) == expected == 3_789_184
    assert model(torch.rand(2, 1, 28, 28)).shape == (2, 512) and model.dim == 512


def test_fits_8_x_8_digits() -> None:
    model = ConvNet(side=8, kernel=3, widths=(16, 32), hidden=64, dim=10)
    expected = (9 * 16 + 16) + (9 * 16 * 32 + 32) + (32 * 2 * 2 * 64 + 64) + (64 * 10 + 10)
    assert sum(p.numel() for p in model.parameters()) == expected
    assert model(torch.rand(3, 1, 8, 8)).shape == (3, 10) and model.dim == 10


def test_output_is_not_clipped() -> None:
    torch.manual_seed(0)
    assert (ConvNet(side=8, hidden=16, dim=64)(torch.rand(4, 1, 8, 8)) < 0).any()


@pytest.mark.parametrize("shape", [(2, 3, 28, 28), (2, 1, 27, 28), (2, 784)])
def test_other_inputs_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(InputError, match=r"expected \(batch, 1, 28, 28\)"):
        ConvNet()(torch.rand(shape))


def test_a_side_too_small_is_refused_and_the_smallest_is_not() -> None:
    with pytest.raises(InputError, match="expected at least 4"):
        ConvNet(side=3)
    assert ConvNet(side=4, hidden=8, dim=2)(torch.rand(1, 1, 4, 4)).shape == (1, 2)


def test_an_even_kernel_is_refused() -> None:
    with pytest.raises(InputError, match="odd"):
        ConvNet(kernel=4)
