"""Adversarial pruning (Y. Yang et al., AISTATS 2020): as few rows removed as leave the classes 2r apart."""

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.sparse import coo_array, csr_array
from scipy.sparse.csgraph import breadth_first_order, maximum_bipartite_matching
from sklearn.base import clone
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.learn.base import MetricLearner, Table
from robustmetric.numerics.distances import BLOCK, chunks, pairwise
from robustmetric.numerics.numbers import is_number
from robustmetric.types import Progress


class AdversarialPruning(MetricLearner):
    """Remove rows until rows of different labels are at least 2 `radius` apart (l2), then fit `learner` on the rest.

    For two classes the removed set is the smallest one; for more it is found greedily. `kept_` are the rows that stay,
    in order; a 1-NN on them (`resample`) withstands `radius` at each of them. `learner` None is the Euclidean metric.
    """

    kept_: Int[np.ndarray, " kept"]

    def __init__(self, radius: float = 0.1, learner: MetricLearner | None = None) -> None:
        self.radius = radius
        self.learner = learner

    def _check(self) -> None:
        if not is_number(self.radius, 0):
            raise InputError(f"radius {self.radius!r} is no distance; expected a number >= 0")
        if self.learner is not None and not isinstance(self.learner, MetricLearner):
            raise InputError(f"learner {self.learner!r} is none of a metric; expected one such as ARML(), or None")
        if self.learner is not None:
            self.learner.check_settings()

    def _learn(self, x: Float[Tensor, "n dim"], labels: Int[Tensor, " n"]) -> Float[np.ndarray, "rank dim"]:
        edges = conflicts(x, labels, 2 * self.radius, self._tell)
        cover = smallest_cover if len(self.classes_) == 2 else greedy_cover
        removed = cover(edges, labels.numpy())
        self.kept_ = np.flatnonzero(~removed)
        if self.learner is None:
            return np.eye(x.shape[1])
        learner = clone(self.learner).fit(x.numpy()[self.kept_], labels.numpy()[self.kept_])
        return learner.components_

    def resample(self, X: Table, y: Table) -> tuple[np.ndarray, np.ndarray]:
        """The kept ones of the rows (and labels) that `fit` was given."""
        return np.asarray(X)[self.kept_], np.asarray(y)[self.kept_]


def conflicts(
    x: Float[Tensor, "n dim"], labels: Int[Tensor, " n"], apart: float, progress: Progress | None = None
) -> csr_array:
    """The symmetric graph of rows of different labels less than `apart` from one another."""
    found = []
    for rows in chunks(len(x), max(1, BLOCK // len(x))):
        near = (pairwise(x[rows], x) < apart) & (labels[rows, None] != labels)
        found.append(torch.nonzero(near) + torch.tensor([rows.start, 0]))
        if progress is not None:
            progress(rows.stop, len(x))
    i, j = torch.cat(found).T.numpy()
    return csr_array(coo_array((np.ones(len(i), dtype=np.int8), (i, j)), shape=(len(x), len(x))))


def smallest_cover(edges: csr_array, labels: Int[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
    """A smallest set of rows that touches every edge between two classes: as large as a maximum matching (Koenig)."""
    left, right = np.flatnonzero(labels == 0), np.flatnonzero(labels == 1)
    graph = csr_array(edges[left][:, right])
    match = maximum_bipartite_matching(graph, perm_type="column")  # of each left row, or -1
    reached_left, reached_right = _alternating(graph, match)
    cover = np.zeros(len(labels), dtype=bool)
    cover[left] = ~reached_left
    cover[right] = reached_right
    return cover


def _alternating(
    graph: csr_array, match: Int[np.ndarray, " left"]
) -> tuple[Bool[np.ndarray, " left"], Bool[np.ndarray, " right"]]:
    """What alternating paths from unmatched left rows reach: by any edge to the right, by a matched one back."""
    count_left, count_right = graph.shape
    matched = np.flatnonzero(match >= 0)
    source = count_left + count_right
    edges = graph.tocoo()
    unmatched = np.flatnonzero(match < 0)
    begin = np.concatenate([edges.coords[0], count_left + match[matched], np.full(len(unmatched), source)])
    end = np.concatenate([count_left + edges.coords[1], matched, unmatched])
    paths = csr_array((np.ones(len(begin), dtype=np.int8), (begin, end)), shape=(source + 1, source + 1))
    reached = np.zeros(source + 1, dtype=bool)
    reached[breadth_first_order(paths, source, return_predecessors=False)] = True
    return reached[:count_left], reached[count_left:source]


def greedy_cover(edges: csr_array, labels: Int[np.ndarray, " n"]) -> Bool[np.ndarray, " n"]:
    """Rows that touch every edge: the one with most conflicts left goes first; one that proves needless comes back."""
    degree = np.diff(edges.indptr).astype(np.int64)
    cover = np.zeros(len(labels), dtype=bool)
    order = []
    while degree.max(initial=0) > 0:
        worst = int(degree.argmax())
        cover[worst] = True
        order.append(worst)
        degree[edges.indices[edges.indptr[worst] : edges.indptr[worst + 1]]] -= 1
        degree[worst] = 0
        degree[cover] = 0
    for row in reversed(order):
        if cover[edges.indices[edges.indptr[row] : edges.indptr[row + 1]]].all():
            cover[row] = False
    return cover
