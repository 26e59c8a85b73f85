"""Exact radii of 1-NN: by hand, against clarabel, and never above what moves a prediction."""

import math
import os
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from knn_problems import (
    Problem,
    exact_by_clarabel,
    problem,
    smallest_norm,
    smallest_norm_by_nnls,
    squared,
    way_into_cell,
)
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils import shuffle

from robustmetric.certify.exact import Cells
from robustmetric.certify.geometry import Sites
from robustmetric.certify.knn import RobustKNN
from robustmetric.certify.screening import nearest_member
from robustmetric.metrics.robustness import robust_error
from robustmetric.numerics.quadratic_program import smallest_points

KINDS = ["plain", "euclidean", "rank_deficient", "duplicates", "ties", "float32"]


def fitted(given: Problem, n_neighbors: int = 1) -> RobustKNN:
    return RobustKNN(given.matrix, n_neighbors).fit(given.x, given.y)


def test_the_radius_on_a_line_by_hand() -> None:
    # Own points at 0 and 4, foreign at 10. From 1: the border of 4 and 10 is 7, 6 away; 0 plays no part.
    knn = RobustKNN().fit([[0.0], [4.0], [10.0]], [0, 0, 1])
    assert knn.certify([[1.0], [6.0], [9.0]], [0, 0, 0]) == pytest.approx([6, 1, 0], abs=1e-9)
    assert knn.certify([[9.0]]) == pytest.approx([2])  # of its own prediction, class 1


def test_the_radius_under_a_metric_by_hand() -> None:
    # M = diag(4, 1): from (0, 0) to (0, 2), d = 4, and to (2, 0), d = 16. Half-way in d: 2 (x+ - x-)^T M delta <=
    # d+ - d-, so with x+ = (0, 2), x- = (2, 0): 2 (-8, 2) . delta <= 4 - 16; ||delta|| = 12 / (2 sqrt 68).
    knn = RobustKNN(np.diag([4.0, 1.0])).fit([[0.0, 2.0], [2.0, 0.0]], [0, 1])
    assert knn.certify([[0.0, 0.0]], [0]) == pytest.approx([6 / 68**0.5])


def test_two_own_points_shut_a_cell_by_hand() -> None:
    # Own (1, 1) and (1, -1), foreign (3, 0), from the origin. Nearer to (3, 0) than to (1, 1): 4 x - 2 y >= 7, and
    # than to (1, -1): 4 x + 2 y >= 7. Both at once: the corner (7 / 4, 0); one alone would be 7 / sqrt 20 = 1.565.
    knn = RobustKNN().fit([[1.0, 1.0], [1.0, -1.0], [3.0, 0.0]], [0, 0, 1])
    radius, delta = knn.certify([[0.0, 0.0]], [0], return_perturbation=True)
    assert radius == pytest.approx([1.75]) and delta[0] == pytest.approx([1.75, 0], abs=1e-5)
    assert knn.certify([[0.0, 0.0]], [0], positives=1) == pytest.approx([7 / 20**0.5])


@pytest.mark.parametrize("kind", KINDS)
def test_radii_equal_those_of_clarabel(kind: str) -> None:
    for seed in range(2):
        given = problem(seed, kind=kind)
        expected = [exact_by_clarabel(given, row) for row in range(len(given.queries))]
        found = fitted(given).certify(given.queries, given.labels)
        assert found == pytest.approx(expected, abs=1e-6)
        assert (found <= np.array(expected) + 1e-8).all(), "clarabel's own tolerance"


def every_pair(given: Problem) -> tuple[list[float], list[float]]:
    """(ours, clarabel's) way into every foreign cell from every query."""
    sites = Sites.of(
        torch.tensor(given.x), torch.tensor(given.y), None if given.matrix is None else torch.tensor(given.matrix)
    )
    order = np.argsort(given.labels, kind="stable")
    z, labels = sites.coordinates.enter(torch.tensor(given.queries[order])), torch.tensor(given.labels[order])
    point, site = (labels[:, None] != sites.labels).nonzero(as_tuple=True)
    cells = Cells(sites, z, labels, point, site)
    first = cells.row(torch.arange(len(point)), nearest_member(sites, z, labels)[point])
    found = smallest_points(cells.separate, first)
    assert found.solved.all()
    theirs = [
        way_into_cell(given, order[p], int(sites.index[j]), np.flatnonzero(given.y == given.labels[order[p]]))
        for p, j in zip(point.tolist(), site.tolist(), strict=True)
    ]
    return found.bound.tolist(), theirs


