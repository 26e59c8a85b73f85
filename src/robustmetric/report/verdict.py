"""The verdict: what the numbers of one summary say, in plain words, picking neither radius nor attack kindly."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from robustmetric.report.masking_flag import MARK, doubt, flag
from robustmetric.report.runs import Run
from robustmetric.report.scores import show
from robustmetric.report.tables import Cell, Column, Summary

ANSWERS = ("R@1", "accuracy")
"""What the clean number of a table may be: of retrieval, of classifiers."""
R1 = "R@1 is the share of searches, in percent, whose first result is of the right class."
HARDEN = (
    "No run here was hardened. Train one against attacks, as in `robustmetric train cub/act`, evaluate it alike and "
    "put it on this page beside the others; docs/own-images.md has the commands for your own model and images."
)
LEFT = ("ES:R", "GTM", "LTM")
"""Scores of single attacks that are what they leave of R@1, in percent."""
WORST = "worst case"
"""The record over all attacks of a suite; others are over some of them."""


def verdict(summary: Summary, runs: Sequence[Run]) -> list[str]:
    """Sentences on one protocol: the worst case; the middle radius, the largest, and what a chosen image can gain; and
    of which runs all this may say too much, or nobody knows."""
    return [*_measured(summary, runs), *_masked(summary, runs), *_unclear(summary, runs)]


def _measured(summary: Summary, runs: Sequence[Run]) -> list[str]:
    worst = _worst(summary, _order(summary, runs))
    variants = summary.variants()
    if not variants:
        return worst or [_nothing(summary)]
    # The variant with the most numbers speaks for the table; ties go to the first.
    columns = max(variants.values(), key=lambda cs: sum(c in cells for c in cs for cells in summary.rows.values()))
    columns = [column for column in columns if column.radius]
    order = _order(summary, runs)
    sentences = [_middle(summary, columns, order), _largest(summary, columns, order), _chosen_image(summary, order)]
    return [sentence for sentence in (*worst, *sentences) if sentence]


def _masked(summary: Summary, runs: Sequence[Run]) -> list[str]:
    """That a run which is measured here has failed a check: nobody should quote the sentences above without it."""
    found = [run.label for run in runs if summary.rows.get(run.label) and flag(run.records)]
    if not found:
        return []
    are = "is" if len(found) == 1 else "are"
    return [
        f"{MARK} {', '.join(found)} {are} masked: an attack was seen to be too weak (below: Is it real?), so that what "
        "is left of these numbers under a better one may be less."
    ]


def _unclear(summary: Summary, runs: Sequence[Run]) -> list[str]:
    """That checks of a run which is measured here came to no end, and what to trust until they do."""
    found = {run.label: run for run in runs if summary.rows.get(run.label) and doubt(run.records)}
    if not found:
        return []
    named = ", ".join(f"{label} ({doubt(run.records)})" for label, run in found.items())
    worst = [column for column in summary.columns if column.is_worst and column.attack == WORST]
    has_worst = all(any(column in summary.rows[label] for column in worst) for label in found)
    strong = f"`robustmetric evaluate RUN {_strong_suite(summary, found.values())}` at the same radius"
    return [
        f"It is unclear whether the usual attack is too weak for {named}: what it leaves may be too high a number "
        f"(below: Is it real?), so trust the worst case of {'this table' if has_worst else strong} instead."
    ]


def _strong_suite(summary: Summary, runs: Iterable[Run]) -> str:
    """The suite with the worst case of such models, with draws averaged where one of them is randomised."""
    if not any(column.score == "accuracy" for column in summary.columns):
        return "auto_rank"
    draws = any(record.settings.get("randomised") for run in runs for record in run.records)
    return "autoattack_rand" if draws else "autoattack"


def advice(runs: Sequence[Run]) -> list[str]:
    """For a reader who has not met these words: what R@1 is, and what to do where nothing was hardened."""
    attacked = [run for run in runs if any("R@1" in record.scores for record in run.of_kind("clean"))]
    if not any(run.of_kind("attack") for run in attacked):
        return []
    return [R1, *([HARDEN] if all(run.defence.lower() in ("plain", "-", "") for run in attacked) else [])]


def _nothing(summary: Summary) -> str:
    """That there is nothing to say but clean numbers; single attacks on classifiers prove little."""
    columns = [column for score in ANSWERS if (column := Column(score)) in summary.columns]
    lists = []
    for column in columns:
        cells = {run: row[column] for run, row in summary.rows.items() if column in row}
        on = _on(cells.values(), column.score)
        values = ", ".join(f"{run} {_said(cell, column.score, apart=not on)}" for run, cell in cells.items())
        lists.append(f" Clean {column.score}{on}: {values}.")
    wanted = "worst case over several attacks" if Column("accuracy") in columns else "embedding-shift attack"
    return f"No {wanted} was measured here, so nothing is said about robustness.{''.join(lists)}"


def _worst(summary: Summary, order: Sequence[str]) -> list[str]:
    """What all attacks together leave of each run, per query, at each radius."""
    sentences = []
    for column in (column for column in summary.columns if column.is_worst and column.attack == WORST):
        runs, rest = _shortlist(column, summary, order)
        on, falls = _falls(summary, column, runs, column.score)
        attacks = len({c.attack for c in summary.columns if c.attack and not c.is_worst and c.radius == column.radius})
        under = f"under the worst of {attacks} attacks for each image"
        text = f"At radius {summary.radius(column)}, {under}{on}, {falls}{rest}."
        sentences.append(text + _caution(column, summary, runs))
    return sentences


def _order(summary: Summary, runs: Sequence[Run]) -> list[str]:
    """The rows, the undefended ones first."""
    plain = {run.label for run in runs if run.defence.lower() == "plain"}
    return sorted(summary.rows, key=lambda run: run not in plain)


def _middle(summary: Summary, columns: Sequence[Column], order: Sequence[str]) -> str:
    """The middle radius, fixed by the protocol and not by the outcome, of those most runs were measured at."""
    if not columns:
        return ""
    measured = {column: sum(column in cells for cells in summary.rows.values()) for column in columns}
    shared = [column for column in columns if measured[column] == max(measured.values())]
    column = shared[len(shared) // 2]
    summary, under = _strongest(summary, column)
    runs, rest = _shortlist(column, summary, order)
    on, falls = _falls(summary, column, runs, "R@1")
    where = f"{summary.radius(column)}{under}{on}{',' if under or on else ''}"
    return f"At radius {where} {falls}{rest}.{_caution(column, summary, runs)}"


def _strongest(summary: Summary, column: Column) -> tuple[Summary, str]:
    """The table with what the strongest attack at a column's radius leaves in its place, and words for these attacks.

    Attacks that some run of the column has not met are left out: none may look worse by having met more of them.
    """
    alone = [c for c in summary.columns if c == column or not c.in_turn]
    beside = [c for c in alone if c.score in LEFT and c.radius == column.radius]
    attacked = [cells for cells in summary.rows.values() if column in cells]
    met = [c for c in beside if all(c in cells for cells in attacked)]
    rows = {
        run: {**cells, column: min((cells[c] for c in met), key=lambda cell: cell.value)} if column in cells else cells
        for run, cells in summary.rows.items()
    }
    *names, last = dict.fromkeys(c.attack for c in met)
    if len({c.attack for c in beside}) == 1:
        return replace(summary, rows=rows), ""
    among = f"the {'stronger' if len(names) == 1 else 'strongest'} of {', '.join(names)} and {last}" if names else last
    return replace(summary, rows=rows), f", under {among}"


def _shortlist(column: Column, summary: Summary, order: Sequence[str]) -> tuple[list[str], str]:
    """The first run and the three best of the others, so that a sentence stays one; and words for those left out."""
    first, *others = [run for run in order if column in summary.rows[run]]
    others.sort(key=lambda run: -summary.rows[run][column].value)
    left = len(others) - 3
    return [first, *others[:3]], f"; {left} more in the table" if left > 0 else ""


def _falls(summary: Summary, column: Column, runs: Sequence[str], score: str) -> tuple[str, str]:
    """On how many queries, where all numbers are on the same; and what the attack leaves of each clean number."""
    pairs = [(summary.rows[run].get(Column(score)), summary.rows[run][column]) for run in runs]
    on = _on([cell for pair in pairs for cell in pair if cell], score)
    parts = [
        _fall(run, *pair, first=run == runs[0], score=score, apart=not on)
        for run, pair in zip(runs, pairs, strict=True)
    ]
    return on, "; ".join(parts)


def _on(cells: Iterable[Cell], score: str) -> str:
    """`, on 896 queries`; nothing where the numbers are not all on the same, or do not say."""
    counts = {cell.count for cell in cells}
    return f", on {counts.pop()} {_asked(score)}" if len(counts) == 1 and counts != {0} else ""


def _said(cell: Cell, score: str, apart: bool) -> str:
    """`96.1`; with the number of its queries where that is not said once for all."""
    return show(score, cell.value) + (f" on {cell.count} {_asked(score)}" if apart and cell.count else "")


def _asked(score: str) -> str:
    return "images" if score == "accuracy" else "queries"


def _fall(run: str, clean: Cell | None, after: Cell, first: bool, score: str, apart: bool) -> str:
    now = _said(after, score, apart)
    if clean is None:
        return f"{run} has {score} {now} (clean {score} not measured)"
    before = _said(clean, score, apart)
    if after.value >= clean.value:
        return f"{run} stays at {score} {now} (clean {before})"
    return f"the {score} of {run} falls from {before} to {now}" if first else f"{run} keeps {now} of its {before}"


def _caution(column: Column, summary: Summary, runs: Sequence[str]) -> str:
    """Whether the first run and the best of the others, which comes second, are told apart by their intervals."""
    if len(runs) < 2:
        return ""
    first, other = (summary.rows[run][column].interval for run in runs[:2])
    if first is None or other is None or first[0] > other[1] or other[0] > first[1]:
        return ""
    return f" The intervals of {runs[0]} and {runs[1]} overlap: no clear difference."


def _largest(summary: Summary, columns: Sequence[Column], order: Sequence[str]) -> str:
    if len(columns) < 2:
        return ""
    column = columns[-1]
    summary, under = _strongest(summary, column)
    chance = f"; chance is {show('R@1', summary.chance)}" if summary.chance is not None else ""
    return f"At the largest radius, {summary.radius(column)}{under}, R@1 is {_listed(column, summary, order)}{chance}."


def _chosen_image(summary: Summary, order: Sequence[str]) -> str:
    """What an attacker who wants one image shown can reach, at the largest radius measured."""
    columns = [column for column in summary.columns if column.score == "CA+"]
    if not columns:
        return ""
    column = max(columns, key=lambda column: column.radius or 0)
    radius = f" at radius {summary.radius(column)}" if column.radius else ""
    reached = f"An attacker who lifts a chosen image{radius} brings it to rank percentile"
    return f"{reached} {_listed(column, summary, order)}; 50 is no effect, 0 the very top."


def _listed(column: Column, summary: Summary, order: Sequence[str]) -> str:
    """`0.2 (plain), 19.9 (est)`; where not all of the table is on the same queries, with how many."""
    runs, rest = _shortlist(column, summary, order)
    apart = not _on([cell for cells in summary.rows.values() for cell in cells.values()], column.score)
    return ", ".join(f"{_said(summary.rows[run][column], column.score, apart)} ({run})" for run in runs) + rest
