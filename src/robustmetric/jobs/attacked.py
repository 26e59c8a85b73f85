"""One trial on the queries, batch by batch: what each rank finds, before the ranks' shares are put together."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from robustmetric.attacks.base import Attack, Climb, Outcome, run
from robustmetric.attacks.in_turn import InBytes, has_goal, run_in_turn
from robustmetric.attacks.suite import Trial
from robustmetric.attacks.transfer import Surrogate, Transfer, transfer
from robustmetric.errors import InputError
from robustmetric.jobs.arena import Arena
from robustmetric.jobs.climbs import Climbs
from robustmetric.jobs.pictures import Pictures, pictures_of
from robustmetric.jobs.progress import Bar
from robustmetric.jobs.surrogate import find_surrogate
from robustmetric.jobs.worst_case import dressed
from robustmetric.numerics.randomness import generator, repeatable
from robustmetric.report.scores import title
from robustmetric.types import Batch


@dataclass
class Found:
    """What came of one rank's share of the queries."""

    sums: dict[str, Tensor]
    """By score, one number per query, 0 for those of other ranks."""
    pictures: Pictures | None = None
    apart: dict[str, float] = field(default_factory=dict)
    """By score, how far the fast view is off."""
    aims: Tensor | None = None
    """Per query the places of the items that were chosen for it, 0 for those of other ranks; see `Outcome`."""
    shared: int = 0
    aside: float = 0.0
    """Seconds that went into finding that out."""


def attack_all(
    arena: Arena, trial: Trial, seed: int, climbs: Climbs, standing: Tensor | None, turn: int, *,
    shown: bool, tell: Callable[[float, int], None] | None = None,
) -> Found:  # fmt: skip
    """One trial on this rank's share of the queries; of those that `standing` marks, where some are lost already.

    `tell` is told the seconds of the first batch and how many queries all ranks attacked in them.
    """
    device, count, in_turn = arena.workers.device, len(arena.rows), standing is not None
    climbs.begin(trial, device)
    with repeatable(device, seed, 6):
        arena = dressed(arena, trial.attack)
        exact = arena.exact if arena.fast else None
        source = find_surrogate(trial, arena)
        exact_source = None if exact is None else find_surrogate(trial, exact)
    only = None if standing is None else standing.nonzero()[:, 0]
    # Of a trial that takes turns, the one score that those not attacked have too; on every rank, whatever its share.
    found = Found({arena.right: torch.zeros(count)} if in_turn else {})
    label = trial.label if trial.mode == "fixed" else f"{trial.label} ({trial.mode})"
    ahead = count if only is None else len(only)
    with Bar(title(label, trial.settings()), ahead, shown=shown and ahead > 0) as bar:
        for number, (first, positions, batch) in enumerate(arena.batches(only)):
            parts = (seed, first, 3, *([turn] if turn else []))
            began = time.monotonic()
            with repeatable(device, *parts):
                randomness = generator(device, *parts)
                outcome = attack_batch(arena, trial, batch, randomness, source, climbs.of(first), in_turn)
            climbs.keep(first, outcome.climb)
            found.shared += outcome.shared
            for name in found.sums if in_turn else outcome.scores:
                values = outcome.scores[name].float().cpu()
                found.sums.setdefault(name, torch.zeros(count))[positions] = values
            if outcome.aims is not None and not in_turn:
                places = outcome.aims.float().cpu()
                found.aims = torch.zeros(count, places.shape[1]) if found.aims is None else found.aims
                found.aims[positions] = places
            is_first = number == 0 and arena.workers.rank == 0
            if is_first and shown and tell is not None:
                tell(time.monotonic() - began, len(positions) * arena.workers.ranks)
            if is_first and exact is not None:
                paused = time.monotonic()
                with repeatable(device, *parts):
                    again = attack_batch(
                        exact, trial, batch, generator(device, *parts), exact_source, in_turn=in_turn
                    ).scores
                found.apart = {name: float((values - again[name]).mean()) for name, values in outcome.scores.items()}
                found.aside = time.monotonic() - paused
            if is_first and trial.attack.role == "query" and trial.mode == "fixed" and not arena.is_of_classes:
                found.pictures = pictures_of(arena, trial, batch, outcome)
            bar.advance(len(positions) * arena.workers.ranks)
    return found


def attack_batch(
    arena: Arena,
    trial: Trial,
    batch: Batch,
    randomness: torch.Generator,
    source: Surrogate | None,
    earlier: Climb | None = None,
    in_turn: bool = False,
) -> Outcome:
    """One trial on one batch, all of its climbs; the arena is as the attack must see it (`dressed`)."""
    rounded = batch.inputs.dim() > 2 and trial.mode == "fixed" and trial.rounded
    model, gallery, seen, sought = arena.model, arena.gallery, arena.seen, arena.search
    # What ends at its goal ends there as an 8-bit image.
    in_bytes = rounded and (in_turn or has_goal(trial.engine))
    engine = InBytes(trial.engine) if in_bytes else trial.engine

    def climb(attack: Attack, some: Batch) -> Outcome:
        if source is not None and isinstance(attack, Transfer):
            climbed = (attack.attack, engine, source)
            return transfer(*climbed, model, some, gallery, randomness, rounded=rounded, view=seen, search=sought)
        # A climb among bytes is not that of the other mode, which is among floats.
        known = None if in_bytes else earlier
        found = run(
            attack, engine, model, some, gallery, randomness,
            rounded=rounded, view=seen, search=sought, earlier=known,
        )  # fmt: skip
        return replace(found, climb=None) if in_bytes else found

    outcome = run_in_turn(trial.attack, climb, batch, arena.right)
    if not bool(outcome.inputs.isfinite().all()):
        raise InputError(
            f"{trial.label!r} left images that hold NaN, as the model's gradients do; expected finite gradients, or an "
            "engine that asks for values alone: square, rays, local_search"
        )
    return outcome
