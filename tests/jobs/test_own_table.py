"""A CSV file of one's own, certified from the command line."""

import csv
import json
import re
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_wine

from commands import Command
from robustmetric import RobustKNN
from robustmetric.data.tabular import Tabular
from robustmetric.jobs.own_table import of_units


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Wine, 178 rows, its labels as words under `kind`."""
    wine, path = load_wine(), tmp_path / "wine.csv"
    with path.open("w", newline="") as file:
        out = csv.writer(file)
        out.writerow([*wine.feature_names, "kind"])
        out.writerows([*row, wine.target_names[label]] for row, label in zip(wine.data, wine.target, strict=True))
    return path


def test_a_table_takes_the_place_of_a_recipes_data(table: Path, tmp_path: Path, command: Command) -> None:
    words = ["certify", "tabular/letter-euclidean", "data.label=kind", "data.scale=true", "--data", "wine.csv"]
    done = command(*words, "--points", "20", "--json")
    assert done.code == 0, done.err
    found = [json.loads(line) for line in done.out.splitlines()]
    assert {one["settings"]["data"] for one in found[1:]} == {"wine"}
    assert {one["count"] for one in found[1:]} == {20}
    summary = json.loads((tmp_path / "runs" / "tabular-letter-euclidean-wine-seed0" / "run.json").read_text())
    assert summary["recipe"]["data"] == {"name": "tabular", "file": "wine.csv", "label": "kind", "scale": True}


def test_the_radius_of_each_row_of_the_file_is_listed_the_weakest_first(
    table: Path, tmp_path: Path, command: Command
) -> None:
    words = ["certify", "tabular/letter-euclidean", "data.label=kind", "--data", "wine.csv", "--points", "30"]
    done = command(*words, "-o", "run")
    assert "1-NN exact: row by row, the weakest first: run/certified/1-NN-exact.csv" in done.err
    with (tmp_path / "run" / "certified" / "1-NN-exact.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    radii = [float(one["radius"]) for one in found]
    assert len(found) == 30 and radii == sorted(radii) and radii[0] == 0 < radii[-1]
    wine = load_wine()
    rows = [int(one["row"].removeprefix("row ")) - 1 for one in found]
    assert [one["label"] for one in found] == wine.target_names[wine.target[rows]].tolist(), "of the file, from 1"
    trained = Tabular(str(table), label="kind").load().train
    knn = RobustKNN().fit(trained.inputs.numpy(), trained.labels.numpy())
    codes = [trained.class_names.index(one["label"]) for one in found]
    assert knn.certify(wine.data[rows], codes) == pytest.approx(radii, rel=1e-5)


def test_what_is_proved_is_proved_of_the_rows_as_given(command: Command, tmp_path: Path) -> None:
    """Seconds since 1970, which float32 has 128 apart: from +20 it is 30 to the middle of +0 and +100, and not 64."""
    train, test = (1.6e9 + np.array(seconds)[:, None] for seconds in ([0.0, 100.0], [20.0]))
    np.savez(tmp_path / "times.npz", x_train=train, y_train=["day", "night"], x_test=test, y_test=["day"])
    words = ["certify", "tabular/letter-euclidean", "--data", "times.npz", "--method", "exact", "-o", "run"]
    assert command(*words).code == 0
    listed = (tmp_path / "run" / "certified" / "1-NN-exact.csv").read_text().splitlines()
    assert listed == ["row,label,radius", "test/0,day,30"]
    assert command(*words[:-1], "scaled", "data.scale=true").code == 0
    listed = (tmp_path / "scaled" / "certified" / "1-NN-exact.csv").read_text().splitlines()
    assert listed[1:] == ["test/0,day,0.3"]


def test_the_unit_of_radii_is_said_and_columns_that_drown_others(table: Path, command: Command) -> None:
    words = ["certify", "tabular/letter-euclidean", "data.label=kind", "--data", "wine.csv", "--points", "20"]
    raw = command(*words, "-o", "raw").err
    # Proline, feature 13, has a deviation of 315, nonflavanoid phenols, feature 8, of 0.124; of half the rows, about.
    assert re.match(r"feature 13 spreads 2\.\de\+03 times as widely as feature 8, .*data\.scale=true", raw)
    assert "1-NN exact: of 20 points" in raw and "(l2, in the unit of the rows)" in raw
    scaled = command(*words, "data.scale=true", "-o", "scaled").err
    assert "spreads" not in scaled and "(l2, each feature scaled to [0, 1])" in scaled
    ours = command("certify", "tabular/digits-euclidean", "--points", "20", "-o", "ours").err
    assert "spreads" not in ours, "the units of our own recipes are known"


def test_a_constant_column_is_no_narrow_one() -> None:
    x = np.array([[0.0, 7.0, 0.0], [1.0, 7.0, 99.0]])
    assert of_units(x, {"name": "tabular"}) == ""
    assert of_units(x * [1, 1, 2], {"name": "tabular"}).startswith(
        "feature 3 spreads 2e+02 times as widely as feature 1"
    )
    assert of_units(np.ones((3, 2)), {"name": "tabular"}) == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["wine.csv"], "'wine.csv' is a table; expected a recipe with a learner: robustmetric certify tabular/"),
        (["tabular/digits-nca", "--data", "wine.csv"], "name it by data.label=COLUMN"),
        (["tabular/digits-nca", "--data", "photos"], "--data 'photos' is no table; expected a .csv or .npz file"),
    ],
)
def test_the_likely_mistakes_with_a_table_are_one_line(
    words: list[str], said: str, table: Path, tmp_path: Path, command: Command
) -> None:
    assert said in command("certify", *words).error
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("recipe", ["digits-arml", "digits-euclidean", "digits-smoothing"])
def test_a_table_of_one_class_names_it_as_its_file_does(recipe: str, command: Command, tmp_path: Path) -> None:
    rows = [f"{i % 7},{i % 5},apple" for i in range(40)]
    (tmp_path / "fruit.csv").write_text("\n".join(["a,b,kind", *rows]))
    words = ["certify", f"tabular/{recipe}", "data.label=kind", "--data"]
    error = command(*words, "fruit.csv").error
    assert "fruit: the 20 rows to learn from are all of class 'apple'; expected two classes or more" in error


def test_a_class_that_the_cut_left_to_the_test_part_is_told(command: Command, tmp_path: Path) -> None:
    rows = [f"{i % 7},{i % 5},apple" for i in range(39)]
    (tmp_path / "rare.csv").write_text("\n".join(["a,b,kind", *rows, "3,3,pear"]))
    words = ["certify", "tabular/digits-euclidean", "data.label=kind", "--data", "rare.csv", "--points", 2]
    # The pear is among the rows to learn from by the first cut, and not by the other.
    assert command(*words, "data.seed=0").code == 0
    error = command(*words, "data.seed=6", "-o", "other").error
    assert "all of class 'apple' (others are in the test part alone: another data.seed cuts otherwise)" in error
