"""Robustness against cost: which rows make a line, what a figure shows of collapsed ones, and what is refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from commands import Command
from robustmetric.errors import InputError
from robustmetric.report.clustering_rows import SOURCE
from robustmetric.report.efficiency import cost_figure, cost_figures, lines_of
from robustmetric.report.figures import draw_figures


def row(defence: str, eta: int | None, recall: float, seed: int = 0, **changes: Any) -> dict[str, Any]:
    named = "-".join(["cub-mobilenet_v2", defence, *([f"eta{eta}"] if eta else []), "sketch", f"seed{seed}"])
    return {
        "id": named, "data": "cub", "model": "mobilenet_v2", "defence": defence, "seed": seed, "protocol": "sketch",
        "recipe": "recipes/cub/act.yaml", "command": "robustmetric train", "commit": "abc", "hardware": "1 x GPU",
        "queries": 500, "clean": {"R@1": recall}, "attacks": {"fixed": {"ES:R": recall / 4, "ES:D": 0.5, "GTM": 1.0}},
        "collapsed": False, **changes,
    }  # fmt: skip


ROWS = [
    row("plain", None, 52.0),
    row("act", 2, 46.0),
    row("act", 16, 28.0),
    row("act", 16, 32.0, seed=1),
    row("hm_lga", 4, 42.0),
    row("hm_lga", 8, 0.8, collapsed=True),
    row("hm_lga", 16, 0.9, collapsed=True, attacks={}),
    row("est", 8, 37.0),
    row("free_hm", None, 40.0),
]


def test_the_cost_is_one_more_than_the_steps_and_seeds_share_a_point() -> None:
    lines = lines_of(ROWS)
    # One number of steps is no line; plain training is a point at cost 1, for comparison.
    assert {name: [point.cost for point in points] for name, points in lines.items()} == {
        "act": [3, 17], "hm_lga": [5, 9, 17], "plain": [1],
    }  # fmt: skip
    assert lines["act"][1].values("clean", "R@1") == [28.0, 32.0]
    assert [point.is_collapsed for point in lines["hm_lga"]] == [False, True, True]


def test_a_panel_draws_means_and_a_cross_for_each_collapsed_model() -> None:
    figure = cost_figure(ROWS)
    assert figure is not None
    assert [axes.get_title() for axes in figure.axes] == ["clean R@1", "R@1 under ES (fixed)", "R@1 under GTM (fixed)"]
    clean, shift, _ = figure.axes
    assert any(list(line.get_xdata()) == [3, 17] and list(line.get_ydata()) == [46.0, 30.0] for line in clean.lines)
    for axes in (clean, shift):
        crosses = [line for line in axes.lines if line.get_marker() == "x" and len(line.get_xdata())]
        assert sorted(float(line.get_xdata()[0]) for line in crosses) == [9, 17], "also the one that was not attacked"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["act", "hm_lga", "plain", "collapsed"]


def test_the_cost_is_told_as_the_most_since_triplets_at_their_goal_leave_early() -> None:
    figure = cost_figure(ROWS)
    assert figure is not None
    assert {axes.get_xlabel() for axes in figure.axes} == {"passes per update, at most: steps + 1"}


def test_without_a_collapse_the_legend_does_not_speak_of_one() -> None:
    figure = cost_figure([row("act", 2, 46.0), row("act", 4, 38.0)])
    assert figure is not None and [text.get_text() for text in figure.legends[0].get_texts()] == ["act"]


def test_the_score_of_ten_has_a_panel_where_it_was_measured() -> None:
    ten = dict.fromkeys(("CA+", "CA-", "QA+", "QA-", "TMA", "ES:D", "ES:R", "LTM", "GTM", "GTT"), 0.5)
    rows = [row("act", eta, 40.0, attacks={"compat": {**ten, "ERS": 20.0 + eta}}) for eta in (2, 4)]
    figure = cost_figure(rows)
    assert figure is not None and [axes.get_title() for axes in figure.axes] == ["clean R@1", "ERS (compat)"]


def test_classifiers_and_rows_about_clustering_have_no_part_in_it() -> None:
    # Random targets have recipes of one step and of seven; the plain model of another paper is trained otherwise.
    classifiers = [row("random_target", eta, 0.0, clean={"accuracy": 80.0}, attacks={}) for eta in (1, 7)]
    assert cost_figures(classifiers) == {}
    other = row("plain", None, 5.0, paper=SOURCE)
    (figure,) = cost_figures([*ROWS, *classifiers, other]).values()
    plain = [line for line in figure.axes[0].lines if list(line.get_xdata()) == [1]]
    assert {float(line.get_ydata()[0]) for line in plain} == {52.0}, "a point, and the ends of its error bar"


def write(folder: Path, *rows: dict[str, Any]) -> Path:
    folder.mkdir()
    for one in rows:
        kept = {key: value for key, value in one.items() if value != {}}
        (folder / f"{one['id']}.json").write_text(json.dumps(kept))
    return folder


def test_one_command_draws_a_folder_of_results(tmp_path: Path, command: Command) -> None:
    write(tmp_path / "cub", *ROWS)
    done = command("ledger", "--figure", "cub", "-o", "figures")
    assert done.code == 0, done.err
    paths = [tmp_path / "figures" / f"cost-cub-sketch-mobilenet_v2.{kind}" for kind in ("svg", "png")]
    assert [Path(line).name for line in done.out.split()] == [path.name for path in paths]
    assert "<svg" in paths[0].read_text() and paths[1].stat().st_size > 10_000
    first = paths[0].read_bytes()
    assert command("ledger", "--figure", "cub", "-o", "figures").code == 0
    assert paths[0].read_bytes() == first, "the same rows give the same file"


def test_rows_that_make_no_line_and_options_that_do_not_go_together_are_refused(
    tmp_path: Path, command: Command
) -> None:
    folder = write(tmp_path / "cub", row("act", 8, 30.0), row("plain", None, 52.0))
    with pytest.raises(InputError, match=r"has no rows that differ in their steps alone, .* expected two such rows"):
        draw_figures(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert "--figure results/<data> -o FOLDER" in command("ledger", "--figure", "cub").error
    assert "--figure results/<data> -o FOLDER" in command("ledger", "--figure", "cub", "--table", "cub").error
