"""The figure of embeddings that fall together, by rows of the ledger about clustering (arXiv 2501.01025).

With F(x) in the label's place the constant embedding is the minimum: the loss falls, and clean R@1 with it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.figure import Figure

from robustmetric.report.clustering_rows import is_of_clustering, way_of
from robustmetric.report.comparison import title_of
from robustmetric.report.curves import COSINE, EPOCH, RECALL, Curve, read_curve
from robustmetric.report.ledger import Row
from robustmetric.report.plots import INK, colour
from robustmetric.report.training_figure import panel

TERMS = ("clean", "adversarial", "metric", "mixed", "stability")
"""Of the loss, as these defences note them."""
PANELS = ("training loss / that of epoch 1", "clean R@1", "mean cosine of clean embeddings")


def falling_figures(folder: Path, rows: Sequence[Row]) -> dict[str, Figure]:
    """By name, `falling-<data>-<protocol>-<model>`, the first seed of each row measured after every epoch."""
    groups: dict[tuple[str, str, str], dict[str, Curve]] = {}
    for row in sorted(filter(is_of_clustering, rows), key=lambda row: int(row["seed"])):
        path = folder / f"{row['id']}.csv"
        curve = read_curve(path) if path.is_file() else {}
        if RECALL in curve and COSINE in curve and len(curve[EPOCH]) > 1:
            groups.setdefault((row["data"], row["protocol"], row["model"]), {}).setdefault(way_of(row), curve)
    return {"-".join(("falling", *key)): _figure(*key, curves) for key, curves in groups.items()}


def _figure(data: str, protocol: str, model: str, curves: Mapping[str, Curve]) -> Figure:
    figure = Figure(figsize=(11.7, 4.0), layout="constrained")
    figure.suptitle(f"{data}, clustering, protocol {protocol}, {title_of(model)}", color=INK, fontsize=12)
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
    handles, names = axes[1].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=6, frameon=False, fontsize=10)
    return figure
