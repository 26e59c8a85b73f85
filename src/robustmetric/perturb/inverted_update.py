"""Inverted residuals in training, on a GPU in bfloat16 and with fixed batch norms, by the kernels of views."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any
from warnings import warn

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.functional import conv2d, relu6
from torchvision.models.mobilenetv2 import InvertedResidual
from torchvision.ops.misc import Conv2dNormActivation

from robustmetric.perturb.inverted import can_fuse, is_known_convolution, leaves, pixels_of


class TrainedResidual(InvertedResidual):  # type: ignore[misc]  # torchvision has no stubs
    """Its layers in one pass each; their norms, which do not change, are multiplied into their weights."""

    def forward(self, x: Tensor) -> Tensor:
        if not _is_time(x):
            return super().forward(x)
        layers: list[nn.Conv2d] = self.fixed["layers"]
        weights = [layer.weight for layer in layers]
        return _Residual.apply(
            pixels_of(x),
            layers[-2].stride[0],
            self.use_res_connect,
            *weights,
            *self.fixed["factors"],
            *self.fixed["offsets"],
        )


class TrainedConvolution(Conv2dNormActivation):  # type: ignore[misc]  # likewise
    """A convolution and its fixed norm as one, then the clip."""

    def forward(self, x: Tensor) -> Tensor:
        if not _is_time(x):
            return super().forward(x)
        (layer,), (factor,), (offset,) = self.fixed.values()
        with torch.autocast(x.device.type, enabled=False):
            weight = (layer.weight * factor).bfloat16()
            x = pixels_of(x.bfloat16())
            return relu6(conv2d(x, weight, offset.bfloat16(), layer.stride, layer.padding, 1, layer.groups))


@contextmanager
def fused_updates(network: nn.Module) -> Iterator[bool]:
    """Inside, inverted residuals of the network train by kernels of our own; whether all that it has do."""
    residuals = [layer for layer in network.modules() if type(layer) is InvertedResidual]
    outer = _outer_convolutions(network)
    fits = bool(residuals) and can_fuse(network) and all(map(_is_plain, (*residuals, *outer)))
    for layer in (*residuals, *outer) if fits else ():
        # Once, since these norms stay as they are: a kernel each would take the host longer than the GPU its update.
        layer.fixed = _fixed(layer)  # type: ignore[assignment]  # torch takes what a module has for tensors
        layer.__class__ = TrainedResidual if isinstance(layer, InvertedResidual) else TrainedConvolution
    try:
        if fits:
            _try_out(network)
    except Exception as error:  # whatever a compiler of kernels makes of another machine
        warn(f"kernels for inverted residuals failed, so updates run without ({error})", stacklevel=2)
        ordinary(network)
        fits = False
    try:
        yield fits
    finally:
        ordinary(network)


def ordinary(network: nn.Module) -> None:
    """Make layers that train by kernels of our own what they were, in place."""
    for layer in network.modules():
        if isinstance(layer, TrainedResidual | TrainedConvolution):
            del layer.fixed
            layer.__class__ = InvertedResidual if isinstance(layer, TrainedResidual) else Conv2dNormActivation


def _try_out(network: nn.Module) -> None:
    """A pass there and back of two small images, of which nothing is kept."""
    first = next(layer for layer in network.modules() if isinstance(layer, nn.Conv2d))
    images = torch.zeros(2, first.in_channels, 32, 32, device=first.weight.device)
    wanted = [parameter for parameter in network.parameters() if parameter.requires_grad]
    with torch.autocast(images.device.type, torch.bfloat16):
        torch.autograd.grad(network(images).float().sum(), wanted, allow_unused=True)


class _Residual(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, stride: int, is_added: bool, *tensors: Tensor) -> Tensor:
        from robustmetric.perturb.fused import depthwise, pointwise

        count = len(tensors) // 3
        factors = tensors[count : 2 * count]
        folded = [(w * factor).to(x.dtype).contiguous() for w, factor in zip(tensors[:count], factors, strict=True)]
        *expand, filters, project = folded
        *expand_offset, filters_offset, project_offset = tensors[2 * count :]
        expanded = pointwise(x, expand[0], expand_offset[0], clipped=True) if expand else x
        filtered = depthwise(expanded, filters, filters_offset, stride)
        ctx.stride, ctx.is_added, ctx.count = stride, is_added, count
        ctx.save_for_backward(x, expanded, filtered, *folded, *factors)
        return pointwise(filtered, project, project_offset, added=x if is_added else None)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        from robustmetric.perturb.fused import depthwise_back, depthwise_gradient, pointwise, pointwise_gradient

        x, expanded, filtered, *rest = ctx.saved_tensors
        folded, factors = rest[: ctx.count], rest[ctx.count :]
        *expand, filters, project = folded
        dy = pixels_of(gradients[0])
        of_project = pointwise_gradient(filtered, dy)
        dx = pointwise(dy, project, back=True, passed=filtered)
        of_filters = depthwise_gradient(expanded, dx, ctx.stride)
        dx = depthwise_back(dx, filters, ctx.stride, tuple(x.shape[2:]), passed=expanded if expand else None)
        of_weights = [of_filters, of_project]
        if expand:
            of_weights = [pointwise_gradient(x, dx), *of_weights]
            dx = pointwise(dx, expand[0], back=True, added=dy if ctx.is_added else None)
        elif ctx.is_added:
            dx = dx + dy
        given = [
            gradient.float().view_as(weight) * factor
            for gradient, weight, factor in zip(of_weights, folded, factors, strict=True)
        ]
        return dx, None, None, *given, *[None] * (2 * ctx.count)


def _is_time(x: Tensor) -> bool:
    """An update in bfloat16; anything else that the model is asked meanwhile is computed as it always is."""
    return (
        torch.is_grad_enabled()
        and x.is_cuda
        and torch.get_autocast_dtype("cuda") is torch.bfloat16
        and (torch.is_autocast_enabled("cuda"))
    )


def _fixed(block: nn.Module) -> dict[str, list[Any]]:
    """Its convolutions, and what the norms behind them multiply by and add."""
    fixed: dict[str, list[Any]] = {"layers": [], "factors": [], "offsets": []}
    for convolution, norm in _pairs(block):
        assert norm.running_mean is not None and norm.running_var is not None
        factor = norm.weight.detach() * (norm.running_var + norm.eps).rsqrt()
        fixed["layers"].append(convolution)
        fixed["factors"].append(factor.view(-1, 1, 1, 1))
        fixed["offsets"].append(norm.bias.detach() - norm.running_mean * factor)
    return fixed


def _pairs(block: nn.Module) -> Iterator[tuple[nn.Conv2d, nn.BatchNorm2d]]:
    """Each convolution with the norm behind it."""
    found = list(leaves(block))
    for layer, follower in pairwise(found):
        if isinstance(layer, nn.Conv2d) and isinstance(follower, nn.BatchNorm2d):
            yield layer, follower


def _outer_convolutions(network: nn.Module) -> Sequence[nn.Module]:
    """Convolutions with a norm and a clip that belong to no residual: the first and the last."""
    inner = {id(part) for layer in network.modules() if type(layer) is InvertedResidual for part in layer.modules()}
    return [layer for layer in network.modules() if type(layer) is Conv2dNormActivation and id(layer) not in inner]


def _is_plain(block: nn.Module) -> bool:
    """Convolutions without a bias, each with a norm that stays as it is, and clips; in a residual, of known shapes."""
    layers = list(leaves(block))
    pairs = list(_pairs(block))
    rest = [layer for layer in layers if not any(layer in pair for pair in pairs)]
    is_fixed = all(
        not norm.training and norm.affine and not any(parameter.requires_grad for parameter in norm.parameters())
        for _, norm in pairs
    )
    is_known = isinstance(block, Conv2dNormActivation) or all(
        is_known_convolution(convolution) for convolution, _ in pairs
    )
    has_bias = any(convolution.bias is not None for convolution, _ in pairs)
    return is_fixed and is_known and not has_bias and all(isinstance(layer, nn.ReLU6) for layer in rest)
