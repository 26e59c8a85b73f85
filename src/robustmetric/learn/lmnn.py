"""LMNN (Weinberger and Saul, JMLR 2009): same-class neighbours near, rows of other classes at least 1 further."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from robustmetric.learn.base import (
    Init,
    MetricLearner,
    Seed,
    device_of,
    rank_of,
    start,
)
from robustmetric.learn.neighbours import Classes
from robustmetric.numerics.distances import block, chunks
from robustmetric.numerics.settings import (
    check_counts,
    check_distances,
    check_optional_counts,
    check_positive,
    check_shares,
)


@dataclass(frozen=True)
class Targets:
    """The k nearest rows of the same class, which each row should keep near; chosen once, by Euclidean distance."""

    index: Int[Tensor, "n k"]
    is_there: Bool[Tensor, "n k"]
    """Rows of small classes have fewer."""

    @classmethod
    def of(cls, x: Float[Tensor, "n dim"], classes: Classes, k: int) -> "Targets":
        found = classes.candidates(x, k)
        index = torch.zeros((len(x), k), dtype=torch.long, device=x.device)
        index[found.anchors] = found.positives
        count = torch.zeros(len(x), dtype=torch.long, device=x.device)
        count[found.anchors] = found.positive_count
        return cls(index, torch.arange(k, device=x.device) < count[:, None])


class LMNN(MetricLearner):
    """Minimise r sum d(i, j) + (1 - r) sum [1 + d(i, j) - d(i, l)]_+ over targets j and rows l of other classes.

    r is `regularization`, d the squared distance. A step that raises the objective is tried again at half the rate; one
    that lowers it raises the rate by 1%. Settings and defaults are those of metric-learn, whose init "auto" is the
    identity too where there are at least as many features as classes.
    """

    n_iter_: int
    loss_curve_: list[float]

    def __init__(
        self,
        n_components: int | None = None,
        *,
        init: Init = "identity",
        n_neighbors: int = 3,
        regularization: float = 0.5,
        lr: float = 1e-7,
        min_iter: int = 50,
        max_iter: int = 1000,
        tol: float = 1e-3,
        random_state: Seed = None,
        device: str = "cpu",
    ) -> None:
        self.n_components = n_components
        self.init = init
        self.n_neighbors = n_neighbors
        self.regularization = regularization
        self.lr = lr
        self.min_iter = min_iter
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.device = device

    def _check(self) -> None:
        check_optional_counts(n_components=self.n_components)
        check_counts(n_neighbors=self.n_neighbors, max_iter=self.max_iter)
        check_counts(0, min_iter=self.min_iter)
        check_positive(lr=self.lr)
        check_distances(tol=self.tol)
        check_shares(regularization=self.regularization)

    def _learn(self, x: Float[Tensor, "n dim"], labels: Int[Tensor, " n"]) -> Float[np.ndarray, "rank dim"]:
        device = device_of(self.device)
        factor = start(self.init, rank_of(self.n_components, x.shape[1]), x, self.random_state).to(device)
        # A metric does not see a shift; a distance by matrix product does.
        labels, order = labels.sort(stable=True)
        x, labels = (x - x.mean(dim=0))[order].to(device), labels.to(device)
        classes = Classes(labels)
        classes.warn(self.n_neighbors)
        targets = Targets.of(x, classes, self.n_neighbors)
        return self._descend(factor, x, targets, classes.sizes).cpu().numpy()

    def _descend(self, factor: Tensor, x: Tensor, targets: Targets, sizes: list[int]) -> Float[Tensor, "rank dim"]:
        rate = self.lr
        value, gradient = objective(factor, x, targets, sizes, self.regularization)
        self.loss_curve_ = [value]
        # One evaluation is the first iteration, as metric-learn counts.
        while len(self.loss_curve_) < self.max_iter and gradient.any():
            trial = factor - rate * gradient
            trial_value, trial_gradient = objective(trial, x, targets, sizes, self.regularization)
            if trial_value > value:
                rate /= 2
                if torch.equal(trial, factor):
                    break
                continue
            gain = value - trial_value
            factor, value, gradient = trial, trial_value, trial_gradient
            self.loss_curve_.append(value)
            self._tell(len(self.loss_curve_), self.max_iter)
            rate *= 1.01
            if len(self.loss_curve_) > self.min_iter and gain < self.tol:
                break
        self.n_iter_ = len(self.loss_curve_)
        return factor


@torch.no_grad()
def objective(
    factor: Float[Tensor, "rank dim"], x: Float[Tensor, "n dim"], targets: Targets, sizes: list[int], pull: float
) -> tuple[float, Float[Tensor, "rank dim"]]:
    """LMNN's objective and its gradient; rows are sorted by class, `sizes` of them in each.

    The derivative by M is a sum of w (x_i - x_j)(x_i - x_j)^T over pairs: X^T (D - w - w^T) X, D the sums of w + w^T.
    """
    z = x @ factor.T
    reach = (z[targets.index] - z[:, None]).square().sum(dim=2).masked_fill(~targets.is_there, -torch.inf)
    value = pull * float(reach[targets.is_there].sum())
    weights = pull * targets.is_there.to(x)
    pairs, counts = [], []
    for i, other, squared in impostors(z, 1 + reach.amax(dim=1), sizes):
        count = torch.zeros_like(squared)
        for own in (i, other):
            gap = 1 + reach[own] - squared[:, None]
            is_active = (gap > 0).to(x)
            value += (1 - pull) * float(gap.relu_().sum())
            weights.index_add_(0, own, is_active, alpha=1 - pull)
            count += is_active.sum(dim=1)
        pairs.append(torch.stack([i, other]))
        counts.append((pull - 1) * count)
    each = torch.arange(len(x), device=x.device).repeat_interleave(targets.index.shape[1])
    pairs.append(torch.stack([each, targets.index.flatten()]))
    edges, heights = torch.cat(pairs, dim=1), torch.cat([*counts, weights.flatten()])
    return value, 2 * factor @ (x.T @ _laplacian(edges, heights, x))


def impostors(
    z: Float[Tensor, "n rank"], radius: Float[Tensor, " n"], sizes: list[int]
) -> Iterator[tuple[Int[Tensor, " pairs"], Int[Tensor, " pairs"], Float[Tensor, " pairs"]]]:
    """Pairs of rows of different classes nearer (squared) than the radius of either, each once; some at a time."""
    size = z.square().sum(dim=1)
    end = 0
    for count in sizes[:-1]:
        begin, end = end, end + count
        for part in chunks(count, block(z) // (len(z) - end)):
            rows = slice(begin + part.start, begin + part.stop)
            squared = torch.addmm(size[rows, None] + size[end:], z[rows], z[end:].T, alpha=-2)
            near = squared < radius[rows, None]
            near |= squared < radius[end:]
            i, other = torch.nonzero(near, as_tuple=True)
            if len(i):
                yield i + rows.start, other + end, squared[i, other].clamp_min(0)


def _laplacian(
    edges: Int[Tensor, "2 edges"], weights: Float[Tensor, " edges"], x: Float[Tensor, "n dim"]
) -> Float[Tensor, "n dim"]:
    """(D - w - w^T) X for edges of these weights."""
    square = (len(x), len(x))
    # The indices are ours; checking them costs more than the product.
    matrix = torch.sparse_coo_tensor(edges, weights, square, check_invariants=False).coalesce()
    degree = torch.zeros_like(x[:, 0]).index_add_(0, edges[0], weights).index_add_(0, edges[1], weights)
    return degree[:, None] * x - matrix @ x - matrix.T @ x
