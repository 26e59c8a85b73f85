"""The perturbation loss (X. Yang et al. 2020, arXiv 2006.05945): a triplet hinge plus a penalty on small margins."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from robustmetric.learn.base import (
    Init,
    MetricLearner,
    Seed,
    centred,
    device_of,
    generator_of,
    rank_of,
    start,
)
from robustmetric.learn.margin import margins
from robustmetric.learn.neighbours import Classes, draw
from robustmetric.numerics.settings import (
    check_counts,
    check_distances,
    check_optional_counts,
    check_positive,
    check_shares,
)


class PerturbationLoss(MetricLearner):
    """Minimise mean [1 + d(z, p) - d(z, n)]_+ + weight mean [1 - (e / tau)^2]_+ over near triplets, by Adam on G.

    d is the squared distance, e the positive part of the margin (ARML, Eq. 8): how far z can move in l2. tau is the
    `quantile` of e under the metric it starts from, at each row's nearest neighbours; the paper's penalty
    [tau^2 - e^2]_+ is divided by tau^2, so that `weight` has no unit. Triplets are drawn as ARML's are.
    """

    n_iter_: int
    loss_curve_: list[float]
    tau_: float

    def __init__(
        self,
        n_components: int | None = None,
        *,
        init: Init = "identity",
        weight: float = 1.0,
        quantile: float = 0.9,
        n_neighbors: int = 10,
        refresh: int = 10,
        lr: float = 1e-2,
        max_iter: int = 300,
        random_state: Seed = None,
        device: str = "cpu",
    ) -> None:
        self.n_components = n_components
        self.init = init
        self.weight = weight
        self.quantile = quantile
        self.n_neighbors = n_neighbors
        self.refresh = refresh
        self.lr = lr
        self.max_iter = max_iter
        self.random_state = random_state
        self.device = device

    def _check(self) -> None:
        check_optional_counts(n_components=self.n_components)
        check_counts(n_neighbors=self.n_neighbors, refresh=self.refresh, max_iter=self.max_iter)
        check_positive(lr=self.lr)
        check_distances(weight=self.weight)
        check_shares(quantile=self.quantile)

    def _learn(self, x: Float[Tensor, "n dim"], labels: Int[Tensor, " n"]) -> Float[np.ndarray, "rank dim"]:
        device = device_of(self.device)
        factor = start(self.init, rank_of(self.n_components, x.shape[1]), x, self.random_state)
        rows, scale = centred(x)
        rows = rows.float().to(device)
        factor = factor.to(rows).requires_grad_()
        classes = Classes(labels.to(device))
        classes.warn(self.n_neighbors)
        generator = generator_of(self.random_state, device)
        optimiser = torch.optim.Adam([factor], lr=self.lr)
        curve, tau = [], 1.0
        for iteration in range(self.max_iter):
            if iteration % self.refresh == 0:
                candidates = classes.candidates((rows @ factor.T).detach(), self.n_neighbors)
            if iteration == 0:
                nearest = candidates.anchors, candidates.positives[:, 0], candidates.negatives[:, 0]
                tau = _tau(margins(factor, rows, *nearest).detach(), self.quantile)
            triplets = draw(candidates, slice(None), generator)
            value = penalised(factor, rows, triplets, self.weight, tau)
            (factor.grad,) = torch.autograd.grad(value, factor)
            optimiser.step()
            curve.append(value.detach())
            self._tell(iteration + 1, self.max_iter)
        self.n_iter_, self.loss_curve_, self.tau_ = len(curve), torch.stack(curve).tolist(), tau * scale
        return factor.detach().double().cpu().numpy()


def penalised(
    factor: Float[Tensor, "rank dim"],
    x: Float[Tensor, "rows dim"],
    triplets: tuple[Int[Tensor, " n"], Int[Tensor, " n"], Int[Tensor, " n"]],
    weight: float,
    tau: float,
) -> Float[Tensor, ""]:
    """The hinge plus `weight` times the penalty, meaned over triplets."""
    z = x @ factor.T
    anchor, positive, negative = (z[index] for index in triplets)
    hinge = (1 + (anchor - positive).square().sum(dim=1) - (anchor - negative).square().sum(dim=1)).relu()
    reach = margins(factor, x, *triplets).relu()
    return hinge.mean() + weight * (1 - (reach / tau).square()).relu().mean()


def _tau(margin: Float[Tensor, " n"], quantile: float) -> float:
    """The quantile of the positive parts; their mean where it is 0, so that there is something to ask for."""
    reach = margin.relu()
    # torch.quantile refuses more than 2**24 values.
    return float(np.quantile(reach.cpu().numpy(), quantile)) or float(reach.mean()) or 1.0
