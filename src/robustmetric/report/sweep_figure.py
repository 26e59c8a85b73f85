"""The figure of clustering under stronger and stronger attacks, by rows of the ledger (arXiv 2501.01025).

More steps must come to rest, and a larger radius must leave chance: else the attack, and not the model, was weak.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from robustmetric.report.clustering import QUERY
from robustmetric.report.clustering_frame import Place, by_place, frame, name_lines
from robustmetric.report.clustering_schema import SEARCH
from robustmetric.report.ledger import RADII, Row
from robustmetric.report.plots import MARKERS, by_factors, colour
from robustmetric.report.scores import show_radius
from robustmetric.report.seeds import mean
from robustmetric.report.training_figure import panel

AXES = {"steps": "steps of the attack", "radii": "radius in 255ths, 10 steps"}
"""Parts of a block `clustering` that are sweeps, in words."""

PANELS = {"R@1": "R@1 in percent", QUERY: "R@1 in percent, queries alone moved", "F1": "F1 in percent"}
"""Scores of a point, in words: both sides of a search are moved where nothing else is said."""

Block = Mapping[str, Any]
"""`clustering`, of one row."""
Line = dict[float, float]
"""A score by steps or by radius, in their order."""


def sweep_figures(rows: Sequence[Row]) -> dict[str, Figure]:
    """By name, `sweeps-<data>-<protocol>-<model>`, a line for each way of training: the mean over its swept seeds."""
    figures: dict[str, Figure] = {}
    for place, ways in by_place(rows).items():
        blocks = {way: [row["clustering"] for row in own if "clustering" in row] for way, own in ways.items()}
        swept = {way: own for way, own in blocks.items() if any(_lines(own, axis) for axis in AXES)}
        if swept:
            figures["-".join(("sweeps", *place))] = _figure(place, swept)
    return figures


def _figure(place: Place, swept: Mapping[str, Sequence[Block]]) -> Figure:
    """Scores below one another, steps beside radii; what no row has makes no column, and no panel."""
    lines = {(way, axis): _lines(blocks, axis) for way, blocks in swept.items() for axis in AXES}
    columns = [axis for axis in AXES if any(lines[way, axis] for way in swept)]
    shown = [score for score in PANELS if any(score in found for found in lines.values())]
    figure = frame(place, (5.85 * len(columns), 3.3 * len(shown)), *_search(swept))
    grid = figure.subplots(len(shown), len(columns), squeeze=False, sharex="col", sharey="row")
    for axis, column in zip(columns, grid.T, strict=True):
        at = f" at {show_radius(RADII[place[0]])}" if axis == "steps" and place[0] in RADII else ""
        for score, axes in zip(shown, column, strict=True):
            panel(axes, PANELS[score], AXES[axis] + at)
            for style, way in enumerate(swept):
                _draw(axes, style, way, lines[way, axis].get(score, {}))
            axes.set_ylim(bottom=0)
            axes.label_outer()
        points = sorted({float(x) for axes in column for line in axes.lines for x in line.get_xdata()})
        by_factors(column[0], points, least=min(filter(None, points)))
    name_lines(figure)
    return figure


def _lines(blocks: Sequence[Block], axis: str) -> dict[str, Line]:
    """By score, means over the rows that were swept along this axis, at the points that all of them have; clean at 0.

    Empty where there is nothing but the clean score.
    """
    own = [block for block in blocks if block.get(axis)]
    points = {0.0: [block["clean"] for block in own]}
    points |= {float(x): [block[axis].get(x, {}) for block in own] for x in (own[0][axis] if own else ())}
    lines: dict[str, Line] = {}
    for score in PANELS:
        means = {x: mean(_read(scores, score, is_clean=not x) for scores in points[x]) for x in sorted(points)}
        line = {x: value for x, value in means.items() if value is not None}
        if set(line) - {0.0}:
            lines[score] = line
    return lines


def _read(scores: Block, score: str, *, is_clean: bool) -> float | None:
    """A score of a point; clean, no query is moved."""
    found = scores.get(QUERY, {}) if score == QUERY and not is_clean else scores
    value = found.get("R@1" if score == QUERY else score)
    return None if value is None else float(value)


def _draw(axes: Axes, style: int, way: str, line: Line) -> None:
    if line:
        axes.plot(
            list(line), list(line.values()), color=colour(style), marker=MARKERS[style % len(MARKERS)], markersize=4.5,
            linewidth=1.8, clip_on=False, label=way,
        )  # fmt: skip


def _search(swept: Mapping[str, Sequence[Block]]) -> list[str]:
    """What attacks searched in, where it is not fp32, and in which lines, where not in all."""
    found: dict[str, list[str]] = {}
    for way, blocks in swept.items():
        points = [point for block in blocks for axis in AXES for point in block.get(axis, {}).values()]
        for search in sorted({point[SEARCH] for point in points if SEARCH in point}):
            found.setdefault(search, []).append(way)
    return [
        f"sought in {search}" + ("" if len(ways) == len(swept) else f": {', '.join(ways)}")
        for search, ways in found.items()
    ]
