"""A suite is a named list of trials: an attack, the engine that climbs it, and the radius."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from robustmetric.attacks.base import Attack
from robustmetric.errors import InputError
from robustmetric.perturb.pgd import PGD


@dataclass(frozen=True)
class Trial:
    """One attack at one radius."""

    label: str
    attack: Attack
    engine: PGD

    def at(self, radius: float) -> "Trial":
        """The same trial at another radius, the step size scaled with it, so that curves compare equal effort."""
        old = self.engine.ball.radius
        if old <= 0:
            raise InputError(f"trial {self.label!r} has radius {old}, which cannot be scaled; expected a number > 0")
        ball = replace(self.engine.ball, radius=radius)
        return replace(self, engine=replace(self.engine, ball=ball, step_size=self.engine.step_size * radius / old))

    def settings(self) -> dict[str, Any]:
        """Everything that decides the outcome, as plain values for the record."""
        engine = asdict(self.engine)
        ball = engine.pop("ball")
        return {**ball, "bounds": list(ball["bounds"]), **engine, "attack": repr(self.attack)}


@dataclass(frozen=True)
class Suite:
    """Trials under one name and one scoring mode."""

    name: str
    trials: Sequence[Trial]

    def at(self, radius: float) -> "Suite":
        """The same suite, every trial at one radius (trials that differ in radius only become one)."""
        moved = {(trial.label, repr(trial.attack)): trial.at(radius) for trial in self.trials}
        return replace(self, trials=list(moved.values()))
