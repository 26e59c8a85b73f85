"""ITML's projections by hand and against single rank-one updates; its pairs and bounds."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from robustmetric.errors import InputError
from robustmetric.learn import ITML
from robustmetric.learn.itml import draw_pairs, project


def one_by_one(
    differences: np.ndarray, signs: np.ndarray, bounds: tuple[float, float], gamma: float, rounds: int
) -> np.ndarray:
    """Algorithm 1 of the paper, one rank-one update at a time."""
    matrix = np.eye(differences.shape[1])
    multipliers = np.zeros(len(signs))
    slack = np.where(signs > 0, bounds[0], bounds[1])
    for _ in range(rounds):
        for i, v in enumerate(differences):
            p = v @ matrix @ v
            alpha = min(multipliers[i], signs[i] * gamma / (gamma + 1) * (1 / p - 1 / slack[i]))
            beta = signs[i] * alpha / (1 - signs[i] * alpha * p)
            slack[i] = gamma * slack[i] / (gamma + signs[i] * alpha * slack[i])
            multipliers[i] -= alpha
            matrix = matrix + beta * np.outer(matrix @ v, matrix @ v)
    return matrix


def test_one_projection_by_hand() -> None:
    # v = 2, A = 1: p = 4; an alike pair within u = 1, gamma = 1: alpha = min(0, (1/4 - 1) / 2) = -3/8,
    # beta = -3/8 / (1 + 3/8 * 4) = -3/20, A = 1 - 3/20 * 4 = 2/5: the distance is now 1.6, of 4.
    matrix, rounds = project(np.eye(1), np.array([[2.0]]), np.ones(1), (1.0, 9.0), gamma=1.0, max_iter=1, tol=0.0)
    assert matrix.item() == pytest.approx(0.4)
    assert rounds == 1
    # An unlike pair beyond l = 8: alpha = min(0, (1/8 - 1/4) / 2) = -1/16, beta = (1/16) / (1 - 1/4) = 1/12, A = 4/3.
    matrix, _ = project(np.eye(1), np.array([[2.0]]), -np.ones(1), (1.0, 8.0), gamma=1.0, max_iter=1, tol=0.0)
    assert matrix.item() == pytest.approx(4 / 3)


def test_a_pair_that_keeps_its_bound_changes_nothing() -> None:
    matrix, rounds = project(np.eye(1), np.array([[1.0]]), np.ones(1), (2.0, 9.0), gamma=1.0, max_iter=9, tol=1e-3)
    assert (matrix.item(), rounds) == (1.0, 1)


@given(st.integers(0, 10_000), st.integers(1, 90), st.floats(0.1, 10.0))
@settings(max_examples=15, deadline=None)
def test_blocks_of_projections_equal_single_ones(seed: int, pairs: int, gamma: float) -> None:
    rng = np.random.RandomState(seed)
    differences, signs = rng.standard_normal((pairs, 4)), rng.choice([1.0, -1.0], pairs)
    matrix, _ = project(np.eye(4), differences, signs, (0.5, 6.0), gamma=gamma, max_iter=3, tol=0.0)
    np.testing.assert_allclose(matrix, one_by_one(differences, signs, (0.5, 6.0), gamma, 3), rtol=1e-8, atol=1e-10)


def test_alike_pairs_come_nearer_and_unlike_ones_part() -> None:
    rng = np.random.RandomState(0)
    y = np.arange(60) % 2
    x = np.stack([y + 0.1 * rng.standard_normal(60), rng.standard_normal(60)], axis=1)
    matrix = ITML(random_state=0).fit(x, y).get_mahalanobis_matrix()
    assert matrix[0, 0] > 5 * matrix[1, 1]
    assert np.linalg.eigvalsh(matrix)[0] > 0


@given(st.integers(0, 10_000), st.lists(st.integers(0, 3), min_size=2, max_size=30))
@settings(max_examples=30, deadline=None)
@pytest.mark.filterwarnings("ignore:.*pairs drawn")
def test_pairs_are_distinct_and_of_the_kind_asked_for(seed: int, labels: list[int]) -> None:
    codes = np.unique([4, *labels], return_inverse=True)[1]  # 4 is not among them: two classes at least
    alike, unlike = draw_pairs(codes, 20, np.random.RandomState(seed))
    for pairs, is_alike in ((alike, True), (unlike, False)):
        assert ((codes[pairs[:, 0]] == codes[pairs[:, 1]]) == is_alike).all()
        assert (pairs[:, 0] != pairs[:, 1]).all()
        assert len(np.unique(pairs, axis=0)) == len(pairs)
    assert len(unlike) > 0


def test_every_pair_can_be_drawn() -> None:
    labels = np.array([0, 1, 0, 0, 1] * 4)
    seen = [set(), set()]
    # 12 * 11 + 8 * 7 = 188 alike, 2 * 12 * 8 = 192 unlike; 60 of each a time.
    for seed in range(40):
        for pairs, found in zip(draw_pairs(labels, 60, np.random.RandomState(seed)), seen, strict=True):
            found.update(map(tuple, pairs.tolist()))
    assert [len(found) for found in seen] == [188, 192]


def test_few_pairs_are_warned_of() -> None:
    with pytest.warns(UserWarning, match="pairs drawn of 50") as caught:
        draw_pairs(np.array([0, 0, 1]), 50, np.random.RandomState(0))
    assert [str(warning.message).split(" drawn")[0] for warning in caught] == [
        "2 same-class pairs",
        "4 different-class pairs",
    ]


def test_bounds_are_percentiles_of_the_distances_unless_given() -> None:
    x, y = np.arange(21.0)[:, None], np.arange(21) % 2
    # Distances |i - j| of 21 rows to one another: 21 zeros of 441 (4.8%), then 40 ones: the 5th percentile is 1.
    # Above: 2 at 20, 4 at 19, 6 at 18, 8 at 17 and so on: 20 of 441 are 17 or more, 30 are 16 or more: the 95th is 16.
    assert ITML(n_constraints=100, max_iter=1, random_state=0).fit(x, y).bounds_ == (1.0, 16.0)
    assert ITML(bounds=(2.0, 3.0), n_constraints=20, max_iter=1, random_state=0).fit(x, y).bounds_ == (2.0, 3.0)


@pytest.mark.parametrize(
    ("learner", "message"),
    [
        (ITML(gamma=0.0), "gamma = 0.0"),
        (ITML(bounds=(0.0, 1.0)), "bounds .* are no distances"),
        (ITML(prior=np.array([[1.0, 2.0], [2.0, 1.0]])), "prior of shape .* positive definite 2 x 2"),
        (ITML(prior=1e-9 * np.array([[1.0, 1.0], [0.0, 1.0]])), "prior of shape .*not symmetric.* positive definite"),
        (ITML(prior=np.array([[1.0, 0.0], [0.0, 0.0]])), "prior of shape .* is singular"),
    ],
)
def test_wrong_settings_are_refused(learner: ITML, message: str) -> None:
    x, y = np.random.RandomState(0).standard_normal((200, 2)), np.arange(200) % 2
    with pytest.raises(InputError, match=message):
        learner.fit(x, y)
