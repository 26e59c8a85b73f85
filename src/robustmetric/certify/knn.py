"""k-nearest-neighbour classification with proofs (Wang et al. 2020): radii within which a prediction cannot change."""

import math
from collections.abc import Iterator
from dataclasses import fields
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from jaxtyping import Float, Int
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from robustmetric.certify.base import Progress
from robustmetric.certify.bound import bound_radii
from robustmetric.certify.boundary import Boundary
from robustmetric.certify.exact import exact_radii
from robustmetric.certify.greedy import Greedy
from robustmetric.certify.scaling import Learned
from robustmetric.certify.screening import nearest_members
from robustmetric.certify.substitute import Substitute
from robustmetric.certify.voting import Attack, Limits, Voter, is_inside
from robustmetric.errors import InputError, nearest
from robustmetric.numerics.devices import device_of
from robustmetric.numerics.distances import block, chunks
from robustmetric.numerics.majority import majority_ranks
from robustmetric.numerics.numbers import is_whole
from robustmetric.numerics.spectrum import of_size_one, repaired, tensor_of

METHODS = ("exact", "bound")
EUCLIDEAN = ("euclidean", "l2", "minkowski")
"""As scikit-learn's k-NN says it; its `minkowski` has p = 2 where no other is named, and none can be here."""
ATTACKS: dict[str, type[Greedy] | type[Substitute] | type[Boundary]] = {
    "greedy": Greedy,
    "substitute": Substitute,
    "boundary": Boundary,
}
Radii = npt.NDArray[np.float64]
Table = Any
"""Rows of features, as scikit-learn takes them: an array, a list of lists, a data frame."""
Bounds = tuple[Any, Any]
"""(lowest, highest) value of every feature, as numbers or one number per feature."""
HELD = 4
"""Blocks of distances held at one time, in a few arrays: test points are taken in chunks that fit."""
ACTIVE = 64
"""Rows of features that a point may need in its quadratic programs, all that are solved at one time together."""
SMALLEST, LARGEST = 1e-100, 1e100
"""Beyond these, squares of squares leave float64: radii would be infinite, or 0, without reason."""


