"""Models that answer one input in several ways: how far the answers lie apart, and one draw of them as a function."""

import torch
from torch import nn

from robustmetric.diagnose.subject import Subject
from robustmetric.perturb.pgd import frozen
from robustmetric.types import Embeddings, Inputs


class FixedDraw(nn.Module):
    """A randomised model with the same draw at every call: a function again, for a batch that stays together."""

    def __init__(self, model: nn.Module, seed: int = 0) -> None:
        super().__init__()
        self.model, self.seed = model, seed

    def forward(self, inputs: Inputs) -> Embeddings:
        with torch.random.fork_rng(devices=[inputs.device] if inputs.is_cuda else []):
            torch.manual_seed(self.seed)
            return self.model(inputs)


def apart(subject: Subject) -> float:
    """The largest difference of two answers to one input of the first batch, relative to the largest entry."""
    inputs = next(subject.batches()).inputs
    with frozen(subject.model, subject.view) as embed, torch.no_grad():
        first, second = embed(inputs), embed(inputs)
    return float((first - second).abs().max() / first.abs().max().clamp_min(1e-12))
