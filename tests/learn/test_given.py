"""Metrics that are not learned here."""

from pathlib import Path

import numpy as np
import pytest

from commands import Command
from robustmetric.certify.knn import RobustKNN
from robustmetric.errors import InputError
from robustmetric.jobs import certify as job
from robustmetric.learn import Euclidean, Given

X, Y = np.array([[0.0, 0.0], [2.0, 0.0], [0.0, 3.0]]), np.array([0, 1, 1])


def saved(path: Path, matrix: object) -> str:
    np.save(path, np.asarray(matrix))
    return str(path)


def test_distances_are_those_of_the_matrix_in_the_file(tmp_path: Path) -> None:
    matrix = np.array([[2.0, 1.0], [1.0, 2.0]])
    learner = Given(saved(tmp_path / "m.npy", matrix)).fit(X, Y)
    np.testing.assert_allclose(learner.get_mahalanobis_matrix(), matrix, atol=1e-12)
    moved = learner.transform(X)
    # (2, -3) M (2, -3)^T = 8 - 12 + 18.
    assert np.linalg.norm(moved[1] - moved[2]) ** 2 == pytest.approx(14)
    # From the origin to the border with (2, 0) under diag(1, 0), whatever the second feature: 1.
    flat = Given(saved(tmp_path / "flat.npy", [[1, 0], [0, 0]])).fit(X[:2], Y[:2])
    assert RobustKNN(flat).fit(X[:2], Y[:2]).certify(X[:1]) == pytest.approx([1.0])


def test_the_command_certifies_under_a_matrix_of_ones_own(tmp_path: Path) -> None:
    path = saved(tmp_path / "identity.npy", np.eye(64))
    own, euclidean = (
        job.certify("tabular/digits-euclidean", tmp_path / name, [f"learner={learner}", "points=60"])
        for name, learner in (("own", f"{{name: given, file: {path}}}"), ("euclidean", "{name: euclidean}"))
    )
    assert [r.scores for r in own[1:]] == [r.scores for r in euclidean[1:]]


@pytest.mark.parametrize(
    ("matrix", "said"),
    [
        (np.eye(3), "does not fit rows of 2 features"),
        (np.ones((2, 3)), "expected one square matrix"),
        (np.array([[1.0, np.nan], [0.0, 1.0]]), "no finite number"),
        (np.array([["a", "b"], ["c", "d"]]), "no finite number"),
        (np.array([[1.0, 0.0], [0.0, -1.0]]), "eigenvalue"),
        (np.array([[1.0, 1.0], [0.0, 1.0]]), "symmetric"),
    ],
)
def test_a_matrix_that_is_no_metric_of_the_rows_is_refused(tmp_path: Path, matrix: np.ndarray, said: str) -> None:
    with pytest.raises(InputError, match=said):
        Given(saved(tmp_path / "m.npy", matrix)).fit(X, Y)


def test_a_file_that_is_not_there_is_said_before_anything_is_begun(tmp_path: Path, command: Command) -> None:
    words = ["certify", "tabular/digits-euclidean", "learner={name: given, file: none.npy}", "-o", "run"]
    assert "'none.npy' does not exist; expected a metric's matrix" in command(*words).error
    assert not Path("run").exists()
    (tmp_path / "text.npy").write_text("no array")
    with pytest.raises(InputError, match=r"text\.npy is no array of numpy\.save"):
        Given(str(tmp_path / "text.npy")).fit(X, Y)


def test_the_euclidean_metric_is_the_identity() -> None:
    assert Euclidean().fit(X, Y).get_mahalanobis_matrix().tolist() == np.eye(2).tolist()