class RobustKNN(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """k-NN under any metric that proves how far each test point must move (in l2) before its prediction changes.

    `metric` is None ("euclidean"), a positive semi-definite matrix M of d(x, y) = (x - y)^T M (x - y), or a learner
    with `get_mahalanobis_matrix()`. A learner that is fitted is used as it is; of one that is not, a clone is fitted on
    the rows and labels given to `fit`. Either is `metric_`; `metric` stays as it was given. Clones are not fitted, so
    cross-validation and searches learn anew from each part; scikit-learn's FrozenEstimator around a learner keeps it.

    Everything is computed in float64. A vote, and a distance, that are tied
    go to the smaller label; certificates count a tie as lost, so they hold whichever way ties go. Radii are in the
    space of the rows given here; `robustmetric.certify.scaling.fold` takes a linear scaler into the metric.
    """

    def __init__(self, metric: Any = None, n_neighbors: int | Any = 1, *, device: str | Any = "cpu") -> None:
        # A constructor of scikit-learn takes anything; `fit` refuses.
        self.metric = metric
        self.n_neighbors = n_neighbors
        self.device = device

    def fit(self, X: Table, y: Any) -> "RobustKNN":
        """Remember the training points, and learn the metric where it is a learner that was not fitted."""
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        if not is_whole(self.n_neighbors, 1, len(X)):
            raise InputError(
                f"n_neighbors={self.n_neighbors!r} cannot vote among n_samples={len(X)} points; expected 1 to {len(X)}"
            )
        self.classes_, codes = np.unique(y, return_inverse=True)
        device = device_of(self.device)
        rows = np.array(X, order="C")  # may be written to, which torch asks for: X may be mapped from a file
        inputs = torch.from_numpy(rows).to(device)
        _check_range(inputs, fitted=True)
        self.metric_ = _fitted(self.metric, rows, y)
        matrix = metric_matrix(self.metric_, X.shape[1])
        self.voter_ = Voter(
            inputs=inputs,
            labels=torch.from_numpy(codes).to(device),
            n_neighbors=int(self.n_neighbors),
            matrix=None if matrix is None else of_size_one(repaired(matrix)).to(device),
        )
        _ = self.voter_.sites  # refuses what is no metric here, not at the first question
        return self

    def predict(self, X: Table) -> npt.NDArray[np.generic]:
        """The label of each row."""
        x = self._rows(X)
        return self.classes_[self.voter_(x).cpu().numpy()]

    def certify(
        self,
        X: Table,
        y: Any = None,
        method: str | Any = "exact",
        bounds: Bounds | None = None,
        positives: int | Any | None = None,
        return_perturbation: bool = False,
        progress: Progress | None = None,
    ) -> Radii | tuple[Radii, Radii]:
        """Per row a radius within which no perturbation makes the prediction differ from y (None: from itself).

        "exact" (1-NN) is the length of the smallest such perturbation, "bound" (any k) a lower bound of it. 0 where the
        prediction is wrong already or `y` was not trained on, infinity where no other class can win. `bounds` allows
        only rows inside a box, which the bound leaves unused; `positives` looks at that many nearest rows of the class
        alone: sound, looser. `return_perturbation` adds the smallest perturbation: a millionth longer it changes the
        prediction, or ties it where a training row of another class coincides with one of this (0 where none is needed,
        or there is none). Only the exact radius has one: neither "bound" nor `positives` goes with it.
        """
        x, codes = self._questions(X, y)
        self._check(method, positives, return_perturbation)
        limits = self._limits(bounds)
        sites, box = self.voter_.arranged(limits if method == "exact" else None)
        radii, index = self._settled(codes)
        delta = torch.zeros_like(x)
        for rows in self._chunks(index, len(x), progress):
            z, labels = sites.coordinates.enter(x[rows]), codes[rows]
            allowed = None if positives is None else nearest_members(sites, z, labels, positives)
            if method == "bound":
                radii[rows] = bound_radii(sites, z, labels, self.voter_.n_neighbors, allowed)
                continue
            found = exact_radii(sites, z, labels, allowed, box)
            radii[rows] = found.radius
            if return_perturbation:
                delta[rows] = sites.coordinates.leave(found.witness(sites, z, labels, box))
        return (radii.cpu().numpy(), delta.cpu().numpy()) if return_perturbation else radii.cpu().numpy()

    def attack(
        self,
        X: Table,
        y: Any = None,
        method: str | Any = "greedy",
        bounds: Bounds | None = None,
        return_perturbation: bool = False,
        progress: Progress | None = None,
        **settings: Any,
    ) -> Radii | tuple[Radii, Radii]:
        """Per row the length of a perturbation that makes the prediction differ from y: an upper bound of the radius.

        "greedy" solves quadratic programs (for 1-NN: the exact radius), "substitute" descends a differentiable k-NN,
        "boundary" asks for predictions alone; `settings` are those of `Greedy`, `Substitute` and `Boundary`. 0 where
        the prediction is wrong already, infinity where no perturbation was found.
        """
        x, codes = self._questions(X, y)
        attack, limits = _attack(method, settings), self._limits(bounds)
        radii, delta = x.new_zeros(len(x)), torch.zeros_like(x)
        right = (self.voter_(x) == codes).nonzero().flatten()
        for rows in self._chunks(right, len(x), progress):
            found = attack(self.voter_, x[rows], codes[rows], limits).nan_to_num(nan=0.0)
            # What counts is what the classifier says.
            works = self.voter_.differs(x[rows] + found, codes[rows]) & is_inside(x[rows], found, limits)
            radii[rows] = torch.linalg.vector_norm(found, dim=1).masked_fill(~works, math.inf)
            delta[rows] = found * works[:, None]
        return (radii.cpu().numpy(), delta.cpu().numpy()) if return_perturbation else radii.cpu().numpy()

    def _rows(self, X: Table) -> Float[Tensor, "n features"]:
        check_is_fitted(self)
        rows = validate_data(self, X, dtype=np.float64, reset=False)
        inputs = torch.from_numpy(np.array(rows, order="C")).to(self.device)
        _check_range(inputs, fitted=False)
        return inputs

    def _questions(self, X: Table, y: Any) -> tuple[Float[Tensor, "n features"], Int[Tensor, " n"]]:
        """Rows and the place of their labels among the classes, -1 for a label that was not trained on."""
        x = self._rows(X)
        if y is None:
            return x, self.voter_(x)
        labels = column_or_1d(y)
        if len(labels) != len(x):
            raise InputError(f"{len(x)} rows with {len(labels)} labels; expected one label per row, or y=None")
        known = {label: code for code, label in enumerate(self.classes_.tolist())}
        codes = torch.tensor([known.get(label, -1) for label in labels.tolist()], dtype=torch.long, device=x.device)
        return x, codes

    def _check(self, method: object, positives: object, return_perturbation: bool) -> None:
        if method not in METHODS:
            raise InputError(f"{method!r} does not certify k-NN{nearest(method, METHODS)}")
        k = self.voter_.n_neighbors
        if method == "exact" and k > 1:
            raise InputError(f"no exact radius is known for n_neighbors={k}; use method='bound', or n_neighbors=1")
        if return_perturbation and method == "bound":
            raise InputError("a bound comes without a perturbation; use method='exact', or attack()")
        least, _ = majority_ranks(k)
        if positives is not None and not is_whole(positives, least):
            raise InputError(
                f"positives={positives!r} prove nothing for {least} votes; expected {least} or more, or None"
            )
        if return_perturbation and positives is not None:
            raise InputError(f"positives={positives} come without a perturbation; use positives=None, or attack()")

    def _limits(self, bounds: Bounds | None) -> Limits | None:
        if bounds is None:
            return None
        try:
            low, high = (np.broadcast_to(np.asarray(side, np.float64), self.n_features_in_).copy() for side in bounds)
        except (TypeError, ValueError) as error:
            raise InputError(f"bounds {bounds!r} are no box; expected (low, high), e.g. (0, 1)") from error
        if not np.all(low < high):
            raise InputError(f"bounds {bounds!r} are empty; expected low < high in every feature")
        return torch.from_numpy(low).to(self.device), torch.from_numpy(high).to(self.device)

    def _settled(self, codes: Int[Tensor, " n"]) -> tuple[Float[Tensor, " n"], Int[Tensor, " m"]]:
        """Radii that the class sizes alone decide, and the rows that are left, in the order of their labels."""
        own, foreign = majority_ranks(self.voter_.n_neighbors)
        members = torch.bincount(self.voter_.labels)
        radii = torch.zeros(len(codes), dtype=torch.float64, device=codes.device)
        size = torch.where(codes >= 0, members[codes], 0)
        # Too few own points to hold a majority prove nothing; too few others to take it away prove all.
        is_safe = (size >= own) & (len(self.voter_.labels) - size < foreign)
        radii[is_safe] = math.inf
        index = ((size >= own) & ~is_safe).nonzero().flatten()
        return radii, index[codes[index].argsort(stable=True)]

    def _chunks(
        self, index: Int[Tensor, " m"], total: int, progress: Progress | None
    ) -> Iterator[Int[Tensor, " rows"]]:
        count, features = self.voter_.inputs.shape
        for part in chunks(len(index), HELD * block(self.voter_.inputs) // max(count, ACTIVE * features)):
            yield index[part]
            if progress is not None:
                progress(total - len(index) + part.stop, total)


def _check_range(inputs: Float[Tensor, "n features"], fitted: bool) -> None:
    """In one pass where the rows lie: 60,000 images are half a second of a CPU."""
    low, high = torch.aminmax(inputs, dim=0)
    largest, spread = float(torch.maximum(-low, high).max()), float((high - low).max())
    if largest > LARGEST:
        raise InputError(f"X holds numbers as large as {largest:.3g}; expected at most {LARGEST:g}: scale the rows")
    if fitted and 0 < spread < SMALLEST:
        raise InputError(f"the rows of X differ by {spread:.3g} at most; expected {SMALLEST:g} or more: scale the rows")


def metric_matrix(metric: Any, features: int) -> Float[Tensor, "features features"] | None:
    """The matrix of a metric given as one, as a fitted learner, or as None: Euclidean."""
    if metric is None or (isinstance(metric, str) and metric in EUCLIDEAN):
        return None
    if isinstance(metric, str):
        raise InputError(
            f"metric {metric!r} has no certificate; expected 'euclidean' (or None), a matrix ({features}, {features}) "
            "or a learner with get_mahalanobis_matrix()"
        )
    learned = None if isinstance(metric, type) else getattr(metric, "get_mahalanobis_matrix", None)
    given = np.asarray(metric if learned is None else learned())
    if given.shape != (features, features) or given.dtype.kind not in "fiu":
        raise InputError(
            f"a metric of shape {given.shape} and type {given.dtype} does not fit rows of {features} features; "
            f"expected None, a matrix ({features}, {features}) or a learner with get_mahalanobis_matrix()"
        )
    return tensor_of(given)


def _fitted(metric: Any, x: Float[np.ndarray, "n features"], y: npt.NDArray[Any]) -> Any:
    """The metric, or where it is a learner that was not fitted, a clone of it that is."""
    if not isinstance(metric, BaseEstimator) or not isinstance(metric, Learned):
        return metric
    try:
        check_is_fitted(metric)
    except NotFittedError:
        return clone(metric).fit(x, y)
    return metric


def _attack(method: Any, settings: dict[str, Any]) -> Attack:
    if method not in tuple(ATTACKS):
        raise InputError(f"{method!r} is not an attack on k-NN{nearest(method, ATTACKS)}")
    names = [field.name for field in fields(ATTACKS[method])]
    for name in settings:
        if name not in names:
            raise InputError(f"{name!r} is not a setting of the attack {method!r}{nearest(name, names)}")
    return ATTACKS[method](**settings)
