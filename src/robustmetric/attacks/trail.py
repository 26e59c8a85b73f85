"""Climbs of one attack in more and more steps, as one: each goes on where the one before it ended."""

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import cast

import torch

from robustmetric.attacks.joint import WholeSet
from robustmetric.attacks.suite import Trial
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.engine import Engine
from robustmetric.perturb.pgd import PGD
from robustmetric.types import Inputs, Value


@dataclass(frozen=True)
class Onward:
    """PGD of which the first steps were `taken` before: its inputs are those of the whole climb, but for rounding."""

    engine: PGD
    taken: int
    starts: Iterator[Inputs]
    """Where they ended, a call each."""
    ends: list[Inputs] | None
    """Gets where this climb ends, likewise; None: no longer one is to come."""

    @property
    def ball(self) -> Ball:
        return self.engine.ball

    def __call__(self, value: Value, clean: Inputs, generator: torch.Generator | None = None) -> Inputs:
        if self.taken:
            if self.engine.random_start:
                self.engine.ball.random_point(clean, generator)  # what comes after is drawn as after a whole climb
            left = replace(self.engine, steps=self.engine.steps - self.taken)
            found = left.go_on(value, clean, next(self.starts).to(clean.device))
        else:
            found = self.engine(value, clean, generator)
        if self.ends is not None:
            self.ends.append(found.cpu())
        return found


class Trail:
    """Where the images of a set stand after a climb, for a longer one along the same way: a copy on the host."""

    def __init__(self) -> None:
        self._way: Hashable = None
        self._is_kept = False
        self._ends: dict[Hashable, tuple[int, list[Inputs]]] = {}

    def begin(self, trial: Trial, rest: Iterable[Trial]) -> None:
        """This trial is next, and the others are to come: climbs of another way, or that none goes on, are not kept."""
        way = _way(trial)
        if way != self._way:
            self._ends.clear()
        longer = (other for other in rest if way is not None and _way(other) == way)
        self._way, self._is_kept = way, any(_steps(other) > _steps(trial) for other in longer)

    def on(self, engine: Engine, part: Hashable) -> Engine:
        """The engine, for this part of the set from where it stands."""
        if self._way is None or not isinstance(engine, PGD):
            return engine
        taken, starts = self._ends.pop(part, (0, []))
        if taken > engine.steps:
            taken, starts = 0, []
        if not taken and not self._is_kept:
            return engine
        ends: list[Inputs] | None = [] if self._is_kept else None
        if ends is not None:
            self._ends[part] = engine.steps, ends
        return Onward(engine, taken, iter(starts), ends)


def _way(trial: Trial) -> Hashable:
    """What climbs along one way have in common: all but the number of their steps. None: it is no such climb."""
    whole, engine = trial.attack, trial.engine
    if not isinstance(whole, WholeSet) or whole.bank != "still" or whole.restarts > 1 or whole.surrogate is not None:
        return None
    if not isinstance(engine, PGD) or engine.restarts > 1 or engine.keep != "last":
        return None
    return repr(whole), replace(engine, steps=0)


def _steps(trial: Trial) -> int:
    return cast(PGD, trial.engine).steps
