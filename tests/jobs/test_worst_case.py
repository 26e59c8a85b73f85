"""The worst case: attacks that take turns, repeated runs, and what they leave, query by query."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from robustmetric.attacks.margin import Misclassify
from robustmetric.attacks.suite import Suite, Trial
from robustmetric.errors import InputError
from robustmetric.jobs.worst_case import KIND, LOWEST, SPREAD, WORST, WorstCase, repeated
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.expectation import Expectation
from robustmetric.perturb.local_search import LocalSearch
from robustmetric.perturb.pgd import PGD
from robustmetric.records import Record

BALL = Ball(0.06)
STEADY = PGD(BALL, steps=4, step_size=0.02, random_start=False)
"""Nothing is drawn at random, so a row's outcome does not depend on the others."""


def of(label: str, attack: object = None, engine: object = STEADY, **settings: object) -> Trial:
    return Trial(label, attack or Misclassify("cross_entropy"), engine, rounded=False, **settings)  # type: ignore[arg-type]


def right(*numbers: int) -> dict[str, Tensor]:
    return {"accuracy": 100.0 * torch.tensor(numbers).float()}


def test_turns_and_worst_cases_by_hand() -> None:
    a, b, c, far = of("a"), of("b"), of("c"), of("c", engine=replace(STEADY, ball=Ball(0.3)))
    worst = WorstCase(Suite("s", [a, b, c, far], survivors={"turns": ["a", "b"]}), "accuracy", right(1, 1, 1, 1, 0))
    outcomes = [
        (a, right(0, 1, 1, 1, 1)),
        (b, right(0, 0, 1, 1, 0)),
        (c, right(1, 1, 0, 1, 1)),
        (far, right(0, 0, 0, 0, 0)),
    ]
    expected = [[1, 1, 1, 1, 0], [0, 1, 1, 1, 0], None, None]
    for (trial, values), standing in zip(outcomes, expected, strict=True):
        found = worst.standing(trial)
        assert (None if found is None else found.int().tolist()) == standing
        settings = {"norm": "linf", "radius": trial.engine.ball.radius, "suite": "s", "weights": "w"}
        worst.note(trial, Record("attack", trial.label, {"accuracy": 0.0}, settings, count=5, seconds=2.0), values)
    found = {(r.name, r.settings["radius"]): (r, v) for r, v in worst.records()}
    assert {key: record.scores["accuracy"] for key, (record, _) in found.items()} == {
        ("turns", 0.06): pytest.approx(40.0), (WORST, 0.06): pytest.approx(20.0), (WORST, 0.3): 0.0,
    }  # fmt: skip
    record, values = found[WORST, 0.06]
    assert values["accuracy"].tolist() == [0.0, 0.0, 0.0, 100.0, 0.0]
    assert record.kind == KIND and record.count == 5 and record.seconds == 6.0
    assert record.settings["trials"] == ["a", "b", "c"] and record.settings["weights"] == "w"
    assert record.context["lost_first_to"] == {"a": 1, "b": 1, "c": 1}


def test_an_unbounded_attack_and_one_without_answers_are_in_no_worst_case() -> None:
    free, shift = of("free", engine=LocalSearch(BALL, clipped=False)), of("shift")
    mean = of("mean", engine=Expectation(BALL, LocalSearch(BALL, clipped=False)))
    bound = of("bound", engine=LocalSearch(BALL))
    worst = WorstCase(Suite("s", [free, mean, shift, bound], survivors={"one": ["bound"]}), "accuracy", right(1, 1))
    settings = {"norm": "linf", "radius": 0.06}
    worst.note(free, Record("attack", "free", {"accuracy": 0.0}, settings), right(0, 0))
    worst.note(mean, Record("attack", "mean", {"accuracy": 0.0}, settings), right(0, 0))
    worst.note(shift, Record("attack", "shift", {"ES:D": 1.0}, settings), {"ES:D": torch.ones(2)})
    worst.note(bound, Record("attack", "bound", {"accuracy": 50.0}, settings), right(1, 0))
    assert [(r.name, r.scores["accuracy"]) for r, _ in worst.records()] == [("one", 50.0), (WORST, 50.0)]


def test_a_suite_without_turns_has_no_worst_case() -> None:
    worst = WorstCase(Suite("s", [of("a")]), "accuracy", {})
    worst.note(of("a"), Record("attack", "a", {"accuracy": 0.0}), right(0))
    assert worst.standing(of("a")) is None and list(worst.records()) == []


def test_repeated_runs_by_hand() -> None:
    runs = [right(1, 1, 0, 1), right(1, 0, 0, 1), right(1, 0, 1, 1)]
    measured = [(Record("attack", "PGD", {"accuracy": float(v["accuracy"].mean())}, seconds=1.0), v) for v in runs]
    record, values = repeated(of("PGD", repeats=3), measured, "accuracy")
    # Runs of 75, 50 and 75 percent; the worst of each image is 1, 0, 0, 1.
    assert record.scores == {"accuracy": 50.0, LOWEST: 50.0, SPREAD: 25.0}
    assert values["accuracy"].tolist() == [100.0, 0.0, 0.0, 100.0]
    assert record.settings["repeats"] == 3 and record.seconds == 3.0 and record.context["runs"] == [75.0, 50.0, 75.0]
    with pytest.raises(InputError, match="gives no 'R@1'"):
        repeated(of("PGD", repeats=3), measured, "R@1")
