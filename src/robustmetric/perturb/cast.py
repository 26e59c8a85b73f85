"""A network of another dtype and memory format, used from fp32; in float16 each row's gradient is put in its range.

Below 6e-8 float16 has nothing, and the gradient of a classifier that is sure of itself is smaller. So each row's is
divided by its largest entry where it enters the network from behind, and multiplied by that again where it leaves it:
rows do not depend on one another, and a gradient is linear in what comes in. At the network, not around the model:
what stays in fp32 (a head, unit length) changes a gradient's size as well, by 2^-9 to 2^24 where it was measured.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

SCALE = 2.0**6
"""The largest entry of a row's gradient as it enters float16, where numbers are from 2^-24 to 2^16.

Measured relative to it: the medians of the layers of a MobileNetV2 trained with ACT go down to 2^-18, a briefly trained
ResNet-18 rises to 2^5.5 at its input. From 2^4 to 2^8 input gradients come out the same; with 2^12 that one overflows.
"""


class Cast(nn.Module):
    """A network of another dtype and memory format, used from fp32."""

    def __init__(self, network: nn.Module, dtype: torch.dtype, channels_last: bool) -> None:
        super().__init__()
        self.network, self.dtype, self.channels_last = network, dtype, channels_last

    def forward(self, inputs: Tensor) -> Tensor:
        if self.dtype != torch.float16:
            return self._cast(inputs)
        size = _Size()
        left: Tensor = _Leave.apply(self._cast(_Enter.apply(inputs, size)), size)
        return left

    def _cast(self, inputs: Tensor) -> Tensor:
        if self.channels_last and inputs.dim() == 4:
            inputs = inputs.to(self.dtype, memory_format=torch.channels_last)
        return self.network(inputs.to(self.dtype)).float()


class _Size:
    """What the rows' gradients were divided by in the backward pass that is under way; one for each forward pass."""

    rows: Tensor


class _Leave(torch.autograd.Function):
    """Where values leave the network, and gradients enter it."""

    @staticmethod
    def forward(ctx: Any, z: Tensor, size: _Size) -> Tensor:
        ctx.size = size
        return z.view_as(z)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        largest = gradients[0].abs().flatten(1).amax(dim=1)
        # Of NaN and infinity the row becomes NaN, here and again in `_Enter`.
        ctx.size.rows = largest.masked_fill(largest == 0, 1.0)
        return gradients[0] / _per_row(ctx.size.rows, gradients[0]) * SCALE, None


class _Enter(torch.autograd.Function):
    """Where values enter the network, and gradients leave it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, size: _Size) -> Tensor:
        ctx.size = size
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        # In this order: a size that is tiny would vanish if it were divided first.
        return gradients[0] / SCALE * _per_row(ctx.size.rows, gradients[0]), None


def _per_row(values: Tensor, x: Tensor) -> Tensor:
    return values.view(-1, *[1] * (x.dim() - 1))
