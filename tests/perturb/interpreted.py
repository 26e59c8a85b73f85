"""Kernels of inverted residuals against torch, by Triton's interpreter: run by test_inverted.py in its own process.

An interpreter has to be asked for before Triton is imported, and nothing else in these tests wants it.
"""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchvision.models import MobileNetV2

from robustmetric.models.encoder import Encoder
from robustmetric.perturb.fast import FastView
from robustmetric.perturb.fused import depthwise, depthwise_back, pointwise
from robustmetric.perturb.inverted import FusedResidual, fuse, fused_in

SIZES = [(2, 24, 5, 7), (1, 16, 4, 12), (2, 8, 1, 1), (1, 16, 30, 2)]
"""Of a batch: more than one image, strip of channels, of columns and of rows."""


def draw(*shape: int) -> Tensor:
    return torch.randn(*shape).contiguous(memory_format=torch.channels_last)


def clipped(*shape: int) -> Tensor:
    """About a quarter below, a quarter above."""
    return (5 * draw(*shape) + 3).clamp(0, 6)


def inside(h: Tensor) -> Tensor:
    return (h > 0) & (h < 6)


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


@pytest.mark.parametrize("channels", [(24, 40), (16, 96), (72, 16), (32, 24)])
def test_a_product_is_a_clipped_convolution(channels: tuple[int, int]) -> None:
    x, weight, bias = draw(2, channels[0], 9, 7), torch.randn(channels[1], channels[0], 1, 1), torch.randn(channels[1])
    torch.testing.assert_close(
        pointwise(x, weight, bias, clipped=True), F.conv2d(x, weight, bias).clamp(0, 6), atol=2e-5, rtol=0
    )


def test_what_is_not_a_number_stays_none() -> None:
    x, weight, bias = draw(1, 8, 4, 4), torch.randn(8, 8, 1, 1), torch.randn(8)
    x[0, 0, 0, 0] = float("nan")
    found = pointwise(x, weight, bias, clipped=True)
    assert found[0, :, 0, 0].isnan().all() and not found[0, :, 0, 1:].isnan().any()
    for stride in (1, 2):
        found = depthwise(x, torch.randn(8, 1, 3, 3), bias, stride)
        assert found[0, 0, 0, 0].isnan() and not found[0, 1:].isnan().any()


def test_a_product_adds_what_goes_past_it() -> None:
    x, weight, bias, other = draw(2, 24, 5, 5), torch.randn(24, 24, 1, 1), torch.randn(24), draw(2, 24, 5, 5)
    expected = F.conv2d(x, weight, bias) + other
    torch.testing.assert_close(pointwise(x, weight, bias, added=other), expected, atol=2e-5, rtol=0)


def test_a_product_on_the_way_back_stops_where_the_clip_had_nothing_to_let_through() -> None:
    x, weight, gradient = draw(2, 24, 9, 7).requires_grad_(), torch.randn(40, 24, 1, 1), draw(2, 40, 9, 7)
    (expected,) = torch.autograd.grad(F.conv2d(x, weight), x, gradient)
    h = clipped(2, 24, 9, 7)
    found = pointwise(gradient, weight, back=True, passed=h)
    torch.testing.assert_close(found, expected * inside(h), atol=2e-5, rtol=0)
    assert (found == 0).any() and (found != 0).any()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("stride", [1, 2])
def test_filters_are_a_clipped_depthwise_convolution(stride: int, size: tuple[int, int, int, int]) -> None:
    x, weight, bias = draw(*size), torch.randn(size[1], 1, 3, 3), torch.randn(size[1])
    expected = F.conv2d(x, weight, bias, stride=stride, padding=1, groups=size[1]).clamp(0, 6)
    torch.testing.assert_close(depthwise(x, weight, bias, stride), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("stride", [1, 2])
def test_filters_on_the_way_back_are_the_gradient(stride: int, size: tuple[int, int, int, int], masked: bool) -> None:
    x, weight = draw(*size).requires_grad_(), torch.randn(size[1], 1, 3, 3)
    y = F.conv2d(x, weight, stride=stride, padding=1, groups=size[1])
    gradient = draw(*y.shape)
    (expected,) = torch.autograd.grad(y, x, gradient)
    h = clipped(*size) if masked else None
    found = depthwise_back(gradient, weight, stride, size[2:], passed=h)
    torch.testing.assert_close(found, expected if h is None else expected * inside(h), atol=1e-5, rtol=0)


def test_a_fused_network_gives_the_embeddings_and_the_input_gradient_of_the_network() -> None:
    blocks = [[1, 16, 1, 1], [6, 24, 2, 2], [6, 32, 1, 2]]
    trunk = MobileNetV2(inverted_residual_setting=blocks, width_mult=0.5).features
    for norm in trunk.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.momentum = 1.0  # statistics of the next batch
    trunk(torch.rand(4, 3, 16, 16))
    model = Encoder(trunk.eval(), dim=1280).eval()
    view, x = FastView(model), torch.rand(1, 3, 16, 16, requires_grad=True)
    z = model(x)
    (gradient,) = torch.autograd.grad(z[:, 0].sum(), x)
    fuse(view._shadow)
    assert sum(isinstance(layer, FusedResidual) for layer in fused_in(view._shadow)) == 4
    found = view._shadow(x)
    (fused_gradient,) = torch.autograd.grad(found[:, 0].sum(), x)
    torch.testing.assert_close(found, z, atol=1e-5, rtol=0)
    assert float((fused_gradient - gradient).norm() / gradient.norm()) < 1e-3
