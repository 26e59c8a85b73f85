"""NCA (Goldberger et al., NIPS 2004): rows are labelled by a neighbour drawn at random, near ones more often."""

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.optimize import OptimizeResult, minimize
from torch import Tensor

from robustmetric.learn.base import Init, MetricLearner, Seed, device_of, rank_of, start
from robustmetric.numerics.distances import block, chunks
from robustmetric.numerics.settings import check_counts, check_optional_counts, check_positive


class NCA(MetricLearner):
    """The largest expected number of rows that a stochastic nearest neighbour labels rightly.

    The objective, the search (L-BFGS) and its settings are those of scikit-learn, whose n x n arrays are done in parts
    here: 60,000 rows fit, also on a GPU. 100 iterations are the default of metric-learn.
    """

    n_iter_: int
    loss_curve_: list[float]

    def __init__(
        self,
        n_components: int | None = None,
        *,
        init: Init = "identity",
        max_iter: int = 100,
        tol: float = 1e-5,
        random_state: Seed = None,
        device: str = "cpu",
    ) -> None:
        self.n_components = n_components
        self.init = init
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state
        self.device = device

    def _check(self) -> None:
        check_optional_counts(n_components=self.n_components)
        check_counts(max_iter=self.max_iter)
        check_positive(tol=self.tol)

    def _learn(self, x: Float[Tensor, "n dim"], labels: Int[Tensor, " n"]) -> Float[np.ndarray, "rank dim"]:
        device = device_of(self.device)
        begin = start(self.init, rank_of(self.n_components, x.shape[1]), x, self.random_state)
        # A metric does not see a shift; a distance by matrix product does.
        rows, codes = (x - x.mean(dim=0)).to(device), labels.to(device)

        def descent(flat: Float[np.ndarray, " numbers"]) -> tuple[float, Float[np.ndarray, " numbers"]]:
            factor = torch.from_numpy(flat.reshape(begin.shape)).to(device)
            value, gradient = rightly_labelled(factor, rows, codes)
            return -value, -gradient.cpu().numpy().ravel()

        def note(intermediate_result: OptimizeResult) -> None:
            self.loss_curve_.append(float(intermediate_result.fun))
            self._tell(len(self.loss_curve_), self.max_iter)

        self.loss_curve_ = []
        found = minimize(
            descent, begin.numpy().ravel(), method="L-BFGS-B", jac=True, tol=self.tol,
            options={"maxiter": self.max_iter}, callback=note,
        )  # fmt: skip
        self.n_iter_ = int(found.nit)
        return found.x.reshape(begin.shape)


@torch.no_grad()
def rightly_labelled(
    factor: Float[Tensor, "rank dim"], x: Float[Tensor, "n dim"], labels: Int[Tensor, " n"]
) -> tuple[float, Float[Tensor, "rank dim"]]:
    """The sum over rows i of p_i = sum of p_ij over j of its class, p_ij ~ exp(-d(i, j)), and its gradient in G.

    That is -2 G sum w_ij (x_i - x_j)(x_i - x_j)^T with w_ij = p_ij [same class] - p_ij p_i, whose rows sum to 0: the
    sum is X^T (D - w - w^T) X, D the column sums of w.
    """
    z = x @ factor.T
    size = z.square().sum(dim=1)
    total, spread = z.new_zeros(()), torch.zeros_like(x)
    for rows in chunks(len(x), block(x) // len(x)):
        near = torch.addmm(-size, z[rows], z.T, alpha=2)  # -d(i, j) but for a number per row
        near.diagonal(rows.start).fill_(-torch.inf)
        share = near.softmax(dim=1)
        own = share * (labels[rows, None] == labels)
        right = own.sum(dim=1)
        total += right.sum()
        weights = own.addcmul_(share, right[:, None], value=-1)
        spread[rows] -= weights @ x
        spread.addmm_(weights.T, x[rows], alpha=-1)
        spread.addcmul_(weights.sum(dim=0)[:, None], x)
    return float(total), -2 * factor @ (x.T @ spread)
