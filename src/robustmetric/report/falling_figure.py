"""The figure of embeddings that fall together, by rows of the ledger about clustering (arXiv 2501.01025).

With F(x) in the label's place the constant embedding is the minimum: the loss falls, and clean R@1 with it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from robustmetric.report.clustering_frame import Place, by_place, frame, name_lines
from robustmetric.report.curves import COSINE, EPOCH, RECALL, Curve, read_curve
from robustmetric.report.ledger import Row
from robustmetric.report.plots import colour
from robustmetric.report.training_figure import panel

TERMS = ("clean", "adversarial", "metric", "mixed", "stability")
"""Of the loss, as these defences note them."""
PANELS = ("training loss / that of epoch 1", "clean R@1", "mean cosine of clean embeddings")


def falling_figures(folder: Path, rows: Sequence[Row]) -> dict[str, Figure]:
    """By name, `falling-<data>-<protocol>-<model>`, the first seed of each row measured after every epoch."""
    figures: dict[str, Figure] = {}
    for place, ways in by_place(rows).items():
        curves = {way: curve for way, own in ways.items() if (curve := _first(folder, own))}
        if curves:
            figures["-".join(("falling", *place))] = _figure(place, curves)
    return figures


def _first(folder: Path, rows: Sequence[Row]) -> Curve:
    """The curve of the first of these rows that was measured after every epoch; empty where none was."""
    paths = [path for row in rows if (path := folder / f"{row['id']}.csv").is_file()]
    return next((curve for curve in map(read_curve, paths) if _is_whole(curve)), {})


def _is_whole(curve: Curve) -> bool:
    return RECALL in curve and COSINE in curve and len(curve[EPOCH]) > 1


def _figure(place: Place, curves: Mapping[str, Curve]) -> Figure:
    figure = frame(place, (11.7, 4.0))
    axes = figure.subplots(1, len(PANELS))
    for each, words in zip(axes, PANELS, strict=True):
        panel(each, words)
    for style, (name, curve) in enumerate(curves.items()):
        terms = [curve[term] for term in TERMS if term in curve]
        sums = [sum(values) for values in zip(*terms, strict=True)]
        losses = [value / sums[0] for value in sums] if sums and sums[0] > 0 else []
        for each, values in zip(axes, (losses, curve[RECALL], curve[COSINE]), strict=True):
            each.plot(curve[EPOCH][: len(values)], values, color=colour(style), linewidth=1.8, label=name)
    axes[0].set_yscale("log")
    axes[1].set_ylim(bottom=0)
    axes[2].set_ylim(-0.02, 1.02)
    name_lines(figure)
    return figure
