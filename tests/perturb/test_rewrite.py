"""Rewritten layers: the same numbers and gradients as the layers they were, and nothing else touched."""

import pytest
import torch
from torch import Tensor, nn

from robustmetric.perturb.rewrite import Pointwise, Stem, rewrite


def gradients(network: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.detach().requires_grad_()
    y = network(x)
    direction = torch.randn(y.shape, generator=torch.Generator().manual_seed(1), dtype=y.dtype)
    return y.detach(), torch.autograd.grad((y * direction).sum(), x)[0]


def images(channels: int, height: int, width: int) -> Tensor:
    return torch.randn(2, channels, height, width, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def same_after_rewriting(layer: nn.Conv2d, x: Tensor, way: type[nn.Module]) -> None:
    network = nn.Sequential(layer.double())
    before = gradients(network, x)
    parameters = [id(parameter) for parameter in network.parameters()]
    rewrite(network)
    assert type(network[0]) is way
    assert [id(parameter) for parameter in network.parameters()] == parameters
    for was, now in zip(before, gradients(network, x), strict=True):
        assert now.shape == was.shape
        torch.testing.assert_close(now, was, atol=1e-12, rtol=0)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("height", "width"), [(8, 8), (7, 9), (10, 5)])
@pytest.mark.parametrize(
    ("kernel", "padding"), [(3, 1), (7, 3), (5, 2), (3, 0), (2, 0), (4, 1), (7, 2), ((3, 5), (1, 2))]
)
def test_a_stem_on_blocks_of_pixels_equals_the_strided_convolution(
    kernel: int | tuple[int, int], padding: int | tuple[int, int], height: int, width: int, bias: bool
) -> None:
    layer = nn.Conv2d(3, 6, kernel, stride=2, padding=padding, bias=bias)
    same_after_rewriting(layer, images(3, height, width), Stem)


def test_a_stem_of_one_colour() -> None:
    same_after_rewriting(nn.Conv2d(1, 4, 3, stride=2, padding=1), images(1, 9, 9), Stem)


@pytest.mark.parametrize("bias", [True, False])
def test_a_pointwise_convolution_as_a_product_equals_itself(bias: bool) -> None:
    same_after_rewriting(nn.Conv2d(5, 7, 1, bias=bias), images(5, 4, 6), Pointwise)
    channels_last = images(5, 4, 6).contiguous(memory_format=torch.channels_last)
    layer = nn.Conv2d(5, 7, 1, bias=bias)
    layer.__class__ = Pointwise
    assert layer.double()(channels_last).is_contiguous(memory_format=torch.channels_last), "or each layer copies"


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(8, 8, 1, groups=2),
        nn.Conv2d(8, 8, 1, stride=2),
        nn.Conv2d(8, 8, 1, padding=1),
        nn.Conv2d(8, 8, 3, stride=2, padding=1),
        nn.Conv2d(3, 8, 3, stride=2, padding=1, padding_mode="reflect"),
        nn.Conv2d(3, 8, 3, stride=2, dilation=2),
        nn.Conv2d(3, 8, 3, padding="same"),
        nn.Conv2d(3, 8, 3, stride=(2, 1)),
    ],
    ids=["groups", "strided point", "padded point", "many channels", "reflected", "dilated", "same", "one stride"],
)
def test_other_convolutions_stay_as_they_are(layer: nn.Conv2d) -> None:
    network = nn.Sequential(layer)
    rewrite(network)
    assert type(network[0]) is nn.Conv2d


def test_layers_that_are_watched_or_not_plain_stay_as_they_are() -> None:
    class Own(nn.Conv2d):
        pass

    watched = nn.Conv2d(8, 8, 1)
    watched.register_forward_hook(lambda module, inputs, output: output + 1)
    network = nn.Sequential(Own(8, 8, 1), watched)
    rewrite(network)
    assert [type(layer) for layer in network] == [Own, nn.Conv2d]


def test_activations_that_would_copy_their_input_are_no_longer_in_place() -> None:
    network = nn.Sequential(nn.ReLU6(inplace=True), nn.Hardswish(inplace=True), nn.ReLU(inplace=True))
    rewrite(network)
    assert [layer.inplace for layer in network] == [False, False, True]
