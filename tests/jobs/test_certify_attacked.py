"""Attacking k-NN beside what is proved of it: the other side of the curve, kept apart from proofs."""

import json
from pathlib import Path

import numpy as np
import pytest

from commands import Command
from robustmetric import records
from robustmetric.jobs import certify as job
from robustmetric.jobs.certified_ledger import read_certified_row
from robustmetric.report.certified import certified_table, curves
from robustmetric.report.certified_schema import faults


def table(folder: Path, certificates: str) -> Path:
    """Three rows of a class at each end of a line."""
    np.savez(
        folder / "line.npz",
        x_train=np.array([[0.0], [0.1], [0.2], [1.0], [1.1], [1.2]]), y_train=np.array([0, 0, 0, 1, 1, 1]),
        x_test=np.array([[0.1], [0.4], [1.1], [0.7]]), y_test=np.array([0, 0, 1, 0]),
    )  # fmt: skip
    path = folder / "line.yaml"
    path.write_text(
        f"data: {{name: tabular, file: {folder / 'line.npz'}}}\nlearner: {{name: euclidean}}\n"
        f"certificates: {certificates}\nradii: [0, 0.1, 0.3, 0.6]\n"
    )
    return path


BOTH = "[{name: knn_certificate}, {name: knn_certificate, neighbours: 3, method: bound}]"


def test_an_attack_ends_where_the_vote_turns_and_never_below_a_proof(tmp_path: Path) -> None:
    path = table(tmp_path, BOTH)
    _, exact, bound, one, three = job.certify(str(path), tmp_path / "run", attack="greedy")
    assert [r.kind for r in (exact, bound, one, three)] == ["certified"] * 2 + ["empirical"] * 2
    assert [r.name for r in (one, three)] == ["1-NN attacked, greedy", "3-NN attacked, greedy"]
    # One neighbour: the border lies at 0.6, so radii are 0.5, 0.2, 0.5 and 0. Three: the vote
    # turns where 1.1 is as near as 0.1, the second of each class: the same border.
    for record in (exact, one, three):
        assert record.scores["mean radius"] == pytest.approx(0.3, abs=1e-6)
        assert [record.scores[f"error@{r}"] for r in (0, 0.1, 0.3, 0.6)] == [25, 25, 50, 100]
    assert bound.scores["mean radius"] <= three.scores["mean radius"] + 1e-9
    assert job.certify(str(path), tmp_path / "run", attack="greedy")[1:] == [exact, bound, one, three], "resumed"


def test_each_number_of_neighbours_is_attacked_once(tmp_path: Path) -> None:
    path = table(tmp_path, "[{name: knn_certificate}, {name: knn_certificate, method: bound}]")
    found = job.certify(str(path), tmp_path / "run", attack="boundary")
    assert [r.name for r in found if r.kind == "empirical"] == ["1-NN attacked, boundary"]


def test_the_row_keeps_attacks_apart_from_proofs_and_names_the_command(tmp_path: Path, command: Command) -> None:
    path = table(tmp_path, BOTH)
    assert command("certify", path, "--attack", "greedy", "-o", "run").code == 0
    row = read_certified_row(Path("run"))
    assert [one["name"] for one in row["certified"]] == ["1-NN exact", "3-NN bound"]
    assert [one["attack"] for one in row["empirical"]] == ["greedy", "greedy"]
    assert row["empirical"][1]["error"] == [25, 25, 50, 100] and row["command"].endswith("--attack greedy")
    Path("rows").mkdir()
    (Path("rows") / f"{row['id']}.json").write_text(json.dumps(row))
    assert "3-NN attacked, greedy" in certified_table(Path("rows"))
    assert "empirical: attack is missing" in faults({**row, "empirical": [{"error": [], "radii": []}]})
    falling = {**row["empirical"][0], "error": [50, 25, 50, 100]}
    assert any("none smaller" in fault for fault in faults({**row, "empirical": [falling]}))


def test_attacks_are_drawn_dashed_beside_proofs(tmp_path: Path) -> None:
    found = job.certify(str(table(tmp_path, BOTH)), tmp_path / "run", attack="greedy")
    figure = curves({"run": found})
    assert figure is not None
    (axes,) = figure.axes
    assert [line.get_linestyle() for line in axes.lines] == ["-", "-", "--", "--"]
    assert axes.get_ylabel() == "certified and empirical error, percent"


def test_without_an_attack_there_are_proofs_alone(tmp_path: Path) -> None:
    job.certify(str(table(tmp_path, BOTH)), tmp_path / "run")
    assert {r.kind for r in records.read(tmp_path / "run" / "results.jsonl")} == {"train", "certified"}
    assert "empirical" not in read_certified_row(tmp_path / "run")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tabular/digits-arml", "--attack", "gredy"], "did you mean 'greedy'"),
        (["tabular/digits-crown", "--attack", "greedy"], "certifies a network"),
        (["digits/plain", "--attack", "greedy"], "attack it by `robustmetric evaluate`"),
    ],
)
def test_an_attack_that_does_not_fit_is_refused_before_anything_is_begun(
    words: list[str], said: str, command: Command
) -> None:
    failed = command("certify", *words, "-o", "run")
    assert failed.code == 2 and said in failed.error and not Path("run").exists()


def test_another_recipe_is_refused_with_what_differs(tmp_path: Path, command: Command) -> None:
    path = table(tmp_path, BOTH)
    assert command("certify", path, "-o", "run").code == 0
    assert "(points, seed differ)" in command("certify", path, "points=2", "seed=1", "-o", "run").error
