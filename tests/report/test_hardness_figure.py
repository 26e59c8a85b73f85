"""The hardness figure: what is drawn, of which runs, and where the margin stands."""

import re
from pathlib import Path

import pytest
from sample_runs import PLAIN, MakeRun

from robustmetric.records import Record
from robustmetric.report.hardness import against_margin, by_epoch, hardness, hardness_runs, margin_of
from robustmetric.report.page import write_page
from robustmetric.report.runs import read_runs


def hard(i: int, before: float, after: float, loss: float, **others: float) -> Record:
    scores = {"before": before, "after": after, "triplet": loss, "structure": 5.0, **others}
    return Record("train", "epoch", scores, {"epoch": i, "terms": ["triplet", "structure"]})


HM = (hard(1, -0.2, -0.1, 0.11, goal=-0.05), hard(2, -0.25, -0.12, 0.09, goal=-0.02))
ACT = (hard(1, -0.2, 0.01, 0.2), hard(2, -0.2, float("nan"), 0.19), hard(3, -0.2, 0.02, 0.21))


def test_only_runs_that_noted_their_hardness_are_shown(make_run: MakeRun) -> None:
    plain = Record("train", "epoch", {"metric": 0.1}, {"epoch": 1})
    runs = read_runs([make_run("plain", plain, *PLAIN), make_run("hm", *HM), make_run("act", *ACT)])
    assert [run.label for run in hardness_runs(runs)] == ["hm", "act"]
    assert hardness(runs[:1], "h") is None and against_margin(runs[:1], "m") is None
    drawn = str(hardness(runs, "h"))
    assert 'aria-label="hardness of training triplets by epoch for hm, act"' in drawn
    # A run keeps its colour and marker in every plot; before and goal are strokes without markers.
    assert 'id="h-run-1"' in drawn and 'id="h-run-2"' in drawn and 'id="h-run-0"' not in drawn
    assert drawn.count("stroke-dasharray") >= 3, "before twice, goal once"


def test_numbers_that_are_none_are_passed_over(make_run: MakeRun) -> None:
    (run,) = read_runs([make_run("act", *ACT)])
    assert by_epoch(run, "after") == {1: 0.01, 3: 0.02}
    assert by_epoch(run, "goal") == {}


@pytest.mark.parametrize(
    ("recipe", "margin"),
    [
        ("defence: {name: hm}", 0.2),
        ("defence: {name: hm, margin: 0.5}", 0.5),
        ("defence: {name: est, loss: {name: triplet, margin: 0.3}}", 0.3),
        ("defence: plain", 0.2),
        ("[", 0.2),
    ],
)
def test_the_margin_is_that_of_the_recipe(make_run: MakeRun, recipe: str, margin: float) -> None:
    path = make_run("hm", *HM)
    (path / "recipe.yaml").write_text(recipe)
    (run,) = read_runs([path])
    assert margin_of(run) == margin
    assert f"margin {margin:g}" in str(against_margin([run], "m"))


def test_the_loss_is_that_of_triplets_without_other_terms(make_run: MakeRun) -> None:
    (run,) = read_runs([make_run("hm", *HM)])
    ticks = re.findall(r">(\d\.\d+)</text>", str(against_margin([run], "m")))
    assert ticks and max(map(float, ticks)) < 1, "the structure term of 5 is no part of it"


def test_a_page_has_the_figure_where_there_is_something_to_show(tmp_path: Path, make_run: MakeRun) -> None:
    with_it = write_page([make_run("hm", *HM, *PLAIN)], tmp_path / "one").read_text()
    assert "How hard the training triplets were" in with_it and with_it.count("<svg") > 3
    without = write_page([make_run("plain", *PLAIN)], tmp_path / "two").read_text()
    assert "How hard the training triplets were" not in without
