"""A suite is a named list of trials: an attack, the engine that climbs it, and the radius."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from typing import Any, cast

from robustmetric.attacks.base import Attack, Engine
from robustmetric.attacks.modes import Mode, Moded, mode_of
from robustmetric.errors import InputError
from robustmetric.perturb.pgd import PGD


@dataclass(frozen=True)
class Trial:
    """One attack at one radius."""

    label: str
    attack: Attack
    engine: Engine
    """A frozen dataclass, as all of ours are."""

    @property
    def mode(self) -> Mode:
        """Whether the attack is as its paper means it, or as the published tables were computed."""
        return mode_of(self.attack)

    def in_mode(self, mode: Mode) -> "Trial":
        """The same trial in that mode."""
        if mode == self.mode:
            return self
        if not isinstance(self.attack, Moded) or not is_dataclass(self.attack):
            raise InputError(f"trial {self.label!r}: {self.attack!r} has no mode {mode!r}; leave it out of `modes`")
        return replace(self, attack=cast(Attack, replace(self.attack, mode=mode)))

    def at(self, radius: float) -> "Trial":
        """The same trial at another radius, the step size scaled with it, so that curves compare equal effort."""
        old = self.engine.ball.radius
        if old <= 0:
            raise InputError(f"trial {self.label!r} has radius {old}, which cannot be scaled; expected a number > 0")
        engine = cast(Any, self.engine)
        changes: dict[str, Any] = {"ball": replace(self.engine.ball, radius=radius)}
        if "step_size" in (field.name for field in fields(engine)):
            changes["step_size"] = engine.step_size * radius / old
        return replace(self, engine=replace(engine, **changes))

    def settings(self) -> dict[str, Any]:
        """Everything that decides the outcome, as plain values for the record."""
        engine = asdict(cast(Any, self.engine))
        ball = engine.pop("ball")
        if not isinstance(self.engine, PGD):
            # What a record calls `queries` are the images attacked.
            named = {"queries": "questions_per_image"}
            engine = {"engine": type(self.engine).__name__, **{named.get(key, key): engine[key] for key in engine}}
        return {**ball, "bounds": list(ball["bounds"]), **engine, "attack": repr(self.attack), "mode": self.mode}


@dataclass(frozen=True)
class Suite:
    """Trials under one name."""

    name: str
    trials: Sequence[Trial]
    modes: Sequence[Mode] = ()
    """The modes to run all of them in; none: each in its own."""

    def runs(self) -> list[Trial]:
        """Every trial in every mode, the modes of one next to one another: they may share a climb."""
        return [trial.in_mode(mode) for trial in self.trials for mode in self.modes] or list(self.trials)

    def at(self, radius: float) -> "Suite":
        """The same suite, every trial at one radius (trials that differ in radius only become one)."""
        moved = {(trial.label, repr(trial.attack), trial.mode): trial.at(radius) for trial in self.trials}
        return replace(self, trials=list(moved.values()))
