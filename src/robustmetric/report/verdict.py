"""The verdict: what the numbers of one summary say, in plain words and without picking the kindest radius."""

from collections.abc import Sequence

from robustmetric.report.runs import Run
from robustmetric.report.scores import show
from robustmetric.report.tables import Cell, Column, Summary

CLEAN = Column("R@1")


def verdict(summary: Summary, runs: Sequence[Run]) -> list[str]:
    """Sentences on one protocol: the middle radius first, then the largest, then what a chosen image can gain."""
    variants = summary.variants()
    if not variants:
        known = [f"{run} {show('R@1', cells[CLEAN].value)}" for run, cells in summary.rows.items() if CLEAN in cells]
        measured = f" Clean R@1: {', '.join(known)}." if known else ""
        return [f"No embedding-shift attack was measured here, so nothing is said about robustness.{measured}"]
    # The variant with the most numbers speaks for the table; ties go to the first.
    columns = max(variants.values(), key=lambda cs: sum(c in cells for c in cs for cells in summary.rows.values()))
    columns = [column for column in columns if column.radius]
    order = _order(summary, runs)
    sentences = [_middle(summary, columns, order), _largest(summary, columns, order), _chosen_image(summary, order)]
    return [sentence for sentence in sentences if sentence]


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
    parts = [
        _fall(run, summary.rows[run].get(CLEAN), summary.rows[run][column], first=i == 0)
        for i, run in _having(column, summary, order)
    ]
    caution = _caution(column, summary, order)
    return f"At radius {summary.radius(column)} {'; '.join(parts)}.{caution}"


def _having(column: Column, summary: Summary, order: Sequence[str]) -> list[tuple[int, str]]:
    return list(enumerate(run for run in order if column in summary.rows[run]))


def _fall(run: str, clean: Cell | None, after: Cell, first: bool) -> str:
    now = show("ES:R", after.value)
    if clean is None:
        return f"{run} has R@1 {now} (clean R@1 not measured)"
    before = show("R@1", clean.value)
    if after.value >= clean.value:
        return f"{run} stays at R@1 {now} (clean {before})"
    return f"the R@1 of {run} falls from {before} to {now}" if first else f"{run} keeps {now} of its {before}"


def _caution(column: Column, summary: Summary, order: Sequence[str]) -> str:
    """Whether the first run and the best of the others are told apart by their intervals."""
    runs = [run for _, run in _having(column, summary, order)]
    if len(runs) < 2:
        return ""
    first = summary.rows[runs[0]][column]
    best = max(runs[1:], key=lambda run: summary.rows[run][column].value)
    other = summary.rows[best][column]
    if first.interval is None or other.interval is None:
        return ""
    if first.interval[0] <= other.interval[1] and other.interval[0] <= first.interval[1]:
        return f" The intervals of {runs[0]} and {best} overlap: no clear difference."
    return ""


def _largest(summary: Summary, columns: Sequence[Column], order: Sequence[str]) -> str:
    if len(columns) < 2:
        return ""
    column = columns[-1]
    parts = [f"{show('ES:R', summary.rows[run][column].value)} ({run})" for _, run in _having(column, summary, order)]
    chance = f"; chance is {show('R@1', summary.chance)}" if summary.chance is not None else ""
    return f"At the largest radius, {summary.radius(column)}, R@1 is {', '.join(parts)}{chance}."


def _chosen_image(summary: Summary, order: Sequence[str]) -> str:
    """What an attacker who wants one image shown can reach, at the largest radius measured."""
    columns = [column for column in summary.columns if column.score == "CA+"]
    if not columns:
        return ""
    column = columns[-1]
    parts = [f"{show('CA+', summary.rows[run][column].value)} ({run})" for _, run in _having(column, summary, order)]
    radius = f" at radius {summary.radius(column)}" if summary.radius(column) else ""
    reached = f"An attacker who lifts a chosen image{radius} brings it to rank percentile {', '.join(parts)}"
    return f"{reached}; 50 is no effect, 0 the very top."
