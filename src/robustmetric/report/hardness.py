"""The hardness figure: H = d(a,p) - d(a,n) of training triplets before and after the attack, and the loss they leave.

Zhou & Patel 2022, supplement B.1: the harder the triplets a defence trains on, the nearer it is to collapse.
"""

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup
from matplotlib.ticker import MaxNLocator

from robustmetric import recipe
from robustmetric.errors import InputError
from robustmetric.report.plots import INK, Series, colour, draw, new_axes, to_svg
from robustmetric.report.runs import Run

FIGURES = {"before": ":", "goal": "--", "after": "-"}
"""What a defence notes of its triplets, and the stroke that shows it."""
LOSSES = ("triplet", "metric", "adversarial", "clean")
"""Terms that are triplet losses or parts of one; the others, such as `structure`, have no margin."""
MARGIN = 0.2


def hardness_runs(runs: Sequence[Run]) -> list[Run]:
    """The runs whose training noted how hard its triplets were."""
    return [run for run in runs if by_epoch(run, "before") and by_epoch(run, "after")]


def hardness(runs: Sequence[Run], name: str) -> Markup | None:
    """H by epoch: dotted before the attack, solid after it, dashed the goal; None where no run has it."""
    shown = hardness_runs(runs)
    if not shown:
        return None
    figure, axes = new_axes("epoch", "H = d(a,p) - d(a,n)")
    axes.axhline(0, color=INK, linewidth=0.8)
    for run in shown:
        style = runs.index(run)
        for score, stroke in FIGURES.items():
            values = by_epoch(run, score)
            if values and stroke == "-":
                draw(axes, Series(style, tuple(values), tuple(values.values())))
            elif values:
                axes.plot(list(values), list(values.values()), color=colour(style), linestyle=stroke, linewidth=1.6)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return to_svg(figure, name, f"hardness of training triplets by epoch for {', '.join(run.label for run in shown)}")


def against_margin(runs: Sequence[Run], name: str) -> Markup | None:
    """The triplet loss by epoch, with the margin as a dashed line: a model that has collapsed stays on it."""
    shown = hardness_runs(runs)
    if not shown:
        return None
    figure, axes = new_axes("epoch", "triplet loss on trained images")
    for run in shown:
        values = _losses(run)
        draw(axes, Series(runs.index(run), tuple(values), tuple(values.values())))
    for margin in sorted({margin_of(run) for run in shown}):
        axes.axhline(margin, color=INK, linestyle="--", linewidth=1, gid="margin")
        across = axes.get_yaxis_transform()
        # Below its line: a collapsed model's loss lies on it, or just above.
        axes.text(0.99, margin, f"margin {margin:g}", transform=across, fontsize=10, color=INK, va="top", ha="right")
    axes.set_ylim(bottom=0)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return to_svg(figure, name, f"triplet loss against the margin for {', '.join(run.label for run in shown)}")


def margin_of(run: Run) -> float:
    """The margin of the run's triplet loss: the defence's own, that of its loss, or the usual one."""
    try:
        spec = recipe.parse(run.recipe)
    except InputError:
        return MARGIN
    defence = spec.get("defence") if isinstance(spec, dict) else None
    if not isinstance(defence, dict):
        return MARGIN
    loss = defence.get("loss")
    inner = loss.get("margin", MARGIN) if isinstance(loss, dict) else MARGIN
    margin = defence.get("margin", inner)
    return float(margin) if isinstance(margin, int | float) else MARGIN


def by_epoch(run: Run, score: str) -> dict[float, float]:
    """One score of the training records, by epoch; numbers that are none are passed over."""
    return _finite({r.settings.get("epoch"): r.scores[score] for r in run.of_kind("train") if score in r.scores})


def _losses(run: Run) -> dict[float, float]:
    sums = {
        record.settings.get("epoch"): sum(record.scores[name] for name in LOSSES if name in record.scores)
        for record in run.of_kind("train")
    }
    return _finite(sums)


def _finite(values: Mapping[float | int | None, float]) -> dict[float, float]:
    known = {float(epoch): value for epoch, value in values.items() if epoch is not None and math.isfinite(value)}
    return dict(sorted(known.items()))
