"""Inverted residuals (MobileNetV2, Sandler et al. 2018) as a shadow computes them on a GPU: perturb/fused.py."""

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from robustmetric.perturb.folding import is_watched

BLOCK = 8
"""Channels are read in blocks of so many; a layer with others is left alone."""
RESIDUAL = "torchvision.models.mobilenetv2.InvertedResidual"
CLIPPED = "torchvision.ops.misc.Conv2dNormActivation"
"""By name: who has such a layer has imported torchvision, which takes two seconds, and nobody else has to."""


class FusedResidual(nn.Module):
    """Expand, filter, project, add: four layers' passes in three kernels, with a gradient of the input alone."""

    ordinary: type[nn.Module]
    use_res_connect: bool

    def forward(self, x: Tensor) -> Tensor:
        *expand, filters, project = _convolutions(self)
        tensors = [tensor for layer in (*expand, filters, project) for tensor in (layer.weight, layer.bias)]
        return _Residual.apply(_pixels(x), filters.stride[0], self.use_res_connect, *tensors)


class FusedPointwise(nn.Module):
    """A 1 x 1 convolution and its clip in one kernel, with a gradient of the input alone."""

    ordinary: type[nn.Module]

    def forward(self, x: Tensor) -> Tensor:
        (layer,) = _convolutions(self)
        return _Clipped.apply(_pixels(x), layer.weight, layer.bias)


def can_fuse(network: nn.Module) -> bool:
    """Whether its tensors are where the kernels run: a GPU with bfloat16, and Triton, which comes with torch there."""
    return find_spec("triton") is not None and all(
        tensor.is_cuda and torch.cuda.get_device_capability(tensor.device) >= (8, 0) for tensor in network.parameters()
    )


def fuse(network: nn.Module) -> None:
    """Compute those layers of a shadow by kernels of our own that are inverted residuals, or 1 x 1 and clipped."""
    for layer in network.modules():
        kind = f"{type(layer).__module__}.{type(layer).__qualname__}"
        fits = kind == RESIDUAL or (kind == CLIPPED and _is_pointwise(layer))
        if fits and _is_plain(layer):
            vars(layer)["ordinary"] = type(layer)
            # The class alone, as in rewrite.py.
            layer.__class__ = FusedResidual if kind == RESIDUAL else FusedPointwise


def unfuse(network: nn.Module) -> bool:
    """The reverse; whether any had been fused."""
    fused = fused_in(network)
    for layer in fused:
        layer.__class__ = layer.ordinary  # type: ignore[assignment]  # no class that mypy could know
    return bool(fused)


def fused_in(network: nn.Module) -> list[FusedResidual | FusedPointwise]:
    """The layers that are computed by kernels of our own."""
    return [layer for layer in network.modules() if isinstance(layer, FusedResidual | FusedPointwise)]


class _Residual(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, stride: int, is_added: bool, *tensors: Tensor) -> Tensor:
        from robustmetric.perturb.fused import depthwise, pointwise

        *expand, filters, filters_bias, project, project_bias = tensors
        expanded = pointwise(x, expand[0], expand[1], clipped=True) if expand else x
        filtered = depthwise(expanded, filters, filters_bias, stride)
        ctx.stride, ctx.is_added, ctx.size = stride, is_added, (x.shape[2], x.shape[3])
        ctx.count = len(tensors)
        # x itself is clipped by nobody here: of it nothing but its size is needed.
        ctx.save_for_backward(filtered, filters, project, *([expanded, expand[0]] if expand else []))
        return pointwise(filtered, project, project_bias, added=x if is_added else None)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from robustmetric.perturb.fused import depthwise_back, pointwise

        filtered, filters, project, *expand = ctx.saved_tensors
        dy = _pixels(gradients[0])
        dx = pointwise(dy, project, back=True, passed=filtered)
        dx = depthwise_back(dx, filters, ctx.stride, ctx.size, passed=expand[0] if expand else None)
        if expand:
            dx = pointwise(dx, expand[1], back=True, added=dy if ctx.is_added else None)
        elif ctx.is_added:
            dx = dx + dy
        return dx, None, None, *[None] * ctx.count


class _Clipped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        from robustmetric.perturb.fused import pointwise

        y = pointwise(x, weight, bias, clipped=True)
        ctx.save_for_backward(y, weight)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from robustmetric.perturb.fused import pointwise

        y, weight = ctx.saved_tensors
        passed = torch.ops.aten.hardtanh_backward(gradients[0], y, 0.0, 6.0)
        return pointwise(_pixels(passed), weight, back=True), None, None


def _pixels(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _convolutions(block: nn.Module) -> list[nn.Conv2d]:
    return [layer for layer in block.modules() if isinstance(layer, nn.Conv2d)]


def _is_plain(block: nn.Module) -> bool:
    """Nothing in it but folded convolutions and clips at 6, of sizes that the kernels take."""
    return all(_is_known(layer) for layer in _leaves(block)) and not any(map(is_watched, block.modules()))


def _is_known(layer: nn.Module) -> bool:
    if not isinstance(layer, nn.Conv2d):
        return isinstance(layer, nn.Identity | nn.ReLU6)
    is_depthwise = layer.groups == layer.in_channels == layer.out_channels
    shape = (layer.kernel_size, layer.padding, layer.dilation, layer.groups)
    fits = layer.bias is not None and layer.in_channels % BLOCK == 0 == layer.out_channels % BLOCK
    if is_depthwise:
        return fits and shape[:3] == ((3, 3), (1, 1), (1, 1)) and layer.stride in ((1, 1), (2, 2))
    return fits and shape == ((1, 1), (0, 0), (1, 1), 1) and layer.stride == (1, 1)


def _is_pointwise(block: nn.Module) -> bool:
    """One 1 x 1 convolution and a clip."""
    (*_, last), sizes = _leaves(block), [layer.kernel_size for layer in _convolutions(block)]
    return sizes == [(1, 1)] and isinstance(last, nn.ReLU6)


def _leaves(block: nn.Module) -> Iterator[nn.Module]:
    return (layer for layer in block.modules() if not list(layer.children()))
