"""RobustKNN as scikit-learn sees it, its edge cases, and scalers folded into the metric."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from knn_problems import problem
from sklearn.base import clone
from sklearn.datasets import load_digits, load_iris
from sklearn.decomposition import PCA
from sklearn.frozen import FrozenEstimator
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MaxAbsScaler, MinMaxScaler, QuantileTransformer, RobustScaler, StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from robustmetric.certify import knn as module
from robustmetric.certify.knn import RobustKNN
from robustmetric.certify.nearest import KNearest
from robustmetric.certify.scaling import fold
from robustmetric.errors import InputError
from robustmetric.learn import ARML, LFDA
from robustmetric.models.convnet import ConvNet
from robustmetric.models.mahalanobis import Mahalanobis
from robustmetric.types import Batch


@parametrize_with_checks([RobustKNN(), RobustKNN(n_neighbors=3), RobustKNN(LFDA())])
def test_scikit_learn_takes_it_for_a_classifier(estimator: Any, check: Any) -> None:
    check(estimator)


class Learned:
    """What a metric learner is to the classifier."""

    def __init__(self, matrix: np.ndarray) -> None:
        self.matrix = matrix

    def get_mahalanobis_matrix(self) -> np.ndarray:
        return self.matrix


def test_predictions_are_those_of_scikit_learn() -> None:
    x, y = load_digits(return_X_y=True)
    names = np.array([f"digit {label}" for label in y])
    for k in (1, 3, 7):
        ours = RobustKNN(n_neighbors=k).fit(x[:500], names[:500]).predict(x[500:900])
        theirs = KNeighborsClassifier(k).fit(x[:500], names[:500]).predict(x[500:900])
        assert (ours == theirs).mean() > 0.995  # all but tied votes or distances


def test_a_learner_a_matrix_and_its_factor_are_one_metric() -> None:
    given = problem(0)
    assert given.matrix is not None
    by_matrix = RobustKNN(given.matrix).fit(given.x, given.y)
    by_learner = RobustKNN(Learned(given.matrix)).fit(given.x, given.y)
    values, vectors = np.linalg.eigh(given.matrix)
    factor = vectors * np.sqrt(values)
    theirs = KNeighborsClassifier(1).fit(given.x @ factor, given.y).predict(given.queries @ factor)
    assert (by_matrix.predict(given.queries) == theirs).all()
    assert (by_matrix.certify(given.queries) == by_learner.certify(given.queries)).all()


def test_the_scale_of_the_metric_does_not_matter() -> None:
    given = problem(0)
    assert given.matrix is not None
    one, other = (RobustKNN(c * given.matrix).fit(given.x, given.y).certify(given.queries) for c in (1.0, 1e6))
    assert one == pytest.approx(other, rel=1e-9)


def test_it_works_in_pipelines_clones_and_searches() -> None:
    x, y = load_digits(n_class=4, return_X_y=True)
    search = GridSearchCV(make_pipeline(MinMaxScaler(), RobustKNN()), {"robustknn__n_neighbors": [1, 3]}, cv=2)
    search.fit(x, y)
    assert search.score(x, y) > 0.98
    twin = clone(RobustKNN(np.eye(3), 5, device="cpu"))
    assert twin.n_neighbors == 5 and (twin.metric == np.eye(3)).all()


def test_a_learner_is_cross_validated_and_searched_by_its_settings() -> None:
    x, y = load_iris(return_X_y=True)
    learner = ARML(max_iter=5, random_state=0)
    for metric in (learner, clone(learner).fit(x, y)):
        assert cross_val_score(RobustKNN(metric), x, y, error_score="raise").mean() > 0.9
    search = GridSearchCV(RobustKNN(learner), {"metric__lr": [0.1, 0.01]}, cv=2, error_score="raise").fit(x, y)
    chosen = search.best_estimator_
    expected = clone(learner).set_params(lr=search.best_params_["metric__lr"]).fit(x, y)
    np.testing.assert_array_equal(chosen.metric_.components_, expected.components_)


def test_a_fitted_learner_is_used_and_of_another_a_clone_is_fitted() -> None:
    x, y = load_iris(return_X_y=True)
    learner = LFDA(2)
    knn = RobustKNN(learner).fit(x, y)
    assert knn.metric is learner and "components_" not in vars(learner)
    np.testing.assert_array_equal(knn.metric_.components_, LFDA(2).fit(x, y).components_)
    first = LFDA(2).fit(x[::2], y[::2])
    kept = first.components_.copy()
    assert RobustKNN(first).fit(x, y).metric_ is first
    np.testing.assert_array_equal(first.components_, kept)
    frozen = FrozenEstimator(first)
    assert clone(RobustKNN(frozen)).fit(x, y).metric_ is frozen
    assert RobustKNN().fit(x, y).metric_ is None


def test_a_learner_whose_fit_stopped_half_way_is_not_fitted() -> None:
    x, y = load_iris(return_X_y=True)
    learner = LFDA(9)
    with pytest.raises(InputError, match="n_components = 9 of 4 features"):
        learner.fit(x, y)
    learner.n_components = 2
    assert RobustKNN(learner).fit(x, y).metric_ is not learner


def test_radii_do_not_depend_on_order_or_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    given = problem(0, n=60, queries=20)
    calls: list[tuple[int, int]] = []
    whole = RobustKNN(given.matrix).fit(given.x, given.y)
    radii, delta = whole.certify(given.queries, given.labels, return_perturbation=True)
    bound = RobustKNN(given.matrix, 3).fit(given.x, given.y).certify(given.queries, given.labels, method="bound")
    assert whole.certify(given.queries[::-1], given.labels[::-1])[::-1] == pytest.approx(radii, abs=1e-12)
    order = np.random.default_rng(0).permutation(60)
    shuffled = RobustKNN(given.matrix).fit(given.x[order], given.y[order])
    assert shuffled.certify(given.queries, given.labels) == pytest.approx(radii, abs=1e-12)
    monkeypatch.setattr(module, "HELD", 1)
    monkeypatch.setattr(module, "ACTIVE", 1)
    monkeypatch.setattr("robustmetric.numerics.distances.BLOCK", 60 * 3)  # three points at a time
    again, step = whole.certify(
        given.queries, given.labels, return_perturbation=True, progress=lambda *done: calls.append(done)
    )
    assert again == pytest.approx(radii, abs=1e-12) and step == pytest.approx(delta, abs=1e-9)
    assert [done for done, _ in calls] == [3, 6, 9, 12, 15, 18, 20] and {total for _, total in calls} == {20}
    few = RobustKNN(given.matrix, 3).fit(given.x, given.y).certify(given.queries, given.labels, method="bound")
    assert few == pytest.approx(bound, abs=1e-12)


def test_labels_that_were_not_trained_on_have_radius_zero() -> None:
    knn = RobustKNN().fit([[0.0], [4.0]], ["a", "b"])
    assert knn.certify([[0.0], [0.0]], ["a", "z"]) == pytest.approx([2, 0])
    assert knn.attack([[0.0]], ["z"]).tolist() == [0]


def test_a_single_class_is_never_lost() -> None:
    knn = RobustKNN().fit([[0.0], [4.0]], [3, 3])
    radii, delta = knn.certify([[0.0]], return_perturbation=True)
    assert radii.tolist() == [math.inf] and not delta.any()
    assert knn.certify([[0.0]], [3], method="bound").tolist() == [math.inf]
    assert knn.certify([[0.0]], [4]).tolist() == [0]


def test_float32_rows_are_certified_as_the_numbers_they_are() -> None:
    x, y = load_digits(return_X_y=True)
    x = (x / 3).astype(np.float32)
    narrow = RobustKNN().fit(x[:300], y[:300]).certify(x[300:340])
    wide = RobustKNN().fit(x[:300].astype(np.float64), y[:300]).certify(x[300:340].astype(np.float64))
    assert narrow.dtype == np.float64 and (narrow == wide).all()


@pytest.mark.parametrize("name", ["euclidean", "l2", "minkowski"])
def test_the_names_of_scikit_learn_for_euclidean_distance_are_taken(name: str) -> None:
    x, y = load_iris(return_X_y=True)
    plain, named = RobustKNN().fit(x, y), RobustKNN(metric=name).fit(x, y)
    np.testing.assert_array_equal(named.certify(x[:20], y[:20]), plain.certify(x[:20], y[:20]))
    assert clone(named).metric == name


@pytest.mark.parametrize(
    ("metric", "message"),
    [
        (np.diag([1.0, -1.0]), "eigenvalue -1"),
        (np.array([[1.0, 0.5], [0.0, 1.0]]), "not symmetric"),
        ("manhattan", "metric 'manhattan' has no certificate; expected 'euclidean' \\(or None\\), a matrix"),
        (np.zeros((2, 2)), "zero"),
        (np.eye(3), r"shape \(3, 3\).*2 features"),
        (np.array([[1.0, math.nan], [math.nan, 1.0]]), "NaN"),
        ("cosine", "metric 'cosine' has no certificate"),
        (ARML, "does not fit"),
    ],
)
def test_what_is_no_metric_is_refused(metric: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        RobustKNN(metric).fit([[0.0, 0.0], [1.0, 1.0]], [0, 1])


def test_a_metric_within_rounding_is_taken() -> None:
    factor = np.random.default_rng(0).normal(size=(5, 2)).astype(np.float32)
    matrix = factor @ factor.T
    matrix[0, 1] = np.nextafter(matrix[1, 0], np.float32(9))
    RobustKNN(matrix).fit(np.eye(5), [0, 1, 0, 1, 0])
    RobustKNN(np.array([[2, 0], [0, 1]])).fit(np.eye(2), [0, 1])  # whole numbers


@pytest.mark.parametrize("k", [0, -1, 4, 1.5, "one", True, None])
def test_a_number_of_neighbours_that_cannot_vote_is_refused(k: Any) -> None:
    knn = RobustKNN()
    knn.n_neighbors = k
    with pytest.raises(InputError, match="expected 1 to 3"):
        knn.fit([[0.0], [1.0], [2.0]], [0, 1, 1])


def test_questions_without_an_answer_are_refused() -> None:
    one, three = (RobustKNN(n_neighbors=k).fit(np.arange(6.0)[:, None], [0, 0, 0, 1, 1, 1]) for k in (1, 3))
    with pytest.raises(ValueError, match="NaN"):
        one.certify([[math.nan]])
    with pytest.raises(InputError, match="no exact radius is known for n_neighbors=3"):
        three.certify([[0.0]])
    with pytest.raises(InputError, match="'bond' does not certify k-NN; did you mean 'bound'"):
        one.certify([[0.0]], method="bond")
    with pytest.raises(InputError, match="comes without a perturbation"):
        one.certify([[0.0]], method="bound", return_perturbation=True)
    with pytest.raises(InputError, match="positives=1 prove nothing for 2 votes"):
        three.certify([[0.0]], method="bound", positives=1)
    with pytest.raises(InputError, match="1 rows with 2 labels"):
        one.certify([[0.0]], [0, 1])
    for bounds in ((1, 0), (0, 0)):
        with pytest.raises(InputError, match="are empty"):
            one.certify([[0.0]], bounds=bounds)
    with pytest.raises(InputError, match="are no box"):
        one.certify([[0.0]], bounds=([0.0, 0.0], [1.0, 1.0]))


WITHOUT_AN_ANSWER: list[tuple[dict[str, Any], str]] = [
    ({"positives": 2.5}, "positives=2.5 prove nothing for 1 votes; expected 1 or more"),
    ({"positives": True}, "positives=True prove nothing for 1 votes; expected 1 or more"),
    ({"positives": 2, "return_perturbation": True}, "positives=2 come without a perturbation; use positives=None"),
    ({"method": None}, r"None does not certify k-NN; expected bound, exact"),
    ({"method": "bound", "bounds": (1, 0)}, "are empty; expected low < high"),
]


@pytest.mark.parametrize(("settings", "message"), WITHOUT_AN_ANSWER, ids=str)
def test_arguments_of_the_wrong_kind_are_refused_in_one_line(settings: dict[str, Any], message: str) -> None:
    knn = RobustKNN().fit([[0.0], [1.0], [2.0]], [0, 1, 1])
    with pytest.raises(InputError, match=message) as refused:
        knn.certify([[0.0]], **settings)
    assert "\n" not in str(refused.value)


SCALERS = [
    StandardScaler(),
    StandardScaler(with_std=False),
    MinMaxScaler((-1, 3)),
    MaxAbsScaler(),
    RobustScaler(),
    PCA(2),
    PCA(3, whiten=True),
    make_pipeline(StandardScaler(), "passthrough", PCA(2)),
]


@pytest.mark.parametrize("scaler", SCALERS, ids=str)
def test_folding_gives_radii_of_the_raw_input(scaler: Any) -> None:
    given = problem(0, queries=6)
    x, queries = given.x * [1, 10, 0.1, 3] + 5, given.queries * [1, 10, 0.1, 3] + 5
    scaled = scaler.fit(x).transform(x)
    factor = np.random.default_rng(1).normal(size=(scaled.shape[1], scaled.shape[1]))
    matrix = factor @ factor.T
    behind = RobustKNN(matrix).fit(scaled, given.y)
    folded = RobustKNN(fold(scaler, matrix)).fit(x, given.y)
    labels = behind.predict(scaler.transform(queries))
    assert (folded.predict(queries) == labels).all()
    radii, delta = folded.certify(queries, return_perturbation=True)
    assert np.linalg.norm(delta, axis=1) == pytest.approx(radii, rel=2e-6)
    # The scaled classifier sees the same change, and no change inside the radius.
    assert (behind.predict(scaler.transform(queries + delta * (1 + 1e-6))) != labels).all()
    for seed in range(30):
        step = np.random.default_rng(seed).normal(size=queries.shape)
        step *= radii[:, None] * (1 - 1e-6) / np.linalg.norm(step, axis=1, keepdims=True)
        assert (behind.predict(scaler.transform(queries + step)) == labels).all()


def test_a_device_that_is_not_there_is_refused() -> None:
    with pytest.raises(InputError, match="device 'cuda:99' cannot be used"):
        RobustKNN(device="cuda:99").fit([[0.0], [1.0]], [0, 1])


def test_folding_refuses_what_is_no_metric_however_small() -> None:
    scaler = StandardScaler(with_mean=False, with_std=False).fit([[0.0, 0.0], [1.0, 2.0]])
    with pytest.raises(InputError, match="not symmetric"):
        fold(scaler, 1e-9 * np.array([[1.0, 1.0], [0.0, 1.0]]))
    # A skew part within the rounding of its own type is none.
    assert fold(scaler, np.array([[1, 0.1], [0.1 + 1e-8, 1]], dtype=np.float32)) == pytest.approx(
        np.array([[1, 0.1], [0.1, 1]]), abs=1e-6
    )


def test_folding_by_hand() -> None:
    # x' = x / 2 in the first feature: half-way between 0 and 4 is 2, whatever the scale.
    scaler = MinMaxScaler().fit([[0.0, 0.0], [2.0, 1.0]])
    assert fold(scaler).tolist() == [[0.25, 0], [0, 1]]
    assert fold(scaler, np.array([[4.0, 2.0], [2.0, 3.0]])).tolist() == [[1, 1], [1, 3]]


class Clipped(StandardScaler):  # type: ignore[misc]  # scikit-learn has no types
    """A subclass that is not linear."""

    def transform(self, X: Any, copy: bool | None = None) -> Any:
        return np.clip(super().transform(X, copy), -1, 1)


@pytest.mark.parametrize("solver", ["covariance_eigh", "full"])
def test_whitening_of_a_direction_without_variance_is_refused(solver: str) -> None:
    """The fourth feature is the sum of two: its direction is rounding, magnified until no other counts."""
    x = load_iris().data[:, :3]
    x = np.c_[x, x[:, 0] + x[:, 1]]
    with pytest.raises(InputError, match=r"divides 4 components by .* expected fewer components, or whiten=False"):
        fold(PCA(4, whiten=True, svd_solver=solver).fit(x))
    pca = PCA(3, whiten=True, svd_solver=solver).fit(x)
    moved, difference = pca.transform(x[:75]) - pca.transform(x[75:]), x[:75] - x[75:]
    found = np.einsum("ni,ij,nj->n", difference, fold(pca), difference)
    np.testing.assert_allclose(found, np.square(moved).sum(axis=1), atol=1e-12)


def test_whitening_by_hand_whatever_the_units() -> None:
    # Two axes at right angles with variances 2 s^2 / 3 and 2 / 3: the metric divides by them.
    x = np.array([[1e9, 0.0], [-1e9, 0.0], [0.0, 1.0], [0.0, -1.0]])
    np.testing.assert_allclose(fold(PCA(2, whiten=True).fit(x)), np.diag([1.5e-18, 1.5]), rtol=1e-9, atol=1e-30)


def test_a_scaler_that_is_not_linear_is_refused() -> None:
    rows = np.random.default_rng(0).normal(size=(30, 2))
    for scaler in (QuantileTransformer(n_quantiles=10), MinMaxScaler(clip=True)):
        with pytest.raises(InputError, match="not known to be linear"):
            fold(scaler.fit(rows))
        with pytest.raises(InputError, match="not known to be linear"):
            fold(make_pipeline(StandardScaler(), scaler).fit(rows))
    with pytest.raises(InputError, match=r"Clipped.* is not known to be linear"):
        fold(Clipped().fit(rows))
    with pytest.raises(InputError, match=r"shape \(3, 3\) cannot follow StandardScaler"):
        fold(StandardScaler().fit(rows), np.eye(3))
    with pytest.raises(InputError, match="no step to fold"):
        fold(make_pipeline("passthrough").fit(rows))


def test_a_mahalanobis_model_is_certified_as_its_matrix() -> None:
    given = problem(0)
    assert given.matrix is not None
    model = Mahalanobis.from_matrix(torch.tensor(given.matrix))
    references, queries = (
        Batch(torch.tensor(x), torch.tensor(y), torch.arange(len(y)))
        for x, y in ((given.x, given.y), (given.queries, given.labels))
    )
    radii = KNearest().radius(model, queries, references)
    expected = RobustKNN(given.matrix).fit(given.x, given.y).certify(given.queries, given.labels)
    assert radii.tolist() == pytest.approx(expected.tolist(), abs=1e-9)
    with pytest.raises(InputError, match="ConvNet is not linear"):
        KNearest().radius(ConvNet(), queries, references)


@pytest.mark.gpu
def test_a_gpu_gives_the_same_radii() -> None:
    given = problem(0, n=200, dim=8, queries=50)
    for k, method in ((1, "exact"), (1, "bound"), (5, "bound")):
        cpu, gpu = (
            RobustKNN(given.matrix, k, device=device).fit(given.x, given.y).certify(given.queries, method=method)
            for device in ("cpu", "cuda")
        )
        assert cpu == pytest.approx(gpu, abs=1e-9)


FOUR, PAIRS = np.array([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0], [0.0, 4.0]]), [0, 0, 1, 1]


@pytest.mark.parametrize("settings", [{}, {"bounds": (0, 5)}, {"method": "bound"}])
def test_rows_that_a_metric_does_not_tell_apart_prove_nothing(settings: dict[str, Any]) -> None:
    """All are at distance 0: a tie, and a tie counts as lost."""
    same = RobustKNN().fit(np.ones((4, 2)), PAIRS)
    assert same.certify([[1.0, 1.0]], [0], **settings).tolist() == [0.0]
    blind = RobustKNN(np.diag([1.0, 0.0])).fit(FOUR, PAIRS)  # the first feature is constant
    assert blind.certify(FOUR[:2], [0, 0], **settings).tolist() == [0.0, 0.0]


@pytest.mark.parametrize("size", [1e155, 1e-163, 1e300, 1e-300])
def test_the_size_of_a_matrix_does_not_matter(size: float) -> None:
    found = RobustKNN(size * np.eye(2)).fit(FOUR, PAIRS).certify(FOUR[:2])
    np.testing.assert_allclose(found, [1.5, 0.5], rtol=1e-12)


@pytest.mark.parametrize("size", [1e90, 1e-90])
def test_large_and_small_rows_keep_their_digits(size: float) -> None:
    found = RobustKNN().fit(size * FOUR, PAIRS).certify(size * FOUR[:2])
    np.testing.assert_allclose(found / size, [1.5, 0.5], rtol=1e-9)


def test_numbers_whose_squares_are_none_are_refused() -> None:
    for size, message in ((1e154, "as large as 4e[+]154"), (1e-165, "differ by 3e-165 at most")):
        with pytest.raises(InputError, match=f"{message}.*scale the rows"):
            RobustKNN().fit(size * FOUR, PAIRS)
    with pytest.raises(InputError, match=r"as large as 1e[+]160"):
        RobustKNN().fit(FOUR, PAIRS).certify([[0.0, 1e160]])


def test_wide_rows_are_taken_in_smaller_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a quadratic program holds grows with the features: 64 rows of them per point."""
    sizes: list[int] = []
    solve = module.exact_radii
    monkeypatch.setattr(module, "exact_radii", lambda s, z, *rest: (sizes.append(len(z)), solve(s, z, *rest))[1])
    monkeypatch.setattr("robustmetric.numerics.distances.BLOCK", 16 * 64 * 5)
    random = np.random.default_rng(0)
    rows, labels = random.normal(size=(20, 16)), np.arange(20) % 2
    RobustKNN().fit(rows, labels).certify(random.normal(size=(23, 16)), np.zeros(23))
    assert sizes == [20, 3]
