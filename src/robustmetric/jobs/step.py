"""The forward pass of a training step, and what it asks of a defence: named terms with a sum and a gradient."""

import inspect

import torch
from torch import Tensor, nn

from robustmetric.defences.base import Defence
from robustmetric.errors import InputError
from robustmetric.numerics.randomness import generator
from robustmetric.types import Batch

EXPECTED = "expected a dict of named loss terms, each one number with a gradient: {'metric': loss}"


class Step(nn.Module):
    """Model and defence as one module: one forward per step, so that DDP synchronises both."""

    def __init__(self, model: nn.Module, defence: Defence) -> None:
        super().__init__()
        check_call(defence)
        self.model = model
        self.defence = defence

    def forward(self, inputs: Tensor, labels: Tensor, index: Tensor, seed: tuple[int, ...]) -> dict[str, Tensor]:
        named = self.defence(self.model, Batch(inputs, labels, index), generator(inputs.device, *seed))
        terms = check_terms(named, self.defence)
        if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
            return terms
        # Ranks wait for a gradient of everything: a member of an ensemble may have no image in this rank's batch.
        nothing = torch.stack([0 * p.sum() for p in self.parameters() if p.requires_grad]).sum()
        first, *_ = (name for name, term in terms.items() if term.requires_grad)
        return {**terms, first: terms[first] + nothing}


def check_call(defence: Defence) -> None:
    """Refuse a defence that a training step could not call."""
    signature = inspect.signature(defence.forward)
    try:
        signature.bind("model", "batch", "generator")
    except TypeError as error:
        raise InputError(
            f"{type(defence).__name__}.forward{signature} cannot be called by a training step; "
            "expected forward(self, model, batch, generator=None)"
        ) from error


def check_terms(given: object, defence: Defence) -> dict[str, Tensor]:
    """The terms, or an error that says what the defence returned instead."""
    name = f"{type(defence).__name__}.forward"
    if not isinstance(given, dict) or not given:
        found = f"a {type(given).__name__}" if not isinstance(given, dict) else "no term at all"
        raise InputError(f"{name} returned {found}; {EXPECTED}")
    for key, value in given.items():
        if not isinstance(value, Tensor):
            raise InputError(f"{name}: term {key!r} is a {type(value).__name__}, no tensor; {EXPECTED}")
        if value.dim():
            raise InputError(f"{name}: term {key!r} has shape {tuple(value.shape)}; {EXPECTED}; take its mean or sum")
    if not any(value.requires_grad for value in given.values()):
        raise InputError(
            f"{name}: no term ({', '.join(map(str, given))}) depends on a parameter, so nothing would be learnt; "
            "was the model called under no_grad, or its output detached?"
        )
    return given
