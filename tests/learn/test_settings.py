"""Settings that go with no rows are refused in one line, by every learner, when it is fitted; so are rows too large."""

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.datasets import make_blobs

from robustmetric.errors import InputError
from robustmetric.learn import ARML, ITML, LFDA, LMNN, NCA, AdversarialPruning, Euclidean, Network, PerturbationLoss
from robustmetric.learn.base import MetricLearner

WHOLE = "expected a whole number >= 1"
WRONG: list[tuple[Any, str, object, str]] = [
    *((ARML(), name, 2.5, WHOLE) for name in ("n_neighbors", "refresh", "n_votes", "batch_size", "patience")),
    *((learner, "max_iter", "abc", WHOLE) for learner in (ARML(), ITML(), LMNN(), NCA(), PerturbationLoss())),
    *((learner, "max_iter", 2.5, WHOLE) for learner in (ARML(), ITML(), LMNN(), NCA(), PerturbationLoss())),
    *((learner, "n_components", 2.5, WHOLE) for learner in (ARML(), LFDA(), LMNN(), NCA(), PerturbationLoss())),
    *((learner, "lr", "a", "expected a number > 0") for learner in (ARML(), LMNN(), PerturbationLoss())),
    *((learner, "tol", float("nan"), "expected a number >= 0") for learner in (ARML(), ITML(), LMNN())),
    *((ARML(), name, None, WHOLE) for name in ("n_neighbors", "refresh", "n_votes", "max_iter", "patience")),
    (ARML(), "lr", None, "expected a number > 0"),
    (ARML(), "refresh", 0.5, WHOLE),
    (ARML(), "max_iter", True, WHOLE),
    (ARML(), "lr", float("inf"), "expected a number > 0"),
    (ARML(), "validation", "half", "is no share of the rows"),
    (ARML(), "random_state", "abc", "expected a whole number from 0 to 4294967295"),
    (NCA(), "tol", float("nan"), "expected a number > 0"),
    (LFDA(), "k", 2.5, WHOLE),
    (LMNN(), "n_neighbors", 2.5, WHOLE),
    (LMNN(), "min_iter", -1, "expected a whole number >= 0"),
    (LMNN(), "regularization", 1.5, "expected a number from 0 to 1"),
    (ITML(), "n_constraints", 2.5, WHOLE),
    (ITML(), "bounds", "ab", "are no distances; expected two numbers > 0"),
    (ITML(), "bounds", (1.0, 2.0, 3.0), "are no distances; expected two numbers > 0"),
    (PerturbationLoss(), "refresh", 2.5, WHOLE),
    (PerturbationLoss(), "n_neighbors", 2.5, WHOLE),
    (PerturbationLoss(), "weight", "much", "expected a number >= 0"),
    (AdversarialPruning(), "radius", "far", "is no distance; expected a number >= 0"),
    (AdversarialPruning(), "learner", "arml", "expected one such as ARML"),
    *((Network(), name, value, WHOLE) for name in ("epochs", "batch") for value in (2.5, "abc")),
    (Network(), "sigma", float("nan"), "expected a number >= 0"),
    (Network(), "rate", "fast", "expected a number > 0"),
    (Network(), "random_state", 0.5, "expected a whole number >= 0"),
    (Network(), "widths", [8, 2.5], "expected whole numbers >= 1"),
]


def rows() -> tuple[np.ndarray, np.ndarray]:
    return make_blobs(40, n_features=3, centers=2, random_state=0)


def changed(learner: Any, name: str, value: object) -> Any:
    """As set_params does: the constructor's types are checked in these tests."""
    other = clone(learner)
    setattr(other, name, value)
    return other


@pytest.mark.parametrize(
    ("learner", "name", "value", "message"), WRONG, ids=lambda value: str(value)[:20].replace("\n", "")
)
def test_a_setting_of_the_wrong_kind_is_refused(learner: Any, name: str, value: object, message: str) -> None:
    with pytest.raises(InputError, match=message) as refused:
        changed(learner, name, value).fit(*rows())
    assert name in str(refused.value) and "\n" not in str(refused.value)
    with pytest.raises(InputError, match=message):
        changed(learner, name, value).check_settings()  # before there are rows


def test_the_learner_of_the_rows_that_stay_is_checked_too() -> None:
    with pytest.raises(InputError, match=r"max_iter = 2\.5"):
        AdversarialPruning(0.1, changed(ARML(), "max_iter", 2.5)).check_settings()


@pytest.mark.parametrize("learner", [ARML(), LMNN(), NCA(), PerturbationLoss(), Network(epochs=1)], ids=str)
def test_no_device_is_refused(learner: Any) -> None:
    with pytest.raises(InputError, match="device None is no device; expected a name such as 'cpu'"):
        changed(learner, "device", None).fit(*rows())


def test_numbers_of_numpy_are_numbers() -> None:
    settings = {"n_neighbors": np.int64(3), "max_iter": np.int32(2), "lr": np.float32(0.01), "tol": 0}
    learner = ARML(random_state=0)
    for name, value in settings.items():
        setattr(learner, name, value)
    learner.check_settings()


@pytest.mark.parametrize(
    "learner", [ARML(max_iter=5), LFDA(), ITML(), LMNN(), NCA(), PerturbationLoss(), Euclidean(), AdversarialPruning()]
)
def test_rows_whose_squares_overflow_are_refused_for_that(learner: MetricLearner) -> None:
    x, y = rows()
    with pytest.raises(InputError, match="squares overflow float64; expected rows of moderate size: scale them first"):
        clone(learner).fit(x * 1e200, y)
    with pytest.raises(InputError, match="squares overflow"):
        clone(learner).fit(np.where(x > 0, 1e300, -1e300), y)


def test_what_is_large_but_fits_is_learned_from() -> None:
    x, y = rows()
    found = [ARML(max_iter=5, random_state=0).fit(x * size, y).components_ for size in (1, 2.0**50)]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-5)
    with pytest.raises(InputError, match="too large for squares in float32; expected rows of moderate size"):
        ARML(max_iter=5).fit(x * 2.0**400, y)
    double = ARML(max_iter=5, random_state=0, dtype="float64").fit(x * 2.0**400, y).components_
    np.testing.assert_allclose(double, found[0], rtol=1e-3)


def test_inputs_too_large_for_a_network_are_refused_for_that() -> None:
    x, y = rows()
    with pytest.raises(InputError, match="too large for float32; expected rows of moderate size"):
        Network(epochs=1, widths=[4]).fit(x * 1e200, y)
