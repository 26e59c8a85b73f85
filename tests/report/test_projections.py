"""Pictures of embeddings: axes that the clean ones decide, the attack that did most harm, files that are damaged."""

import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from sample_runs import MakeRun
from test_clustering_tables import ALONE, record
from test_page import page

from commands import Command
from robustmetric.errors import InputError
from robustmetric.report import projections
from robustmetric.report.clustering import BOTH
from robustmetric.report.projections import panorama, pca, portraits, project, read_sample
from robustmetric.report.runs import read_runs


@pytest.fixture
def without_tsne(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(projections, "find_spec", lambda name: None)


def keep(run: Path, name: str = "one", **changes: Any) -> Path:
    """A file as `evaluate` writes it."""
    random = np.random.default_rng(0)
    arrays = {
        "clean": random.normal(size=(12, 6)).astype(np.float16),
        "moved": random.normal(size=(12, 6)).astype(np.float16),
        "classes": np.array(["tit", "jay", "owl"] * 4),
        "suite": np.array("clustering"),
        "attack": np.array("A1"),
        "radius": np.array(8 / 255),
    }
    (run / "embeddings").mkdir(exist_ok=True)
    path = run / "embeddings" / f"{name}.npz"
    np.savez(path, **(arrays | changes))
    return path


def test_pca_by_hand() -> None:
    # Along the first axis from -4 to 4, along the third from -1 to 1, never along the second; the middle is (1, 1, 1).
    clean = np.array([[-3.0, 1, 1], [5, 1, 1], [1, 1, 0], [1, 1, 2]])
    moved = np.array([[1.0, 9, 1], [3, 1, 4]])
    first, second = pca(clean, moved)
    np.testing.assert_allclose(first, [[-4, 0], [4, 0], [0, -1], [0, 1]], atol=1e-12)
    np.testing.assert_allclose(second, [[0, 0], [2, 3]], atol=1e-12)


def test_one_direction_is_enough() -> None:
    first, second = pca(np.array([[0.0], [2.0]]), np.array([[5.0]]))
    np.testing.assert_allclose(first, [[-1, 0], [1, 0]])
    np.testing.assert_allclose(second, [[4, 0]])


@pytest.mark.usefixtures("without_tsne")
def test_what_is_attacked_has_no_part_in_the_axes() -> None:
    random = np.random.default_rng(1)
    clean, moved = random.normal(size=(20, 5)), random.normal(size=(20, 5))
    first, _, method = project(clean, moved)
    again, same, _ = project(clean, clean)
    assert method == "PCA"
    np.testing.assert_array_equal(first, again)
    np.testing.assert_allclose(same, again)


class Fitted:
    """Stands for t-SNE: keeps what it was given, and doubles the first two columns."""

    seen: list[tuple[str, int]]

    def __init__(self, perplexity: float, random_state: int, n_jobs: int) -> None:
        self.settings = perplexity, random_state

    def fit(self, x: Any) -> Any:
        Fitted.seen = [("fit", len(x))]
        points = (2 * x[:, :2]).view(Points)
        points.settings = self.settings
        return points


class Points(np.ndarray):
    settings: tuple[float, int]

    def transform(self, x: Any) -> Any:
        Fitted.seen.append(("transform", len(x)))
        return 2 * x[:, :2]


def test_t_sne_is_fitted_on_the_clean_ones_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("openTSNE")
    module.__spec__ = ModuleSpec("openTSNE", None)
    module.TSNE = Fitted  # type: ignore[attr-defined]  # a stand-in
    monkeypatch.setitem(sys.modules, "openTSNE", module)
    clean, moved = np.ones((10, 3)), np.zeros((7, 3))
    first, second, method = project(clean, moved)
    assert method == "t-SNE" and Fitted.seen == [("fit", 10), ("transform", 7)]
    assert first.tolist() == [[2, 2]] * 10 and second.tolist() == [[0, 0]] * 7


def test_t_sne_keeps_blobs_apart_and_places_their_twins_beside_them() -> None:
    pytest.importorskip("openTSNE")
    random = np.random.default_rng(0)
    centres = np.repeat(10 * np.eye(8)[:3], 20, axis=0)
    clean = centres + 0.1 * random.normal(size=(60, 8))
    first, second, method = project(clean, clean + 1e-3)
    middles = np.stack([first[i : i + 20].mean(axis=0) for i in (0, 20, 40)])
    nearest = np.linalg.norm(second[:, None] - middles, axis=2).argmin(axis=1)
    assert method == "t-SNE" and nearest.tolist() == sorted([0, 1, 2] * 20)


@pytest.mark.usefixtures("without_tsne")
def test_the_picture_is_of_the_attack_that_did_most_harm_at_the_smallest_radius(make_run: MakeRun) -> None:
    run = make_run("at", *ALONE, record("joint", BOTH, "alone", 21.0, 1.0))
    keep(run)
    keep(run, "two", attack=np.array("joint"))
    keep(run, "three", attack=np.array("A1"), radius=np.array(32 / 255))
    keep(run, "four", suite=np.array("clustering_sweep"))
    found = portraits(read_runs([run]))
    assert [portrait.caption.split(";")[0] for portrait in found] == [
        "Suite clustering_sweep: 12 images of 3 classes, clean and moved by A1 at 8/255",
        "Suite clustering: 12 images of 3 classes, clean and moved by joint at 8/255",
    ]
    assert all(">clean<" in portrait.plot and "PCA" in portrait.plot for portrait in found)


@pytest.mark.usefixtures("without_tsne")
def test_the_newest_evaluation_says_which_attack_did_most_harm(make_run: MakeRun) -> None:
    old, new = (
        [replace(record(trial, BOTH, "alone", 20.0, f1), seed=seed) for trial, f1 in found.items()]
        for seed, found in enumerate(({"A1": 1.0, "joint": 2.0}, {"A1": 4.0, "joint": 3.0}))
    )
    run = make_run("at", *old, *new)
    keep(run)
    keep(run, "two", attack=np.array("joint"))
    (portrait,) = portraits(read_runs([run]))
    assert "moved by joint at 8/255" in portrait.caption


@pytest.mark.usefixtures("without_tsne")
def test_every_run_has_its_picture_on_the_page(make_run: MakeRun, tmp_path: Path) -> None:
    runs = [make_run("at", *ALONE), make_run("eat", *ALONE)]
    for run in runs:
        keep(run)
    shown = page(tmp_path, *runs)
    assert "Embeddings, clean and attacked" in shown.text
    assert [value for _, key, value in shown.attributes if key == "aria-label" and "PCA of" in value] == [
        "PCA of at's embeddings, clean and under A1 at 8/255",
        "PCA of eat's embeddings, clean and under A1 at 8/255",
    ]


@pytest.mark.usefixtures("without_tsne")
def test_pictures_of_several_runs_stand_below_one_another(make_run: MakeRun, command: Command, tmp_path: Path) -> None:
    runs = [make_run("at", *ALONE), make_run("none", *ALONE), make_run("eat", *ALONE)]
    for run in (runs[0], runs[2]):
        keep(run)
    figure = panorama(read_runs(runs))
    assert [axes.get_ylabel() for axes in figure.axes[::2]] == ["at", "eat"], "one has kept none"
    assert [axes.get_title() for axes in figure.axes] == ["clean", "A1 at 8/255"] * 2
    assert all(sum(len(part.get_offsets()) for part in axes.collections) == 12 for axes in figure.axes)
    result = command("report", *runs, "--pictures", "-o", tmp_path / "out")
    assert result.code == 0 and sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "embeddings.png",
        "embeddings.svg",
    ]
    result = command("report", runs[1], "--pictures")
    assert result.code == 2 and "robustmetric evaluate RUN clustering" in result.err


