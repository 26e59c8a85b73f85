"""Error against radius: the curves of certified records as PNG and SVG, and the rows of `results/tabular`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from robustmetric.records import Record
from robustmetric.report.certified_schema import faults
from robustmetric.report.ledger import Row, read_folder
from robustmetric.report.plots import colour, new_axes, to_svg
from robustmetric.report.runs import Run

KINDS = ("certified", "empirical")
"""Of records with a curve: what is proved, and what an attack reaches."""
Shown = tuple[int, str, Record]
"""A curve: its style, its label, and the record that has it."""


@dataclass(frozen=True)
class Proofs:
    """What several runs proved in one way on the same points."""

    title: str
    plot: Markup
    radii: tuple[float, ...]
    """Where every run states its result."""
    rows: tuple[tuple[int, str, tuple[float, ...], int], ...]
    """Per run: its place among the runs, its label, the result in percent at each radius, the number of points."""
    is_retrieval: bool


def draw_curves(runs: Mapping[str, Sequence[Record]], out: Path) -> list[Path]:
    """`curves.png` and `curves.svg` in `out`: one line per certified record of every run; none where there is none."""
    figure = curves(runs)
    if figure is None:
        return []
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / f"curves.{kind}" for kind in ("png", "svg")]
    for path in paths:
        figure.savefig(path, dpi=150)
    return paths


def curves(runs: Mapping[str, Sequence[Record]]) -> Figure | None:
    """One line per record of every run that has a curve, dashed where an attack found it."""
    lines = [(f"{run}, {record.name}", record) for run, found in runs.items() for record in found if _has_curve(record)]
    if not lines:
        return None
    figure, axes = _axes([record for _, record in lines])
    for style, (label, record) in enumerate(lines):
        _draw(axes, record, style, label)
    axes.legend(frameon=False, fontsize=9)
    return figure


def proofs(runs: Sequence[Run]) -> list[Proofs]:
    """The proofs of these runs, those of one name and data set together, in the order they were made.

    Where errors on one data set were proved in several ways, by k-NN and by a network, a last one has all of them.
    """
    groups: dict[tuple[str, str], list[Shown]] = {}
    for place, run in enumerate(runs):
        for record in run.of_kind(*KINDS):
            if _has_curve(record):
                data = str(record.settings.get("data"))
                groups.setdefault((record.name, data), []).append((place, run.label, record))
    every: dict[str, list[list[Shown]]] = {}
    for (_, data), found in groups.items():
        if not _is_retrieval(found[0][2]):
            every.setdefault(data, []).append(found)
    for data, several in every.items():
        if len(several) > 1:
            shown = [(f"{label}, {record.name}", record) for found in several for _, label, record in found]
            groups["all certificates", data] = [(style, label, record) for style, (label, record) in enumerate(shown)]
    return [_together(name, data, found, f"certified-{i}") for i, ((name, data), found) in enumerate(groups.items())]


def _together(name: str, data: str, found: Sequence[Shown], plot: str) -> Proofs:
    is_retrieval = _is_retrieval(found[0][2])
    word = "R@1" if is_retrieval else "error"
    stated = [{float(key.rpartition("@")[2]) for key in r.scores if key.startswith(f"{word}@")} for _, _, r in found]
    radii = tuple(sorted(set.intersection(*stated)))
    figure, axes = _axes([record for _, _, record in found])
    for style, label, record in found:
        _draw(axes, record, style, label)
    return Proofs(
        title=f"{name}, {data}",
        plot=to_svg(figure, plot, f"{word} against radius for {', '.join(label for _, label, _ in found)}"),
        radii=radii,
        rows=tuple((p, label, tuple(r.scores[f"{word}@{x:g}"] for x in radii), r.count) for p, label, r in found),
        is_retrieval=is_retrieval,
    )


def _axes(found: Sequence[Record]) -> tuple[Figure, Axes]:
    kinds = [kind for kind in KINDS if any(record.kind == kind for record in found)]
    word = "R@1" if _is_retrieval(found[0]) else "error"
    figure, axes = new_axes("radius (l2)", f"{' and '.join(kinds)} {word}, percent")
    axes.set_ylim(0, 100)
    axes.set_xlim(left=0)
    return figure, axes


def _draw(axes: Axes, record: Record, style: int, label: str) -> None:
    curve = record.context["curve"]
    up = [100 - error for error in curve["error"]] if _is_retrieval(record) else curve["error"]
    line = "--" if record.kind == "empirical" else "-"
    axes.step(curve["radii"], up, line, where="post", color=colour(style), linewidth=2, label=label)


def _has_curve(record: Record) -> bool:
    return "curve" in record.context


def _is_retrieval(record: Record) -> bool:
    return any(name.startswith("R@1@") for name in record.scores)


def read_certified(folder: Path) -> list[Row]:
    """Every row of a folder of certified results, by id; a file that does not keep to the schema is refused."""
    return read_folder(folder, faults, "results/tabular")


def certified_table(folder: Path) -> str:
    """The rows of a folder as Markdown: a table per data set and proof, errors in percent, what is published beside."""
    groups: dict[tuple[str, str], list[tuple[Row, Row]]] = {}
    for row in read_certified(folder):
        for proof in [*row["certified"], *row.get("empirical", [])]:
            groups.setdefault((row["data"], proof["name"]), []).append((row, proof))
    parts = []
    for (data, name), lines in groups.items():
        radii = lines[0][1]["radii"]
        head = ["learner", *(f"{radius:g}" for radius in radii), "area", "fit, s", "certify, s", "published"]
        body = [_line(row, proof, name) for row, proof in sorted(lines, key=lambda line: line[1].get("area", 0.0))]
        table = [head, ["---"] * len(head), *body]
        parts.append(f"### {data}, {name}\n\n" + "\n".join(f"| {' | '.join(cells)} |" for cells in table))
    return "\n\n".join(parts)


def _line(row: Row, proof: Row, name: str) -> list[str]:
    """One learner; what is published is of 1-NN."""
    published = row.get("published", "")
    theirs = published.removeprefix("1-NN certified errors ") if name == "1-NN exact" and "errors" in published else ""
    learner = Path(row["recipe"]).stem.partition("-")[2] or row["learner"]  # the recipe tells its settings apart
    shown = [f"{error:.1f}" for error in proof["error"]]
    fit = f"{row['fit_seconds']:.1f}" if "fit_seconds" in row else ""
    return [learner, *shown, f"{proof['area']:.1f}" if "area" in proof else "", fit, f"{proof['seconds']:.1f}", theirs]
