"""The page: runs in, one self-contained HTML file out."""

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from robustmetric.errors import InputError
from robustmetric.report import clustering as clusters
from robustmetric.report import plots
from robustmetric.report.certified import proofs
from robustmetric.report.gallery import Gallery, read_gallery
from robustmetric.report.hardness import against_margin, hardness, hardness_runs
from robustmetric.report.masking import checked, flags
from robustmetric.report.masking_flag import KIND as MASKING
from robustmetric.report.masking_flag import MARK
from robustmetric.report.projections import portraits
from robustmetric.report.runs import Run, read_runs
from robustmetric.report.scores import DASH, MULTIPLY, SCORES, Score, describe, show, show_interval
from robustmetric.report.sweeps import sweeps
from robustmetric.report.tables import Column, Summary, full, summaries
from robustmetric.report.turns import CAPTION
from robustmetric.report.verdict import advice, verdict
from robustmetric.report.warned import warned


@dataclass(frozen=True)
class HeaderGroup:
    """Neighbouring columns of one quantity: one header over their radii."""

    title: str
    columns: tuple[Column, ...]


@dataclass(frozen=True)
class Section:
    """All there is to show of one protocol."""

    summary: Summary
    groups: tuple[HeaderGroup, ...]
    verdict: tuple[str, ...]
    curves: tuple[tuple[str, Markup], ...]
    """What tells a curve from the others of its section (its attack and strength), and the plot."""


@dataclass(frozen=True)
class Clustering:
    """All there is to show of one suite on clustering."""

    title: str
    sentences: tuple[str, ...]
    tables: tuple[clusters.Table, ...]
    """The headline first, then one for each other reading."""
    by_reading: clusters.Table | None
    sweeps: tuple[plots.Plot, ...]


def write_page(runs: list[Path], out: Path) -> Path:
    """Read the run folders and write their page."""
    text = render(read_runs(runs), command=shlex.join(["robustmetric", "report", *map(str, runs), "-o", str(out)]))
    return save(text, out)


def save(text: str, out: Path) -> Path:
    """The page as `out/index.html`, whole or not at all."""
    path = out / "index.html"
    partial = path.with_suffix(".html.part")
    try:
        out.mkdir(parents=True, exist_ok=True)
        # A name the file system could not decode must not stop the page: it is shown with a question mark.
        partial.write_text(text, encoding="utf-8", errors="replace")
        partial.replace(path)
    except OSError as error:
        raise InputError(f"{path} cannot be written ({error.strerror}); give another folder with -o") from error
    return path


