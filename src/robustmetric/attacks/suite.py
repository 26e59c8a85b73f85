"""A suite is a named list of trials: an attack, the engine that climbs it, and the radius."""

import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from typing import Any, cast

from robustmetric.attacks.base import Attack, Engine
from robustmetric.attacks.modes import Mode, Moded, mode_of
from robustmetric.errors import InputError
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.engine import in_ball
from robustmetric.perturb.expectation import Expectation
from robustmetric.perturb.pgd import PGD

UNROUNDED = {"rounded": False}
"""What a record says of a trial whose images are floats."""


@dataclass(frozen=True)
class Trial:
    """One attack at one radius."""

    label: str
    attack: Attack
    engine: Engine
    """A frozen dataclass, as all of ours are."""
    repeats: int = 1
    """How often it is run, from other random starts: the record then also has the lowest run, and max - min."""
    rounded: bool = True
    """Whether 8-bit images are scored; False: floats, as the published tables of classifiers have it."""

    on_all: bool = False
    """Whether every query is attacked even where trials take turns, so that its number stands for itself."""

    def __post_init__(self) -> None:
        if self.repeats < 1:
            raise InputError(f"repeats={self.repeats}; expected 1 or more")

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
        return replace(self, engine=in_ball(self.engine, replace(self.engine.ball, radius=radius)))

    def settings(self) -> dict[str, Any]:
        """Everything that decides the outcome, as plain values for the record."""
        # As a record on disk has it, where a tuple is a list: a finished trial must be known again.
        ball = json.loads(json.dumps(asdict(self.engine.ball)))
        engine = _described(self.engine)
        if isinstance(self.engine, PGD):
            engine.pop("engine")
        unusual = {**({"repeats": self.repeats} if self.repeats > 1 else {}), **({} if self.rounded else UNROUNDED)}
        described = {"attack": repr(self.attack), "mode": self.mode}
        return {**ball, **engine, **described, **unusual}


def _described(engine: Engine) -> dict[str, Any]:
    """An engine's name and settings but its ball; those of one that it runs are under `runs`."""
    found = json.loads(json.dumps(asdict(cast(Any, engine))))
    found.pop("ball")
    # In the ball that it runs in, which its step size is scaled to.
    inner = in_ball(engine.engine, engine.ball) if isinstance(engine, Expectation) else None
    if inner is not None:
        found.pop("engine")
    if found.get("rescaled") is True:
        found.pop("rescaled")  # written only where it is not the usual, as records were before there was a choice
    # What a record calls `queries` are the images attacked.
    named = {"queries": "questions_per_image"}
    runs = {} if inner is None else {"runs": _described(inner)}
    return {"engine": type(engine).__name__, **{named.get(key, key): found[key] for key in found}, **runs}


@dataclass(frozen=True)
class Suite:
    """Trials under one name."""

    name: str
    trials: Sequence[Trial]
    modes: Sequence[Mode] = ()
    """The modes to run all of them in; none: each in its own."""
    survivors: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Under a name, labels of trials that take turns, each on the queries that those before it left right.

    What is left after all of them is the record of that name; and what all trials leave, that of the worst case.
    """
    left_out: Sequence[str] = ()
    """Labels of attacks that a suite of this name would have: its worst case says that it is without them."""

    def __post_init__(self) -> None:
        labels = {trial.label for trial in self.trials}
        named = Counter(label for group in self.survivors.values() for label in group)
        for label, times in named.items():
            if label not in labels or times > 1:
                fault = "is no attack of the suite" if label not in labels else "is named twice"
                raise InputError(f"survivors: {label!r} {fault}; expected each of {sorted(labels)} at most once")

    def runs(self) -> list[Trial]:
        """Every trial in every mode, the modes of one next to one another: they may share a climb."""
        return [trial.in_mode(mode) for trial in self.trials for mode in self.modes] or list(self.trials)

    def at(self, radius: float) -> "Suite":
        """The same suite, every trial at one radius (trials that differ in radius only become one)."""
        if any(_leaves_nothing(trial.engine.ball, radius) for trial in self.trials):
            raise InputError(
                f"radius {radius:g} is wider than a pixel's whole range, 0 to 1; did you mean {radius:g}/255?"
            )
        moved = {(trial.label, repr(trial.attack), trial.mode): trial.at(radius) for trial in self.trials}
        return replace(self, trials=list(moved.values()))


def _leaves_nothing(ball: Ball, radius: float) -> bool:
    """Whether a box of this radius holds every valid image: bytes were meant."""
    return ball.norm == "linf" and tuple(ball.bounds) == (0, 1) and 1 < radius < math.inf
