"""The two metrics that need no code of their own: Euclidean, and NCA (Goldberger et al. 2004) by scikit-learn."""

from typing import Any

import numpy as np
from jaxtyping import Float, Int
from sklearn.neighbors import NeighborhoodComponentsAnalysis
from torch import Tensor

from robustmetric.learn.base import MetricLearner, Seed


class Euclidean(MetricLearner):
    """M = I: what every learner is compared with."""

    def _learn(self, x: Float[Tensor, "n dim"], labels: Int[Tensor, " n"]) -> Float[np.ndarray, "rank dim"]:
        return np.eye(x.shape[1])


class NCA(MetricLearner):
    """The largest expected number of rows that a stochastic nearest neighbour labels rightly.

    `init` is any of scikit-learn's `NeighborhoodComponentsAnalysis`; 100 iterations are the default of metric-learn.
    """

    n_iter_: int

    def __init__(
        self,
        n_components: int | None = None,
        *,
        init: Any = "auto",
        max_iter: int = 100,
        tol: float = 1e-5,
        random_state: Seed = None,
    ) -> None:
        self.n_components = n_components
        self.init = init
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def _learn(self, x: Float[Tensor, "n dim"], labels: Int[Tensor, " n"]) -> Float[np.ndarray, "rank dim"]:
        learner = NeighborhoodComponentsAnalysis(**self.get_params()).fit(x.numpy(), labels.numpy())
        self.n_iter_ = learner.n_iter_
        return learner.components_
