"""Climbs that take turns leave lost rows alone; an engine that searches among bytes ends at bytes."""

from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from robustmetric.attacks.base import Attack, Outcome
from robustmetric.attacks.in_turn import InBytes, has_goal, run_in_turn
from robustmetric.attacks.margin import Misclassify, MisclassifyTowards
from robustmetric.perturb.active import Rowwise
from robustmetric.perturb.apgd import APGD
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.engine import draws_of, goal_of
from robustmetric.perturb.expectation import Expectation
from robustmetric.perturb.gradient_free import Square
from robustmetric.perturb.hard_label import RayS
from robustmetric.perturb.pgd import PGD
from robustmetric.types import Batch

BATCH = Batch(torch.arange(4.0)[:, None], torch.zeros(4, dtype=torch.long), torch.full((4,), -1))


def climber(lost: Sequence[Sequence[int]], seen: list[list[int]]) -> object:
    """The t-th climb costs the rows `lost[t]`, and writes t + 1 into what it moves."""

    def climb(attack: Attack, batch: Batch) -> Outcome:
        names = [int(x) for x in batch.inputs[:, 0]]
        turn = len(seen)
        seen.append(names)
        right = torch.tensor([0.0 if name in lost[turn] else 100.0 for name in names])
        moved = torch.full_like(batch.inputs, turn + 1.0)
        return Outcome(moved, moved.clone(), {"accuracy": right}, aims=batch.index[:, None])

    return climb


def test_each_climb_gets_the_rows_that_are_left_and_each_row_keeps_what_cost_it() -> None:
    seen: list[list[int]] = []
    attack = MisclassifyTowards("margin", targets=4)
    found = run_in_turn(attack, climber([[1], [0], [], [3]], seen), BATCH, "accuracy")  # type: ignore[arg-type]
    assert seen == [[0, 1, 2, 3], [0, 2, 3], [2, 3], [2, 3]]
    assert found.scores["accuracy"].tolist() == [0.0, 0.0, 100.0, 0.0]
    assert found.inputs[:, 0].tolist() == [2.0, 1.0, 4.0, 4.0]
    assert torch.equal(found.inputs, found.embeddings)


@pytest.mark.parametrize("lost", [[[0, 1, 2, 3]], [[1], [0, 2, 3]]])
def test_of_several_climbs_no_aims_are_told_however_many_were_needed(lost: list[list[int]]) -> None:
    # Ranks put theirs together, so whether there are any must not depend on which rows fell first.
    several = run_in_turn(MisclassifyTowards("margin", targets=4), climber(lost, []), BATCH, "accuracy")  # type: ignore[arg-type]
    alone = run_in_turn(Misclassify("margin"), climber(lost, []), BATCH, "accuracy")  # type: ignore[arg-type]
    assert several.aims is None and alone.aims is not None


def test_it_ends_when_no_row_is_left() -> None:
    seen: list[list[int]] = []
    attack = MisclassifyTowards("margin", targets=9)
    run_in_turn(attack, climber([[0, 1], [2, 3]], seen), BATCH, "accuracy")  # type: ignore[arg-type]
    assert len(seen) == 2


@pytest.mark.parametrize("attack", [Misclassify("margin"), MisclassifyTowards("margin", targets=3)])
def test_a_score_that_it_does_not_give_means_one_climb(attack: Attack) -> None:
    seen: list[list[int]] = []
    run_in_turn(attack, climber([[]], seen), BATCH, "R@1")  # type: ignore[arg-type]
    assert len(seen) == 1


CLEAN = torch.full((2, 2), 100 / 255)
FROM = torch.tensor([102.5 / 255, 104.5 / 255])
"""A row is won from here on: at byte 103 the first, at byte 105 the second, which 4/255 does not reach."""


def won(x: Tensor, threshold: Tensor) -> Tensor:
    return (x[:, 0] - threshold) * 255


ENGINES = [
    PGD(Ball(4 / 255), steps=4, step_size=1.3 / 255, keep="best"),
    APGD(Ball(4 / 255), steps=8, goal=0.0),
    RayS(Ball(4 / 255), queries=40),
    Square(Ball(4 / 255), queries=20, goal=0.0),
]


@pytest.mark.parametrize("engine", ENGINES, ids=lambda engine: type(engine).__name__)
@pytest.mark.parametrize("rowwise", [True, False])
def test_what_is_found_is_won_as_bytes(engine: APGD, rowwise: bool) -> None:
    value = Rowwise(won, (FROM,)) if rowwise else lambda x: won(x, FROM)
    found = InBytes(engine)(value, CLEAN, torch.Generator().manual_seed(0)) * 255
    torch.testing.assert_close(found, found.round(), atol=1e-3, rtol=0)
    assert found[0, 0].round() >= 103 and found[1, 0].round() <= 104
    assert InBytes(engine).ball == engine.ball


def test_among_bytes_an_engine_has_the_goal_and_the_draws_it_had() -> None:
    mean = Expectation(Ball(4 / 255), APGD(Ball(4 / 255), goal=0.0), draws=3)
    assert (InBytes(mean).goal, InBytes(mean).draws) == (goal_of(mean), draws_of(mean)) == (0.0, 3)
    assert has_goal(mean) and not has_goal(Expectation(Ball(4 / 255), APGD(Ball(4 / 255))))
    assert draws_of(mean.engine) == 1


def test_an_engine_that_stops_at_its_goal_would_lose_by_rounding_afterwards() -> None:
    # The nearest point across, between the bytes 102 and 103, is rounded towards the clean one and is lost.
    ball = Ball(4 / 255)
    nearest, _ = RayS(ball, queries=60).closest(Rowwise(won, (FROM,)), CLEAN)
    assert won(nearest, FROM)[0] >= 0 > won(ball.to_bytes(nearest, CLEAN), FROM)[0]


def test_the_slope_is_that_of_the_rounded_point() -> None:
    asked: list[Tensor] = []

    def value(x: Tensor) -> Tensor:
        asked.append(x.detach().clone())
        return x[:, 0].square()

    InBytes(PGD(Ball(4 / 255), steps=3, step_size=0.7 / 255, random_start=False))(value, CLEAN)
    levels = torch.cat(asked) * 255
    torch.testing.assert_close(levels, levels.round(), atol=1e-3, rtol=0)
    assert levels.max() > 100.5, "it moves, though rounding has no slope"
