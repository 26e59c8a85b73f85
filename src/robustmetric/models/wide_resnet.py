"""Wide ResNets for small images (Zagoruyko & Komodakis, BMVC 2016): WRN-28-10, WRN-16-8 and their kin."""

import math

from jaxtyping import Float
from torch import Tensor, nn

from robustmetric.errors import InputError
from robustmetric.types import Embeddings, Inputs

STAGES = 3
FIRST = 16
"""Channels of the first convolution."""


class WideResNet(nn.Module):
    """Three stages of (depth - 4) / 6 pre-activation blocks with 16, 32 and 64 times `width` channels; no dropout.

    Ends in batch norm, ReLU and the mean over the feature map: the features that a classifier's head reads.
    """

    def __init__(self, depth: int = 28, width: int = 10, channels: int = 3) -> None:
        super().__init__()
        if depth < 10 or (depth - 4) % 6:
            raise InputError(f"depth {depth} makes no three equal stages; expected 6 n + 4, such as 16, 22, 28 or 34")
        if width < 1 or channels < 1:
            raise InputError(f"width={width}, channels={channels}; expected both at least 1")
        self.first = _convolution(channels, FIRST)
        blocks: list[nn.Module] = []
        before = FIRST
        for stage in range(STAGES):
            after = FIRST * width * 2**stage
            for number in range((depth - 4) // 6):
                blocks.append(Block(before, after, stride=2 if stage and not number else 1))
                before = after
        self.blocks = nn.Sequential(*blocks)
        self.last = nn.Sequential(nn.BatchNorm2d(before), nn.ReLU(inplace=True))
        self.dim = before

    def forward(self, inputs: Inputs) -> Embeddings:
        return self.last(self.blocks(self.first(inputs))).mean(dim=(2, 3))


class Block(nn.Module):
    """x + conv(relu(norm(conv(relu(norm(x)))))); where the size changes, x is a 1 x 1 convolution of relu(norm(x))."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.enter = nn.Sequential(nn.BatchNorm2d(before), nn.ReLU(inplace=True))
        self.widen = nn.Sequential(
            _convolution(before, after, stride=stride), nn.BatchNorm2d(after), nn.ReLU(inplace=True)
        )
        self.leave = _convolution(after, after)
        self.shortcut = None if before == after else _convolution(before, after, kernel=1, stride=stride)

    def forward(self, x: Float[Tensor, "batch before height width"]) -> Float[Tensor, "batch after h w"]:
        entered = self.enter(x)
        kept = x if self.shortcut is None else self.shortcut(entered)
        return kept + self.leave(self.widen(entered))


def _convolution(before: int, after: int, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    """Weights from N(0, 2 / (kernel^2 * after))."""
    layer = nn.Conv2d(before, after, kernel, stride=stride, padding=kernel // 2, bias=False)
    nn.init.normal_(layer.weight, std=math.sqrt(2 / (kernel**2 * after)))
    return layer
