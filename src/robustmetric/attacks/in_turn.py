"""Climbs that take turns, each on the rows that those before it left right; and climbs that see 8-bit images."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor

from robustmetric.attacks.base import Attack, Engine, Outcome
from robustmetric.attacks.vote import climbs_of
from robustmetric.perturb.active import Rowwise
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.engine import draws_of, goal_of, in_ball
from robustmetric.perturb.expectation import Expectation, mean_of
from robustmetric.perturb.gradient import evaluate
from robustmetric.perturb.hard_label import RayS
from robustmetric.perturb.search import per_input
from robustmetric.types import Batch, Inputs, Value


def run_in_turn(attack: Attack, climb: Callable[[Attack, Batch], Outcome], batch: Batch, score: str) -> Outcome:
    """All climbs of an attack: of each row the one that cost it its `score`, else the last.

    An attack that has one climb, or does not give this score, is climbed once. Of one with several, each row aims at
    many items in turn, and none are told.
    """
    first, *others = climbs_of(attack)
    found = climb(first, batch)
    if others:
        found = replace(found, aims=None)
    for other in others if score in found.scores else []:
        # One host synchronisation per climb: rows that are lost are not climbed again.
        rows = found.scores[score].nonzero()[:, 0]
        if not len(rows):
            break
        found = _replaced(found, rows, climb(other, some(batch, rows)))
    return found


def some(batch: Batch, rows: Int[Tensor, " rows"]) -> Batch:
    """These rows of a batch."""
    return Batch(batch.inputs[rows], batch.labels[rows], batch.index[rows])


def _replaced(found: Outcome, rows: Int[Tensor, " rows"], part: Outcome) -> Outcome:
    return Outcome(
        inputs=found.inputs.index_copy(0, rows, part.inputs),
        embeddings=found.embeddings.index_copy(0, rows, part.embeddings),
        scores={name: values.index_copy(0, rows, part.scores[name]) for name, values in found.scores.items()},
    )


def has_goal(engine: Engine) -> bool:
    """Whether an engine, or the one it runs, stops at a goal."""
    return goal_of(engine) is not None


@dataclass(frozen=True)
class InBytes:
    """An engine that searches among 8-bit images: it asks for the value of each point as bytes hold it.

    An engine that stops at its goal stops just beyond the boundary, where rounding afterwards would undo its work. The
    slope is that of the rounded point (straight through: rounding itself has none). RayS compares distances, of which
    bytes have few: it searches among floats, and the byte images along the ray that it found are asked afterwards.
    """

    engine: Engine

    @property
    def ball(self) -> Ball:
        return self.engine.ball

    @property
    def goal(self) -> float | None:
        return goal_of(self.engine)

    @property
    def draws(self) -> int:
        return draws_of(self.engine)

    def __call__(self, value: Value, clean: Inputs, generator: torch.Generator | None = None) -> Inputs:
        if isinstance(self.engine, Expectation):
            inner = in_ball(self.engine.engine, self.ball)
            return InBytes(inner)(mean_of(value, self.engine.draws), clean, generator)
        if isinstance(self.engine, RayS):
            return _along_rays(self.engine, value, clean)

        def rounded(x: Inputs, origin: Inputs) -> Inputs:
            # To the bit the rounded image; the second term is zero and carries the slope.
            return self.ball.to_bytes(x, origin).detach() + (x - x.detach())

        climbed: Value = lambda x: value(rounded(x, clean))  # noqa: E731  # the other branch is no function
        if isinstance(value, Rowwise) and value.width == 1:
            climbed = Rowwise(
                lambda x, origin, *fixed: value.value(rounded(x, origin), *fixed), (clean, *value.constants)
            )
        return self.ball.to_bytes(self.engine(climbed, clean, generator), clean)


def _along_rays(engine: RayS, value: Value, clean: Inputs) -> Inputs:
    """The farthest byte image in the ball along each row's ray at which it has won, else the clean input.

    The questions for them are among those that the engine may ask.
    """
    ball = engine.ball
    byte = (ball.bounds[1] - ball.bounds[0]) / 255
    most = int(ball.radius / byte + 1e-3)
    found = replace(engine, queries=max(2, engine.queries - most - 1))(value, clean)
    signs, best = (found - clean).sign(), clean
    won = evaluate(value, clean) >= engine.goal
    for levels in range(most, 0, -1):
        x = ball.to_bytes((clean + levels * byte * signs).clamp(*ball.bounds), clean)
        now = evaluate(value, x) >= engine.goal
        best = torch.where(per_input(now & ~won, x), x, best)
        won = won | now
    return best
