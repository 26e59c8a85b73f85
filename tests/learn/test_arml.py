"""ARML: what its settings do, how it fails, and that it hardens the classifier."""

import warnings

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from robustmetric.errors import InputError
from robustmetric.learn import ARML
from robustmetric.learn.margin import margins
from robustmetric.learn.neighbours import Classes

Table = np.ndarray


@pytest.fixture(scope="module")
def noisy() -> tuple[Table, Table]:
    """Two classes 1 apart in the first feature; the other six are noise."""
    rng = np.random.RandomState(0)
    y = np.arange(200) % 2
    signal, noise = y + 0.1 * rng.standard_normal(200), 0.5 * rng.standard_normal((200, 6))
    return np.concatenate([signal[:, None], noise], axis=1), y


@pytest.fixture(scope="module")
def digits() -> list[Table]:
    x, y = load_digits(return_X_y=True)
    return train_test_split(x / 16, y, test_size=0.3, stratify=y, random_state=0)


def mean_margin(learner: ARML, x: Table, y: Table) -> float:
    """Of each row's nearest neighbours in the learned metric."""
    rows, factor = torch.from_numpy(x), torch.from_numpy(learner.components_)
    found = Classes(torch.from_numpy(y)).candidates(rows @ factor.T, 1)
    return margins(factor, rows, found.anchors, found.positives[:, 0], found.negatives[:, 0]).mean().item()


def test_noise_loses_weight(noisy: tuple[Table, Table]) -> None:
    weights = np.diag(ARML(random_state=0).fit(*noisy).get_mahalanobis_matrix())
    assert weights[0] > 3 * weights[1:].max()
    assert weights.sum() == pytest.approx(7, rel=1e-5)  # as long as the identity


@pytest.mark.parametrize("loss", ["neg", "hinge", "logistic", "exp"])
@pytest.mark.parametrize("sampling", ["random", "kth"])
def test_every_loss_and_sampling_raises_the_margin(noisy: tuple[Table, Table], loss: str, sampling: str) -> None:
    settings = {"loss": loss, "sampling": sampling, "n_votes": 3, "random_state": 0}
    before = mean_margin(ARML(max_iter=1, lr=1e-9, **settings).fit(*noisy), *noisy)
    after = mean_margin(ARML(max_iter=100, **settings).fit(*noisy), *noisy)
    # The middle between the classes is half a unit away: more than that on average is out of reach.
    assert before < 0.38
    assert 0.44 < after < 0.5


def test_first_loss_is_that_of_the_euclidean_metric() -> None:
    # One candidate on either side: 0, 1 | 4, 6 on a line.
    # z=0: p=1, n=4: (16 - 1) / 6 = 2.5; z=1: p=0, n=4: (9 - 1) / 8 = 1; z=4: p=6, n=1: (9 - 4) / 10 = .5;
    # z=6: p=4, n=1: (25 - 4) / 6 = 3.5. The mean is 1.875.
    x, y = [[0.0], [1.0], [4.0], [6.0]], [0, 0, 1, 1]
    learner = ARML(n_neighbors=1, max_iter=3).fit(x, y)
    assert learner.loss_curve_[0] == pytest.approx(-1.875, rel=1e-6)
    assert learner.n_iter_ == len(learner.loss_curve_) == 3
    # One feature leaves nothing to learn, and G is as long as the identity.
    np.testing.assert_allclose(learner.get_mahalanobis_matrix(), [[1.0]], rtol=1e-6)


def test_units_and_place_of_the_rows_do_not_matter(noisy: tuple[Table, Table]) -> None:
    x, y = noisy
    settings = {"max_iter": 30, "random_state": 0, "dtype": "float64"}
    expected = ARML(**settings).fit(x, y)
    moved = ARML(**settings).fit(1e4 * x + 1e6, y)
    np.testing.assert_allclose(moved.components_, expected.components_, atol=1e-5)
    np.testing.assert_allclose(moved.loss_curve_, 1e4 * np.array(expected.loss_curve_), rtol=1e-4)


