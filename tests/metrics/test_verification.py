"""Verification rates by hand and against scikit-learn's ROC."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_curve
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.metrics.verification import equal_error_rate, roc, true_positive_rate

SIMILAR = torch.tensor([0.9, 0.8, 0.6, 0.3])
DIFFERENT = torch.tensor([0.7, 0.4, 0.2, 0.1, 0.0])


def scores(seed: int, ties: bool) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    similar, different = torch.randn(13, generator=generator) + 1, torch.randn(17, generator=generator)
    return (similar.round(), different.round()) if ties else (similar, different)


def test_roc_by_hand() -> None:
    # Falling thresholds 0.9 s, 0.8 s, 0.7 d, 0.6 s, 0.4 d, 0.3 s, 0.2 d, 0.1 d, 0.0 d; four similar, five different.
    false_positive, true_positive = roc(SIMILAR, DIFFERENT)
    assert false_positive.tolist() == pytest.approx([0, 0, 0, 0.2, 0.2, 0.4, 0.4, 0.6, 0.8, 1])
    assert true_positive.tolist() == pytest.approx([0, 0.25, 0.5, 0.5, 0.75, 0.75, 1, 1, 1, 1])


def test_equal_error_rate_by_hand() -> None:
    # Between (0.2, 0.75) and (0.4, 0.75): false negatives stay at 0.25, so false positives meet them at 0.25.
    assert equal_error_rate(SIMILAR, DIFFERENT) == pytest.approx(0.25)
    # Scores 1, 3 against 2, 0: points (0, 0), (0, 1/2), (1/2, 1/2): equal exactly at 1/2.
    assert equal_error_rate(torch.tensor([3.0, 1.0]), torch.tensor([2.0, 0.0])) == pytest.approx(0.5)
    # All tied: the ROC is the diagonal from (0, 0) to (1, 1), equal at 1/2.
    assert equal_error_rate(torch.ones(3), torch.ones(5)) == pytest.approx(0.5)
    # One of three similar tied with the one different pair: (0, 2/3) to (1, 1): f = 1 - 2/3 - f/3, so f = 1/4.
    assert equal_error_rate(torch.tensor([2.0, 2.0, 1.0]), torch.tensor([1.0])) == pytest.approx(0.25)


def test_separate_scores_make_no_error_and_reversed_ones_only_errors() -> None:
    high, low = torch.tensor([2.0, 3.0]), torch.tensor([0.0, 1.0, 1.5])
    assert equal_error_rate(high, low) == 0
    assert equal_error_rate(low, high) == 1
    assert true_positive_rate(high, low) == 1
    assert true_positive_rate(low, high) == 0


def test_true_positive_rate_by_hand() -> None:
    # No different pair accepted: threshold above 0.7 accepts 0.9, 0.8. One of five: above 0.4 accepts 0.6 as well.
    assert true_positive_rate(SIMILAR, DIFFERENT) == 0.5
    assert true_positive_rate(SIMILAR, DIFFERENT, false_positive_rate=0.0) == 0.5
    assert true_positive_rate(SIMILAR, DIFFERENT, false_positive_rate=0.19) == 0.5
    assert true_positive_rate(SIMILAR, DIFFERENT, false_positive_rate=0.2) == 0.75
    assert true_positive_rate(SIMILAR, DIFFERENT, false_positive_rate=1.0) == 1


def test_the_default_allows_one_false_positive_in_a_thousand() -> None:
    # 1000 different pairs at 0..999: a rate of 1e-3 lets the one at 999 through, so 998.5 is accepted.
    assert true_positive_rate(torch.tensor([998.5, 997.5]), torch.arange(1000.0)) == 0.5


@given(st.integers(0, 2**31), st.booleans())
@settings(max_examples=40, deadline=None)
def test_rates_equal_scikit_learns_roc(seed: int, ties: bool) -> None:
    similar, different = scores(seed, ties)
    truth = np.r_[np.ones(len(similar)), np.zeros(len(different))]
    expected = roc_curve(truth, torch.cat([similar, different]).numpy(), drop_intermediate=False)
    found = roc(similar, different)
    assert found[0].tolist() == pytest.approx(expected[0].tolist())
    assert found[1].tolist() == pytest.approx(expected[1].tolist())
    grid = np.linspace(0, 1, 20_001)
    gap = np.interp(grid, np.arange(len(found[0])) / (len(found[0]) - 1), (found[0] + found[1] - 1).numpy())
    at = np.interp(grid, np.arange(len(found[0])) / (len(found[0]) - 1), found[0].numpy())
    assert equal_error_rate(similar, different) == pytest.approx(at[np.argmin(np.abs(gap))], abs=2e-3)


@given(st.integers(0, 2**31))
@settings(max_examples=15, deadline=None)
def test_only_the_order_of_scores_matters(seed: int) -> None:
    similar, different = scores(seed, ties=False)
    assert equal_error_rate(similar.flip(0), different.exp().log()) == pytest.approx(
        equal_error_rate(similar, different)
    )
    assert equal_error_rate(2 * similar + 1, 2 * different + 1) == pytest.approx(equal_error_rate(similar, different))


def test_no_pairs_or_nan_are_refused() -> None:
    with pytest.raises(InputError, match="0 similar pairs"):
        equal_error_rate(torch.zeros(0), DIFFERENT)
    with pytest.raises(InputError, match="0 different pairs"):
        true_positive_rate(SIMILAR, torch.zeros(0))
    with pytest.raises(InputError, match="NaN"):
        roc(SIMILAR, torch.tensor([0.1, float("nan")]))


@pytest.mark.parametrize("rate", [-0.1, 1.1])
def test_a_rate_outside_0_to_1_is_refused(rate: float) -> None:
    with pytest.raises(InputError, match="is not a share"):
        true_positive_rate(SIMILAR, DIFFERENT, false_positive_rate=rate)
