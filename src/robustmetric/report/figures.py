"""The figures of a folder of the ledger: each that its rows allow."""

from collections.abc import Mapping
from pathlib import Path

import matplotlib
from matplotlib.figure import Figure

from robustmetric.errors import InputError
from robustmetric.report.efficiency import cost_figures
from robustmetric.report.falling_figure import falling_figures
from robustmetric.report.ledger import read_rows
from robustmetric.report.smoothing import smoothing_figure
from robustmetric.report.sweep_figure import sweep_figures
from robustmetric.report.training_figure import curve_figures

KINDS = ("svg", "png")


def draw_figures(folder: Path, out: Path) -> list[Path]:
    """Robustness by the steps of training, its curves, and PGD-100 beside AutoAttack by label smoothing, into `out`.

    Of rows about clustering, what was measured after every epoch, and by steps and radius of the attack.
    """
    if folder.resolve().name == "tabular":
        raise InputError(f"{folder} has rows of `certify`, which have no figure here; see `report` of their runs")
    rows = read_rows(folder)
    figures = {**cost_figures(rows), **curve_figures(folder, rows)}
    figures |= {**falling_figures(folder, rows), **sweep_figures(rows)}
    smoothing = smoothing_figure(rows)
    if smoothing is not None:
        figures[f"smoothing-{rows[0]['data']}"] = smoothing
    if not figures:
        raise InputError(
            f"{folder} has no rows that differ in their steps alone, such as act-eta4 and act-eta8, nor "
            "in label smoothing alone, evaluated by autoattack_pgd100, and none of ACT, EST or HM with its curve of "
            "training, nor one about clustering that was measured after every epoch or by clustering_sweep; expected "
            "two such rows or more, or one such curve or sweep"
        )
    return save_figures(figures, out)


def save_figures(figures: Mapping[str, Figure], out: Path) -> list[Path]:
    """Each by its name, as SVG and as PNG."""
    out.mkdir(parents=True, exist_ok=True)
    paths = {out / f"{name}.{kind}": figure for name, figure in figures.items() for kind in KINDS}
    for path, figure in paths.items():
        # The same rows are the same bytes: no date, and ids from the name.
        with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": path.stem}):
            figure.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else None)
    return list(paths)
