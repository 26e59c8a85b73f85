"""`robustmetric data check` of tables: what `certify` would stumble over, all of it at once."""

import json
from pathlib import Path

import numpy as np
import pytest

from commands import Command
from robustmetric.jobs.data_check import check
from robustmetric.jobs.findings import Report


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """60 rows: a spreads little, b a thousand times as widely, c not at all."""
    rows = [f"{i % 7},{1000 * i},7,{'xy'[i % 2]}" for i in range(60)]
    path = tmp_path / "mine.csv"
    path.write_text("\n".join(["a,b,c,kind", *rows]))
    return path


def kinds(report: Report) -> dict[str, tuple[str, ...]]:
    return {one.kind: one.items for one in report.findings}


def test_columns_that_tell_nothing_or_drown_others_are_named(table: Path, command: Command) -> None:
    done = command("data", "check", "mine.csv", "data.label=kind")
    assert (done.code, done.err) == (0, "")
    lines = done.out.splitlines()
    assert lines[0] == "mine.csv: a table of 3 columns beside the label, cut at random"
    assert lines[1].startswith("train    30 rows of 2 classes") and lines[2].startswith("test     30 rows of 2 classes")
    assert "look: columns with one value in all rows of train: 1; they tell nothing\n    feature 3 (c)\n" in done.out
    assert "look: feature 2 (b) spreads" in done.out and "times as widely as feature 1 (a)" in done.out
    assert lines[-1] == "next: robustmetric certify tabular/digits-arml --data mine.csv data.label=kind data.scale=true"


def test_a_scaled_table_has_no_column_that_drowns_others(table: Path) -> None:
    report = check(str(table), ["data.label=kind", "data.scale=true"])
    assert set(kinds(report)) == {"constant"}
    assert report.next[0].count("data.scale=true") == 1


def test_the_next_command_runs(table: Path, command: Command) -> None:
    told = json.loads(command("data", "check", "mine.csv", "data.label=kind", "--json").out)
    words = told["next"][0].split()[1:]
    assert command(*words, "learner.name=euclidean", "--points", 5).code == 0


def test_every_bad_cell_is_counted_and_the_first_are_named(tmp_path: Path, command: Command) -> None:
    rows = ["1,2,x", "1,,x", "wide,2,y", "1,2", "3,4,", "5,n/a,y"]
    (tmp_path / "mine.csv").write_text("\n".join(["a,b,label", *rows]))
    done = command("data", "check", "mine.csv")
    assert done.code == 1
    assert "mend: rows and cells that cannot be used: 5\n    row 2, column 'b': no value" in done.out
    assert "    and 2 more\n" in done.out and done.out.splitlines()[-1] == "next: robustmetric data check mine.csv"
    told = json.loads(command("data", "check", "mine.csv", "--json").out)
    assert [item.split(":")[0] for item in told["findings"][0]["items"]] == [
        "row 2, column 'b'", "row 3, column 'a'", "row 4", "row 5", "row 6, column 'b'",
    ]  # fmt: skip


def test_a_value_that_is_not_finite_must_be_mended(tmp_path: Path) -> None:
    x = np.arange(40.0).reshape(20, 2)
    x[3, 1] = np.nan
    np.savez(tmp_path / "mine.npz", x=x, y=np.arange(20) % 2)
    report = check(str(tmp_path / "mine.npz"))
    assert not report.is_usable
    assert kinds(report)["cells"][0].startswith("row 4 holds a value that is not finite (1 such rows)")


def test_a_column_of_row_numbers_is_looked_at(tmp_path: Path) -> None:
    lines = [f"{i},{i * 7 % 5},{'ab'[i % 2]}" for i in range(1, 41)]
    (tmp_path / "mine.csv").write_text("\n".join(["id,width,label", *lines]))
    report = check(str(tmp_path / "mine.csv"))
    assert report.is_usable and kinds(report)["row_numbers"] == ("feature 1 (id)",)


def test_rows_that_disagree_are_named_by_their_place(tmp_path: Path) -> None:
    x_train = np.array([[0.0, 1], [2, 3], [4, 5], [4, 5]])
    x_test = np.array([[0.0, 1], [2, 3], [9, 9]])
    parts = {"x_train": x_train, "y_train": list("abcc"), "x_test": x_test, "y_test": list("xbz")}
    np.savez(tmp_path / "mine.npz", **parts)  # type: ignore[arg-type]  # by name
    report = check(str(tmp_path / "mine.npz"))
    assert report.is_usable and report.layout == "a table of 2 columns beside the label"
    assert kinds(report) == {
        "unmatched": ("x", "z"),
        "mislabelled": ("train/0 (a) = test/0 (x)",),
        "leaked": ("train/1 = test/1",),
        "repeated": ("train/2 = train/3",),
    }
    assert report.next[0].endswith("--method exact"), "eleven neighbours cannot vote among four rows"


def test_one_class_cannot_be_told_apart(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", x=np.arange(20.0).reshape(10, 2), y=np.zeros(10))
    report = check(str(tmp_path / "mine.npz"))
    assert not report.is_usable and "one_class" in kinds(report)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mine.csv"], "has no label column 'label'; expected a, b, c, kind; name it by data.label=COLUMN"),
        (["mine.csv", "data.lable=kind"], "'lable' is not a setting of Tabular; did you mean 'label'?"),
        (["mine.csv", "label=kind"], "'label' is not a setting of a table; expected data.KEY=VALUE"),
        (["mine.csv", "kind"], "'kind' is not an override; expected key=value"),
        (["mine.csv", "data.name=digits"], "data.name=digits is no table; 'mine.csv' is one"),
        (["mine.csv", "--skip-unreadable"], "--skip-unreadable is for data sets of image files; 'mine.csv' reads none"),
        (["gone.csv"], "gone.csv does not exist (ROBUSTMETRIC_DATA, where data sets lie, is not set); expected a .npz"),
        (["gone.npz"], "gone.npz does not exist"),
        (["broken.npz"], "broken.npz cannot be read"),
        (["semicolons.csv"], "cells are separated by ';'; expected commas"),
    ],
)
def test_a_call_that_names_no_table_is_one_line(
    words: list[str], said: str, table: Path, command: Command, tmp_path: Path
) -> None:
    (tmp_path / "broken.npz").write_bytes(b"no")
    (tmp_path / "semicolons.csv").write_text("path;label;split\na;b;train\n")
    done = command("data", "check", *words)
    assert said in done.error and not done.out


def test_a_table_under_the_data_folder_is_found(table: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("ROBUSTMETRIC_DATA", str(tmp_path))
    assert check("mine.csv", ["data.label=kind"]).is_usable
