"""The 25 pairs of source and destination: where a cell stands, what it says, and whose models collapsed."""

import json
from pathlib import Path
from typing import Any

import pytest

from robustmetric.report.comparison import comparison
from robustmetric.report.pairs import ORDER, grids

THEIRS: dict[tuple[str, int | None], dict[str, Any]] = {
    ("hm_r_m", 8): {"model": "resnet18", "R@1": 27.0, "ES:R": 11.6, "GTM": 19.3},
    ("hm_r_s", 8): {"model": "resnet18", "collapsed": True},
    ("hm_s_d", 8): {"model": "resnet18", "collapsed": True},
    ("hm_h_s", 8): {"model": "resnet18", "collapsed": True},
}


def row(recall: float, collapsed: bool = False, **attacks: float) -> dict[str, Any]:
    return {"clean": {"R@1": recall}, "collapsed": collapsed, "attacks": {"fixed": attacks}}


OURS = {
    ("hm_r_m", 8): [row(30.0, **{"ES:R": 5.0, "GTM": 2.0}), row(32.0, **{"ES:R": 7.0, "GTM": 4.0})],
    ("hm_r_s", 8): [row(1.0, True, **{"ES:R": 1.0, "GTM": 0.0})],
    ("hm_s_r", 8): [row(2.0, True), row(40.0)],
    ("hm_s_d", 8): [row(33.0, **{"ES:R": 6.0, "GTM": 3.0})],
    ("hm_s_m", 16): [row(77.7)],
    ("act", 8): [row(88.8)],
}


def test_a_cell_stands_in_the_row_of_its_source_and_the_column_of_its_destination() -> None:
    ours, published = grids("cub, protocol sketch", OURS, THEIRS, "MobileNetV2").split("Published (ResNet-18)")
    cells = {line.split(" | ")[0]: line.strip("| ").split(" | ")[1:] for line in ours.splitlines() if "**" in line}
    assert list(cells) == [f"| **{letter.upper()}**" for letter in ORDER]
    missing = "not measured"
    # Means of two seeds: 31, 6 and 3. What was not attacked has a dash; other steps and defences have no cell.
    assert cells["| **R**"] == [missing, "31.0 / 6.0 / 3.0", "collapsed 1.0 / 1.0 / 0.0", missing, missing]
    assert cells["| **S**"][0] == "1 of 2 collapsed 21.0 / – / –"  # noqa: RUF001  # the dash of tables
    assert "77.7" not in ours and "88.8" not in ours
    assert "| **R** | – | 27.0 / 11.6 / 19.3 | collapsed | – | – |" in published  # noqa: RUF001


def test_collapses_are_compared_over_the_pairs_that_were_measured() -> None:
    last = grids("cub", OURS, THEIRS, "MobileNetV2").splitlines()[-1]
    assert last == "Collapsed, of 4 pairs measured, in both: [R,S]; in ours alone: [S,R]; in published alone: [S,D]."


def test_a_few_pairs_make_no_grid_and_no_published_ones_no_second() -> None:
    few = {kind: rows for kind, rows in OURS.items() if kind[0] in ("hm_r_m", "hm_r_s", "hm_s_m")}
    assert grids("cub", few, THEIRS, "MobileNetV2") == ""
    assert "Published" not in grids("digits", OURS, {}, "C2F2")


@pytest.mark.parametrize("pairs", [("r_m", "s_m", "s_s")])
def test_the_grid_is_among_the_tables_of_a_folder(tmp_path: Path, pairs: tuple[str, ...]) -> None:
    folder = tmp_path / "cub"
    folder.mkdir()
    for pair in pairs:
        named = {"id": f"cub-mobilenet_v2-hm_{pair}-eta8-sketch-seed0", "defence": f"hm_{pair}"}
        full = {
            **named, **row(20.0, **{"ES:R": 5.0, "GTM": 2.0}), "data": "cub", "model": "mobilenet_v2", "seed": 0,
            "recipe": "recipes/cub/hm_s_m.yaml", "command": "robustmetric train", "commit": "abc", "hardware": "GPU",
            "queries": 500, "protocol": "sketch",
        }  # fmt: skip
        (folder / f"{named['id']}.json").write_text(json.dumps(full))
    text = comparison(folder)
    assert "### cub, protocol sketch: the pairs of source (rows) and destination (columns), 8 steps" in text
    assert "| **H** | 51.0 / 0.0 / 17.7 | 52.2 / 0.0 / 18.9 | collapsed | 52.6 / 0.1 / 20.0 |" in text, "as published"
    assert "Collapsed, of 3 pairs measured, in both: none;" in text