def with_right_queries(given: Problem) -> Problem:
    """The queries that an own point is nearest to; the others have radius 0, without a program."""
    distance = np.stack([squared(given, query) for query in given.queries])
    own = given.y == given.labels[:, None]
    right = np.where(own, distance, np.inf).min(axis=1) < np.where(own, np.inf, distance).min(axis=1)
    return Problem(given.x, given.y, given.queries[right], given.labels[right], given.matrix)


@pytest.mark.parametrize("kind", KINDS)
def test_every_pair_equals_clarabel(kind: str) -> None:
    ours, theirs = every_pair(with_right_queries(problem(3, n=18, kind=kind)))
    assert len(ours) > 0 and ours == pytest.approx(theirs, abs=1e-6)


def test_both_oracles_agree() -> None:
    # x >= 1 and y >= 2: sqrt 5; and on a random problem.
    a, b = -np.eye(2), np.array([-1.0, -2.0])
    assert smallest_norm(a, b) == pytest.approx(5**0.5) and smallest_norm_by_nnls(a, b) == pytest.approx(5**0.5)
    random = np.random.default_rng(0)
    a, b = random.normal(size=(9, 4)) - 1, random.normal(size=9)
    assert smallest_norm(a, b) == pytest.approx(smallest_norm_by_nnls(a, b), abs=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_every_pair_of_200_problems_equals_clarabel(kind: str) -> None:
    pairs = 0
    for seed in range(34):  # 6 kinds: 204 problems
        dim = 2 + seed % 7
        given = with_right_queries(problem(100 + seed, n=24, dim=dim, classes=2 + seed % 3, queries=3, kind=kind))
        if len(given.queries):
            ours, theirs = every_pair(given)
            assert ours == pytest.approx(theirs, abs=1e-6)
            pairs += len(ours)
    assert pairs > 300


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), kind=st.sampled_from(["plain", "euclidean", "rank_deficient", "float32"]))
@example(seed=234187, kind="plain")  # a radius of 2e-6, of which a millionth is less than rounding errors
def test_the_witness_changes_the_prediction_and_nothing_shorter_does(seed: int, kind: str) -> None:
    given = problem(seed, kind=kind, queries=6)
    knn = fitted(given)
    labels = knn.predict(given.queries)
    radii, delta = knn.certify(given.queries, return_perturbation=True)
    assert (radii > 0).all()
    assert np.linalg.norm(delta, axis=1) == pytest.approx(radii, rel=2e-6, abs=1e-10)
    assert (knn.predict(given.queries + delta * (1 + 1e-6)) != labels).all()
    random = np.random.default_rng(seed)
    for _ in range(20):
        direction = random.normal(size=delta.shape) + random.choice([0, 3]) * delta / radii[:, None]
        step = direction / np.linalg.norm(direction, axis=1, keepdims=True) * radii[:, None] * (1 - 1e-9)
        assert (knn.predict(given.queries + step) == labels).all()
    assert (knn.predict(given.queries + delta * (1 - 1e-5)) == labels).all()


@pytest.mark.parametrize("kind", ["duplicates", "ties"])
def test_the_witness_of_a_tie_leads_where_another_class_is_as_near(kind: str) -> None:
    for seed in range(6):
        given = problem(seed, kind=kind, queries=6)
        radii, delta = fitted(given).certify(given.queries, given.labels, return_perturbation=True)
        for row in range(6):
            away = given.x - (given.queries[row] + delta[row] * (1 + 1e-6))
            distance = np.einsum("nd,de,ne->n", away, given.metric, away)
            own = given.y == given.labels[row]
            assert distance[~own].min() <= distance[own].min() + 1e-9, (seed, row, radii[row])


def test_a_copy_in_another_class_counts_as_lost() -> None:
    # 0 and 1 are class 0; a copy of 1 is class 1: from 0 the border is half-way, where the copy is as near.
    knn = RobustKNN().fit([[0.0], [1.0], [1.0]], [0, 0, 1])
    assert knn.certify([[0.0], [1.0]], [0, 0]) == pytest.approx([0.5, 0])


def test_near_copies_keep_the_radius_sound() -> None:
    # Points of two classes 1e-9 apart, far from the origin, where squares lose all digits of the difference.
    random = np.random.default_rng(0)
    x = 100 + random.normal(size=(40, 5))
    x[20:] = x[:20] + 1e-9 * random.normal(size=(20, 5))
    y = np.repeat([0, 1], 20)
    given = Problem(x, y, x[:8] + 0.3, np.zeros(8, dtype=np.int64), None)
    radii = fitted(given).certify(given.queries, given.labels)
    nearer_own = 0
    for row in range(8):
        distance = ((x - given.queries[row]) ** 2).sum(axis=1)
        if distance[20:].min() <= distance[:20].min():
            assert radii[row] == 0
            continue
        nearer_own += 1
        # The copy of the nearest own point is as near once its border, at a gap of 1e-9 or so, is crossed.
        near = distance[:20].argmin()
        border = (distance[20 + near] - distance[near]) / (2 * np.linalg.norm(x[near] - x[20 + near]))
        assert 0 < radii[row] <= border * (1 + 1e-4)
        for step in np.concatenate([np.eye(5), -np.eye(5)]):
            away = ((x - (given.queries[row] + radii[row] * (1 - 1e-6) * step)) ** 2).sum(axis=1)
            assert away[:20].min() <= away[20:].min() + 1e-12
    assert 0 < nearer_own < 8


