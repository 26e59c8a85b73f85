"""Theorem 1's bound for k-NN: by hand, as it is written, and below what any attack finds."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from knn_problems import bound_by_sorting, problem, triplet_radii

from robustmetric.certify.knn import RobustKNN


def test_the_bound_by_hand() -> None:
    # K = 1, on a line: own 0 and 4, foreign 10 and 20, from 1. Triplet radii are ways to the border: of (0, 10) 4, of
    # (4, 10) 6, of (0, 20) 9, of (4, 20) 11; the largest per foreign point 6 and 11, the smallest of those 6.
    x, y = [[0.0], [4.0], [10.0], [20.0]], [0, 0, 1, 1]
    assert RobustKNN().fit(x, y).certify([[1.0]], [0], method="bound") == pytest.approx([6])
    # K = 3: the 2nd largest per foreign point 4 and 9, the 2nd smallest of those 9. True: at 10 of 0, 4, 10, 20 the
    # three nearest are 10, 4 and 0 (or 20 at a tie), lost from 10 on, 9 away.
    assert RobustKNN(n_neighbors=3).fit(x, y).certify([[1.0]], [0], method="bound") == pytest.approx([9])
    # K = 2: the 2nd largest 4 and 9, the smallest of those 4. (The border of 0 and 10 is 5.)
    assert RobustKNN(n_neighbors=2).fit(x, y).certify([[1.0]], [0], method="bound") == pytest.approx([4])


@pytest.mark.parametrize("kind", ["plain", "euclidean", "rank_deficient", "duplicates", "ties", "float32"])
@pytest.mark.parametrize("k", [1, 2, 3, 4, 7])
def test_the_bound_is_the_theorem(kind: str, k: int) -> None:
    for seed in range(3):
        given = problem(seed, n=60, kind=kind, queries=6)
        found = RobustKNN(given.matrix, k).fit(given.x, given.y).certify(given.queries, given.labels, method="bound")
        assert found == pytest.approx([bound_by_sorting(given, row, k) for row in range(6)], abs=1e-8)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    kind=st.sampled_from(["plain", "euclidean", "rank_deficient", "duplicates", "ties", "float32"]),
)
def test_bound_is_below_exact_is_below_attack(seed: int, kind: str) -> None:
    given = problem(seed, kind=kind, queries=8)
    knn = RobustKNN(given.matrix).fit(given.x, given.y)
    bound = knn.certify(given.queries, given.labels, method="bound")
    exact = knn.certify(given.queries, given.labels)
    attack = knn.attack(given.queries, given.labels)
    assert (bound <= exact + 1e-9).all() and (exact <= attack + 1e-12).all()
    if kind not in ("duplicates", "ties"):
        assert attack == pytest.approx(exact, rel=3e-6, abs=1e-12)


@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 10**6), k=st.integers(2, 7))
def test_the_bound_is_below_every_attack(seed: int, k: int) -> None:
    given = problem(seed, n=40, dim=3, queries=6)
    knn = RobustKNN(given.matrix, k).fit(given.x, given.y)
    bound = knn.certify(given.queries, given.labels, method="bound")
    for method, options in (("greedy", {}), ("substitute", {"steps": 20}), ("boundary", {"steps": 30})):
        assert (bound <= knn.attack(given.queries, given.labels, method=method, **options)).all()


def test_the_bound_holds_for_random_moves_of_even_and_odd_k() -> None:
    random = np.random.default_rng(0)
    for k in (1, 2, 3, 4, 5, 6):
        given = problem(k, n=50, dim=2, queries=30)
        knn = RobustKNN(given.matrix, k).fit(given.x, given.x[:, 0].round().clip(-1, 1))
        labels = knn.predict(given.queries)
        bound = knn.certify(given.queries, method="bound")
        assert (bound > 0).sum() >= 15
        for _ in range(200):
            step = random.normal(size=given.queries.shape)
            step *= bound[:, None] * (1 - 1e-9) / np.linalg.norm(step, axis=1, keepdims=True)
            assert (knn.predict(given.queries + step) == labels).all()


def test_fewer_positives_give_a_lower_bound_of_the_bound() -> None:
    given = problem(0, n=90, queries=10)
    knn = RobustKNN(given.matrix, 5).fit(given.x, given.y)
    bounds = [knn.certify(given.queries, given.labels, method="bound", positives=m) for m in (3, 8, 15, 30)]
    for few, more in pairwise(bounds):
        assert (few <= more + 1e-12).all()
    assert bounds[-1] == pytest.approx(knn.certify(given.queries, given.labels, method="bound"))
    assert (bounds[0] < bounds[-1]).any()


def test_three_nearest_positives_by_brute_force() -> None:
    given = problem(4, n=60, queries=5)
    knn = RobustKNN(given.matrix, 3).fit(given.x, given.y)
    found = knn.certify(given.queries, given.labels, method="bound", positives=3)
    for row in range(5):
        away = given.x[given.y == given.labels[row]] - given.queries[row]
        near = np.argsort(np.einsum("nd,de,ne->n", away, given.metric, away))[:3]
        second = np.sort(triplet_radii(given, row)[near], axis=0)[-2]
        assert found[row] == pytest.approx(np.sort(second)[1], abs=1e-8)


def test_class_sizes_alone_decide_some_radii() -> None:
    # Five own, one foreign: with K = 3 two foreign votes cannot be had. Two own with K = 5: no majority to hold.
    x, y = np.arange(6.0)[:, None], [0, 0, 0, 0, 0, 1]
    assert RobustKNN(n_neighbors=3).fit(x, y).certify(x[:2], [0, 0], method="bound").tolist() == [math.inf] * 2
    assert RobustKNN(n_neighbors=3).fit(x, y).certify(x[5:], [1], method="bound").tolist() == [0]
    y = [0, 0, 1, 1, 1, 1]
    assert RobustKNN(n_neighbors=5).fit(x, y).certify(x[:1], [0], method="bound").tolist() == [0]