def environment() -> Environment:
    """Of all our pages."""
    made = Environment(
        loader=PackageLoader("robustmetric", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(commands=commands, breakable=breakable)
    made.globals.update(
        describe=describe, show=show, show_interval=show_interval, swatch=plots.swatch, DASH=DASH, MULTIPLY=MULTIPLY
    )
    return made


def commands(sentence: str) -> Markup:
    """A sentence with what stands between backticks as code."""
    parts = [
        escape(part) if place % 2 == 0 else Markup("<code>{}</code>").format(part)
        for place, part in enumerate(sentence.split("`"))
    ]
    return Markup("").join(parts)


def breakable(name: str) -> Markup:
    """A name of a class that a narrow line breaks between its words: 101.White_Pelican."""
    return Markup("<wbr>").join(re.split(r"(?<=[._-])(?=[^\W\d_])", name))


def render(runs: Sequence[Run], command: str) -> str:
    """The page as text."""
    tables = summaries(runs)
    lines = full(runs)
    galleries = _galleries(runs)
    return (
        environment()
        .get_template("page.html.j2")
        .render(
            title=" against ".join(run.label for run in runs) if len(runs) < 4 else f"{len(runs)} runs compared",
            runs=runs,
            sections=[_section(summary, runs, place) for place, summary in enumerate(tables)],
            unevaluated=[
                run for run in runs if not run.of_kind("clean", "attack", "certified", clusters.KIND, MASKING)
            ],
            clusterings=_clusterings(runs),
            cluster_columns=clusters.COLUMNS,
            portraits=portraits(runs),
            subject=_subject(runs),
            advice=advice(runs),
            proofs=proofs(runs),
            checked=checked(runs),
            flags=_flags(runs),
            collapsed=[run for run in runs if run.collapse],
            warned=warned(runs),
            MARK=MARK,
            THEN=CAPTION,
            training=plots.training(runs, name="training"),
            validations=plots.validations(runs, name="validation"),
            hard_runs=hardness_runs(runs),
            hardness=hardness(runs, name="hardness"),
            against_margin=against_margin(runs, name="margin"),
            lines=lines,
            meanings=_meanings([*(line.score for line in lines), *_cluster_scores(runs)]),
            galleries=galleries,
            opened=_opened(galleries),
            fewest_seeds=_fewest_seeds(runs),
            command=command,
        )
    )


def _subject(runs: Sequence[Run]) -> str:
    """What the page is about."""
    of_classes = ["accuracy" in record.scores for run in runs for record in run.of_kind("clean")]
    if not any(of_classes):
        return "retrieval"
    return "classifier" if all(of_classes) else "model"


def _flags(runs: Sequence[Run]) -> dict[str, str]:
    """By label, what stands beside a run's numbers: that its model collapsed, that its attacks were too weak."""
    masked = flags(runs)
    words = {run.label: [*(["collapsed"] if run.collapse else []), masked.get(run.label, "")] for run in runs}
    return {label: "; ".join(filter(None, said)) for label, said in words.items() if any(said)}


def _section(summary: Summary, runs: Sequence[Run], place: int) -> Section:
    labels = [run.label for run in runs]
    curves = [
        (
            ", ".join(part for part in variant if part),
            plots.robustness(summary, labels, variant, name=f"curve-{place}-{i}"),
        )
        for i, variant in enumerate(summary.variants())
    ]
    return Section(summary, _groups(summary), tuple(verdict(summary, runs)), tuple(curves))


def _clusterings(runs: Sequence[Run]) -> list[Clustering]:
    return [
        Clustering(
            title=str(group),
            sentences=tuple(clusters.sentences(group, runs)),
            tables=tuple(clusters.tables(group, runs)),
            by_reading=clusters.by_reading(group, runs),
            sweeps=tuple(sweeps(group, runs, f"sweep-{place}")),
        )
        for place, group in enumerate(clusters.groups(runs))
    ]


def _cluster_scores(runs: Sequence[Run]) -> list[str]:
    shown = [score for _, score in clusters.COLUMNS]
    return [score for run in runs for record in run.of_kind(clusters.KIND) for score in shown if score in record.scores]


def _groups(summary: Summary) -> tuple[HeaderGroup, ...]:
    by_title: dict[str, list[Column]] = {}
    for column in summary.columns:
        by_title.setdefault(summary.quantity(column), []).append(column)
    return tuple(HeaderGroup(title, tuple(columns)) for title, columns in by_title.items())


def _meanings(used: Sequence[str]) -> dict[str, Score]:
    """The scores on this page with what they mean: the known ones in our order, then any others."""
    known = [name for name in SCORES if name in used]
    return {name: describe(name) for name in dict.fromkeys([*known, *used])}


def _opened(galleries: Sequence[tuple[str, list[tuple[Run, Gallery]]]]) -> str:
    """The title of the gallery to show unfolded: the middle radius of the first attack."""
    first = [title for title, pairs in galleries if pairs[0][1].attack == galleries[0][1][0][1].attack]
    return first[len(first) // 2] if first else ""


def _galleries(runs: Sequence[Run]) -> list[tuple[str, list[tuple[Run, Gallery]]]]:
    """By attack and radius, so that runs under the same attack stand below one another; the weakest first."""
    grouped: dict[str, list[tuple[Run, Gallery]]] = {}
    for run in runs:
        for path in run.examples:
            gallery = read_gallery(path)
            title = f"{gallery.attack} at radius {gallery.radius}" if gallery.radius else gallery.attack
            grouped.setdefault(title, []).append((run, gallery))
    return sorted(grouped.items(), key=lambda entry: (entry[1][0][1].attack, entry[1][0][1].strength))


def _fewest_seeds(runs: Sequence[Run]) -> int:
    """Training seeds behind the least repeated way of training; a headline claim needs three."""
    seeds: dict[tuple[str, str, str], set[int | None]] = {}
    for run in runs:
        seeds.setdefault((run.data, run.model, run.defence), set()).add(run.seed)
    return min(len(found) for found in seeds.values())