def test_a_damaged_file_is_named(make_run: MakeRun) -> None:
    run = make_run("at", *ALONE)
    path = keep(run, moved=np.zeros((12, 5)))
    with pytest.raises(InputError, match=r"one\.npz holds 12 classes for embeddings of shapes \(12, 6\) and \(12, 5\)"):
        read_sample(path)
    path.write_bytes(b"PK\x03\x04 no more")
    with pytest.raises(InputError, match=r"one\.npz holds no embeddings that can be read"):
        portraits(read_runs([run]))
    np.savez(path, clean=np.zeros((2, 2)))
    with pytest.raises(InputError, match="holds no embeddings"):
        read_sample(path)


@pytest.mark.usefixtures("without_tsne")
def test_hostile_names_are_shown_and_not_obeyed(make_run: MakeRun, tmp_path: Path) -> None:
    hostile = "<script>alert(1)</script> $\\frac$ \\1"
    run = make_run("at", *ALONE)
    keep(run, suite=np.array(hostile), attack=np.array(hostile), classes=np.array([hostile] * 12))
    shown = page(tmp_path, run)
    assert f"Suite {hostile}: 12 images of 1 classes" in shown.text
    assert not any(tag == "script" for tag, _, _ in shown.attributes)
    assert "<script" not in (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
