"""What an engine is, and the same engine in another ball."""

from dataclasses import fields, replace
from typing import Any, Protocol, cast, runtime_checkable

import torch

from robustmetric.perturb.ball import Ball
from robustmetric.types import Inputs, Value


@runtime_checkable
class Engine(Protocol):
    """Anything that climbs a value inside a ball: PGD and its kin. Ours are frozen dataclasses."""

    @property
    def ball(self) -> Ball: ...

    def __call__(self, value: Value, clean: Inputs, generator: torch.Generator | None = None) -> Inputs: ...


@runtime_checkable
class Aimed(Protocol):
    """An engine that may stop at a goal."""

    @property
    def goal(self) -> float | None: ...


def goal_of(engine: Engine) -> float | None:
    """The value at which an engine is done with a row; None where it has none."""
    return engine.goal if isinstance(engine, Aimed) else None


@runtime_checkable
class Averaging(Protocol):
    """An engine that climbs the mean of several draws of a value."""

    @property
    def draws(self) -> int: ...


def draws_of(engine: Engine) -> int:
    """How many draws of a value an engine climbs the mean of, and reaches its goal by; 1: the value as it is."""
    return engine.draws if isinstance(engine, Averaging) else 1


def in_ball(engine: Engine, ball: Ball) -> Engine:
    """The same engine in another ball; a step size is scaled with the radius, so that the effort is the same."""
    settings = cast(Any, engine)
    changes: dict[str, Any] = {"ball": ball}
    if engine.ball.radius > 0 and "step_size" in (field.name for field in fields(settings)):
        changes["step_size"] = settings.step_size * ball.radius / engine.ball.radius
    return cast(Engine, replace(settings, **changes))
