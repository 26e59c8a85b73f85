"""Randomness that can be repeated: a generator from whole numbers, and Gaussian noise around one input, in parts."""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from robustmetric.numerics.distances import chunks

TOGETHER = 64
"""Draws of noise that are made in one call."""


class Purpose(IntEnum):
    """What draws are for: a proof about a network must not draw the noise that the network was trained on."""

    TRAINING = 1
    SMOOTHED_CLASSES = 2
    SMOOTHED_RETRIEVAL = 3
    SMOOTHED_ENCODER = 4


def generator(device: torch.device, *parts: int, purpose: Purpose | None = None) -> torch.Generator:
    """Randomness that depends on these numbers (seed, epoch, step, rank, ...) and the purpose alone."""
    # The count is mixed in too: SeedSequence takes (1, 2) and (1, 2, 0) for the same. It also tells parts from purpose.
    tag = [] if purpose is None else [int(purpose)]
    entropy = np.random.SeedSequence([len(parts), *(part % 2**32 for part in parts), *tag])
    mixed = int(entropy.generate_state(1, np.uint64)[0] >> np.uint64(1))
    return torch.Generator(device).manual_seed(mixed)


@contextmanager
def repeatable(device: torch.device, *parts: int) -> Iterator[None]:
    """Within, torch's own generators draw what these numbers decide; after, they go on where they were.

    For models that draw at random themselves. Not to be kept open across a `yield`: others would draw from it.
    """
    with seeded(device, generator(torch.device("cpu"), *parts).initial_seed()):
        yield


@contextmanager
def seeded(device: torch.device, seed: int) -> Iterator[None]:
    """Within, torch's own generators, of the CPU and of this device, begin at this seed; after, they go on."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        if device.type == "cpu":
            # For each kind of accelerator not in use yet torch.manual_seed writes down the whole stack, and keeps it.
            torch.default_generator.manual_seed(seed)
        else:
            torch.manual_seed(seed)
        yield


def noise(
    shape: torch.Size, count: int, size: int, source: torch.Generator, dtype: torch.dtype = torch.float32
) -> Iterator[Float[Tensor, "part *shape"]]:
    """`count` draws of standard Gaussian noise of this shape, at most `size` at a time, on the source's device.

    The draws do not depend on `size`, as they would if each part were drawn at once: torch draws few numbers in another
    way than many.
    """
    drawn = torch.empty((0, *shape), device=source.device, dtype=dtype)
    for part in chunks(count, size):
        wanted = part.stop - part.start
        more = [
            torch.randn(TOGETHER, *shape, generator=source, device=source.device, dtype=dtype)
            for _ in range(len(drawn), wanted, TOGETHER)
        ]
        drawn = torch.cat([drawn, *more])
        yield drawn[:wanted]
        drawn = drawn[wanted:]
