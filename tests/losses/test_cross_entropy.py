"""Cross entropy: the published smoothing, which is not torch's, and what is refused."""

import math

import pytest
import torch
from torch.nn import functional

from robustmetric.errors import InputError
from robustmetric.losses.cross_entropy import CrossEntropy, smoothed_labels


@pytest.mark.parametrize(
    ("classes", "smoothing", "own", "other"),
    [(10, 0.5, 0.5, 0.5 / 9), (100, 0.5, 0.5, 0.5 / 99), (10, 0.1, 0.9, 0.1 / 9), (2, 0.3, 0.7, 0.3), (5, 0.0, 1, 0)],
)
def test_the_table_of_smoothed_labels(classes: int, smoothing: float, own: float, other: float) -> None:
    row = smoothed_labels(torch.tensor([1]), classes, smoothing)[0]
    expected = torch.full((classes,), float(other))
    expected[1] = own
    torch.testing.assert_close(row, expected, atol=1e-6, rtol=0)
    assert row.sum().item() == pytest.approx(1, abs=1e-6)


def test_the_published_values_of_half_a_label() -> None:
    assert smoothed_labels(torch.tensor([0]), 10, 0.5)[0, 1].item() == pytest.approx(0.05556, abs=1e-5)
    assert smoothed_labels(torch.tensor([0]), 100, 0.5)[0, 1].item() == pytest.approx(0.005051, abs=1e-6)


def test_three_classes_by_hand() -> None:
    # softmax(log 1, log 2, log 5) = 1/8, 1/4, 5/8. Smoothing 0.4 of class 2: 0.2, 0.2, 0.6.
    logits = torch.log(torch.tensor([[1.0, 2.0, 5.0]]))
    expected = -(0.2 * math.log(1 / 8) + 0.2 * math.log(1 / 4) + 0.6 * math.log(5 / 8))
    assert CrossEntropy(0.4)(logits, torch.tensor([2])).item() == pytest.approx(expected, abs=1e-6)
    assert CrossEntropy()(logits, torch.tensor([1])).item() == pytest.approx(math.log(4), abs=1e-6)


def test_torchs_smoothing_is_another_one_and_equal_to_this_one_at_another_number() -> None:
    labels = torch.arange(8)
    logits = torch.randn(8, 10, generator=torch.Generator().manual_seed(0)) + 3 * torch.eye(10)[:8]
    ours = CrossEntropy(0.5)(logits, labels)
    assert (ours - functional.cross_entropy(logits, labels, label_smoothing=0.5)).abs() > 0.01
    # Theirs gives the true class (1 - s) + s / K and the others s / K: equal where s = d K / (K - 1).
    torch.testing.assert_close(ours, functional.cross_entropy(logits, labels, label_smoothing=0.5 * 10 / 9))


def test_half_precision_logits_are_taken_in_full() -> None:
    logits = torch.randn(4, 10, generator=torch.Generator().manual_seed(0)).bfloat16()
    value = CrossEntropy(0.5)(logits, torch.arange(4))
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, CrossEntropy(0.5)(logits.float(), torch.arange(4)))


@pytest.mark.parametrize(("classes", "limit"), [(2, 1 / 2), (10, 9 / 10), (100, 99 / 100)])
def test_smoothing_ends_where_the_label_is_wanted_no_more_than_another(classes: int, limit: float) -> None:
    # 1 - d = d / (K - 1) at d = (K - 1) / K.
    row = smoothed_labels(torch.tensor([0]), classes, limit - 0.001)[0]
    assert row[0] > row[1]
    with pytest.raises(InputError, match=f"of {classes} classes"):
        smoothed_labels(torch.tensor([0]), classes, limit)


def test_what_does_not_fit_is_refused() -> None:
    for smoothing in (-0.1, 1.0, math.nan):
        with pytest.raises(InputError, match="smoothing"):
            CrossEntropy(smoothing)
    with pytest.raises(InputError, match=r"smoothing 0\.95 of 10 classes wants .* expected below 0\.9$"):
        CrossEntropy(0.95)(torch.zeros(2, 10), torch.tensor([0, 3]))
    with pytest.raises(InputError, match="labels 0 to 3 do not fit 3 logits"):
        CrossEntropy()(torch.zeros(2, 3), torch.tensor([0, 3]))
    with pytest.raises(InputError, match="2 classes or more"):
        CrossEntropy()(torch.zeros(2, 1), torch.tensor([0, 0]))
