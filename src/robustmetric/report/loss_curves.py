"""Climbs of several losses side by side: each as it was climbed, and below them what each leaves right, on one axis."""

from collections.abc import Mapping
from typing import Any

from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from robustmetric.report.plots import INK, colour, styled, to_svg

LOSSES = "losses"
"""In the context of a record, where it was made with these curves."""
STYLES = ("-", "--", "-.", ":")
"""Told apart where lines lie upon one another."""


def losses_plot(losses: Mapping[str, Any], name: str) -> Markup:
    """A small panel for each loss, which has a unit of its own, above the share of images that is still right."""
    lines: Mapping[str, Any] = losses["lines"]
    figure = Figure(figsize=(6.2, 5.2), layout="constrained")
    figure.patch.set_alpha(0)
    grid = figure.add_gridspec(2, len(lines), height_ratios=(2, 3))
    common = figure.add_subplot(grid[1, :])
    styled(common, "step", "still right, percent")
    for place, (label, line) in enumerate(lines.items()):
        own = figure.add_subplot(grid[0, place])
        styled(own, "", "what was climbed" if place == 0 else "")
        own.tick_params(labelsize=8)
        own.yaxis.set_major_locator(MaxNLocator(4))
        own.set_title(label, fontsize=10, color=INK)
        own.plot(line["climbed"], color=colour(place), linewidth=2)
        style = STYLES[place % len(STYLES)]
        common.plot(line["right"], color=colour(place), linewidth=2, linestyle=style, label=label)
    common.set_ylim(-2, 102)
    common.legend(frameon=False, fontsize=9)
    return to_svg(figure, name, losses_note(losses))


def losses_note(losses: Mapping[str, Any]) -> str:
    """What is left right at the end of each loss's climbs, in words."""
    lines: Mapping[str, Any] = losses["lines"]
    steps = max(len(line["right"]) for line in lines.values()) - 1
    ends = ", ".join(f"{label} {line['right'][-1]:.1f}" for label, line in lines.items())
    starts = "1 random start" if losses["starts"] == 1 else f"{losses['starts']} random starts"
    return f"percent still right after {steps} steps up each loss, mean of {starts}: {ends}"
