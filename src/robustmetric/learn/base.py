"""What every metric learner is: rows and labels in, a linear map G out, whose distance is the one under M = G^T G."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Int
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.decomposition import PCA
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from torch import Tensor

from robustmetric.errors import InputError, nearest
from robustmetric.numerics.devices import device_of as device_of
from robustmetric.numerics.numbers import LARGEST_SEED
from robustmetric.numerics.settings import check_optional_counts
from robustmetric.types import Progress

Table = Any
"""What scikit-learn takes for rows or labels: an array, nested lists, a data frame; checked by `validate_data`."""
Seed = int | np.random.RandomState | None
Init = Literal["identity", "noise", "pca"] | np.ndarray
Learner = TypeVar("Learner", bound="MetricLearner")
DTYPES = {"float32": torch.float32, "float64": torch.float64}


class MetricLearner(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator, ABC):  # type: ignore[misc]  # scikit-learn has no stubs
    """A transformer `x -> G x`; Euclidean distance after it is `sqrt((x - y)^T G^T G (x - y))` before it."""

    progress: Progress | None = None
    """Told while `fit` runs: parts done, and how many there are at most. Set by whoever shows it; no setting."""
    components_: Float[np.ndarray, "rank dim"]
    classes_: np.ndarray

    def fit(self: Learner, X: Table, y: Table = None) -> Learner:
        """Learn G from labelled rows of at least two classes."""
        X, y = validate_data(self, X, y, dtype=np.float64, ensure_min_samples=2)
        check_classification_targets(y)
        self.check_settings()
        check_size(X)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(f"y holds 1 class ({self.classes_[0]}); expected at least 2: a metric tells classes apart")
        self.components_ = self._learn(torch.from_numpy(X), torch.from_numpy(codes))
        return self

    def check_settings(self) -> None:
        """Refuse settings that go with no rows: `fit` does so, and a job does before it begins anything."""
        check_seed(self.get_params(deep=False).get("random_state"))
        self._check()

    def _check(self) -> None:
        """The settings of this learner alone."""

    @abstractmethod
    def _learn(self, x: Float[Tensor, "n dim"], labels: Int[Tensor, " n"]) -> Float[np.ndarray, "rank dim"]:
        """G for these rows (float64) and labels (0 .. classes-1)."""

    def _tell(self, done: int, total: int) -> None:
        if self.progress is not None:
            self.progress(done, total)

    def transform(self, X: Table) -> Float[np.ndarray, "n rank"]:
        """The rows in the space where the metric is Euclidean: X G^T."""
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=np.float64, reset=False)
        return rows @ self.components_.T

    def get_mahalanobis_matrix(self) -> Float[np.ndarray, "dim dim"]:
        """M = G^T G."""
        check_is_fitted(self)
        return self.components_.T @ self.components_

    def get_metric(self) -> Callable[[Table, Table], float]:
        """The distance of two rows, as `metric=` of scikit-learn's neighbour searches takes it."""
        check_is_fitted(self)
        return partial(distance, self.components_)

    def pair_distance(self, pairs: Table) -> Float[np.ndarray, " n"]:
        """The distance of the two rows of each pair; `pairs` is (n, 2, features)."""
        check_is_fitted(self)
        pairs = check_array(pairs, dtype=np.float64, ensure_2d=False, allow_nd=True)
        dim = self.components_.shape[1]
        if pairs.ndim != 3 or pairs.shape[1:] != (2, dim):
            raise InputError(f"pairs have shape {pairs.shape}; expected (n, 2, {dim}): two rows of features each")
        return np.linalg.norm((pairs[:, 0] - pairs[:, 1]) @ self.components_.T, axis=1)

    @property
    def _n_features_out(self) -> int:
        return self.components_.shape[0]

    def __sklearn_is_fitted__(self) -> bool:
        return "components_" in vars(self)  # a `fit` that stopped half-way leaves `n_features_in_`

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.required = True
        return tags


def distance(components: Float[np.ndarray, "rank dim"], a: Table, b: Table) -> float:
    """|G (a - b)|."""
    return float(np.linalg.norm(components @ (np.asarray(a, dtype=np.float64) - np.asarray(b, dtype=np.float64))))


def rank_of(n_components: int | None, dim: int) -> int:
    """How many rows G has: as many as features unless told."""
    check_optional_counts(n_components=n_components)
    rank = dim if n_components is None else n_components
    if not 1 <= rank <= dim:
        raise InputError(f"n_components = {n_components} of {dim} features; expected 1 to {dim}, or None for all")
    return rank


def start(init: Init | str, rank: int, x: Float[Tensor, "n dim"], random_state: Seed) -> Float[Tensor, "rank dim"]:
    """The G to start from: the first `rank` coordinates, these plus N(0, 1) noise, principal axes, or one given."""
    dim = x.shape[1]
    if not isinstance(init, str):
        given = check_array(init, dtype=np.float64, copy=True)  # learners move it in place
        if given.shape != (rank, dim):
            raise InputError(f"init has shape {given.shape}; expected (n_components, features) = ({rank}, {dim})")
        return torch.from_numpy(given)
    identity = torch.eye(rank, dim, dtype=x.dtype)
    if init == "identity":
        return identity
    if init == "noise":
        return identity + torch.from_numpy(check_random_state(random_state).standard_normal((rank, dim)))
    if init == "pca":
        if rank > min(x.shape):
            raise InputError(
                f"init 'pca' has {min(x.shape)} axes; expected n_components of at most as many, not {rank}"
            )
        return torch.from_numpy(PCA(rank, random_state=random_state).fit(x.numpy()).components_.copy())
    raise InputError(f"init {init!r} is not known{nearest(init, ('identity', 'noise', 'pca'))}, or an array")


def generator_of(random_state: Seed, device: torch.device) -> torch.Generator:
    """A torch generator seeded by scikit-learn's `random_state`."""
    seed = int(check_random_state(random_state).randint(2**31 - 1))
    return torch.Generator(device).manual_seed(seed)


def centred(x: Float[Tensor, "n dim"]) -> tuple[Float[Tensor, "n dim"], float]:
    """The rows about their mean and divided by their scale (root mean square length), and that scale.

    A metric does not see shifts; float32 and the floors of a learner should see neither shift nor unit.
    """
    x = x - x.mean(dim=0)
    scale = float(x.square().sum(dim=1).mean().sqrt()) or 1.0
    return x / scale, scale


def check_seed(random_state: object) -> None:
    """Refuse what scikit-learn takes for no seed."""
    try:
        check_random_state(random_state)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"random_state = {random_state!r}; expected a whole number from 0 to {LARGEST_SEED}"
        ) from error


def check_size(x: Float[np.ndarray, "n dim"]) -> None:
    """Refuse rows whose squared distances are too large for float64."""
    largest = float(max(x.max(), -x.min()))
    if 2 * largest > (np.finfo(np.float64).max / x.size) ** 0.5:
        raise InputError(
            f"the rows hold numbers as large as {largest:.3g}, whose squares overflow float64; expected rows of "
            "moderate size: scale them first, as by MaxAbsScaler"
        )
