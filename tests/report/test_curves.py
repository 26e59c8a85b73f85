"""Curves of training beside rows of the ledger: what is kept of the records, and which rows a figure shows."""

import json
import math
from pathlib import Path

import pytest
from test_efficiency import row

from robustmetric import records
from robustmetric.errors import InputError
from robustmetric.records import Record
from robustmetric.report.clustering_rows import SOURCE
from robustmetric.report.curves import curve_of, read_curve, to_csv
from robustmetric.report.falling_figure import falling_figures
from robustmetric.report.figures import draw_figures
from robustmetric.report.training_figure import curve_figures


def epoch(number: int, seconds: float = 1.0, **scores: float) -> Record:
    scores = {"before": -0.3, "after": -0.1, "triplet": 0.15, "images_per_second": 9.0, **scores}
    return Record("train", "epoch", scores, {"epoch": number}, seconds=seconds)


def test_a_curve_has_what_every_epoch_noted_in_their_order_and_the_newest_of_each(tmp_path: Path) -> None:
    found = [
        epoch(1, goal=-0.2),
        epoch(3),
        epoch(2, after=0.5),
        epoch(2, after=-0.123456),
        Record("clean", "clean", {}),
    ]
    curve = curve_of(found)
    assert curve == {
        "epoch": [1.0, 2.0, 3.0], "before": [-0.3] * 3, "after": [-0.1, -0.123456, -0.1], "triplet": [0.15] * 3,
    }  # fmt: skip
    path = tmp_path / "a.csv"
    path.write_text(to_csv(curve))
    assert path.read_text().splitlines()[:3] == [
        "epoch,before,after,triplet",
        "1,-0.3,-0.1,0.15",
        "2,-0.3,-0.12346,0.15",
    ]
    assert read_curve(path) == {**curve, "after": [-0.1, -0.12346, -0.1]}
    assert curve_of([Record("clean", "clean", {})]) == {}
    path.write_text(to_csv(curve_of([epoch(1, triplet=float("nan")), epoch(2)])))
    assert path.read_text().splitlines()[1] == "1,-0.3,-0.1,"
    assert str(read_curve(path)["triplet"]) == "[nan, 0.15]", "a gap in its line"


@pytest.mark.parametrize("text", ["", "epoch,after\n1\n", "epoch,after\n1,x\n", "after\n0.1\n"])
def test_a_file_that_is_no_curve_is_told_so(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(text)
    with pytest.raises(InputError, match=r"a\.csv is no curve of training"):
        read_curve(tmp_path / "a.csv")


def seen(number: int, recall: float, cosine: float) -> Record:
    return Record("validation", "clean", {"R@1": recall, "NMI": 9.0, "mean_cosine": cosine}, {"epoch": number})


def test_a_run_measured_after_every_epoch_has_its_scores_in_the_curve() -> None:
    found = [epoch(1), seen(1, 40.0, 0.2), epoch(2), seen(2, 9.0, 0.97)]
    curve = curve_of(found)
    assert (curve["R@1"], curve["mean_cosine"]) == ([40.0, 9.0], [0.2, 0.97]) and "NMI" not in curve
    assert list(curve_of([epoch(1), epoch(2), seen(2, 9.0, 0.97)])) == ["epoch", "before", "after", "triplet"]


def test_embeddings_that_fall_together_make_a_figure(tmp_path: Path) -> None:
    folder = tmp_path / "cub"
    folder.mkdir()
    literal, other = (
        {**row(kind, 8, 3.0, seed=seed), "id": f"cub-mobilenet_v2-{kind}-r8-seed{seed}", "paper": SOURCE}
        for kind, seed in (("at_literal", 0), ("at", 0))
    )
    for each in (literal, other):
        records.write_json(folder / f"{each['id']}.json", each)
    (folder / f"{other['id']}.csv").write_text(to_csv(curve_of([epoch(1), epoch(2), seen(2, 9.0, 0.9)])))
    assert falling_figures(folder, [literal, other]) == {}, "one has no curve, the other was measured at its end alone"
    found = [part for i, r in ((1, 40.0), (2, 9.0)) for part in (epoch(i, adversarial=1 / i), seen(i, r, 1 - r / 100))]
    (folder / f"{literal['id']}.csv").write_text(to_csv(curve_of(found)))
    (figure,) = falling_figures(folder, [literal, other]).values()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["at_literal-r8"]
    drawn = [list(axes.lines[0].get_ydata()) for axes in figure.axes]
    assert drawn == [[1.0, 0.5], [40.0, 9.0], [0.6, 0.91]], "loss, R@1, mean cosine"
    for first in (0.0, math.nan):
        found[0] = epoch(1, adversarial=first)
        (folder / f"{literal['id']}.csv").write_text(to_csv(curve_of(found)))
        (figure,) = falling_figures(folder, [literal]).values()
        assert list(figure.axes[0].lines[0].get_ydata()) == [], "nothing to be a part of"
    made = draw_figures(folder, tmp_path / "out")
    assert [path.name for path in made] == [f"falling-cub-sketch-mobilenet_v2.{kind}" for kind in ("svg", "png")]


def test_a_figure_shows_the_first_seed_of_the_defences_that_are_compared(tmp_path: Path) -> None:
    rows = [row("act", 8, 30.0, seed=1), row("act", 8, 30.0), row("hm_lga", 8, 35.0), row("hm_d_r", 8, 50.0)]
    rows.append(row("act", 2, 40.0))
    for number, each in enumerate(rows):
        noted = {"goal": -0.2 + number / 100} if each["defence"].startswith("hm") else {}
        curve = curve_of([epoch(1, triplet=0.2, **noted), epoch(2, triplet=0.1 + number / 100, **noted)])
        (tmp_path / f"{each['id']}.csv").write_text(to_csv(curve))
    (figure,) = curve_figures(tmp_path, [*rows, row("est", 8, 20.0)]).values()
    left, right = figure.axes
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["act", "hm_lga"]
    assert figure.get_suptitle() == "cub, protocol sketch, MobileNetV2, 8 steps", "those of most rows"
    losses = [line.get_ydata()[-1] for line in right.lines if len(line.get_xdata()) == 2 and line.get_label()[0] != "_"]
    assert losses == [0.11, 0.12], "ACT of seed 0; EST has no curve, and HM[D,R] is not among those compared"
    strokes = [line.get_linestyle() for line in left.lines[1:]]
    assert strokes == [":", "-", ":", "--", "-"], "ACT has no goal"


def test_rows_and_their_curves_make_files(tmp_path: Path) -> None:
    folder = tmp_path / "cub"
    folder.mkdir()
    one = row("act", 8, 30.0)
    records.write_json(folder / f"{one['id']}.json", one)
    with pytest.raises(InputError, match="curve of training"):
        draw_figures(folder, tmp_path / "out")
    (folder / f"{one['id']}.csv").write_text(to_csv(curve_of([epoch(1), epoch(2)])))
    made = draw_figures(folder, tmp_path / "out")
    assert [path.name for path in made] == [f"training-cub-sketch-mobilenet_v2.{kind}" for kind in ("svg", "png")]
    assert all(path.stat().st_size > 1000 for path in made) and json.loads((folder / f"{one['id']}.json").read_text())
