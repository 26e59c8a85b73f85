"""A value and its gradient with respect to the input, and nothing else."""

import torch
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.types import Embed, Inputs, Value

OTHERWISE = (
    "expected one that autograd can follow, or an engine that asks for values alone: square, rays, local_search "
    "(suites blackbox224, blackbox28; local_search of a classifier)"
)


def value_and_gradient(value: Value, x: Inputs) -> tuple[Tensor, Inputs]:
    """Per-row values at x, in its precision, and the gradient of their sum; parameters receive no gradient."""
    x = x.detach().requires_grad_()
    gradient = None
    with torch.enable_grad():
        height = _followed(value, x)
        if height.requires_grad:
            (gradient,) = torch.autograd.grad(height.sum(), x, allow_unused=True)
    if gradient is None:
        raise InputError(f"the model gives no gradient of its output with respect to the input; {OTHERWISE}")
    # Of a model that answers in float64 too: a step scaled by its height must leave x as the model takes it.
    return height.detach().to(x.dtype), gradient


def _followed(value: Value, x: Inputs) -> Tensor:
    """The values; a model that fails for the gradient's sake alone (numpy, an input changed in place) is told so."""
    try:
        return value(x)
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        evaluate(value, x.detach().clone())  # fails as well where the gradient is not the reason
        reason = " ".join(str(error).split())
        raise InputError(f"the model fails where its input asks for a gradient ({reason}); {OTHERWISE}") from error


def has_gradient(embed: Embed, x: Inputs) -> bool:
    """Whether autograd follows the embedding of the first input; a gradient that is zero is one."""
    with torch.enable_grad():
        return embed(x[:1].detach().requires_grad_()).requires_grad


@torch.no_grad()
def evaluate(value: Value, x: Inputs) -> Tensor:
    """Per-row values at x, in its precision, without a graph."""
    return value(x).detach().to(x.dtype)
