"""A CSV file of one's own, certified from the command line."""

import csv
import json
from pathlib import Path

import pytest
from sklearn.datasets import load_wine

from commands import Command


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
