"""Attacks in turn do not look like independent ones: in tables, on the page, and in records that do not name turns."""

from pathlib import Path
from typing import Any

import pytest
from sample_runs import CONTEXT, MakeRun

from robustmetric.records import Record
from robustmetric.report.page import write_page
from robustmetric.report.runs import read_runs
from robustmetric.report.tables import full, summaries, to_text
from robustmetric.report.turns import CAPTION, after_others
from robustmetric.report.verdict import verdict

SUITE = {"suite": "auto", "data": "cifar10", "weights": "w"}
TURNS = {"RayS": 95, "APGD": 60, "FAB": 40}
"""In the order in which they were run, with what was left to each."""


def attacked(name: str, value: float, standing: int | None = None, after: list[str] | None = None) -> Record:
    settings: dict[str, Any] = {**SUITE, "norm": "linf", "mode": "fixed", "radius": 8 / 255}
    settings |= {} if standing is None else {"standing": standing}
    context = CONTEXT if after is None else {**CONTEXT, "after": after}
    return Record("attack", name, {"accuracy": value}, settings, {}, 100, 1.0, 0, context)


def run(*, names_turns: bool, **lefts: int) -> list[Record]:
    """Turns, an attack on all images and the clean number; by hand, each leaves ten fewer than were left to it."""
    found = [Record("clean", "clean", {"accuracy": 95.0}, SUITE, {}, 100, 1.0, 0, CONTEXT), attacked("PGD", 50.0)]
    left, before = {**TURNS, **lefts}, list[str]()
    for name, standing in left.items():
        found.append(attacked(name, standing - 10.0, standing, list(before) if names_turns else None))
        before.append(name)
    return found


@pytest.mark.parametrize("names_turns", [True, False], ids=["names", "older"])
def test_those_after_others_are_known(names_turns: bool) -> None:
    found = run(names_turns=names_turns)
    assert after_others(found) == {record.key for record in found if record.name in ("APGD", "FAB")}
    # Of other weights, fewer may be right without any attack.
    other = attacked("RayS", 20.0, 30)
    other.settings["weights"] = "v"
    assert other.key not in after_others([*found, other])


def test_one_that_was_left_all_is_after_others_where_it_says_so() -> None:
    told, untold = (run(names_turns=names, APGD=95) for names in (True, False))
    assert {record.name for record in told if record.key in after_others(told)} == {"APGD", "FAB"}
    # Nobody was lost before it: what it leaves is what it leaves alone, and an older record tells no more.
    assert {record.name for record in untold if record.key in after_others(untold)} == {"FAB"}


@pytest.mark.parametrize("names_turns", [True, False], ids=["names", "older"])
def test_tables_and_page_name_turns_and_keep_their_order(names_turns: bool, make_run: MakeRun, tmp_path: Path) -> None:
    path = make_run("madry", *run(names_turns=names_turns))
    runs = read_runs([path])
    (table,) = summaries(runs)
    assert [table.quantity(column) for column in table.columns] == [
        "clean accuracy", "PGD accuracy", "RayS accuracy", "then APGD accuracy", "then FAB accuracy",
    ]  # fmt: skip
    assert [line.name for line in full(runs)] == ["clean", "PGD", "RayS", "then APGD", "then FAB"]
    assert "then: in turn" in to_text([table], width=140)
    page = write_page([path], tmp_path / "page").read_text()
    assert CAPTION in page and "then FAB accuracy" in page and "then PGD" not in page and "then RayS" not in page


def test_independent_attacks_need_no_word(make_run: MakeRun, tmp_path: Path) -> None:
    path = make_run("madry", *run(names_turns=True)[:3])
    (table,) = summaries(read_runs([path]))
    assert not table.after and "then:" not in to_text([table])
    assert CAPTION not in write_page([path], tmp_path / "page").read_text()


def test_runs_share_a_column_of_one_turn_and_not_with_an_attack_on_all(make_run: MakeRun) -> None:
    paths = [
        make_run("weak", *run(names_turns=False)),
        make_run("strong", *run(names_turns=False, APGD=95)),
        make_run("apart", attacked("APGD", 70.0)),
    ]
    runs = read_runs(paths)
    (table,) = summaries(runs)
    named = [table.quantity(column) for column in table.columns]
    # On every image it is another quantity, in a column of its own.
    assert named.count("then APGD accuracy") == 1 and named.count("APGD accuracy") == 1
    column = table.columns[named.index("then APGD accuracy")]
    assert {run: cells[column].value for run, cells in table.rows.items() if column in cells} == {
        "weak": 50.0, "strong": 85.0,
    }  # fmt: skip
    assert verdict(table, runs)
