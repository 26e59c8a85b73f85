"""The figure of clustering by the attack's steps and radius: whose points it draws, and what its title tells."""

from pathlib import Path
from typing import Any

import pytest
from matplotlib.axes import Axes
from test_efficiency import row

from robustmetric import records
from robustmetric.report.clustering_rows import SOURCE
from robustmetric.report.figures import draw_figures
from robustmetric.report.ledger import faults
from robustmetric.report.sweep_figure import sweep_figures

NAME = "sweeps-cub-sketch-mobilenet_v2"


def curve(*points: tuple[int, float], **notes: str) -> dict[str, Any]:
    """R@1 by steps or radius; F1 is a quarter of it."""
    return {str(x): {"R@1": recall, "F1": recall / 4, **notes} for x, recall in points}


def swept(kind: str, clean: float, seed: int = 0, **sweeps: dict[str, Any]) -> dict[str, Any]:
    block = {"reading": "alone", "clean": {"R@1": clean, "F1": clean / 4, "NMI": 50.0}, **sweeps}
    named = f"cub-mobilenet_v2-{kind}-r8-sketch-seed{seed}"
    return {**row(kind, None, clean, seed=seed), "id": named, "paper": SOURCE, "clustering": block}


EAT = swept("eat", 40.0, steps=curve((10, 16.0), (1, 24.0), (2, 20.0)), radii=curve((8, 16.0), (16, 8.0)))
AT = swept("at", 20.0, steps=curve((1, 18.0), (10, 12.0)))


def drawn(axes: Axes) -> dict[str, dict[float, float]]:
    """By name, the points of every line."""
    return {
        line.get_label(): dict(zip(map(float, line.get_xdata()), map(float, line.get_ydata()), strict=True))
        for line in axes.lines
    }


def test_rows_of_these_tests_are_rows_of_the_ledger() -> None:
    assert [faults(one) for one in (EAT, AT)] == [[], []]


def test_the_points_are_those_of_the_rows_with_the_clean_score_at_zero() -> None:
    (found,) = sweep_figures([EAT, AT]).items()
    name, figure = found
    assert name == NAME and figure.get_suptitle() == "cub, clustering, protocol sketch, MobileNetV2"
    recall, recall_by_radius, f1, f1_by_radius = figure.axes
    assert drawn(recall) == {"eat-r8": {0: 40, 1: 24, 2: 20, 10: 16}, "at-r8": {0: 20, 1: 18, 10: 12}}
    assert drawn(f1) == {"eat-r8": {0: 10, 1: 6, 2: 5, 10: 4}, "at-r8": {0: 5, 1: 4.5, 10: 3}}
    assert drawn(recall_by_radius) == {"eat-r8": {0: 40, 8: 16, 16: 8}}, "AT has no radii"
    assert drawn(f1_by_radius) == {"eat-r8": {0: 10, 8: 4, 16: 2}}
    assert list(recall.lines[0].get_xdata()) == [0, 1, 2, 10], "in order, whatever that of the row"
    assert [axes.get_title() for axes in figure.axes] == ["R@1 in percent"] * 2 + ["F1 in percent"] * 2
    assert f1.get_xlabel() == "steps of the attack at 8/255"
    assert f1_by_radius.get_xlabel() == "radius in 255ths, 10 steps"
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["eat-r8", "at-r8"], "each once"


def test_r_at_1_with_queries_alone_moved_has_a_panel_where_rows_have_it() -> None:
    steps = {at: {**point, "query only": {"R@1": point["R@1"] - 5}} for at, point in AT["clustering"]["steps"].items()}
    both = {**AT, "clustering": {**AT["clustering"], "steps": steps}}
    assert faults(both) == []
    (figure,) = sweep_figures([EAT, both]).values()
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[::2] == ["R@1 in percent", "R@1 in percent, queries alone moved", "F1 in percent"]
    assert drawn(figure.axes[2]) == {"at-r8": {0: 20, 1: 13, 10: 7}} and drawn(figure.axes[3]) == {}


