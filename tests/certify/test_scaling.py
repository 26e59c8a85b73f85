"""Learners folded with a scaler: the metric on the raw input is that of the whole pipeline."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.datasets import load_iris, make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler

from robustmetric.certify.knn import RobustKNN
from robustmetric.certify.scaling import fold
from robustmetric.errors import InputError
from robustmetric.learn import ARML, LFDA


def rows() -> tuple[np.ndarray, np.ndarray]:
    x, y = make_blobs(90, n_features=3, centers=3, cluster_std=2.0, random_state=0)
    return x * [1.0, 10.0, 0.1], y


def test_a_fitted_learner_is_folded_as_its_matrix() -> None:
    x, y = rows()
    scaler = MinMaxScaler().fit(x)
    learner = ARML(max_iter=5, random_state=0).fit(scaler.transform(x), y)
    folded = fold(scaler, learner)
    np.testing.assert_array_equal(folded, fold(scaler, learner.get_mahalanobis_matrix()))
    behind = RobustKNN(learner).fit(scaler.transform(x[:60]), y[:60])
    radii = RobustKNN(folded).fit(x[:60], y[:60]).certify(x[60:], y[60:])
    right = behind.predict(scaler.transform(x[60:])) == y[60:]
    assert ((np.asarray(radii) > 0) == right).all() and right.mean() > 0.5
    with pytest.raises(InputError, match=r"shape \(2, 2\) cannot follow MinMaxScaler, which gives 3 features"):
        fold(scaler, LFDA().fit(x[:, :2], y))


@pytest.mark.parametrize("learner", [ARML(max_iter=5, random_state=0), LFDA(2)], ids=str)
def test_a_learner_is_a_linear_step_of_a_pipeline(learner: ARML | LFDA) -> None:
    x, y = rows()
    pipeline = make_pipeline(StandardScaler(), learner).fit(x, y)
    z = pipeline.transform(x)
    matrix = fold(pipeline)
    differences = x[:45] - x[45:]
    found = np.einsum("ni,ij,nj->n", differences, matrix, differences)
    np.testing.assert_allclose(found, np.square(z[:45] - z[45:]).sum(axis=1), rtol=1e-9)
    np.testing.assert_allclose(fold(learner), learner.get_mahalanobis_matrix())


def test_a_learner_that_was_not_fitted_is_refused() -> None:
    with pytest.raises(NotFittedError):
        fold(ARML())


def test_the_pipeline_of_the_page_is_certified_as_printed() -> None:
    page = Path(__file__).parents[2] / "docs" / "papers" / "arml.md"
    (snippet,) = re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)
    x, y = load_iris(return_X_y=True)
    names: dict[str, Any] = {"X": x[::2], "y": y[::2], "X_test": x[1::2], "y_test": y[1::2]}
    exec(snippet, names)
    labels, radii = names["pipe"].predict(x[1::2]), names["radii"]
    assert (names["classifier"].predict(x[1::2]) == labels).all()
    assert ((radii > 0) == (labels == y[1::2])).all() and radii.max() > 0.1
    step = np.random.default_rng(0).normal(size=x[1::2].shape)
    step *= radii[:, None] * (1 - 1e-6) / np.linalg.norm(step, axis=1, keepdims=True)
    assert (names["pipe"].predict(x[1::2] + step) == labels).all()
