"""Small k-NN problems and brute-force answers to them."""

import math
from dataclasses import dataclass

import clarabel
import numpy as np
import numpy.typing as npt
from scipy import sparse
from scipy.optimize import nnls

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Problem:
    """Training points, test points and a metric."""

    x: Array
    y: npt.NDArray[np.int64]
    queries: Array
    labels: npt.NDArray[np.int64]
    matrix: Array | None

    @property
    def metric(self) -> Array:
        return np.eye(self.x.shape[1]) if self.matrix is None else self.matrix


def problem(seed: int, n: int = 30, dim: int = 4, classes: int = 3, queries: int = 4, kind: str = "plain") -> Problem:
    """Random points; kinds: plain, euclidean, rank_deficient, duplicates (of any class), ties (on a grid), float32."""
    random = np.random.default_rng(seed)
    x, tests = random.normal(size=(n, dim)), random.normal(size=(queries, dim))
    y = random.permutation(np.arange(n) % classes)
    factor = random.normal(size=(dim, dim))
    if kind == "rank_deficient":
        factor = factor[:, : max(1, dim // 2)]
    if kind == "duplicates":
        copied = random.integers(n, size=n // 3)
        x[random.choice(n, n // 3, replace=False)] = x[copied]
        tests[0] = x[0]
    if kind == "ties":
        x, tests = np.round(x), np.round(2 * tests) / 2
    if kind == "float32":
        x, tests = x.astype(np.float32).astype(np.float64), tests.astype(np.float32).astype(np.float64)
    matrix = None if kind in ("euclidean", "ties") else factor @ factor.T
    matrix = None if matrix is None else (matrix + matrix.T) / 2
    return Problem(x, y, tests, random.integers(classes, size=queries), matrix)


def squared(given: Problem, query: Array) -> Array:
    """d_M of one point to all training points, from differences."""
    away = given.x - query
    return np.einsum("nd,de,ne->n", away, given.metric, away)


def way_into_cell(
    given: Problem, row: int, negative: int, positives: npt.NDArray[np.intp], box: tuple[float, float] | None = None
) -> float:
    """min ||delta|| with d_M(x + delta, negative) <= d_M(x + delta, i) for all positives i, by clarabel."""
    x = given.queries[row]
    distance = squared(given, x)
    a = 2 * (given.x[positives] - given.x[negative]) @ given.metric
    b = distance[positives] - distance[negative]
    if box is not None:
        identity = np.eye(len(x))
        a, b = np.concatenate([a, identity, -identity]), np.concatenate([b, box[1] - x, x - box[0]])
    return smallest_norm(a, b)


def smallest_norm(a: Array, b: Array) -> float:
    """min ||x|| with a x <= b, infinity if there is no x, by clarabel, or by nnls where that makes no progress."""
    options = clarabel.DefaultSettings()
    options.verbose = False
    options.tol_gap_abs = options.tol_gap_rel = options.tol_feas = 1e-10
    length = np.linalg.norm(a, axis=1)
    assert (b[length == 0] >= 0).all()  # a copy in another class: 0 <= 0
    a, b = a[length > 0] / length[length > 0, None], b[length > 0] / length[length > 0]
    identity, zero = sparse.identity(a.shape[1], format="csc"), np.zeros(a.shape[1])
    cones = [clarabel.NonnegativeConeT(len(b))]
    found = clarabel.DefaultSolver(identity, zero, sparse.csc_matrix(a), b, cones, options).solve()
    if "Infeasible" in str(found.status):
        return math.inf
    return float(np.linalg.norm(found.x)) if str(found.status) == "Solved" else smallest_norm_by_nnls(a, b)


def smallest_norm_by_nnls(a: Array, b: Array) -> float:
    """The same by Lawson & Hanson (1974, chapter 23): e = (0, .., 0, 1) less its nearest point in a cone."""
    e = np.append(np.zeros(a.shape[1]), 1.0)
    matrix = np.concatenate([-a, -b[:, None]], axis=1).T
    weights, _ = nnls(matrix, e)
    residual = e - matrix @ weights
    return float(np.linalg.norm(residual[:-1]) / residual[-1])


def exact_by_clarabel(given: Problem, row: int, box: tuple[float, float] | None = None) -> float:
    """The least way into the cell of any point of another class; 0 where a tie or another class is nearest."""
    own = given.y == given.labels[row]
    distance = squared(given, given.queries[row])
    if distance[~own].min() <= distance[own].min():
        return 0.0
    positives = np.flatnonzero(own)
    return min(way_into_cell(given, row, j, positives, box) for j in np.flatnonzero(~own))


def triplet_radii(given: Problem, row: int) -> Array:
    """[d(x, j) - d(x, i)]+ / (2 ||M (x_i - x_j)||) of every own i (rows) and foreign j (columns)."""
    own = given.y == given.labels[row]
    distance = squared(given, given.queries[row])
    i, j = np.flatnonzero(own), np.flatnonzero(~own)
    gap = np.maximum(distance[j][None] - distance[i][:, None], 0)
    length = 2 * np.linalg.norm((given.x[i][:, None] - given.x[j][None]) @ given.metric, axis=2)
    return np.divide(gap, length, out=np.zeros_like(gap), where=length > 0)


def bound_by_sorting(given: Problem, row: int, n_neighbors: int) -> float:
    """Theorem 1 as it is written: sort every column, take the k-th largest, sort those, take the k-th smallest."""
    own_rank, foreign_rank = n_neighbors // 2 + 1, (n_neighbors + 1) // 2
    kth_max = -np.sort(-triplet_radii(given, row), axis=0)[own_rank - 1]
    return float(np.sort(kth_max)[foreign_rank - 1])