def test_steps_and_radii_stand_on_a_scale_of_factors_that_has_a_place_for_zero() -> None:
    many = swept("eat", 40.0, steps=curve((1, 9.0), (200, 3.0)), radii=curve(*((x, 9.0) for x in (8, 12, 16, 20, 128))))
    (figure,) = sweep_figures([many]).values()
    _, _, steps, radii = figure.axes
    assert [axes.get_xscale() for axes in figure.axes] == ["symlog"] * 4
    assert [text.get_text() for text in steps.get_xticklabels()] == ["0", "1", "200"]
    assert [text.get_text() for text in radii.get_xticklabels()] == ["0", "8", "12", "16", "", "128"], "20: no room"
    assert -1 < steps.get_xlim()[0] < 0, "no room is lost left of 0"


def test_what_no_row_has_makes_no_column() -> None:
    (figure,) = sweep_figures([AT]).values()
    assert [(axes.get_title(), list(drawn(axes))) for axes in figure.axes] == [
        ("R@1 in percent", ["at-r8"]),
        ("F1 in percent", ["at-r8"]),
    ]


def test_two_seeds_share_a_line_of_means_at_the_points_that_both_have() -> None:
    other = swept("eat", 44.0, seed=1, steps=curve((1, 30.0), (10, 18.0), (50, 2.0)))
    never = swept("eat", 0.0, seed=2)
    (figure,) = sweep_figures([other, never, EAT]).values()
    # (40 + 44) / 2, (24 + 30) / 2, (16 + 18) / 2; the third seed has no sweep, and its clean score no part in this.
    assert drawn(figure.axes[0]) == {"eat-r8": {0: 42, 1: 27, 10: 17}}
    assert drawn(figure.axes[1]) == {"eat-r8": {0: 40, 8: 16, 16: 8}}, "the second has no radii"


def test_rows_without_a_sweep_or_of_another_paper_make_no_figure() -> None:
    assert sweep_figures([swept("eat", 40.0), swept("at", 20.0, steps={})]) == {}
    apart = [swept("eat", 40.0, seed=seed, steps=curve((1 + seed, 24.0))) for seed in (0, 1)]
    assert sweep_figures(apart) == {}, "the clean score alone is no sweep"
    assert sweep_figures([{**EAT, "paper": "another"}]) == {}
    assert list(drawn(sweep_figures([swept("at", 20.0), EAT])[NAME].axes[0])) == ["eat-r8"]


def test_protocols_and_models_have_figures_of_their_own() -> None:
    other = {**AT, "protocol": "short"}
    assert list(sweep_figures([EAT, other])) == [NAME, "sweeps-cub-short-mobilenet_v2"]


@pytest.mark.parametrize(("count", "told"), [(1, "sought in bf16"), (2, "sought in bf16: eat-r8")])
def test_the_title_says_what_attacks_searched_in_and_in_which_lines(count: int, told: str) -> None:
    fast = swept("eat", 40.0, steps=curve((1, 24.0), (10, 16.0), search="bf16"))
    assert faults(fast) == []
    (figure,) = sweep_figures([fast, AT][:count]).values()
    assert figure.get_suptitle().replace("\n", " ").endswith(f"MobileNetV2, {told}")


def test_a_folder_of_swept_rows_makes_the_same_files_again(tmp_path: Path) -> None:
    folder = tmp_path / "cub"
    folder.mkdir()
    for one in (EAT, AT):
        records.write_json(folder / f"{one['id']}.json", one)
    made = draw_figures(folder, tmp_path / "out")
    assert [path.name for path in made] == [f"{NAME}.{kind}" for kind in ("svg", "png")]
    again, _ = draw_figures(folder, tmp_path / "again")
    assert again.read_bytes() == made[0].read_bytes() and ">eat-r8<" in again.read_text()
