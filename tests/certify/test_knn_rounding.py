"""Radii of 1-NN where rounding matters: weak axes, wide null directions, features in other units, narrow boxes."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from knn_problems import Array
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler

from robustmetric.certify.knn import RobustKNN
from robustmetric.certify.scaling import fold


def radius_of_two(matrix: Array, sites: Array, query: Array) -> float:
    """The way from the query, nearer to the first of two sites, to their border, in exact arithmetic."""
    m = [[Fraction(v) for v in row] for row in matrix.tolist()]
    own, other, x = ([Fraction(v) for v in row] for row in (*sites.tolist(), query.tolist()))

    def dual(v: list[Fraction]) -> list[Fraction]:
        return [sum((a * b for a, b in zip(row, v, strict=True)), Fraction()) for row in m]

    def squared_distance(a: list[Fraction], b: list[Fraction]) -> Fraction:
        away = [p - q for p, q in zip(a, b, strict=True)]
        return sum((p * q for p, q in zip(away, dual(away), strict=True)), Fraction())

    normal = dual([p - q for p, q in zip(own, other, strict=True)])
    gap = squared_distance(x, other) - squared_distance(x, own)
    length = Decimal(sum((v * v for v in normal), Fraction()).numerator) / Decimal(
        sum((v * v for v in normal), Fraction()).denominator
    )
    return max(0.0, float(Decimal(gap.numerator) / Decimal(gap.denominator) / (2 * length.sqrt())))


@pytest.mark.parametrize("method", ["exact", "bound"])
@pytest.mark.parametrize("share", [1e-6, 1e-10, 1e-12, 1e-14])
def test_radii_along_a_weak_axis_are_not_too_large(share: float, method: str) -> None:
    random = np.random.default_rng(0)
    for _ in range(20):
        angle = random.uniform(0, 3.14)
        rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        matrix = rotation @ np.diag([1, share]) @ rotation.T
        matrix = (matrix + matrix.T) / 2
        weak = rotation[:, 1]
        sites, query = np.stack([0 * weak, 2 * weak]), 0.3 * weak
        (radius,) = RobustKNN(matrix).fit(sites, [0, 1]).certify([query], [0], method=method)
        true = radius_of_two(matrix, sites, query)
        assert radius <= true and (radius > 0.99 * true or share < 1e-10)


@pytest.mark.parametrize("method", ["exact", "bound"])
@pytest.mark.parametrize("spread", [1e2, 1e4, 1e6, 1e8])
def test_a_wide_null_direction_does_not_make_radii_too_large(spread: float, method: str) -> None:
    matrix = np.array([[1.0, -1.0], [-1.0, 1.0]])
    random = np.random.default_rng(1)
    for _ in range(20):
        sites = random.normal(size=(2, 1)) * spread + random.normal(size=(2, 2))
        query = sites[0] + random.normal() * spread + 0.1 * random.normal(size=2)
        (radius,) = RobustKNN(matrix).fit(sites, [0, 1]).certify([query], [0], method=method)
        true = radius_of_two(matrix, sites, query)
        assert radius <= true and (radius > 0.99 * true or spread > 100)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_features_in_large_units_count(kind: type) -> None:
    # M = diag(1, 1e-18): (0, 0) and (0, 1e9) are 1 apart; the border is at 5e8.
    matrix = np.diag([1.0, 1e-18]).astype(kind)
    knn = RobustKNN(matrix).fit([[0.0, 0.0], [0.0, 1e9]], [0, 1])
    assert knn.predict([[0.0, 4e8], [0.0, 6e8]]).tolist() == [0, 1]
    assert knn.certify([[0.0, 1e8]], [0]) == pytest.approx([4e8])


def test_a_scaler_folded_in_single_precision_keeps_every_feature() -> None:
    x, y = load_breast_cancer(return_X_y=True)
    matrix = fold(StandardScaler().fit(x)).astype(np.float32)
    narrow, wide = (RobustKNN(m).fit(x[:300], y[:300]) for m in (matrix, matrix.astype(np.float64)))
    away = x[300:360, None] - x[:300]
    nearest = (away**2 * np.diag(matrix).astype(np.float64)).sum(axis=2).argmin(axis=1)
    assert (narrow.predict(x[300:360]) == y[nearest]).all()
    assert narrow.certify(x[300:360]) == pytest.approx(wide.certify(x[300:360]), rel=1e-12)


def test_a_box_that_leaves_a_narrow_way_is_not_shut() -> None:
    # Between (1/2, 0) and (3/2 + 2e-7, 5e-7) the border is x + 5e-7 y = 1 + 1e-7: it enters [0, 1]^2 at (1, 1/5).
    knn = RobustKNN().fit([[0.5, 0.0], [1.5 + 2e-7, 5e-7]], [0, 1])
    assert knn.predict([[1.0, 0.3]]).tolist() == [1]
    (radius,) = knn.certify([[0.5, 0.0]], [0], bounds=(0, 1))
    assert radius == pytest.approx(0.29**0.5, rel=1e-6) and radius <= np.hypot(0.5, 0.3)


def test_a_box_far_wider_than_the_data_proves_no_more_than_is_true() -> None:
    # The border of (0, 0) and (4, 1e-4) is 4 x + 1e-4 y = 8: at x = 1 it is 40000 away. A proof ends at 1000 widths.
    knn = RobustKNN().fit([[0.0, 0.0], [4.0, 1e-4]], [0, 1])
    (near,) = knn.certify([[0.0, 0.0]], [0], bounds=([0, -1e9], [1, 1e9]))
    assert 1000 <= near <= 40000
    assert knn.certify([[0.0, 0.0]], [0], bounds=([0, -1e3], [1, 1e3])) == pytest.approx([math.inf])
