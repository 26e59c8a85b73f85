"""Intervals over queries: the exact one where all are right or all wrong, else by bootstrap, bit for bit."""

from pathlib import Path

import pytest
import torch

from commands import Command
from robustmetric import records
from robustmetric.jobs.over_queries import interval_of_gain, intervals, intervals_by_group
from robustmetric.metrics.robustness import bootstrap
from robustmetric.report.scores import SCORES

SHARES = [f"R@{k}" for k in (1, 2, 4, 8, 10, 20)] + ["accuracy", "ES:R", "LTM", "GTM", "GTT"]


def test_the_scores_that_are_right_or_wrong_are_known() -> None:
    assert [name for name, score in SCORES.items() if score.is_share] == sorted(SHARES, key=list(SCORES).index)


@pytest.mark.parametrize("score", SHARES)
def test_none_or_all_of_eight_right_is_no_certainty(score: str) -> None:
    # (1 - p)^8 = 0.025 has the solution p = 1 - exp(-3.688879 / 8) = 1 - 0.630583.
    assert intervals({score: torch.zeros(8)})[score] == pytest.approx((0, 36.9417), abs=1e-4)
    assert intervals({score: torch.full((8,), 100.0)})[score] == pytest.approx((63.0583, 100), abs=1e-4)
    weighted = intervals({score: torch.zeros(8)}, torch.arange(1.0, 9.0))[score]
    assert weighted == pytest.approx((0, 36.9417), abs=1e-4), "wrong queries are wrong whatever they weigh"


@pytest.mark.parametrize(
    ("score", "values"),
    [
        ("R@1", [0.0, 100.0, 0.0, 0.0]),
        ("R@1", [50.0] * 4),
        ("FOA", [0.0] * 4),  # ties score 50
        ("mAP@R", [0.0] * 4),
        ("CA-", [100.0] * 4),
        ("ES:D", [0.0] * 4),
        ("my score", [0.0] * 4),
    ],
)
def test_all_else_is_by_bootstrap_to_the_last_bit(score: str, values: list[float]) -> None:
    row, weights = torch.tensor(values), torch.tensor([1.0, 1.0, 2.0, 4.0])
    assert intervals({score: row}) == {score: bootstrap(row)}
    assert intervals({score: row}, weights) == {score: bootstrap(row, weights=weights)}
    assert intervals_by_group({"V1": {score: row}}) == {"V1": {score: bootstrap(row)}}


def test_groups_have_the_same_intervals_as_each_alone() -> None:
    groups = {
        "V1": {"R@1": torch.tensor([0.0, 100.0, 0.0]), "R@2": torch.full((3,), 100.0)},
        "V2": {"R@1": torch.zeros(3), "R@2": torch.tensor([0.0, 100.0, 100.0])},
    }
    assert intervals_by_group(groups) == {name: intervals(own) for name, own in groups.items()}


def test_runs_that_are_right_on_the_same_queries_may_differ_on_others() -> None:
    # Won, and lost: each at most 1 - 0.025^(1/8) of all queries, with 97.5 %.
    for row in ([0.0] * 8, [100.0] * 8, [0.0, 100.0] * 4):
        same = torch.tensor(row)
        assert interval_of_gain("R@1", same, same) == pytest.approx((-36.9417, 36.9417), abs=1e-4)
    most = torch.zeros(300)
    assert interval_of_gain("R@1", most, most)[1] == pytest.approx(100 * 3.69 / 300, abs=0.02), (
        "rule of three, of 97.5 %"
    )


@pytest.mark.parametrize("score", ["R@1", "accuracy", "ES:R"])
def test_one_run_right_and_the_other_wrong_on_all_of_eight_is_no_certainty(score: str) -> None:
    wrong, right = torch.zeros(8), torch.full((8,), 100.0)
    # At least 63.0583 % of all queries are won, and the other 36.9417 % may be lost: 26.1166 between them.
    assert interval_of_gain(score, wrong, right) == pytest.approx((26.1166, 100), abs=1e-4)
    assert interval_of_gain(score, right, wrong) == pytest.approx((-100, -26.1166), abs=1e-4)
    weighted = interval_of_gain(score, wrong, right, torch.arange(1.0, 9.0))
    assert weighted == interval_of_gain(score, wrong, right), "won queries are won whatever they weigh"


@pytest.mark.parametrize("count", range(1, 12))
def test_queries_all_won_are_clear_where_an_exact_sign_test_is(count: int) -> None:
    low, high = interval_of_gain("R@1", torch.zeros(count), torch.full((count,), 100.0))
    assert (low > 0) == (2 * 0.5**count < 0.05) and high == 100


@pytest.mark.parametrize(
    ("score", "first", "second"), [("mAP", 0.0, 100.0), ("R@1", 50.0, 100.0), ("CA-", 0.0, 100.0), ("FOA", 0.0, 100.0)]
)
def test_gains_that_are_no_won_answers_have_the_interval_of_the_bootstrap(
    score: str, first: float, second: float
) -> None:
    gain = second - first
    assert interval_of_gain(score, torch.full((8,), first), torch.full((8,), second)) == (gain, gain)


@pytest.mark.parametrize("score", ["R@1", "mAP"])
def test_runs_that_differ_on_a_query_have_the_interval_of_the_bootstrap(score: str) -> None:
    first, second = torch.tensor([0.0, 100.0, 0.0, 100.0]), torch.tensor([0.0, 100.0, 100.0, 100.0])
    weights = torch.tensor([1.0, 1.0, 2.0, 4.0])
    assert interval_of_gain(score, first, second) == bootstrap(second - first)
    assert interval_of_gain(score, first, second, weights) == bootstrap(second - first, weights=weights)
    assert interval_of_gain("mAP", first, first) == (0, 0), "no share: nothing is known of other queries"


def test_an_attack_that_leaves_nothing_of_eight_queries_is_recorded_so(
    trained: Path, tmp_path: Path, command: Command
) -> None:
    (tmp_path / "all.yaml").write_text(
        "engine: {name: pgd, ball: {name: ball, radius: 0.9}, steps: 4, step_size: 0.5}\n"
        "attacks: {ES: {attack: {name: embedding_shift}}}\n"
    )
    done = command("evaluate", trained, tmp_path / "all.yaml", "--queries", 8, "-o", "out")
    assert done.code == 0, done.err
    clean, attacked = records.read(tmp_path / "out" / "results.jsonl")
    assert attacked.scores["ES:R"] == 0
    assert attacked.intervals["ES:R"] == pytest.approx((0, 36.9417), abs=1e-4)
    assert clean.scores["R@8"] == 100
    assert clean.intervals["R@8"] == pytest.approx((63.0583, 100), abs=1e-4)
