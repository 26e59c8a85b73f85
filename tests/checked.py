"""Signatures are checked while the tests run: what jaxtyping's hook decorates, each argument looked at once.

`jaxtyping.jaxtyped` binds arguments by `inspect` and checks them before a call and again after it, all in Python that
coverage traces: in attacks of many short steps that is most of the time.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

import jaxtyping
from beartype import BeartypeConf, beartype

SHAPES = jaxtyping.jaxtyped("context")
"""Within, a letter of a shape stands for one size."""
CHECKS = BeartypeConf(violation_type=jaxtyping.TypeCheckError)
jaxtyped = jaxtyping.jaxtyped


def checked(*, typechecker: Callable[..., Any]) -> Callable[[Any], Any]:
    """In the place of `jaxtyping.jaxtyped`: the same errors of the same calls."""

    def decorate(part: Any) -> Any:
        if inspect.isclass(part):
            if dataclasses.is_dataclass(part) and "__init__" in vars(part):
                part.__init__ = decorate(part.__init__)
            return part
        # What a generator yields beartype would look at when the shapes of its call are no longer known; and names
        # that are imported for type checkers alone it would look for.
        if inspect.isgeneratorfunction(part) or any(isinstance(hint, str) for hint in part.__annotations__.values()):
            return jaxtyped(part, typechecker=typechecker)
        typed = beartype(part, conf=CHECKS)

        @functools.wraps(part)
        def call(*args: Any, **settings: Any) -> Any:
            with SHAPES:
                return typed(*args, **settings)

        return call

    return decorate
