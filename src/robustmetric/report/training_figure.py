"""The figure of training by rows of the ledger: the hardness of their triplets, and the loss against its margin.

H = d(a,p) - d(a,n) before and after the attack (Zhou & Patel 2022, supplement B.1), as the page of a run draws it.
"""

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from robustmetric.report.comparison import kind_of, of_retrieval, title_of
from robustmetric.report.curves import EPOCH, Curve, read_curve
from robustmetric.report.hardness import FIGURES, LOSSES, MARGIN
from robustmetric.report.ledger import Row
from robustmetric.report.plots import INK, colour

SHOWN = ("est", "act", "minmax", "hm_s_m", "hm_lga", "hm_lga_ics")
"""The defences that the supplement compares; rows of others are not drawn, or no line could be told from the next."""


def curve_figures(folder: Path, rows: Sequence[Row]) -> dict[str, Figure]:
    """By name, `training-<data>-<protocol>-<model>`, a figure of the first seed of each defence."""
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for row in sorted(of_retrieval(rows), key=lambda row: int(row["seed"])):
        if row["defence"] in SHOWN and _path(folder, row).is_file():
            groups.setdefault((row["data"], row["protocol"], row["model"]), []).append(row)
    return {"-".join(("training", *key)): _of_group(folder, *key, own) for key, own in groups.items()}


def _path(folder: Path, row: Row) -> Path:
    return folder / f"{row['id']}.csv"


def _of_group(folder: Path, data: str, protocol: str, model: str, rows: Sequence[Row]) -> Figure:
    """Of the steps that most rows have: what more of them bring is another figure's matter."""
    steps = statistics.mode(kind_of(row)[1] for row in rows)
    first = {row["defence"]: row for row in reversed(rows) if kind_of(row)[1] == steps}
    curves = {name: read_curve(_path(folder, first[name])) for name in SHOWN if name in first}
    words = [data, f"protocol {protocol}", title_of(model), *([] if steps is None else [f"{steps} steps"])]
    return _figure(", ".join(words), curves)


def _figure(title: str, curves: Mapping[str, Curve]) -> Figure:
    """Hardness on the left, the triplet loss on the right; a defence has its colour in every figure."""
    figure = Figure(figsize=(9.6, 4.4), layout="constrained")
    figure.suptitle(title, color=INK, fontsize=12)
    left, right = figure.subplots(1, 2)
    panel(left, "H = d(a,p) - d(a,n): dotted before the attack, solid after, dashed its goal")
    panel(right, f"triplet loss on trained images; dashed: the margin, {MARGIN:g}")
    left.axhline(0, color=INK, linewidth=0.8)
    right.axhline(MARGIN, color=INK, linestyle="--", linewidth=1)
    for name, curve in curves.items():
        style = SHOWN.index(name)
        for score, stroke in FIGURES.items():
            if score in curve:
                left.plot(curve[EPOCH], curve[score], color=colour(style), linestyle=stroke, linewidth=1.8)
        terms = [curve[term] for term in LOSSES if term in curve]
        losses = [sum(values) for values in zip(*terms, strict=True)]
        right.plot(curve[EPOCH][: len(losses)], losses, color=colour(style), linewidth=1.8, label=name)
    right.set_ylim(bottom=0)
    figure.legend(loc="outside lower center", ncols=6, frameon=False, fontsize=10)
    return figure


def panel(axes: Axes, title: str, across: str = "epoch") -> None:
    """Axes by epoch, or by what else is counted."""
    axes.set_title(title, color=INK, fontsize=9)
    axes.set_xlabel(across, color=INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", alpha=0.2)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
