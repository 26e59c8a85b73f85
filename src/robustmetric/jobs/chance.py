"""Models that draw at random while they answer: attacks on single draws overstate them, so a record must say so."""

from typing import Any

import torch

from robustmetric.diagnose.randomised import telling
from robustmetric.diagnose.thresholds import STRANGE
from robustmetric.jobs.arena import Arena, as_bytes
from robustmetric.jobs.progress import say
from robustmetric.jobs.workers import full_precision
from robustmetric.numerics.randomness import repeatable
from robustmetric.perturb.pgd import frozen
from robustmetric.report.warned import RANDOMISED


@full_precision()
@torch.no_grad()
def is_randomised(arena: Arena) -> bool:
    """Whether two answers to the first batch differ by more than rounding; every rank asks the same, and agrees."""
    batch = as_bytes(arena.queries.batch(arena.rows[: arena.batch_size], arena.view))
    with repeatable(arena.workers.device, 0), frozen(arena.model, arena.seen) as embed:
        first, second = (embed(batch.inputs).float() for _ in range(2))
    return bool((first - second).norm() > STRANGE * telling(first).norm())


def chance_settings(arena: Arena) -> dict[str, Any]:
    """What the records of such a model must say; the first rank says what its numbers are worth."""
    if not is_randomised(arena):
        return {}
    if arena.workers.rank == 0:
        say(
            f"warning: {RANDOMISED}; run the suites masking and, of a classifier, autoattack_rand, or engines under "
            "{name: expectation, engine: ...}"
        )
    return {"randomised": True}
