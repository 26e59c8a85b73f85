"""Plots as inline SVG: lines take a run's own style, text takes the page's colour, so that they suit light and dark."""

import io
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
from markupsafe import Markup, escape
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from robustmetric.report.curves import COSINE, RECALL
from robustmetric.report.runs import Run
from robustmetric.report.scores import show_radius
from robustmetric.report.tables import Column, Summary

# Okabe and Ito 2008: told apart with any kind of colour vision; their black would vanish on a dark page.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#808080")
MARKERS = ("o", "s", "^", "D")
SHAPES = {
    "o": '<circle cx="14" cy="7" r="4"/>',
    "s": '<rect x="10" y="3" width="8" height="8"/>',
    "^": '<path d="M14 2 L19 11 L9 11 Z"/>',
    "D": '<path d="M14 2 L19 7 L14 12 L9 7 Z"/>',
}
INK = "#010203"  # stands for the page's text colour until the SVG is written


@dataclass(frozen=True)
class Series:
    """One line of a plot; `style` is the run's place in the report, so that its colour is the same in every plot."""

    style: int
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


def colour(style: int) -> str:
    """The colour of the run at that place."""
    return COLOURS[style % len(COLOURS)]


def swatch(style: int) -> Markup:
    """A legend's sample: a stroke of the run's line with its marker."""
    shape = Markup(SHAPES[MARKERS[style % len(MARKERS)]])
    line = Markup('<path d="M0 7 H28" stroke-width="2" fill="none"/>')
    head = '<svg class="swatch" width="28" height="14" viewBox="0 0 28 14" aria-hidden="true" fill="{0}" stroke="{0}">'
    return Markup(head).format(colour(style)) + line + shape + Markup("</svg>")


def robustness(summary: Summary, labels: Sequence[str], variant: tuple[str, str], name: str) -> Markup:
    """R@1 under embedding shift against radius, a line per run; clean R@1 stands at radius 0, bands are intervals."""
    columns = summary.variants()[variant]
    lines = [_curve(summary, columns, run, labels.index(run)) for run in summary.rows]
    figure, axes = new_axes("radius of the attack", "R@1 in percent")
    for line in lines:
        draw(axes, line)
    if summary.chance is not None:
        axes.axhline(summary.chance, color=INK, linestyle="--", linewidth=1, gid="chance")
        # Written at the left, where the curves still stand at their clean height.
        left = axes.get_yaxis_transform()
        axes.text(0.01, summary.chance + 1, f"chance {summary.chance:.1f}", transform=left, fontsize=10, color=INK)
    radii = sorted({x for line in lines for x in line.x})
    ticks = _spread(radii)
    axes.set_xticks(ticks, [show_radius(radius, tuple(radii)) for radius in ticks])
    axes.set_ylim(-2, 102)
    return to_svg(figure, name, f"R@1 against attack radius for {', '.join(summary.rows)}")


def training(runs: Sequence[Run], name: str) -> Markup | None:
    """The sum of the loss terms by epoch, one line per run; None where no run has training records."""
    lines = [line for style, run in enumerate(runs) if (line := _loss(run, style)) is not None]
    if not lines:
        return None
    figure, axes = new_axes("epoch", "training loss")
    for line in lines:
        draw(axes, line)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    shown = [runs[line.style].label for line in lines]
    return to_svg(figure, name, f"training loss by epoch for {', '.join(shown)}")


VALIDATED = {
    RECALL: ("clean R@1", "R@1 of the clean test set, in percent."),
    COSINE: (
        "mean cosine of clean embeddings",
        "Mean cosine of two images of the clean test set. Near 1 all embeddings have fallen together: the loss may be "
        "low, and R@1 above chance still, by the last digits of nearly equal distances.",
    ),
}
"""Scores that are measured while a run trains: in words, and what they say."""


@dataclass(frozen=True)
class Plot:
    """One plot: what is on its axes, what it says, whose lines (by the places of the runs), and the picture."""

    title: str
    caption: str
    styles: tuple[int, ...]
    plot: Markup


def validations(runs: Sequence[Run], name: str) -> list[Plot]:
    """A plot for each score that some run measured more than once while it trained."""
    made: list[Plot] = []
    for score, (title, caption) in VALIDATED.items():
        lines = [line for style, run in enumerate(runs) if (line := _validated(run, style, score)) is not None]
        if lines:
            figure, axes = new_axes("epoch", title)
            for line in lines:
                draw(axes, line)
            axes.xaxis.set_major_locator(MaxNLocator(integer=True))
            styles = tuple(line.style for line in lines)
            alone = f"{title} by epoch for {', '.join(runs[style].label for style in styles)}"
            made.append(Plot(title, caption, styles, to_svg(figure, f"{name}-{len(made)}", alone)))
    return made


