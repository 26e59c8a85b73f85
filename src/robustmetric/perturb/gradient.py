"""A value and its gradient with respect to the input, and nothing else."""

import torch
from torch import Tensor

from robustmetric.types import Inputs, Value


def value_and_gradient(value: Value, x: Inputs) -> tuple[Tensor, Inputs]:
    """Per-row values at x and the gradient of their sum; parameters receive no gradient."""
    x = x.detach().requires_grad_()
    with torch.enable_grad():
        height = value(x)
        (gradient,) = torch.autograd.grad(height.sum(), x)
    return height.detach(), gradient


@torch.no_grad()
def evaluate(value: Value, x: Inputs) -> Tensor:
    """Per-row values at x, without a graph."""
    return value(x).detach()
