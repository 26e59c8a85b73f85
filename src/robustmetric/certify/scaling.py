"""Linear pre-processing folded into the metric, so that radii are those of the raw input."""

from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from sklearn.decomposition import PCA
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, RobustScaler, StandardScaler
from sklearn.utils.validation import check_is_fitted

from robustmetric.errors import InputError
from robustmetric.numerics.spectrum import factor, spectrum, tensor_of

Square = npt.NDArray[np.float64]
LINEAR = ("StandardScaler", "MinMaxScaler (clip=False)", "MaxAbsScaler", "RobustScaler", "PCA", "a metric learner")
EXPECTED = f"{', '.join(LINEAR)} or a Pipeline of these"


@runtime_checkable
class Learned(Protocol):
    """A metric learner, ours or metric-learn's: x -> G x, G its `components_` once it is fitted."""

    def get_mahalanobis_matrix(self) -> Any: ...


def fold(scaler: Any, matrix: Any = None) -> Square:
    """The metric on raw inputs that equals `matrix` (None: Euclidean) on the outputs of a fitted linear `scaler`.

    `matrix` may also be a learner that was fitted on these outputs. With x' = x A + b, distances under M of x' are
    those under A M A^T of x: use it on unscaled rows.
    """
    linear = _linear_part(scaler)
    if matrix is None:
        return linear @ linear.T
    given = np.asarray(matrix.get_mahalanobis_matrix() if isinstance(matrix, Learned) else matrix)
    if given.shape != (linear.shape[1], linear.shape[1]):
        raise InputError(
            f"a matrix of shape {given.shape} cannot follow {type(scaler).__name__}, which gives {linear.shape[1]} "
            f"features; expected ({linear.shape[1]}, {linear.shape[1]})"
        )
    spectrum(tensor_of(given))  # refuses what is no metric
    folded = linear @ given.astype(np.float64) @ linear.T
    return np.asarray((folded + folded.T) / 2)


def _linear_part(scaler: Any) -> Square:
    """A of x' = x A + b. Types are exact: what a subclass does to rows is not known."""
    if type(scaler) is Pipeline:
        steps = [_linear_part(step) for _, step in scaler.steps if step not in (None, "passthrough")]
        if not steps:
            raise InputError(f"the pipeline has no step to fold; expected {EXPECTED}")
        product = steps[0]
        for step in steps[1:]:
            product = product @ step
        return product
    if type(scaler) in (StandardScaler, MaxAbsScaler, RobustScaler):
        check_is_fitted(scaler)
        scale = scaler.scale_
        return np.diag(np.ones(scaler.n_features_in_) if scale is None else 1 / np.asarray(scale, dtype=np.float64))
    if type(scaler) is MinMaxScaler and not scaler.clip:
        check_is_fitted(scaler)
        return np.diag(np.asarray(scaler.scale_, dtype=np.float64))
    if type(scaler) is PCA:
        check_is_fitted(scaler)
        components = np.asarray(scaler.components_, dtype=np.float64).T
        return _whitened(components, scaler.explained_variance_) if scaler.whiten else components
    if isinstance(scaler, Learned):
        check_is_fitted(scaler)
        return np.asarray(scaler.components_, dtype=np.float64).T  # type: ignore[attr-defined]  # there once it is fitted
    raise InputError(
        f"{scaler!r} is not known to be linear, so no radius in the raw input follows; expected {EXPECTED}, or certify "
        "its outputs, with radii in their space"
    )


def _whitened(components: Square, variance: npt.NDArray[np.floating[Any]]) -> Square:
    """Directions (columns) of variance 1, refused where one is so narrow that the metric would keep no other."""
    deviation = np.sqrt(variance)
    # As PCA.transform does.
    whitened = components / np.maximum(deviation, np.finfo(deviation.dtype).eps)
    if factor(tensor_of(whitened @ whitened.T)).shape[1] < whitened.shape[1]:
        raise InputError(
            f"PCA(whiten=True) divides {whitened.shape[1]} components by deviations from {deviation.max():.3g} down to "
            f"{deviation.min():.3g}, more than a metric in float64 can hold; expected fewer components, or whiten=False"
        )
    return whitened
