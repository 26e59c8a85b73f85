"""Masking verdicts on the page: what was checked, how it ended, its plot, and a flag beside the numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from textwrap import fill
from typing import Any

from markupsafe import Markup
from matplotlib.ticker import MaxNLocator

from robustmetric.records import Record
from robustmetric.report.loss_curves import LOSSES, losses_note, losses_plot
from robustmetric.report.masking_flag import KIND, LAST, MARK, NOT_RUN, flag
from robustmetric.report.plots import COLOURS, colour, new_axes, to_svg
from robustmetric.report.runs import Run
from robustmetric.report.scores import show_radius

SIGNS = {"pass": "✓", "fail": MARK, "unclear": "?", NOT_RUN: "-"}
TITLES = {
    "randomness": "same answer twice",
    "zero_gradients": "there is a gradient",
    "restarts": "restarts agree",
    "loss_curves": "loss curves of random starts",
    "step_size": "no matter the step size",
    "loss_against_margin": "no matter the loss",
    "radius_sweep": "chance at a large radius",
    "steps": "more steps stop helping",
    "binarisation": "planted examples are found",
    "black_box": "no worse from another model",
    "gradient_free": "no worse without gradients",
    "hard_label": "no worse by decisions alone",
    "worst_case": "no worse under all of these",
}
FEW = 5
"""Lines that a plot tells apart; more are drawn alike."""
WIDTH = 10
"""Letters in a line of a bar's name."""


@dataclass(frozen=True)
class Check:
    """One line of the table, and its plot."""

    name: str
    """As flags, records and the documentation have it."""
    title: str
    verdict: str
    sign: str
    said: str
    plot: Markup | None
    note: str = ""
    """What the plot shows beside the verdict."""

    @property
    def stands_open(self) -> bool:
        """Whether its plot is shown without being asked for: of one that failed, or came to no end."""
        return self.verdict in ("fail", "unclear")


@dataclass(frozen=True)
class Checked:
    """All checks of one run at one radius."""

    place: int
    run: str
    radius: str
    verdict: str
    images: int
    checks: tuple[Check, ...]

    @property
    def plots(self) -> tuple[tuple[Check, ...], tuple[Check, ...]]:
        """The checks with a plot: those that did not pass, and the others."""
        drawn = [check for check in self.checks if check.plot is not None]
        return tuple(one for one in drawn if one.stands_open), tuple(one for one in drawn if not one.stands_open)


def checked(runs: Sequence[Run]) -> list[Checked]:
    """What each run's diagnostics say, in the order they were made."""
    found: list[Checked] = []
    for place, run in enumerate(runs):
        for last in (record for record in run.of_kind(KIND) if record.name == LAST):
            own = [record for record in run.of_kind(KIND) if record.name != LAST and record.settings == last.settings]
            name = f"masking-{place}-{len(found)}"
            found.append(
                Checked(
                    place=place,
                    run=run.label,
                    radius=show_radius(float(last.settings["radius"])),
                    verdict=str(last.context["verdict"]),
                    images=last.count,
                    checks=tuple(_check(record, f"{name}-{i}") for i, record in enumerate(own)),
                )
            )
    return found


def flags(runs: Sequence[Run]) -> dict[str, str]:
    """By label, for the runs that failed a check: the flag that stands beside their numbers, in words."""
    found = {run.label: flag(run.records) for run in runs}
    return {label: words for label, words in found.items() if words}


def _check(record: Record, name: str) -> Check:
    word = str(record.context["verdict"])
    title = TITLES.get(record.name, record.name)
    curve = record.context.get("curve")
    plot = None if curve is None else _plot(curve, name, title)
    check = Check(record.name, title, word, SIGNS[word], str(record.context["said"]), plot)
    losses = record.context.get(LOSSES)
    if losses is None or plot is None:
        return check
    return replace(check, plot=plot + losses_plot(losses, f"{name}-losses"), note=losses_note(losses))


def _plot(curve: Mapping[str, Any], name: str, title: str) -> Markup:
    lines: Mapping[str, Any] = curve["lines"]
    figure, axes = new_axes(str(curve["across"]), str(curve["up"]))
    several = len(lines) > FEW and any(len(across) > 1 for across, _ in lines.values())
    for place, (label, (across, up)) in enumerate(lines.items()):
        if len(across) == 1:
            axes.bar(across, up, color=COLOURS[0], width=0.6)
        else:
            shade = COLOURS[0] if several else colour(place)
            axes.plot(across, up, color=shade, linewidth=1 if several else 2, label=None if several else label)
    if all(len(across) == 1 for across, _ in lines.values()):
        names = [fill(label, WIDTH, break_long_words=False) for label in lines]
        axes.set_xticks([across[0] for across, _ in lines.values()], names, fontsize=9)
    elif not several and len(lines) > 1:
        axes.legend(frameon=False, fontsize=9)
    if curve.get("is_logarithmic"):
        axes.set_xscale("log")
    if curve["across"] == "run":
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if "percent" in curve["up"]:
        # Else two points between runs would look like a fall from top to bottom.
        axes.set_ylim(-2, 102)
    return to_svg(figure, name, f"{title}: {', '.join(lines) if not several else f'{len(lines)} lines'}")
