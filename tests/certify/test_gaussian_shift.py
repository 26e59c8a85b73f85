"""Means under shifted Gaussian noise: functions for which the bounds are exact, and the order of the two."""

import math
from statistics import NormalDist

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.special import ndtr

from robustmetric.certify.gaussian_shift import at_least, radius_by_distribution, radius_by_mean, tally

PHI = NormalDist()


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def test_mean_of_a_half_space_by_hand() -> None:
    # A step from -1 to 1 at distance 0.3 has the mean 2 Phi(0.3 / 0.5) - 1 = 2 * 0.725747 - 1, and reaches 0 after 0.3.
    mean = 2 * PHI.cdf(0.6) - 1
    assert mean == pytest.approx(0.451494, abs=1e-6)
    assert radius_by_mean(numbers(mean), numbers(0.0), 0.5) == pytest.approx(0.3, abs=1e-9)
    # It reaches 2 Phi(0.2) - 1 after 0.2 of the 0.3.
    assert radius_by_mean(numbers(mean), numbers(2 * PHI.cdf(0.2) - 1), 0.5) == pytest.approx(0.2, abs=1e-9)


def test_levels_by_hand() -> None:
    # Edges -0.5, 0, 0.5, each reached with probability 0.9: -1 + 0.5 * 3 * Phi(q - r) > 0 while Phi(q - r) > 2/3.
    expected = 2.0 * (PHI.inv_cdf(0.9) - PHI.inv_cdf(2 / 3))
    found = radius_by_distribution(numbers(0.9, 0.9, 0.9)[None], numbers(0.0), 2.0)
    assert found == pytest.approx(expected, abs=1e-6) and found <= expected
    # 1.281552 - 0.430727 = 0.850825, times 2.
    assert expected == pytest.approx(1.701650, abs=1e-5)


@given(st.lists(st.floats(-2, 2), min_size=3, max_size=9), st.floats(0.5, 2))
def test_a_staircase_falls_exactly_as_the_levels_say(places: list[float], sigma: float) -> None:
    # Steps of one direction at places c_k: P(h >= t_k) = Phi(-c_k / sigma) at 0 and Phi((-c_k - r) / sigma) at -r.
    step = numbers(*sorted(places))
    threshold = numbers(0.0)
    radius = radius_by_distribution(ndtr(-step / sigma)[None], threshold, sigma)

    def mean(at: float) -> float:
        return float(-1 + 2 / (len(step) + 1) * ndtr((at - step) / sigma).sum())

    if radius is None:
        assert mean(0.0) <= 1e-8
    else:
        assert mean(-radius) >= 0 and mean(-radius - 1e-5) < 1e-8


@given(st.lists(st.floats(0.001, 0.999), min_size=3, max_size=9), st.floats(-0.9, 0.5))
def test_levels_prove_at_least_what_their_mean_does(levels: list[float], threshold: float) -> None:
    falling = numbers(*sorted(levels, reverse=True))[None]
    mean = -1 + 2 / (falling.shape[1] + 1) * falling.sum(dim=1)
    by_mean = radius_by_mean(mean, numbers(threshold), 1.0)
    by_levels = radius_by_distribution(falling, numbers(threshold), 1.0)
    assert (by_mean is None) == (by_levels is None)
    if by_mean is not None and by_levels is not None:
        assert by_levels >= by_mean - 1e-6


def test_the_least_of_several_functions_counts() -> None:
    means = numbers(0.6, 0.2, 0.9)
    each = [radius_by_mean(mean[None], numbers(0.0), 1.0) for mean in means]
    assert radius_by_mean(means, torch.zeros(3, dtype=torch.float64), 1.0) == min(each)
    levels = numbers(0.99, 0.8, 0.9)[:, None].expand(3, 9)
    each = [radius_by_distribution(row[None], numbers(0.0), 1.0) for row in levels]
    together = radius_by_distribution(levels, torch.zeros(3, dtype=torch.float64), 1.0)
    assert together == pytest.approx(min(each), abs=1e-7)


def test_one_function_that_is_not_above_its_threshold_spoils_all() -> None:
    thresholds = numbers(0.0, 0.2)
    assert radius_by_mean(numbers(0.9, 0.2), thresholds, 1.0) is None
    assert radius_by_distribution(numbers(0.9, 0.6)[:, None].expand(2, 9), thresholds, 1.0) is None


def test_thresholds_that_no_mean_can_fall_to_or_reach() -> None:
    for radius in (radius_by_mean(numbers(0.1), numbers(-1.5), 1.0), radius_by_mean(numbers(), numbers(), 1.0)):
        assert radius == math.inf
    assert radius_by_distribution(numbers(0.5, 0.5)[None], numbers(-1.5), 1.0) == math.inf
    assert radius_by_mean(numbers(0.99), numbers(1.0), 1.0) is None
    assert radius_by_distribution(numbers(1.0, 1.0)[None], numbers(1.0), 1.0) is None


def test_a_mean_and_a_threshold_below_minus_1_are_no_doubt() -> None:
    # "At least -1.5" says nothing of a mean, and nothing need be said: none falls to -3.
    assert radius_by_mean(numbers(-1.5), numbers(-3.0), 1.0) == math.inf
    alone = radius_by_mean(numbers(0.5), numbers(0.0), 1.0)
    assert radius_by_mean(numbers(-1.5, 0.5), numbers(-3.0, 0.0), 1.0) == alone
    assert alone == pytest.approx(PHI.inv_cdf(0.75), abs=1e-8)
    # -1 itself may be the rounded value of more.
    below = math.nextafter(-1, -2)
    assert radius_by_mean(numbers(0.5), numbers(below), 1.0) < math.inf
    assert radius_by_distribution(numbers(0.9, 0.9)[None], numbers(below), 1.0) < math.inf


def test_tally_by_hand() -> None:
    z = torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.0, -1.0]], dtype=torch.float64)
    counts = torch.zeros(5, 2, dtype=torch.long)
    tally(z, torch.eye(2, dtype=torch.float64), counts)
    # Four bins of width 0.5 and one for 1; a value on an edge counts as below it.
    # First coordinate: 1 (edge: bin 3), 0.6 (bin 3), 0 (edge: bin 1). Second: 0 (bin 1), 0.8 (bin 3), -1 (bin 0).
    assert counts.T.tolist() == [[0, 1, 0, 2, 0], [1, 1, 0, 1, 0]]
    # Edges -0.5, 0, 0.5.
    assert at_least(counts).tolist() == [[3, 2, 2], [2, 1, 1]]


def test_tally_in_parts_equals_comparison_one_by_one() -> None:
    source = torch.Generator().manual_seed(0)
    z = torch.nn.functional.normalize(torch.randn(50, 4, generator=source, dtype=torch.float64), dim=1)
    directions = torch.nn.functional.normalize(torch.randn(7, 4, generator=source, dtype=torch.float64), dim=1)
    counts = torch.zeros(21, 7, dtype=torch.long)
    for part in z.split(20):
        tally(part, directions, counts)
    edges = torch.linspace(-1, 1, 21, dtype=torch.float64)[1:-1]
    expected = ((z @ directions.T)[:, :, None] >= edges).sum(dim=0)
    assert torch.equal(at_least(counts), expected)
