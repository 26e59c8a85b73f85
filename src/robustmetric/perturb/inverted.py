"""Inverted residuals (MobileNetV2, Sandler et al. 2018) as a shadow computes them on a GPU: perturb/fused.py."""

from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from robustmetric.perturb.folding import is_watched
from robustmetric.perturb.rewrite import Pointwise

BLOCK = 8
"""Channels are read in blocks of so many; a layer with others is left alone."""
RESIDUAL = "torchvision.models.mobilenetv2.InvertedResidual"
FUSED = {RESIDUAL: ("pcdcp", "dcp"), "torchvision.ops.misc.Conv2dNormActivation": ("pc",)}
"""By class, how its layers may be spelt: pointwise and depthwise convolutions, and clips.

Classes by name: who has such a layer has imported torchvision, which takes two seconds, and nobody else has to.
"""


class FusedResidual(nn.Module):
    """Expand, filter, project, add: four layers' passes in three kernels, with a gradient of the input alone."""

    ordinary: type[nn.Module]
    use_res_connect: bool

    def forward(self, x: Tensor) -> Tensor:
        *expand, filters, project = _convolutions(self)
        tensors = [tensor for layer in (*expand, filters, project) for tensor in (layer.weight, layer.bias)]
        with torch.cuda.device_of(x):  # where Triton launches
            return _Residual.apply(_pixels(x), filters.stride[0], self.use_res_connect, *tensors)


class FusedPointwise(nn.Module):
    """A 1 x 1 convolution and its clip in one kernel, with a gradient of the input alone."""

    ordinary: type[nn.Module]

    def forward(self, x: Tensor) -> Tensor:
        (layer,) = _convolutions(self)
        with torch.cuda.device_of(x):
            return _Clipped.apply(_pixels(x), layer.weight, layer.bias)


def can_fuse(network: nn.Module) -> bool:
    """Whether the kernels run where its tensors are: a GPU with bfloat16, and Triton, which comes with torch there."""
    return find_spec("triton") is not None and all(map(_is_at_home, network.parameters()))


def fuse(network: nn.Module) -> None:
    """Compute those layers of a shadow by kernels of our own that are inverted residuals, or 1 x 1 and clipped."""
    for layer in network.modules():
        kind = f"{type(layer).__module__}.{type(layer).__qualname__}"
        if _spelt(layer) in FUSED.get(kind, ()) and not any(map(is_watched, layer.modules())):
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
        from robustmetric.perturb.fused import pointwise, stopped

        y, weight = ctx.saved_tensors
        return pointwise(_pixels(stopped(gradients[0], y)), weight, back=True), None, None


def _pixels(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last)


def _convolutions(block: nn.Module) -> list[nn.Conv2d]:
    return [layer for layer in block.modules() if isinstance(layer, nn.Conv2d)]


def _is_at_home(tensor: Tensor) -> bool:
    is_known = tensor.dtype in (torch.bfloat16, torch.float32)
    return is_known and tensor.is_cuda and torch.cuda.get_device_capability(tensor.device) >= (8, 0)


def _spelt(block: nn.Module) -> str:
    """A letter for each of its layers: p, d or c for what the kernels compute, none for what does nothing, else "?"."""
    return "".join(_letter(layer) for layer in block.modules() if not list(layer.children()))


def _letter(layer: nn.Module) -> str:
    if isinstance(layer, nn.Identity):
        return ""
    if type(layer) is nn.ReLU6:
        return "c"
    # No subclass but our own: it may rework its weight.
    if not isinstance(layer, nn.Conv2d) or type(layer) not in (nn.Conv2d, Pointwise):
        return "?"
    is_even = layer.in_channels % BLOCK == 0 == layer.out_channels % BLOCK
    if layer.bias is None or layer.padding_mode != "zeros" or not is_even:
        return "?"
    shape = layer.kernel_size, layer.padding, layer.dilation
    if layer.groups == layer.in_channels == layer.out_channels:
        return "d" if shape == ((3, 3), (1, 1), (1, 1)) and layer.stride in ((1, 1), (2, 2)) else "?"
    return "p" if shape == ((1, 1), (0, 0), (1, 1)) and (layer.groups, layer.stride) == (1, (1, 1)) else "?"
