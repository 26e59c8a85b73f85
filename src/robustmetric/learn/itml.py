"""ITML (Davis et al., ICML 2007): the matrix nearest to a prior that keeps same-class pairs near and others apart."""

import warnings

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.linalg.blas import dger
from sklearn.utils import check_random_state
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.learn.base import MetricLearner, Seed
from robustmetric.numerics.distances import pairwise
from robustmetric.numerics.numbers import is_number
from robustmetric.numerics.settings import check_counts, check_distances, check_optional_counts, check_positive
from robustmetric.numerics.spectrum import spectrum, tensor_of
from robustmetric.types import Progress

BLOCK = 32
"""Pairs whose projections are gathered into one matrix update."""
POINTS = 4096
"""Rows, at most, whose distances to one another give the bounds."""


class ITML(MetricLearner):
    """Least log-determinant divergence from the prior, by cyclic Bregman projections on the pairs' bounds.

    These are (x_i - x_j)^T A (x_i - x_j) <= u for same-class pairs and >= l for others; the larger `gamma`, the less
    they may be violated.

    `n_constraints` pairs of each kind are drawn (None: 20 classes^2). `bounds` (u, l) are by default the 5th and 95th
    percentile of the Euclidean distances, which metric-learn compares with squared distances; so do we, to be compared
    with results obtained with it. `prior` is the matrix to stay near (None: the identity).
    """

    n_iter_: int
    bounds_: tuple[float, float]

    def __init__(
        self,
        *,
        gamma: float = 1.0,
        max_iter: int = 1000,
        tol: float = 1e-3,
        n_constraints: int | None = None,
        bounds: tuple[float, float] | None = None,
        prior: np.ndarray | None = None,
        random_state: Seed = None,
    ) -> None:
        self.gamma = gamma
        self.max_iter = max_iter
        self.tol = tol
        self.n_constraints = n_constraints
        self.bounds = bounds
        self.prior = prior
        self.random_state = random_state

    def _check(self) -> None:
        check_positive(gamma=self.gamma)
        check_distances(tol=self.tol)
        check_counts(max_iter=self.max_iter)
        check_optional_counts(n_constraints=self.n_constraints)
        given = (1, 1) if self.bounds is None else tuple(np.ravel(np.array(self.bounds, dtype=object)))
        if len(given) != 2 or not all(is_number(bound, 0) and bound > 0 for bound in given):
            raise InputError(f"bounds {self.bounds} are no distances; expected two numbers > 0")

    def _learn(self, x: Float[Tensor, "n dim"], labels: Int[Tensor, " n"]) -> Float[np.ndarray, "rank dim"]:
        rng = check_random_state(self.random_state)
        rows, codes = x.numpy(), labels.numpy()
        count = self.n_constraints or 20 * len(self.classes_) ** 2
        alike, unlike = draw_pairs(codes, count, rng)
        drawn = np.unique(np.concatenate([alike.ravel(), unlike.ravel()]))
        self.bounds_ = _bounds(x, drawn, rng) if self.bounds is None else self.bounds
        pairs = np.concatenate([alike, unlike])
        differences = rows[pairs[:, 0]] - rows[pairs[:, 1]]
        signs = np.repeat([1.0, -1.0], [len(alike), len(unlike)])
        # Two equal rows meet no bound under any matrix.
        apart = np.abs(differences).max(axis=1) > 0
        matrix, self.n_iter_ = project(
            _prior(self.prior, rows.shape[1]),
            differences[apart],
            signs[apart],
            self.bounds_,
            gamma=self.gamma,
            max_iter=self.max_iter,
            tol=self.tol,
            progress=self._tell,
        )
        values, vectors = np.linalg.eigh(matrix)
        return np.sqrt(values.clip(0))[:, None] * vectors.T


def project(
    matrix: Float[np.ndarray, "dim dim"],
    differences: Float[np.ndarray, "pairs dim"],
    signs: Float[np.ndarray, " pairs"],
    bounds: tuple[float, float],
    gamma: float,
    max_iter: int,
    tol: float,
    progress: Progress | None = None,
) -> tuple[Float[np.ndarray, "dim dim"], int]:
    """The matrix after cyclic projections on all pairs, and how many rounds that took; `signs` are 1 for alike.

    One projection is A + beta (A v)(A v)^T with p = v^T A v, alpha = min(lambda, sign gamma / (gamma + 1) (1/p - 1/xi))
    and beta = sign alpha / (1 - sign alpha p); the multiplier lambda falls by alpha and the slack 1/xi rises by
    sign alpha / gamma.
    """
    matrix = matrix.copy()
    multipliers = np.zeros(len(signs))
    inverse_slack = np.where(signs > 0, 1 / bounds[0], 1 / bounds[1])
    for iteration in range(1, max_iter + 1):
        before = multipliers.copy()
        for first in range(0, len(signs), BLOCK):
            part = slice(first, first + BLOCK)
            matrix += _project_block(
                matrix, differences[part], signs[part], multipliers[part], inverse_slack[part], gamma
            )
        if progress is not None:
            progress(iteration, max_iter)
        size = float(np.linalg.norm(multipliers) + np.linalg.norm(before))
        if size == 0 or np.abs(multipliers - before).sum() < tol * size:
            return matrix, iteration
    return matrix, max_iter


