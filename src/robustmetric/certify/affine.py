"""Affine layers, as CROWN needs them: linear functions of what comes out as functions of what goes in."""

import copy

import torch
from torch import Tensor, nn

from robustmetric.errors import InputError

AFFINE = (nn.Linear, nn.Conv2d, nn.AvgPool2d, nn.BatchNorm1d, nn.BatchNorm2d)
"""Layers that are affine in eval mode. Subclasses, which may do something else, are not among them."""
RESHAPING = (nn.Flatten, nn.Identity, nn.Dropout)
"""Layers that change no number in eval mode."""


def chain(model: nn.Module) -> list[nn.Module]:
    """The layers one after the other, or an error that names the first that has no bounds here."""
    if type(model) is nn.Sequential:
        return [layer for part in model for layer in chain(part)]
    known = type(model) in (nn.ReLU, *AFFINE, *RESHAPING)
    if not known or (isinstance(model, nn.BatchNorm1d | nn.BatchNorm2d) and model.running_mean is None):
        names = ", ".join(layer.__name__ for layer in (nn.Sequential, nn.ReLU, *AFFINE, *RESHAPING))
        raise InputError(
            f"layer {type(model).__name__} has no linear bounds here; expected {names} (norms with statistics); "
            "build the network of these, or set backend: auto_lirpa"
        )
    return [model]


def pull(layer: nn.Module, rows: Tensor, shape: torch.Size) -> tuple[Tensor, Tensor]:
    """<row, layer(x)> = <rows, x> + constant: the transpose of an affine layer is the gradient of its output."""
    count = rows.shape[:2]
    if type(layer) in RESHAPING:
        return rows.reshape(*count, *shape), rows.new_zeros(1, 1)
    if type(layer) is Dense:
        flat = rows.flatten(2)
        return (flat @ layer.weight).view(*count, *shape), flat @ layer.bias
    with torch.enable_grad():
        x = torch.zeros(count.numel(), *shape, dtype=rows.dtype, device=rows.device, requires_grad=True)
        (pulled,) = torch.autograd.grad(layer(x), x, rows.flatten(0, 1))
    zero = layer(torch.zeros(1, *shape, dtype=rows.dtype, device=rows.device))
    return pulled.unflatten(0, count), (rows * zero).flatten(2).sum(dim=2)


class Dense(nn.Module):
    """An affine layer as one matrix: float64 products are several times as fast as float64 convolutions."""

    def __init__(self, layer: nn.Module, shape: torch.Size, device: torch.device) -> None:
        super().__init__()
        zero = layer(torch.zeros(1, *shape, dtype=torch.float64, device=device))
        each = torch.eye(zero.numel(), dtype=torch.float64, device=device).view(1, -1, *zero.shape[1:])
        # As a gradient, since layer(unit vector) - layer(0) would lose the digits that a large bias takes.
        self.weight, self.bias = pull(layer, each, shape)[0][0].flatten(1), zero.flatten()


def of_magnitudes(layer: nn.Module) -> nn.Module:
    """|weight| x + |bias|: what the layer adds up, in magnitude, for inputs of magnitudes up to x."""
    layer = copy.deepcopy(layer)
    for parameter in layer.parameters():
        parameter.data.abs_()
    if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d) and layer.running_mean is not None:
        # The mean is subtracted.
        layer.running_mean.abs_().neg_()
    return layer
