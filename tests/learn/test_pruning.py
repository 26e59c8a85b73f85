"""Adversarial pruning: what it keeps by hand, against all subsets, and that classes end up apart."""

from itertools import combinations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.sparse import csr_array

from robustmetric.errors import InputError
from robustmetric.learn import ARML, AdversarialPruning
from robustmetric.learn.pruning import conflicts, greedy_cover, smallest_cover


def random_rows(seed: int, classes: int, n: int = 12) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.RandomState(seed)
    return rng.random_sample((n, 2)), np.arange(n) % classes


def fewest_removed(edges: csr_array) -> int:
    """By trying all subsets."""
    i, j = edges.nonzero()
    for count in range(edges.shape[0] + 1):
        for removed in combinations(range(edges.shape[0]), count):
            if (np.isin(i, removed) | np.isin(j, removed)).all():
                return count
    return edges.shape[0]


def test_the_row_between_goes() -> None:
    # On a line: a at 0, 1; b at 1.5, 4. Closer than 2 * 0.8 = 1.6: (0, 1.5), (1, 1.5). Removing 1.5 mends both.
    x, y = [[0.0], [1.0], [1.5], [4.0]], ["a", "a", "b", "b"]
    pruning = AdversarialPruning(0.8).fit(x, y)
    assert pruning.kept_.tolist() == [0, 1, 3]
    kept, labels = pruning.resample(x, y)
    assert kept.tolist() == [[0.0], [1.0], [4.0]]
    assert labels.tolist() == ["a", "a", "b"]


def test_exactly_2r_apart_is_far_enough() -> None:
    x, y = [[0.0], [2.0]], [0, 1]
    assert AdversarialPruning(1.0).fit(x, y).kept_.tolist() == [0, 1]
    assert len(AdversarialPruning(1.001).fit(x, y).kept_) == 1
    assert AdversarialPruning(0.0).fit([[0.0], [0.0]], y).kept_.tolist() == [0, 1]


@given(st.integers(0, 10_000), st.floats(0.02, 0.5))
@settings(max_examples=25, deadline=None)
def test_for_two_classes_the_fewest_rows_go(seed: int, radius: float) -> None:
    x, y = random_rows(seed, classes=2)
    edges = conflicts(torch.from_numpy(x), torch.from_numpy(y), 2 * radius)
    assert smallest_cover(edges, y).sum() == fewest_removed(edges)


@given(st.integers(0, 10_000), st.integers(2, 4), st.floats(0.02, 0.5))
@settings(max_examples=25, deadline=None)
def test_kept_rows_of_different_labels_are_apart(seed: int, classes: int, radius: float) -> None:
    x, y = random_rows(seed, classes, n=30)
    kept, labels = AdversarialPruning(radius).fit(x, y).resample(x, y)
    distances = np.linalg.norm(kept[:, None] - kept, axis=2)
    assert (distances[labels[:, None] != labels] >= 2 * radius * (1 - 1e-12)).all()


@given(st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_greedy_removes_no_row_needlessly(seed: int) -> None:
    x, y = random_rows(seed, classes=3)
    edges = conflicts(torch.from_numpy(x), torch.from_numpy(y), 0.4)
    cover = greedy_cover(edges, y)
    i, j = edges.nonzero()
    assert (cover[i] | cover[j]).all()
    for row in np.flatnonzero(cover):
        without = cover.copy()
        without[row] = False
        assert not (without[i] | without[j]).all()
    assert cover.sum() <= 2 * fewest_removed(edges)


def test_greedy_takes_the_centre_of_a_star() -> None:
    # Label 0 in the middle of labels 1, 2, 3, 4, which are apart from one another.
    x, y = [[0.0, 0.0], [1.0, 0.0], [-1.0, 0.0], [0.0, 1.0], [0.0, -1.0]], [0, 1, 2, 3, 4]
    assert AdversarialPruning(0.6).fit(x, y).kept_.tolist() == [1, 2, 3, 4]


def test_any_metric_is_learned_from_what_is_left() -> None:
    x, y = random_rows(0, classes=2, n=60)
    learner = ARML(max_iter=3, n_neighbors=3, random_state=0)
    pruning = AdversarialPruning(0.05, learner).fit(x, y)
    assert 0 < len(pruning.kept_) < 60
    expected = ARML(max_iter=3, n_neighbors=3, random_state=0).fit(x[pruning.kept_], y[pruning.kept_])
    np.testing.assert_array_equal(pruning.components_, expected.components_)
    np.testing.assert_array_equal(AdversarialPruning(0.05).fit(x, y).get_mahalanobis_matrix(), np.eye(2))


def test_what_cannot_be_done_is_refused() -> None:
    with pytest.raises(InputError, match=r"radius -1.0 is no distance"):
        AdversarialPruning(-1.0).fit([[0.0], [1.0]], [0, 1])
    # All but one class goes: there is no metric to learn.
    with pytest.raises(InputError, match="1 class"):
        AdversarialPruning(9.0, ARML()).fit([[0.0], [1.0], [2.0]], [0, 1, 0])