def _validated(run: Run, style: int, score: str) -> Series | None:
    found = {float(r.settings["epoch"]): r.scores[score] for r in run.of_kind("validation") if score in r.scores}
    finite = {epoch: value for epoch, value in sorted(found.items()) if math.isfinite(value)}
    return Series(style, tuple(finite), tuple(finite.values())) if len(finite) > 1 else None


def _curve(summary: Summary, columns: Sequence[Column], run: str, style: int) -> Series:
    cells = summary.rows[run]
    clean = Column("R@1")
    # Radius 0 is no attack: the clean number stands there, not an attack that could not move.
    wanted = [(0.0, clean)] if clean in cells else []
    wanted += [(c.radius, c) for c in columns if c.radius is not None and c in cells and not (wanted and c.radius == 0)]
    points = [(radius, cells[column]) for radius, column in wanted if math.isfinite(cells[column].value)]
    bands = [cell.interval or (math.nan, math.nan) for _, cell in points]
    return Series(
        style=style,
        x=tuple(radius for radius, _ in points),
        y=tuple(cell.value for _, cell in points),
        low=tuple(float(low) for low, _ in bands),
        high=tuple(float(high) for _, high in bands),
    )


def _loss(run: Run, style: int) -> Series | None:
    by_epoch = {}
    for record in run.of_kind("train"):
        # Records of older versions do not say which of their scores are terms of the loss.
        others = [key for key in record.scores if key not in ("epoch", "images_per_second", "data_wait")]
        terms = {key: record.scores[key] for key in record.settings.get("terms", others)}
        epoch = record.settings.get("epoch", record.scores.get("epoch"))
        if epoch is not None and terms:
            by_epoch[float(epoch)] = sum(terms.values())
    finite = {epoch: loss for epoch, loss in sorted(by_epoch.items()) if math.isfinite(loss)}
    return Series(style, tuple(finite), tuple(finite.values())) if finite else None


def new_axes(across: str, up: str) -> tuple[Figure, Axes]:
    """An empty plot in the page's manner, with the names of its axes."""
    # 6.2 inches: small enough that 11-point text stays legible when a phone shrinks the plot.
    figure = Figure(figsize=(6.2, 3.9), layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.add_subplot()
    styled(axes, across, up)
    return figure, axes


def styled(axes: Axes, across: str, up: str) -> None:
    """Axes in the page's manner, with their names."""
    axes.patch.set_alpha(0)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(INK)
    axes.tick_params(colors=INK, labelsize=11)
    axes.grid(axis="y", color=INK, alpha=0.12, linewidth=0.8)
    axes.set_xlabel(across, color=INK, fontsize=12)
    axes.set_ylabel(up, color=INK, fontsize=12)


def draw(axes: Axes, line: Series) -> None:
    """A run's line with its colour and marker, and its band if it has one."""
    if any(math.isfinite(low) for low in line.low):
        axes.fill_between(line.x, line.low, line.high, color=colour(line.style), alpha=0.18, linewidth=0)
    marker = MARKERS[line.style % len(MARKERS)]
    (drawn,) = axes.plot(
        line.x, line.y, color=colour(line.style), marker=marker, markersize=5, linewidth=2, clip_on=False
    )
    drawn.set_gid(f"run-{line.style}")


def by_factors(axes: Axes, values: Sequence[float], least: float = 1.0) -> None:
    """A horizontal axis of values that grow by factors from `least` on, with ticks, and numbers where there is room."""
    # The clean model stands at 0, where a logarithm has no place.
    axes.set_xscale("symlog", linthresh=least, linscale=0.5)
    axes.autoscale(axis="x")
    kept: list[float] = []
    for value in values:
        if not kept or value >= 1.3 * kept[-1]:
            kept.append(value)
    axes.set_xticks(values, [f"{value:g}" if value in kept else "" for value in values])
    axes.minorticks_off()


def _spread(radii: Sequence[float]) -> list[float]:
    """The radii that have room for a label: none nearer to the last one kept than a twelfth of the axis."""
    kept: list[float] = []
    for radius in radii:
        if not kept or radius - kept[-1] >= radii[-1] / 12:
            kept.append(radius)
    return kept


def to_svg(figure: Figure, name: str, description: str) -> Markup:
    """The figure as an SVG element for a page: no prologue, no outside address, ids that carry the plot's name."""
    buffer = io.StringIO()
    # Text stays text, so it can be selected and read aloud; the salt makes the same figure the same bytes.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": name, "font.family": "sans-serif"}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", text)
    text = text.replace("xlink:href", "href").replace(INK, "currentColor")
    text = re.sub(r'(\sid="|url\(#|href="#)', rf"\g<1>{name}-", text)
    # The width and height in points would stop the page from scaling the plot.
    text = re.sub(r'(<svg[^>]*?)\swidth="[^"]*"', r"\1", text, count=1)
    text = re.sub(r'(<svg[^>]*?)\sheight="[^"]*"', r"\1", text, count=1)
    return Markup(text.replace("<svg", f'<svg role="img" aria-label="{escape(description)}"', 1))
