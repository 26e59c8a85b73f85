"""The rule of `verify`, by hand-worked intervals and tolerances."""

import pytest
import torch

from robustmetric.jobs.agreement import (
    REROUTED,
    SAMPLES,
    around,
    binomial,
    compared,
    judged,
    spread,
    spread_by_batch,
    spread_of_runs,
    tolerance,
)


def test_the_binomial_interval_of_no_success_is_worked_by_hand() -> None:
    # No success in 32 has a chance of 0.0005 at p = 1 - 0.0005^(1/32) = 1 - exp(-7.6009 / 32) = 0.21143.
    assert binomial(0, 32) == pytest.approx((0.0, 21.143), abs=1e-3)
    assert binomial(32, 32) == pytest.approx((78.857, 100.0), abs=1e-3)
    # One of two at 0.9: P(X >= 1) = 1 - (1 - p)^2 = 0.05 gives p = 1 - sqrt(0.95) = 0.02532, and symmetrically.
    assert binomial(1, 2, level=0.9) == pytest.approx((2.532, 97.468), abs=1e-3)


def test_scores_that_are_right_or_wrong_have_the_binomial_interval_others_that_of_the_bootstrap() -> None:
    assert spread(torch.zeros(32)) == binomial(0, 32), "a bootstrap of equal values would have no width"
    assert spread(torch.tensor([0.0, 100.0] * 8)) == binomial(8, 16)
    low, high = spread(torch.tensor([10.0, 20.0, 30.0, 40.0]))
    # The lowest mean of 4 draws, 10, has the chance 1/256: more than the 0.0005 left out on either side.
    assert (low, high) == (10.0, 40.0) and SAMPLES / 256 > 10
    assert spread(torch.full((20,), 3.0)) == (3.0, 3.0)


@pytest.mark.parametrize(
    ("score", "wanted"), [("R@1", 0.5), ("ES:R", 0.5), ("TMA", 0.005), ("ES:D", 0.01), ("NMI", 2.0), ("F1 std", 2.0)]
)
def test_the_tolerance_is_half_a_point_in_the_unit_of_the_score(score: str, wanted: float) -> None:
    assert tolerance(score) == pytest.approx(wanted)


@pytest.mark.parametrize(
    ("recorded", "interval", "agrees"),
    [
        (50.5, None, True),
        (50.6, None, False),
        (49.4, None, False),
        (39.6, (40.0, 60.0), True),
        (39.4, (40.0, 60.0), False),
        (60.4, (40.0, 60.0), True),
        (60.6, (40.0, 60.0), False),
    ],
)
def test_a_number_agrees_within_the_interval_and_the_tolerance(
    recorded: float, interval: tuple[float, float] | None, agrees: bool
) -> None:
    assert compared("R@1", recorded, 50.0, 32, interval).agrees is agrees


def test_a_mean_of_batch_means_is_bounded_whatever_the_last_batch_is_worth() -> None:
    # 10 queries in batches of 4: two whole and one of 2, which counts a third and has a fifth of the queries.
    values = torch.tensor([0.0] * 8 + [100.0] * 2)
    weighted = (values[:4].mean() + values[4:8].mean() + values[8:].mean()) / 3
    low, high = spread(values)
    widened = spread_by_batch("ES:R", values, count=10, batch=4)
    assert widened == pytest.approx((low - 100 * (1 / 3 - 1 / 5), high + 100 * (1 / 3 - 1 / 5)))
    # The two means are as far apart as is allowed for: the last batch is all right, the others all wrong.
    assert float(weighted - values.mean()) == pytest.approx(100 * (1 / 3 - 1 / 5))
    assert spread_by_batch("ES:R", values, count=10, batch=5) == (low, high), "batches of one size"
    assert spread_by_batch("ES:R", values, count=10, batch=99) == (low, high), "one batch"
    far = spread_by_batch("TMA", values / 100, count=10, batch=4)
    assert far[1] - spread(values / 100)[1] == pytest.approx(2 * (1 / 3 - 1 / 5)), "from -1 to 1"


def test_the_lowest_of_two_runs_lies_where_both_may_lie() -> None:
    (low, high), (least, most) = spread_of_runs([50.0, 100.0], 2)
    first, second = binomial(1, 2, 0.9995), binomial(2, 2, 0.9995)
    assert (low, high) == (first[0], min(first[1], 100.0)) and low < second[0]
    assert (least, most) == (0.0, pytest.approx(100.0 - first[0]))
    assert spread_of_runs([0.0, 100.0], 1000)[1][0] > 95, "far apart in any case"


def test_a_word_agrees_if_it_is_the_same_or_elsewhere_the_next() -> None:
    words = ("pass", "unclear", "fail")
    assert judged("steps", "pass", "pass", words, 200, is_same=True).agrees
    assert not judged("steps", "pass", "unclear", words, 200, is_same=True).agrees
    assert judged("steps", "pass", "unclear", words, 200, is_same=False).agrees
    moved = judged("steps", "pass", "fail", words, 200, is_same=False)
    assert not moved.agrees and [moved.shown(place) for place in moved.interval] == ["unclear", "fail"]


def test_rates_under_attack_from_a_copy_may_be_two_points_off_and_distances_no_more_than_before() -> None:
    at = 41.63
    assert compared("GTM", at, at - 1.99, 896, around("GTM", at - 1.99, REROUTED)).agrees
    assert not compared("GTM", at, at - 2.01, 896, around("GTM", at - 2.01, REROUTED)).agrees
    assert around("ES:D", 0.4, REROUTED) == (0.4, 0.4) and around("R@1", 50.0, 0.0) == (50.0, 50.0)
