"""What the metrics withstand on real tables: the published errors of Satimage, and ARML beside the Euclidean metric."""

import numpy as np
import pytest
from sklearn.utils import shuffle

from robustmetric.certify.knn import RobustKNN
from robustmetric.data.tabular import Tabular
from robustmetric.learn import ARML
from robustmetric.learn.base import MetricLearner

pytestmark = pytest.mark.data


TABLES = ["satimage", "usps", "pendigits", "splice_libsvm_form", "letter"]


def fitted(
    file: str, learner: MetricLearner | None, points: int, k: int = 1
) -> tuple[RobustKNN, tuple[np.ndarray, ...]]:
    """The classifier of a table, and its first test points after the authors' shuffle."""
    data = Tabular(file=f"tabular/{file}.npz", scale=True).load()
    x, y = data.train.inputs.numpy(), data.train.labels.numpy()
    x_test, y_test = shuffle(data.queries.inputs.numpy(), data.queries.labels.numpy(), random_state=42)
    metric = None if learner is None else learner.fit(x, y)
    return RobustKNN(metric, n_neighbors=k).fit(x, y), (x_test[:points], y_test[:points])


def certified_radii(file: str, learner: MetricLearner | None) -> np.ndarray:
    """Of 1,000 test points."""
    knn, points = fitted(file, learner, 1000)
    return np.asarray(knn.certify(*points))


@pytest.mark.parametrize("learner", [ARML(random_state=0), ARML(random_state=1)], ids=["seed0", "seed1"])
def test_satimage_as_published(learner: ARML) -> None:
    published = [0.095, 0.605, 0.839, 0.899, 0.920, 0.946]
    radii = certified_radii("satimage", learner)
    assert [(radii <= 0.15 * k).mean() for k in range(6)] == pytest.approx(published, abs=0.006)


@pytest.mark.slow
@pytest.mark.paper
def test_satimage_with_the_released_settings() -> None:
    published = [0.095, 0.605, 0.839, 0.899, 0.920, 0.946]
    radii = certified_radii("satimage", ARML.released(random_state=42))
    assert [(radii <= 0.15 * k).mean() for k in range(6)] == pytest.approx(published, abs=0.006)


@pytest.mark.slow
@pytest.mark.parametrize("file", TABLES)
def test_arml_withstands_more_and_errs_no_more(file: str) -> None:
    ours, euclidean = (certified_radii(file, learner) for learner in (ARML(random_state=0), None))
    # The mean radius is the area above the curve of certified errors.
    assert ours.mean() > euclidean.mean()
    assert (ours == 0).mean() <= (euclidean == 0).mean() + 0.001


@pytest.mark.slow
@pytest.mark.parametrize("k", [1, 11])
@pytest.mark.parametrize("learner", [None, ARML(max_iter=20, random_state=0)], ids=["euclidean", "arml"])
@pytest.mark.parametrize("file", TABLES)
def test_no_attack_comes_below_what_is_proved(file: str, learner: MetricLearner | None, k: int) -> None:
    knn, points = fitted(file, learner, 40, k)
    proved = knn.certify(*points, method="bound")
    if k == 1:
        exact = knn.certify(*points)
        assert (proved <= exact * (1 + 1e-9) + 1e-9).all()
        proved = exact
    for method in ("greedy", "substitute", "boundary"):
        found = knn.attack(*points, method=method)
        assert (found >= proved * (1 - 1e-9) - 1e-9).all(), method
    assert np.isfinite(found).any()
