"""A value and its gradient with respect to the input, and nothing else."""

import torch
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.types import Inputs, Value


def value_and_gradient(value: Value, x: Inputs) -> tuple[Tensor, Inputs]:
    """Per-row values at x and the gradient of their sum; parameters receive no gradient."""
    x = x.detach().requires_grad_()
    gradient = None
    with torch.enable_grad():
        height = value(x)
        if height.requires_grad:
            (gradient,) = torch.autograd.grad(height.sum(), x, allow_unused=True)
    if gradient is None:
        raise InputError(
            "the model gives no gradient of its output with respect to the input; expected one that autograd can "
            "follow, or an engine that asks for values alone: square, rays, local_search"
        )
    return height.detach(), gradient


@torch.no_grad()
def evaluate(value: Value, x: Inputs) -> Tensor:
    """Per-row values at x, without a graph."""
    return value(x).detach()
