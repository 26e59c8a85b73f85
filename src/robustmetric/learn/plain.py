"""The metrics that need no learning here: the Euclidean one, and one that was learned elsewhere."""

from pathlib import Path

import numpy as np
from jaxtyping import Float, Int
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.learn.base import MetricLearner
from robustmetric.numerics.spectrum import factor, tensor_of


class Euclidean(MetricLearner):
    """M = I: what every learner is compared with."""

    def _learn(self, x: Float[Tensor, "n dim"], labels: Int[Tensor, " n"]) -> Float[np.ndarray, "rank dim"]:
        return np.eye(x.shape[1])


class Given(MetricLearner):
    """The matrix M that lies in a file, `np.save`'s: symmetric, without negative eigenvalues, of the rows' features."""

    def __init__(self, file: str = "metric.npy") -> None:
        self.file = file

    def _check(self) -> None:
        self._read()

    def _learn(self, x: Float[Tensor, "n dim"], labels: Int[Tensor, " n"]) -> Float[np.ndarray, "rank dim"]:
        matrix = self._read()
        if matrix.shape[1] != x.shape[1]:
            raise InputError(
                f"file {self.file}: a matrix of shape {matrix.shape} does not fit rows of {x.shape[1]} features"
            )
        return factor(tensor_of(matrix)).T.numpy()

    def _read(self) -> Float[np.ndarray, "dim dim"]:
        path = Path(self.file)
        if not path.is_file():
            raise InputError(f"file {self.file!r} does not exist; expected a metric's matrix, saved by numpy.save")
        try:
            matrix = np.load(path, allow_pickle=False)
        except (ValueError, OSError, EOFError) as error:
            raise InputError(f"file {self.file} is no array of numpy.save: {error}") from error
        if not isinstance(matrix, np.ndarray) or matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            shape = getattr(matrix, "shape", type(matrix).__name__)
            raise InputError(f"file {self.file} holds {shape}; expected one square matrix")
        if matrix.dtype.kind not in "fiu" or not np.isfinite(matrix).all():
            raise InputError(f"file {self.file}: the matrix of {matrix.dtype} holds what is no finite number")
        return matrix if matrix.dtype.kind == "f" else matrix.astype(np.float64)
