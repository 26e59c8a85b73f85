"""Does label smoothing buy robustness, or hide its absence? PGD-100 beside AutoAttack, by smoothing and by batch size.

The sweeps of the feature-scattering rebuttal (2019), from rows of the ledger, as Markdown and as the figure.
"""

import math
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from robustmetric import recipe
from robustmetric.report.classification import PAPER_BATCH, batch_of, number_in, where
from robustmetric.report.data_names import NOTE
from robustmetric.report.ledger import Row, header_of
from robustmetric.report.names import label
from robustmetric.report.plots import COLOURS
from robustmetric.report.scores import DASH, show

KINDS = {"scattering": "FS", "madry": "Madry"}
STEPS = {"scattering": 1, "madry": 7}
"""Of the attack that each is trained by."""
WEAK, STRONG = "PGD-100", "AutoAttack"
USUAL_SMOOTHING = 0.5
FEWEST = 2
"""Points that make a sweep."""


@dataclass(frozen=True)
class Point:
    """One row of a sweep: what was trained, in which table it belongs, and what is left of it."""

    kind: str
    smoothing: float
    batch: int
    """Rows of one update."""
    matched: int
    """Rows that transport matches with one another: the batch, or a group of it."""
    place: str
    """What is told of the data, protocol, model and radius, and what attacks searched in where it is not fp32."""
    weak: float | None
    """After PGD-100: the lowest run where there are several, as the authors report it."""
    strong: float | None


def smoothing_tables(data: str, rows: Sequence[Row]) -> list[str]:
    """A table for each sweep of smoothing, then one for each sweep of batch size; what was published stands apart."""
    theirs = _published(data)
    points = _points(rows)
    made = []
    for title, own in _by_smoothing(points).items():
        known = {
            kind: {d: score for (k, d, n), score in theirs.items() if (k, n) == (kind, PAPER_BATCH)} for kind in KINDS
        }
        made.append(f"### {data}, label smoothing, {title}\n\n{_table('smoothing', own, _smoothing, known)}")
    for title, own in _by_batch(points).items():
        known = {
            "scattering": {
                float(n): score for (k, d, n), score in theirs.items() if (k, d) == ("scattering", USUAL_SMOOTHING)
            }
        }
        made.append(f"### {data}, images matched together, {title}\n\n{_table('images', own, _matched, known)}")
    return made


def smoothing_figure(rows: Sequence[Row]) -> Figure | None:
    """A panel per sweep, a line per defence and attack, seeds averaged. None where neither attack met two smoothings.

    A sweep that one of the two attacks has not met compares nothing, and has no panel where another has.
    """
    groups = _by_smoothing(_points(rows))
    groups = {title: own for title, own in groups.items() if _has_both(own)} or groups
    if not groups:
        return None
    figure = Figure(figsize=(6.2 * len(groups), 4.2), layout="constrained")
    panels = figure.subplots(1, len(groups), squeeze=False, sharey=True)[0]
    for axes, (title, points) in zip(panels, groups.items(), strict=True):
        _panel(axes, title, points)
    shown = [score for own in groups.values() for point in own for score in (point.weak, point.strong) if score]
    panels[0].set_ylim(0, min(100, 20 * math.ceil((max(shown, default=0.0) + 10) / 20)))  # one axis for all
    return figure


def _has_both(points: Sequence[Point]) -> bool:
    """Whether both attacks met several smoothings of some defence."""
    own = [[point for point in points if point.kind == kind] for kind in KINDS]
    return any(min(len(_means(some, _smoothing, attack)) for attack in (WEAK, STRONG)) >= FEWEST for some in own)


def _panel(axes: Axes, title: str, points: Sequence[Point]) -> None:
    for style, (kind, shown) in enumerate(KINDS.items()):
        own = [point for point in points if point.kind == kind]
        for attack, stroke in ((WEAK, "--"), (STRONG, "-")):
            line = _means(own, _smoothing, attack)
            if line:
                axes.plot(
                    list(line), list(line.values()), color=COLOURS[style], linestyle=stroke, marker="os"[style],
                    markerfacecolor="none" if attack == WEAK else COLOURS[style], label=f"{shown}, {attack}",
                )  # fmt: skip
    axes.set_xlabel("label smoothing")
    axes.set_ylabel("accuracy in percent")
    axes.set_title(title, fontsize=10)
    axes.grid(axis="y", alpha=0.2)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9)


def _points(rows: Iterable[Row]) -> list[Point]:
    return [point for row in rows if (point := _point(row)) is not None]


def _point(row: Row) -> Point | None:
    """A row of a sweep; None for one of another defence, or of neither attack."""
    named = _named(str(row["defence"]))
    block = row.get("classification", {})
    accuracy = block.get("accuracy", {})
    if named is None or not {WEAK, STRONG} & set(accuracy) or number_in(row["id"], "eta") != STEPS[named[0]]:
        return None
    batch = batch_of(row) or PAPER_BATCH
    return Point(
        kind=named[0],
        smoothing=named[1],
        batch=batch,
        matched=number_in(row["id"], "group") or batch,
        place=", ".join([*filter(None, [row.get(NOTE)]), f"protocol {row['protocol']}", row["model"], where(block)]),
        weak=block.get("lowest run", {}).get(WEAK, accuracy.get(WEAK)),
        strong=accuracy.get(STRONG),
    )


