"""Robustness against the cost of training, eta + 1 passes (Zhou & Patel 2022, Figures 6-8), from rows of the ledger.

This is the most that an update takes: of hardness manipulation, triplets at their goal leave the attack early. What was
computed is the column `passes` of a row's CSV.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from robustmetric.report.comparison import kind_of, of_retrieval, title_of
from robustmetric.report.ledger import Row
from robustmetric.report.pairs import is_collapsed
from robustmetric.report.plots import COLOURS, MARKERS, colour

PANELS = {
    "clean R@1": ("clean", "R@1"),
    "ERS (compat)": ("compat", "ERS"),
    "R@1 under ES (fixed)": ("fixed", "ES:R"),
    "R@1 under GTM (fixed)": ("fixed", "GTM"),
}
"""What may be drawn, each only where a line has it: the score, and the block of a row that holds it."""
FEWEST = 2
"""Costs that make a line."""
PLAIN = "plain"
INK = "#333333"


@dataclass(frozen=True)
class Point:
    """The rows of one defence at one cost, a row per seed."""

    cost: int
    rows: tuple[Row, ...]

    @property
    def is_collapsed(self) -> bool:
        """Whether one of them did."""
        return any(map(is_collapsed, self.rows))

    def values(self, block: str, score: str) -> list[float]:
        """The score of every row that has it."""
        found = [(row["clean"] if block == "clean" else row.get("attacks", {}).get(block, {})) for row in self.rows]
        return [float(scores[score]) for scores in found if score in scores]


Lines = dict[str, list[Point]]
"""By defence, in the order of cost."""


def cost_figures(rows: Sequence[Row]) -> dict[str, Figure]:
    """A figure of retrieval per protocol and backbone, by name: `cost-<data>-<protocol>-<model>`."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in of_retrieval(rows):
        groups.setdefault((row["data"], row["protocol"], row["model"]), []).append(row)
    return {"-".join(("cost", *key)): made for key, own in groups.items() if (made := cost_figure(own))}


def cost_figure(rows: Sequence[Row]) -> Figure | None:
    """A panel per score, a line per defence; a cross is a collapsed model. None where no defence has two costs."""
    lines = lines_of(rows)
    if not any(len(points) >= FEWEST for points in lines.values()):
        return None
    panels = {title: where for title, where in PANELS.items() if _has_line(lines, *where)}
    first = rows[0]
    figure = Figure(figsize=(3.9 * len(panels), 4.2), layout="constrained")
    figure.suptitle(
        f"{first['data']}, protocol {first['protocol']}, {title_of(first['model'])}", color=INK, fontsize=12
    )
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    for each, (title, where) in zip(axes, panels.items(), strict=True):
        _panel(each, title, lines, *where)
    _legend(figure, lines)
    return figure


def lines_of(rows: Sequence[Row]) -> Lines:
    """The defences measured with several numbers of steps; plain training, of cost 1, is a point of its own."""
    found: dict[str, dict[int, list[Row]]] = {}
    for row in rows:
        defence, eta = kind_of(row)
        if eta is not None or defence == PLAIN:
            found.setdefault(defence, {}).setdefault((eta or 0) + 1, []).append(row)
    kept = {name: costs for name, costs in found.items() if len(costs) >= FEWEST or name == PLAIN}
    return {name: [Point(cost, tuple(kept[name][cost])) for cost in sorted(kept[name])] for name in sorted(kept)}


def _has_line(lines: Lines, block: str, score: str) -> bool:
    return any(sum(bool(p.values(block, score)) for p in points) >= FEWEST for points in lines.values())


def _panel(axes: Axes, title: str, lines: Lines, block: str, score: str) -> None:
    for style, points in enumerate(lines.values()):
        shown = [(point, values) for point in points if (values := point.values(block, score))]
        costs, means = [p.cost for p, _ in shown], [statistics.fmean(values) for _, values in shown]
        spread = [statistics.stdev(values) if len(values) > 1 else 0.0 for _, values in shown]
        marker = MARKERS[style % len(MARKERS)]
        axes.errorbar(costs, means, yerr=spread, color=colour(style), marker=marker, linewidth=2, capsize=3, zorder=2)
        heights = dict(zip(costs, means, strict=True))
        for point in (point for point in points if point.is_collapsed):
            _cross(axes, point.cost, heights.get(point.cost))
    ticks = sorted({point.cost for points in lines.values() for point in points})
    axes.set_xscale("log")
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_title(title, color=INK, fontsize=11)
    axes.set_xlabel("passes per update, at most: steps + 1", color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.2)


def _cross(axes: Axes, cost: int, height: float | None) -> None:
    """A collapsed model; of no height where the score was not measured, and so on the edge of the panel."""
    (cross,) = axes.plot([cost], [height or 0.0], "x", color="black", markersize=11, markeredgewidth=2.2)
    cross.set(clip_on=False, zorder=3)
    if height is None:
        cross.set_transform(axes.get_xaxis_transform())


def _legend(figure: Figure, lines: Lines) -> None:
    first = figure.axes[0]
    for style, name in enumerate(lines):
        first.plot([], [], color=COLOURS[style % len(COLOURS)], marker=MARKERS[style % len(MARKERS)], label=name)
    if any(point.is_collapsed for points in lines.values() for point in points):
        first.plot([], [], "x", color="black", markersize=9, markeredgewidth=2.2, label="collapsed")
    figure.legend(loc="outside lower center", ncols=6, frameon=False, fontsize=10)
