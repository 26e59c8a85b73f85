"""Every metric learner: scikit-learn's own checks, and what they all promise."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import load_digits, make_blobs
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from robustmetric.errors import InputError
from robustmetric.learn import ARML, ITML, LFDA, LMNN, NCA, AdversarialPruning, Euclidean, Network, PerturbationLoss
from robustmetric.learn.base import MetricLearner

LEARNERS: list[MetricLearner] = [
    ARML(max_iter=5),
    Euclidean(),
    NCA(),
    LMNN(max_iter=5),
    ITML(max_iter=5),
    LFDA(),
    PerturbationLoss(max_iter=5),
    AdversarialPruning(),
]
VARIANTS = [ARML(max_iter=5, sampling="kth", n_votes=3, loss="hinge", batch_size=16), AdversarialPruning(0.2, LFDA())]
NOT_HERE = {"check_do_not_raise_errors_in_init_or_set_params": "types are checked in these tests; see below"}
each = pytest.mark.parametrize("learner", LEARNERS + VARIANTS, ids=lambda learner: repr(learner)[:60])


# Small classes, few pairs and few iterations are warned of, as they should be: the tests of each learner say when.
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(LEARNERS, expected_failed_checks=lambda estimator: NOT_HERE)
def test_scikit_learn_accepts_the_estimator(estimator: MetricLearner, check: Callable[[Any], None]) -> None:
    check(estimator)


def test_constructors_keep_whatever_they_are_given() -> None:
    """scikit-learn's check for it, where no type checker is loaded."""
    code = (
        "from robustmetric import learn\n"
        "from sklearn.utils.estimator_checks import check_do_not_raise_errors_in_init_or_set_params as check\n"
        "for name in learn.__all__: check(name, getattr(learn, name)())\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True, timeout=120)


def blobs(seed: int = 0, n: int = 90) -> tuple[np.ndarray, np.ndarray]:
    x, y = make_blobs(n, n_features=4, centers=3, cluster_std=2.0, random_state=seed)
    return x, np.array(["ash", "elm", "oak"])[y]


@each
def test_the_three_ways_to_a_distance_agree(learner: MetricLearner) -> None:
    x, y = blobs()
    fitted = clone(learner).fit(x, y)
    matrix = fitted.get_mahalanobis_matrix()
    difference = x[0] - x[1]
    expected = np.sqrt(difference @ matrix @ difference)
    z = fitted.transform(x[:2])
    assert np.linalg.norm(z[0] - z[1]) == pytest.approx(expected)
    assert fitted.get_metric()(x[0], x[1]) == pytest.approx(expected)
    assert fitted.pair_distance([x[:2], x[2:4]])[0] == pytest.approx(expected)
    assert np.linalg.eigvalsh(matrix)[0] > -1e-9
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(fitted)).components_, fitted.components_)


@each
def test_learners_work_in_pipelines(learner: MetricLearner) -> None:
    x, y = blobs()
    pipeline = make_pipeline(MinMaxScaler(), clone(learner), KNeighborsClassifier(3)).fit(x[:60], y[:60])
    assert pipeline.score(x[60:], y[60:]) > 0.8


def test_settings_are_found_by_grid_search() -> None:
    x, y = load_digits(return_X_y=True)
    pipeline = make_pipeline(MinMaxScaler(), ARML(max_iter=10, random_state=0), KNeighborsClassifier(1))
    search = GridSearchCV(pipeline, {"arml__n_components": [1, 16], "arml__init": ["pca"]}, cv=2).fit(x[:300], y[:300])
    assert search.best_params_["arml__n_components"] == 16


def test_the_metric_is_one_that_neighbour_searches_take() -> None:
    x, y = blobs()
    learner = LFDA().fit(x, y)
    direct = KNeighborsClassifier(1, metric=learner.get_metric()).fit(x[:60], y[:60]).predict(x[60:])
    after = KNeighborsClassifier(1).fit(learner.transform(x[:60]), y[:60]).predict(learner.transform(x[60:]))
    np.testing.assert_array_equal(direct, after)


@each
def test_one_class_is_refused(learner: MetricLearner) -> None:
    with pytest.raises(InputError, match=r"y holds 1 class \(5\); expected at least 2"):
        clone(learner).fit([[0.0], [1.0]], [5, 5])


@each
def test_what_is_not_finite_is_refused(learner: MetricLearner) -> None:
    with pytest.raises(ValueError, match="NaN"):
        clone(learner).fit([[0.0], [np.nan]], [0, 1])


def test_pairs_of_another_shape_are_refused() -> None:
    learner = Euclidean().fit(*blobs())
    with pytest.raises(InputError, match=r"pairs have shape \(3, 4\); expected \(n, 2, 4\)"):
        learner.pair_distance(np.zeros((3, 4)))


@pytest.mark.parametrize("learner", [*LEARNERS, Network(epochs=2)], ids=lambda learner: type(learner).__name__)
def test_learners_tell_how_far_they_are(learner: MetricLearner | Network) -> None:
    """In order, never beyond the end; Euclidean has nothing to do."""
    told: list[tuple[int, int]] = []
    fitted = clone(learner)
    fitted.progress = lambda done, total: told.append((done, total))
    fitted.fit(*blobs())
    done = [part for part, _ in told]
    assert bool(told) != isinstance(learner, Euclidean)
    assert done == sorted(set(done)) and all(part <= total for part, total in told)