def test_same_seed_same_metric_other_seed_another(digits: list[Table]) -> None:
    x, _, y, _ = digits
    first, again, other = (ARML(max_iter=5, random_state=seed).fit(x, y).components_ for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert np.abs(first - other).max() > 1e-4


def test_kth_sampling_needs_no_seed(digits: list[Table]) -> None:
    x, _, y, _ = digits
    settings = {"sampling": "kth", "max_iter": 3}
    first, other = (ARML(**settings, random_state=seed).fit(x, y).components_ for seed in (1, 2))
    np.testing.assert_array_equal(first, other)


def test_released_settings_are_one_call() -> None:
    released = ARML.released(random_state=3)
    assert (released.lr, released.max_iter, released.refresh, released.n_neighbors) == (1e-3, 1000, 1, 10)
    assert (released.batch_size, released.decay, released.random_state) == (None, False, 3)
    assert ARML.released(max_iter=5).max_iter == 5
    assert ARML().refresh == 10


def test_a_batch_is_a_step(noisy: tuple[Table, Table]) -> None:
    x, y = noisy
    whole = ARML(max_iter=1, lr=1e-3, decay=False, random_state=0).fit(x, y).components_
    batches = ARML(max_iter=1, lr=1e-3, decay=False, batch_size=10, random_state=0).fit(x, y).components_
    # Adam moves an entry by about lr a step: 1 step against 20 (and each is scaled to the identity's length).
    assert np.abs(whole - np.eye(7)).max() < 2e-3
    assert np.abs(batches - np.eye(7)).max() > 5e-3


@pytest.mark.parametrize(("rank", "init"), [(2, "identity"), (2, "pca"), (5, "noise")])
def test_components_and_starts(digits: list[Table], rank: int, init: str) -> None:
    x, _, y, _ = digits
    learner = ARML(rank, init=init, max_iter=2, random_state=0).fit(x[:300], y[:300])
    assert learner.components_.shape == (rank, 64)
    assert learner.transform(x[:7]).shape == (7, rank)
    assert np.linalg.matrix_rank(learner.get_mahalanobis_matrix()) == rank
    assert np.square(learner.components_).sum() == pytest.approx(rank, rel=1e-5)


def test_a_given_start_is_kept_in_direction() -> None:
    x, y = np.random.RandomState(0).standard_normal((40, 2)), np.arange(40) % 2
    given = np.array([[3.0, 4.0]])
    ARML(1, init=given, max_iter=2, dtype="float64").fit(x, y)
    assert given.tolist() == [[3.0, 4.0]]  # not moved itself
    learner = ARML(1, init=given, max_iter=1, lr=1e-9).fit(x, y)
    np.testing.assert_allclose(learner.components_, given / 5, atol=1e-6)
    with pytest.raises(InputError, match=r"init has shape \(1, 2\); expected .* \(2, 2\)"):
        ARML(2, init=given).fit(x, y)


def test_learning_stops_when_the_loss_stands_still(noisy: tuple[Table, Table]) -> None:
    learner = ARML(max_iter=2000, lr=0.1, decay=False, tol=0.01, random_state=0).fit(*noisy)
    assert learner.n_iter_ < 1000
    assert learner.n_iter_ % 10 == 0
    assert ARML(max_iter=60, random_state=0).fit(*noisy).n_iter_ == 60


def test_verbose_says_where_it_is(noisy: tuple[Table, Table], capsys: pytest.CaptureFixture[str]) -> None:
    ARML(max_iter=20, verbose=True, random_state=0).fit(*noisy)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(",")[0] for line in lines] == ["ARML: iteration 10", "ARML: iteration 20"]


def test_small_classes_are_warned_of_and_used() -> None:
    x, y = np.random.RandomState(0).standard_normal((40, 3)), np.repeat([0, 1, 2], [30, 9, 1])
    with pytest.warns(UserWarning, match="2 of 3 classes have at most 10 rows .the smallest 1."):
        learner = ARML(max_iter=3, random_state=0).fit(x, y)
    assert np.isfinite(learner.components_).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ARML(max_iter=3, n_neighbors=8).fit(x[:39], y[:39])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "huber"}, "loss 'huber' is not known"),
        ({"sampling": "nearest"}, "sampling 'nearest' is not known"),
        ({"init": "unit"}, "init 'unit' is not known"),
        ({"dtype": "float16"}, "dtype 'float16' is not known"),
        ({"device": "abacus"}, "device 'abacus' cannot be used"),
        ({"n_neighbors": 0}, "n_neighbors = 0; expected a whole number >= 1"),
        ({"refresh": 0}, "refresh = 0"),
        ({"lr": -1.0}, "lr = -1.0"),
        ({"batch_size": 0}, "batch_size = 0"),
        ({"n_components": 3}, "n_components = 3 of 2 features; expected 1 to 2"),
        ({"sampling": "kth", "n_votes": 11, "n_neighbors": 5}, "n_neighbors = 5 for 11 votes; expected at least 6"),
    ],
)
def test_wrong_settings_are_refused(settings: dict[str, object], message: str) -> None:
    x, y = np.random.RandomState(0).standard_normal((40, 2)), np.arange(40) % 2
    learner = ARML()
    for name, value in settings.items():
        setattr(learner, name, value)  # as set_params does; the constructor's types are checked in these tests
    with pytest.raises(InputError, match=message):
        learner.fit(x, y)


def test_a_rate_that_leads_nowhere_is_named(noisy: tuple[Table, Table]) -> None:
    with pytest.raises(InputError, match="expected a smaller rate"):
        ARML(lr=1e30, max_iter=5, random_state=0).fit(*noisy)


def test_classes_of_one_row_have_nothing_to_learn_from() -> None:
    with pytest.raises(InputError, match="no row has 1 others of its class"):
        ARML().fit([[0.0], [1.0], [2.0]], [0, 1, 2])


@pytest.mark.gpu
def test_a_gpu_learns_the_same(digits: list[Table]) -> None:
    x, _, y, _ = digits
    settings = {"sampling": "kth", "max_iter": 10, "dtype": "float64"}
    on_cpu, on_gpu = (ARML(**settings, device=device).fit(x, y) for device in ("cpu", "cuda"))
    np.testing.assert_allclose(on_gpu.loss_curve_, on_cpu.loss_curve_, rtol=1e-3)
    random = ARML(random_state=0, device="cuda").fit(x, y)
    np.testing.assert_allclose(random.loss_curve_[-1], ARML(random_state=0).fit(x, y).loss_curve_[-1], rtol=0.02)


def test_the_metric_withstands_more_and_errs_no_more_on_digits(digits: list[Table]) -> None:
    from robustmetric.certify.knn import RobustKNN

    x, x_test, y, y_test = digits
    learner = ARML(random_state=42).fit(x, y)
    radii = {name: RobustKNN(m).fit(x, y).certify(x_test, y_test) for name, m in (("arml", learner), ("plain", None))}
    errors = {name: [(found <= r).mean() for r in (0, 0.2, 0.4, 0.6)] for name, found in radii.items()}
    # Euclidean: .017 .043 .211 .472, mean .5987; ARML in the specification: .007 .039 .178 .413, mean .6214.
    assert errors["plain"] == pytest.approx([0.0167, 0.0426, 0.2111, 0.4722], abs=1e-3)
    assert errors["arml"] == pytest.approx([0.007, 0.039, 0.178, 0.413], abs=0.012)
    assert radii["arml"].mean() > radii["plain"].mean() + 0.015