def test_a_null_direction_moves_nothing() -> None:
    # M = diag(1, 0): only the first feature counts, so the second is neither used nor needed.
    knn = RobustKNN(np.diag([1.0, 0.0])).fit([[0.0, 5.0], [4.0, -9.0]], [0, 1])
    radii, delta = knn.certify([[0.0, 100.0]], [0], return_perturbation=True)
    assert radii == pytest.approx([2]) and delta[0] == pytest.approx([2, 0], abs=1e-5)


@pytest.mark.parametrize("kind", ["plain", "euclidean", "rank_deficient"])
def test_a_box_raises_radii_to_those_of_clarabel(kind: str) -> None:
    for seed in range(2):
        given = problem(seed, kind=kind)
        low, high = given.x.min(), given.x.max()
        given = Problem(
            (given.x - low) / (high - low), given.y, (given.queries * 0.5 + 2) / 4, given.labels, given.matrix
        )
        knn = fitted(given)
        box = (0.2, 0.8)  # some training points lie outside, so some cells cannot be reached
        free, boxed = (knn.certify(given.queries, given.labels, bounds=bounds) for bounds in (None, box))
        expected = [exact_by_clarabel(given, row, box) for row in range(len(given.queries))]
        assert boxed == pytest.approx(expected, abs=1e-6)
        assert (boxed >= free - 1e-12).all()


def test_a_box_shuts_out_a_class_by_hand() -> None:
    # The border is at 5: inside [0, 4] no point is lost, inside [0, 6] the radius is as without a box.
    knn = RobustKNN().fit([[0.0], [10.0]], [0, 1])
    assert knn.certify([[1.0]], [0], bounds=(0, 4)) == pytest.approx([math.inf])
    assert knn.certify([[1.0]], [0], bounds=([0.0], [6.0])) == pytest.approx([4])


def test_the_witness_in_a_box_stays_there_and_flips() -> None:
    random = np.random.default_rng(0)
    x, y = random.random((60, 6)).round(1), random.integers(3, size=60)
    queries = random.random((20, 6)).round(1)
    knn = RobustKNN().fit(x, y)
    labels = knn.predict(queries)
    radii, delta = knn.certify(queries, bounds=(0, 1), return_perturbation=True)
    moved = queries + delta * (1 + 1e-6)
    sure = radii > 0  # coordinates on a grid have ties
    assert (moved > -1e-9).all() and (moved < 1 + 1e-9).all() and sure.sum() > 15
    assert (knn.predict(moved)[sure] != labels[sure]).all()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_fewer_positives_never_raise_a_radius(seed: int) -> None:
    given = problem(seed, n=60)
    knn = fitted(given)
    radii = [knn.certify(given.queries, given.labels, positives=count) for count in (1, 3, 10, 1000)]
    for few, more in pairwise(radii):
        assert (few <= more + 1e-9).all()
    assert radii[-1] == pytest.approx(knn.certify(given.queries, given.labels), abs=1e-12)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6), kind=st.sampled_from(KINDS))
def test_the_exact_radius_is_not_below_the_bound(seed: int, kind: str) -> None:
    given = problem(seed, kind=kind, queries=6)
    exact, bound = (fitted(given).certify(given.queries, given.labels, method=method) for method in ("exact", "bound"))
    assert (exact >= bound * (1 - 1e-12) - 1e-12).all()


def satimage(points: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    arrays = np.load(Path(os.environ["ROBUSTMETRIC_DATA"]) / "tabular" / "satimage.npz")
    scaler = MinMaxScaler().fit(arrays["x_train"])
    x, y = shuffle(scaler.transform(arrays["x_test"]), arrays["y_test"], random_state=42)
    return scaler.transform(arrays["x_train"]), arrays["y_train"], x[:points], y[:points]


@pytest.mark.data
@pytest.mark.paper
def test_satimage_gives_the_published_errors() -> None:
    x_train, y_train, x, y = satimage(1000)
    radii = RobustKNN().fit(x_train, y_train).certify(x, y)
    errors = [round(robust_error(radii, 0.15 * step), 3) for step in range(6)]
    assert errors == [0.108, 0.642, 0.864, 0.905, 0.928, 0.951]