def _project_block(
    matrix: np.ndarray,
    v: np.ndarray,
    signs: np.ndarray,
    multipliers: np.ndarray,
    inverse_slack: np.ndarray,
    gamma: float,
) -> Float[np.ndarray, "dim dim"]:
    """What successive projections on a few pairs add to A; multipliers and slacks change in place.

    With W = A V^T every later A v_i stays in the span of W: A V^T becomes W C and A gains W S W^T, so only the matrix
    T = [[S, C], [C^T, V A V^T]] changes from pair to pair, by beta u u^T with u its column of pair i.
    """
    count = len(v)
    span = matrix @ v.T
    table = np.zeros((2 * count, 2 * count), order="F")
    table[:count, count:] = table[count:, :count] = np.eye(count)
    table[count:, count:] = v @ span
    lambdas, slacks = multipliers.tolist(), inverse_slack.tolist()
    share = gamma / (gamma + 1)
    for i, sign in enumerate(signs.tolist()):
        column = table[:, count + i].copy()
        p = float(column[count + i])
        alpha = min(lambdas[i], sign * share * (1 / p - slacks[i]))
        if alpha == 0:
            continue
        lambdas[i] -= alpha
        slacks[i] += sign * alpha / gamma
        dger(sign * alpha / (1 - sign * alpha * p), column, column, a=table, overwrite_a=1)
    multipliers[:], inverse_slack[:] = lambdas, slacks
    return span @ table[:count, :count] @ span.T


def draw_pairs(
    labels: Int[np.ndarray, " n"], count: int, rng: np.random.RandomState, rounds: int = 10
) -> tuple[Int[np.ndarray, "alike 2"], Int[np.ndarray, "unlike 2"]]:
    """Distinct random pairs of rows of one class, and of two; fewer than `count`, with a warning, where few exist."""
    order = np.argsort(labels, kind="stable")
    sizes = np.bincount(labels)
    first = np.cumsum(sizes) - sizes
    place = np.empty(len(labels), dtype=np.int64)
    place[order] = np.arange(len(labels))

    def partner(rows: np.ndarray, is_alike: bool) -> np.ndarray:
        own, begin = sizes[labels[rows]], first[labels[rows]]
        if is_alike:  # a step round the own class's places, never back to the start
            step = 1 + (rng.random_sample(len(rows)) * (own - 1)).astype(np.int64)
            return order[begin + (place[rows] - begin + step) % own]
        step = (rng.random_sample(len(rows)) * (len(labels) - own)).astype(np.int64)
        return order[(begin + own + step) % len(labels)]

    found = []
    for is_alike in (True, False):
        usable = np.flatnonzero(sizes[labels] > 1) if is_alike else np.arange(len(labels))
        pairs = np.empty((0, 2), dtype=np.int64)
        for _ in range(rounds if len(usable) else 0):
            rows = usable[rng.randint(len(usable), size=count - len(pairs))]
            pairs = np.unique(np.concatenate([pairs, np.stack([rows, partner(rows, is_alike)], axis=1)]), axis=0)
            if len(pairs) == count:
                break
        if len(pairs) < count:
            kind = "same-class" if is_alike else "different-class"
            warnings.warn(f"{len(pairs)} {kind} pairs drawn of {count} asked for; there are few", stacklevel=4)
        found.append(rng.permutation(pairs))
    return found[0], found[1]


def _bounds(
    x: Float[Tensor, "n dim"], rows: Int[np.ndarray, " some"], rng: np.random.RandomState
) -> tuple[float, float]:
    """The 5th and 95th percentile of the distances between these rows (of some, where they are many)."""
    rows = rows if len(rows) <= POINTS else rng.choice(rows, POINTS, replace=False)
    points = x[torch.from_numpy(rows)]
    low, high = np.percentile(pairwise(points, points).numpy(), (5, 95)).tolist()
    return low or 1e-9, high or 1e-9


def _prior(prior: np.ndarray | None, dim: int) -> Float[np.ndarray, "dim dim"]:
    if prior is None:
        return np.eye(dim)
    given = np.asarray(prior)
    expected = f"expected a positive definite {dim} x {dim} matrix"
    if given.shape != (dim, dim):
        raise InputError(f"the prior of shape {given.shape} is none; {expected}")
    try:
        values, _ = spectrum(tensor_of(given))
    except InputError as error:
        raise InputError(
            f"the prior of shape {given.shape} is none ({str(error).split(';')[0]}); {expected}"
        ) from error
    if not values[0] > 0:
        raise InputError(f"the prior of shape {given.shape} is singular; {expected}")
    return given.astype(np.float64)
