"""Models that answer one input in several ways: how far the answers lie apart, and one draw of them as a function."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import nn

from robustmetric.diagnose.subject import Subject
from robustmetric.numerics.randomness import seeded
from robustmetric.perturb.pgd import frozen
from robustmetric.types import Embeddings, Inputs

VARIES = 1e3
"""An output that is this many times larger than it varies is no measure of the others."""


@contextmanager
def one_draw(device: torch.device, seed: int) -> Iterator[None]:
    """Within, the global generators of torch, numpy and python begin at this seed; after, they go on as before."""
    theirs, own = np.random.get_state(), random.getstate()
    with seeded(device, seed):
        # numpy takes no more than 32 bits.
        np.random.seed(seed % 2**32)
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(theirs)
            random.setstate(own)


class FixedDraw(nn.Module):
    """A randomised model with the same draw at every call: a function again, for a batch that stays together.

    Unless it draws from a generator of its own, which cannot be reached from here: `apart` tells.
    """

    def __init__(self, model: nn.Module, seed: int = 0) -> None:
        super().__init__()
        self.model, self.seed = model, seed

    def forward(self, inputs: Inputs) -> Embeddings:
        with one_draw(inputs.device, self.seed):
            return self.model(inputs)


def apart(subject: Subject) -> float:
    """The largest difference of two answers to one input of the first batch, relative to the largest entry."""
    inputs = next(subject.batches()).inputs
    with frozen(subject.model, subject.view) as embed, torch.no_grad():
        first, second = embed(inputs), embed(inputs)
    return difference(first, second)


def difference(first: Embeddings, second: Embeddings) -> float:
    """The largest difference of two answers, relative to the largest entry of the first that says anything."""
    return float((first - second).abs().max() / telling(first).max().clamp_min(1e-12))


def telling(z: Embeddings) -> Embeddings:
    """How large entries are, but no larger than `VARIES` times what their output differs by from image to image.

    Beside a class that is left out by a logit of -1e9, all chance would look like rounding. Where all images are
    answered alike, entries are as large as they are.
    """
    size = z.abs().minimum(VARIES * (z.amax(dim=0) - z.amin(dim=0)))
    return size if bool(size.any()) else z.abs()
