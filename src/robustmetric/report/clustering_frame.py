"""What the figures of rows about clustering share: which rows stand in one figure, its title and its legend."""

import textwrap
from collections.abc import Iterable

from matplotlib.figure import Figure

from robustmetric.report.clustering_rows import is_of_clustering, way_of
from robustmetric.report.comparison import title_of
from robustmetric.report.ledger import Row
from robustmetric.report.plots import INK

Place = tuple[str, str, str]
"""Data, protocol and model: what the rows of a figure share."""


def by_place(rows: Iterable[Row]) -> dict[Place, dict[str, list[Row]]]:
    """The rows about clustering by place, then by the way of training: those that differ in seed, in its order."""
    found: dict[Place, dict[str, list[Row]]] = {}
    for row in sorted(filter(is_of_clustering, rows), key=lambda row: int(row["seed"])):
        found.setdefault((row["data"], row["protocol"], row["model"]), {}).setdefault(way_of(row), []).append(row)
    return found


def frame(place: Place, size: tuple[float, float], *notes: str) -> Figure:
    """An empty figure, so many inches wide and high, whose title names the place and what else is to be told."""
    data, protocol, model = place
    figure = Figure(figsize=size, layout="constrained")
    words = [data, "clustering", f"protocol {protocol}", title_of(model), *notes]
    # Of this size eleven letters take less than an inch.
    title = textwrap.fill(", ".join(words), width=round(11 * size[0]), break_on_hyphens=False)
    figure.suptitle(title, color=INK, fontsize=12)
    return figure


def name_lines(figure: Figure) -> None:
    """A legend below the panels: each name once, in whichever panels it has a line."""
    named = {str(line.get_label()): line for axes in figure.axes for line in axes.get_legend_handles_labels()[0]}
    figure.legend(list(named.values()), list(named), loc="outside lower center", ncols=6, frameon=False, fontsize=10)