def _named(defence: str) -> tuple[str, float] | None:
    """`scattering_smoothing0_5` as (scattering, 0.5); None for what is no row of these sweeps."""
    found = re.fullmatch(rf"({'|'.join(KINDS)})(?:_smoothing(\d+(?:_\d+)?))?", defence)
    return None if found is None else (found[1], float((found[2] or "0").replace("_", ".")))


def _smoothing(point: Point) -> float:
    return point.smoothing


def _matched(point: Point) -> float:
    return float(point.matched)


def _by_smoothing(points: Sequence[Point]) -> dict[str, list[Point]]:
    """Points that differ in defence and smoothing alone: an update's batch is the same, and FS matches 60 images."""
    usual = [point for point in points if point.kind != "scattering" or point.matched == PAPER_BATCH]
    return _sweeps(usual, _smoothing, lambda point: f"{point.place}, batches of {point.batch}")


def _by_batch(points: Sequence[Point]) -> dict[str, list[Point]]:
    """Points of FS that differ in how many images are matched alone; apart from them, those without groups.

    Without groups the batch of an update is as large, so that batch norm and the number of updates differ too. A whole
    batch beside groups of such batches is the largest group as well.
    """
    own = [point for point in points if point.kind == "scattering" and point.smoothing == USUAL_SMOOTHING]
    whole = [point for point in own if point.matched == point.batch]
    batches = {(point.place, point.batch) for point in own if point.matched != point.batch}
    grouped = [point for point in own if (point.place, point.batch) in batches]
    return {
        **_sweeps(whole, _matched, lambda point: f"{point.place}, batches of as many"),
        **_sweeps(grouped, _matched, lambda point: f"{point.place}, groups in batches of {point.batch}"),
    }


def _sweeps(
    points: Sequence[Point], value: Callable[[Point], float], title: Callable[[Point], str]
) -> dict[str, list[Point]]:
    groups: dict[str, list[Point]] = {}
    for point in points:
        groups.setdefault(title(point), []).append(point)
    return {name: own for name, own in groups.items() if _is_swept(own, value)}


def _is_swept(points: Sequence[Point], value: Callable[[Point], float]) -> bool:
    """Whether some defence has several values: one value each of two defences is no sweep."""
    return any(len({value(point) for point in points if point.kind == kind}) >= FEWEST for kind in KINDS)


def _means(points: Sequence[Point], value: Callable[[Point], float], attack: str) -> dict[float, float]:
    """By what varies, in order, the mean over seeds of what an attack leaves."""
    found: dict[float, list[float]] = {}
    for point in sorted(points, key=value):
        score = point.weak if attack == WEAK else point.strong
        if score is not None:
            found.setdefault(value(point), []).append(score)
    return {across: statistics.fmean(scores) for across, scores in found.items()}


def _published(data: str) -> dict[tuple[str, float, int], float]:
    """PGD-100 by defence, smoothing and batch, as the headers of our recipes have it from the authors' rebuttal."""
    found = {}
    for name in recipe.listing():
        told = header_of(recipe.shelf() / f"{name}.yaml")[1].get("published", "") if name.startswith(f"{data}/") else ""
        score = re.search(rf"{WEAK} (\d[\d.]*)", told)
        if score is not None:
            spec = recipe.load(recipe.locate(name))
            named = _named(label(spec["defence"], data))
            if named is not None:
                found[*named, int(spec["sampler"]["batch"])] = float(score[1])
    return found


def _table(
    across: str,
    points: Sequence[Point],
    value: Callable[[Point], float],
    theirs: Mapping[str, Mapping[float, float]],
) -> str:
    """A line for each value that was measured: ours, then what was published, of another network."""
    ours = {
        (kind, attack): _means([point for point in points if point.kind == kind], value, attack)
        for kind in theirs
        for attack in (WEAK, STRONG)
    }
    head = [across, *(f"{KINDS[kind]}: {attack}" for kind, attack in ours)]
    head += [f"published (WRN-28-10), {KINDS[kind]}: {WEAK}" for kind in theirs]
    lines = []
    for number in sorted(set(map(value, points))):
        cells = [_shown(column.get(number)) for column in (*ours.values(), *theirs.values())]
        lines.append([f"{number:g}", *cells])
    rule = ["--:"] * len(head)
    text = "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *lines))
    told = f"Percent right; {WEAK} is the lowest of its runs where there are several, as it is published"
    return f"{text}\n\n{told}; of several seeds the mean."


def _shown(score: float | None) -> str:
    return DASH if score is None else show("accuracy", score)
