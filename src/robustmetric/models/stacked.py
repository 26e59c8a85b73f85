"""Modules of one architecture run as one, their weights stacked and the layers called once (torch.func)."""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd

BOOKKEEPING = frozenset(vars(nn.Module()))
"""What every module holds: tensors, children, hooks. All else it holds is its settings."""


def run_stacked(members: Sequence[nn.Module], inputs: Tensor) -> tuple[Tensor, ...]:
    """Each member's output. Gradients reach the members' own weights, which are stacked anew at every call."""
    parameters = _stack([member.named_parameters() for member in members])
    buffers = _stack([member.named_buffers() for member in members])

    def call(*weights: dict[str, Tensor]) -> Tensor:
        output: Tensor = functional_call(members[0], weights, (inputs,))
        return output

    return torch.vmap(call)(parameters, buffers).unbind()


def obstacle(members: Sequence[nn.Module]) -> str | None:
    """Why these modules cannot run as one; None where they can."""
    for name, layer in members[0].named_modules():
        place = name or "the member itself"
        if layer.training and isinstance(layer, _BatchNorm | _DropoutNd):
            return f"{place} ({type(layer).__name__}) is in train mode, where it keeps statistics or draws at random"
    for number, member in enumerate(members):
        if any(layer._forward_hooks or layer._forward_pre_hooks or layer._backward_hooks for layer in member.modules()):
            return f"member {number} has hooks"
        if difference := _difference(members[0], member):
            return f"members 0 and {number} differ in {difference}"
    return None


def is_channels_last(module: nn.Module) -> bool:
    """Whether any of its weights has the order of channels_last, and no other."""
    layout = torch.channels_last
    images = (parameter for parameter in module.parameters() if parameter.dim() == 4)
    return any(not weight.is_contiguous() and weight.is_contiguous(memory_format=layout) for weight in images)


def _stack(members: Sequence[Iterable[tuple[str, Tensor]]]) -> dict[str, Tensor]:
    named = [dict(tensors) for tensors in members]
    return {name: torch.stack([tensors[name] for tensors in named]) for name in named[0]}


def _difference(one: nn.Module, other: nn.Module) -> str | None:
    """Where two modules would compute otherwise, were their weights the same."""
    descriptions: tuple[Callable[[nn.Module], dict[str, object]], ...] = (_layers, _tensors)
    for describe in descriptions:
        ours, theirs = describe(one), describe(other)
        if list(ours) != list(theirs):
            return "their layers"
        for name in ours:
            if not _equal(ours[name], theirs[name]):
                return f"`{name}`" if name else "kind or settings"
    return None


def _layers(module: nn.Module) -> dict[str, object]:
    """Kind, mode and settings of every layer."""
    return {
        name: (type(layer), layer.training, {key: vars(layer)[key] for key in vars(layer).keys() - BOOKKEEPING})
        for name, layer in module.named_modules()
    }


def _tensors(module: nn.Module) -> dict[str, object]:
    tensors = chain(module.named_parameters(), module.named_buffers())
    return {name: (tensor.shape, tensor.dtype, tensor.device) for name, tensor in tensors}


def _equal(one: object, other: object) -> bool:
    try:
        return one == other
    except RuntimeError:  # tensors among the settings: not known to agree
        return False
