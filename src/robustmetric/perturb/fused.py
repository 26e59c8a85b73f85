"""Layers of inverted residuals on a GPU, each with its bias, clip or mask in one pass: the launches of kernels.py."""

import torch
from torch import Tensor

from robustmetric.perturb.inverted import BLOCK
from robustmetric.perturb.kernels import CLIP, filter_down, filter_same, filter_up, multiply

MULTIPLY_AND_ADD = {"enable_fp_fusion": True}
"""In one instruction: what versions of Triton do unasked differs."""


def pointwise(
    pixels: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    back: bool = False,
    clipped: bool = False,
    added: Tensor | None = None,
    passed: Tensor | None = None,
) -> Tensor:
    """A 1 x 1 convolution, or the way back through one, of a channels_last batch of images.

    `added` is added to the result; the result is kept where `passed`, which has been clipped, was inside its bounds.
    """
    images, _, height, width = pixels.shape
    channels = weight.shape[1 if back else 0]
    y = _like(pixels, (images, channels, height, width))
    if pixels.dtype == torch.float32 and pixels.is_cuda:
        # Without matrix units the arithmetic weighs more than a pass over memory, and the library's is the fastest.
        matrix = weight.flatten(1) if back else weight.flatten(1).t()
        _product(_rows(pixels), matrix, bias, out=_rows(y))
        _finish(y, clipped=clipped, added=added, passed=passed)
        return y
    rows, way = images * height * width, _matrix_blocks(pixels.shape[1], channels)
    multiply[(_cuts(rows, way["ROWS"]) * _cuts(channels, way["COLUMNS"]),)](
        pixels,
        weight,
        y if bias is None else bias,
        added if added is not None else passed if passed is not None else y,
        y,
        rows,
        pixels.shape[1] // BLOCK,
        channels // BLOCK,
        BACK=back,
        CLIPPED=clipped,
        BIASED=bias is not None,
        ADDED=added is not None,
        MASKED=passed is not None,
        **way,
    )
    return y


def depthwise(pixels: Tensor, weight: Tensor, bias: Tensor, stride: int) -> Tensor:
    """3 x 3 filters, one a channel, biased and clipped, of a channels_last batch of images."""
    images, channels, height, width = pixels.shape
    low, narrow = (height - 1) // stride + 1, (width - 1) // stride + 1
    y = _like(pixels, (images, channels, low, narrow))
    grid, way = _image_blocks(y)
    if stride == 1:
        sizes = height, width, channels // BLOCK
        filter_same[grid](pixels, weight, bias, y, y, *sizes, BACK=False, MASKED=False, **way)
    else:
        filter_down[grid](pixels, weight, bias, y, height, width, low, narrow, channels // BLOCK, **way)
    return y


def depthwise_back(
    gradient: Tensor, weight: Tensor, stride: int, size: tuple[int, int], passed: Tensor | None = None
) -> Tensor:
    """The way back through `depthwise` to images of `size`; `gradient` is that of its sum before the clip."""
    images, channels, low, narrow = gradient.shape
    height, width = size
    y = _like(gradient, (images, channels, height, width))
    other, masked = y if passed is None else passed, passed is not None
    grid, way = _image_blocks(gradient)
    if stride == 1:
        sizes = height, width, channels // BLOCK
        filter_same[grid](gradient, weight, y, other, y, *sizes, BACK=True, MASKED=masked, **way)
    else:
        filter_up[grid](gradient, weight, other, y, height, width, low, narrow, channels // BLOCK, MASKED=masked, **way)
    return y


def stopped(gradient: Tensor, clipped: Tensor) -> Tensor:
    """A gradient where what has been clipped was inside its bounds, and 0 elsewhere."""
    return torch.ops.aten.hardtanh_backward(gradient, clipped, 0.0, CLIP.value)


def _product(a: Tensor, b: Tensor, bias: Tensor | None, out: Tensor) -> None:
    if bias is None:
        torch.mm(a, b, out=out)
    else:
        torch.addmm(bias, a, b, out=out)


def _finish(y: Tensor, clipped: bool, added: Tensor | None, passed: Tensor | None) -> None:
    """What `multiply` does behind its product, in place."""
    if added is not None:
        y.add_(added)
    if clipped:
        y.clamp_(0.0, CLIP.value)
    if passed is not None:
        torch.ops.aten.hardtanh_backward.grad_input(y, passed, 0.0, CLIP.value, grad_input=y)


def _like(x: Tensor, shape: tuple[int, ...]) -> Tensor:
    return torch.empty(shape, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)


def _rows(pixels: Tensor) -> Tensor:
    """A channels_last batch as rows of pixels: the same memory."""
    return pixels.permute(0, 2, 3, 1).flatten(0, 2)


def _matrix_blocks(depth: int, channels: int) -> dict[str, int]:
    """How a product is cut up: what was fastest, or nearly, for each layer of MobileNetV2 on an H200."""
    depth, columns = _power(depth), _power(channels)
    if columns == 16:
        return {"ROWS": 128, "COLUMNS": 16, "DEPTH": min(64, depth), "num_warps": 4, **MULTIPLY_AND_ADD}
    if columns == 32:
        return {"ROWS": 256, "COLUMNS": 32, "DEPTH": min(32, depth), "num_warps": 8, **MULTIPLY_AND_ADD}
    return {
        "ROWS": 128,
        "COLUMNS": 32 if depth == 16 else 64,
        "DEPTH": min(32, depth),
        "num_warps": 4,
        **MULTIPLY_AND_ADD,
    }


def _image_blocks(small: Tensor) -> tuple[tuple[int], dict[str, int]]:
    """How images are cut into strips that are gone down row by row, likewise; how many there are, and their sizes."""
    images, channels, height, width = small.shape
    deep = next(size for size in (64, 32, 16, 8) if channels % size == 0)
    way = {"HIGH": min(28, height), "WIDE": 8, "DEEP": deep, "num_warps": 2 if deep > 16 else 1, **MULTIPLY_AND_ADD}
    strips = _cuts(height, way["HIGH"]) * _cuts(width, way["WIDE"]) * (channels // deep)
    return (images * strips,), way


def _power(size: int) -> int:
    """The next power of two that a product can be cut by."""
    return max(16, 1 << (size - 1).bit_length())


def _cuts(size: int, block: int) -> int:
    """How many blocks hold it."""
    return -(-size // block)
