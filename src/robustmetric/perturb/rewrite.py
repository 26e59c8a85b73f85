"""The same layers, computed in ways that a GPU likes better: rewrites for a shadow that is never trained."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from robustmetric.perturb.folding import is_watched

COPYING = (nn.ReLU6, nn.Hardtanh, nn.Hardswish, nn.SiLU)
"""Activations whose gradient needs their input: in place, autograd copies it first."""


class Pointwise(nn.Conv2d):
    """A 1 x 1 convolution as a matrix product over channels_last pixels, which adds the bias on the way."""

    def forward(self, x: Tensor) -> Tensor:
        pixels = x.permute(0, 2, 3, 1)
        # In two dimensions the product takes the bias in; in four it may be added afterwards.
        y = F.linear(pixels.reshape(-1, x.shape[1]), self.weight.flatten(1), self.bias)
        return y.view(*pixels.shape[:3], self.out_channels).permute(0, 3, 1, 2)


class Stem(nn.Conv2d):
    """A stride-2 convolution of an image as one of stride 1 on 2 x 2 blocks of pixels.

    Four times the channels at half the size: the gradient with respect to three channels, strided, is what libraries
    are slowest at. y[i] = sum_u w[u] x[2i - p + u] becomes a sum over blocks i, i + 1, ..., with w padded to even size.
    """

    def forward(self, x: Tensor) -> Tensor:
        weight = self._blocked()
        top, bottom = self._margins(x.shape[2], dim=0)
        left, right = self._margins(x.shape[3], dim=1)
        blocks = F.pixel_unshuffle(F.pad(x, (left, right, top, bottom)), 2)
        # Sixteen channels fill the units that multiply matrices; twelve (of three colours) do not.
        blocks = F.pad(blocks, (0, 0, 0, 0, 0, weight.shape[1] - blocks.shape[1]))
        return F.conv2d(blocks.contiguous(memory_format=torch.channels_last), weight, self.bias)

    def _blocked(self) -> Tensor:
        """The weight, its taps sorted into blocks."""
        channels, height, width = self.weight.shape[1:]
        taps = F.pad(self.weight, (0, width % 2, 0, height % 2))
        blocked = taps.unflatten(3, (-1, 2)).unflatten(2, (-1, 2)).permute(0, 1, 3, 5, 2, 4).flatten(1, 3)
        return F.pad(blocked, (0, 0, 0, 0, 0, -4 * channels % 16))

    def _margins(self, size: int, dim: int) -> tuple[int, int]:
        """Padding before and behind, so that whole blocks remain and none too many."""
        kernel, padding = self.kernel_size[dim], int(self.padding[dim])
        blocks = (size + 2 * padding - kernel) // 2 + (kernel + 1) // 2
        return padding, 2 * blocks - size - padding


def rewrite(network: nn.Module) -> None:
    """Compute faster what can be, in place: layers keep their parameters and settings, and change their way."""
    for layer in network.modules():
        if type(layer) is nn.Conv2d and not is_watched(layer) and (way := _faster(layer)) is not None:
            # The class alone changes: a copy would have to be put wherever a layer is held, by whatever name.
            layer.__class__ = way
        elif isinstance(layer, COPYING):
            layer.inplace = False


def _faster(layer: nn.Conv2d) -> type[nn.Conv2d] | None:
    if layer.groups > 1 or layer.padding_mode != "zeros" or layer.dilation != (1, 1) or isinstance(layer.padding, str):
        return None
    if layer.kernel_size == (1, 1) and layer.stride == (1, 1) and layer.padding == (0, 0):
        return Pointwise
    if layer.in_channels <= 4 and layer.stride == (2, 2):
        return Stem
    return None
