"""Confidence bounds: worked by hand, against their definition, and as often wrong as they may be."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from robustmetric.errors import InputError
from robustmetric.numerics.intervals import clopper_pearson, clopper_pearson_lower, empirical_bernstein_lower


def test_all_successes_by_hand() -> None:
    # p^100 = 0.001 has the solution 0.001^(1/100) = exp(-0.0690776) = 0.933254.
    lower = clopper_pearson_lower(torch.tensor([100, 0]), 100, 0.001)
    assert lower[0].item() == pytest.approx(0.933254, abs=1e-6)
    assert lower[1].item() == 0


@pytest.mark.parametrize(("successes", "trials"), [(0, 8), (3, 8), (8, 8), (1, 5924)])
def test_the_exact_interval_is_that_of_scipy(successes: int, trials: int) -> None:
    theirs = binomtest(successes, trials).proportion_ci(0.95, method="exact")
    assert clopper_pearson(successes, trials, 0.95) == pytest.approx((theirs.low, theirs.high), abs=1e-9)


@given(st.integers(1, 400), st.data(), st.sampled_from([1e-9, 1e-3, 0.05]))
def test_as_many_successes_or_more_have_the_chance_alpha(trials: int, data: st.DataObject, alpha: float) -> None:
    successes = data.draw(st.integers(1, trials))
    lower = clopper_pearson_lower(torch.tensor(successes), trials, alpha).item()
    assert binom.sf(successes - 1, trials, lower) == pytest.approx(alpha, rel=1e-6)


def test_counts_keep_their_shape_and_order() -> None:
    lower = clopper_pearson_lower(torch.arange(12).view(3, 4), 11, 0.01)
    assert lower.shape == (3, 4) and (lower.flatten().diff() > 0).all()


@pytest.mark.parametrize("successes", [-1, 11])
def test_counts_that_cannot_be_are_refused(successes: int) -> None:
    with pytest.raises(InputError, match="expected 0 to 10"):
        clopper_pearson_lower(torch.tensor([successes, 3]), 10, 0.01)


def test_bernstein_by_hand() -> None:
    # ln(2 / 0.02) = 4.60517; sqrt(2 * 0.04 * 4.60517 / 101) = 0.0603964; 7 * 4.60517 / 300 = 0.1074540.
    lower = empirical_bernstein_lower(torch.tensor(0.8), torch.tensor(0.04), 101, 0.02)
    assert lower.item() == pytest.approx(0.8 - 0.0603964 - 0.1074540, abs=1e-6)


def test_bernstein_is_wrong_no_more_often_than_alpha_and_not_by_far_too_low() -> None:
    drawn = torch.rand(20_000, 300, generator=torch.Generator().manual_seed(0), dtype=torch.float64) ** 4  # mean 1/5
    lower = empirical_bernstein_lower(drawn.mean(dim=1), drawn.var(dim=1), 300, 0.05)
    assert (lower > 0.2).double().mean() <= 0.05
    assert lower.mean() > 0.2 - 4 * math.sqrt(0.0711 / 300) - 0.03


@pytest.mark.parametrize(("trials", "alpha"), [(0, 0.1), (10, 0.0), (10, 1.0), (1, 0.1)])
def test_no_trials_and_no_chance_are_refused(trials: int, alpha: float) -> None:
    with pytest.raises(InputError, match="expected"):
        empirical_bernstein_lower(torch.tensor(0.5), torch.tensor(0.1), trials, alpha)
    if trials != 1:
        with pytest.raises(InputError, match="expected"):
            clopper_pearson_lower(torch.tensor(0), trials, alpha)
