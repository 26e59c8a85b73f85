"""Records to tables: one summary per protocol, and the full list; plain data, printed here for the terminal."""

import io
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from robustmetric.records import Record, is_bounded
from robustmetric.report.runs import Run
from robustmetric.report.scores import DASH, UNBOUNDED, describe, show, show_interval, show_radius, title
from robustmetric.report.turns import CAPTION, STANDING, after_others, then

HEADLINE = ("R@1", "accuracy", "lowest run", "ERS", "ES:R", "CA+", "CA-", "LTM", "GTM")
"""The scores of the summary, in this order; the full table has all."""

ATTACKED = ("attack", "worst_case")
"""Kinds of records with an attack; of the second, what several attacks leave."""
SHOWN = ("clean", *ATTACKED, "ers")

OWN_COLUMN = ("data", "suite", "mode", "norm", "radius", "steps", "restarts", "repeats")


@dataclass(frozen=True)
class Protocol:
    """What must agree before two numbers may stand in one column."""

    data: str
    suite: str
    mode: str = ""
    norm: str = ""
    precision: str = ""
    """Empty for fp32, the ordinary one; also what attacks searched in where it is another."""

    def __str__(self) -> str:
        mode = self.mode and f"mode {self.mode}"
        parts = [self.data, self.suite and f"suite {self.suite}", mode, self.norm, self.precision]
        return ", ".join(part for part in parts if part) or "protocol not stated"


@dataclass(frozen=True)
class Column:
    """One measured quantity: a score, under an attack (empty: none) of one strength, at a radius."""

    score: str
    attack: str = ""
    engine: str = ""
    radius: float | None = None
    is_worst: bool = False
    """Whether it is what several attacks leave, per query: the number to compare models by."""
    in_turn: bool = False
    """Whether the attack takes turns with others; one on every query is another quantity."""

    @property
    def variant(self) -> tuple[str, str]:
        """Attack and strength: numbers along a curve share both."""
        return self.attack, self.engine


@dataclass(frozen=True)
class Cell:
    """One number with its interval and the queries behind it."""

    value: float
    interval: tuple[float, float] | None
    count: int


@dataclass(frozen=True)
class Summary:
    """One table: rows are runs (by label), columns are comparable numbers. A cell that is absent was not measured."""

    protocol: Protocol
    columns: tuple[Column, ...]
    rows: dict[str, dict[Column, Cell]]
    chance: float | None = None
    """R@1 of a random ranking in percent, where the records state it."""
    after: frozenset[Column] = frozenset()
    """The columns of attacks that met only what others had left, in some run."""

    def best(self, column: Column) -> str | None:
        """The run that is best in a column, where at least two were measured and the direction is known."""
        values = {run: cells[column].value for run, cells in self.rows.items() if column in cells}
        better = describe(column.score).better
        if len(values) < 2 or better == "unknown" or len(set(values.values())) == 1:
            return None
        return (max if better == "higher" else min)(values, key=lambda run: values[run])

    def variants(self, score: str = "ES:R") -> dict[tuple[str, str], list[Column]]:
        """The attack columns of a score by attack and strength, radii rising."""
        found: dict[tuple[str, str], list[Column]] = {}
        for column in self.columns:
            if column.score == score and column.radius is not None:
                found.setdefault(column.variant, []).append(column)
        return found

    def quantity(self, column: Column) -> str:
        """What a column holds, without its radius: `clean R@1`, `ES:R`; the strength where two must be told apart."""
        if not column.attack:
            return f"clean {column.score}"
        # ES gives ES:R and CA+ gives CA+, but an attack may also report a plain R@1. "CA+ from RUN" says its score.
        named = column.score if column.score.startswith(column.attack) else f"{column.attack} {column.score}"
        named = column.attack if column.attack.startswith(f"{column.score} ") else named
        named = then(named, column in self.after)
        alike = {c.engine for c in self.columns if (c.score, c.attack) == (column.score, column.attack)}
        return f"{named} ({column.engine or 'strength not stated'})" if len(alike) > 1 else named

    def radius(self, column: Column) -> str:
        """The column's radius, all of a table in one unit; empty where there is none."""
        among = tuple({c.radius for c in self.columns if c.radius is not None})
        return "" if column.radius is None else show_radius(column.radius, among)


@dataclass(frozen=True)
class Line:
    """One row of the full table: one score of one record."""

    run: str
    protocol: Protocol
    name: str
    score: str
    value: str
    interval: str
    radius: str
    engine: str
    count: int
    seconds: float
    seed: int
    settings: str
    """The settings that have no column of their own."""


def summaries(runs: Sequence[Run], scores: Sequence[str] = HEADLINE) -> list[Summary]:
    """One summary per protocol, in order of first appearance; a run on the same data but without numbers has dashes."""
    attacks = list(dict.fromkeys(_protocol(run, record) for run in runs for record in run.of_kind(*ATTACKED)))
    placed: dict[Protocol, dict[str, dict[Column, Record]]] = {}
    for run in runs:
        for record in run.of_kind(*SHOWN):
            for protocol in _places(run, record, attacks):
                row = placed.setdefault(protocol, {}).setdefault(run.label, {})
                row.update({c: record for c in _cells(record, scores) if c not in row or _replaces(record, row[c])})
    later = _later(runs)
    return [_summary(protocol, rows, runs, scores, later) for protocol, rows in placed.items()]


def _replaces(new: Record, old: Record) -> bool:
    """Whether a later measurement of one quantity stands for it: of other weights, or on no fewer queries."""
    return new.settings.get("weights") != old.settings.get("weights") or new.count >= old.count


def full(runs: Sequence[Run]) -> list[Line]:
    """Every score of every evaluation record."""
    later = _later(runs)
    return [
        Line(
            run=run.label,
            protocol=_protocol(run, record),
            name=then(record.name, record.key in later),
            score=score,
            value=show(score, value),
            interval=show_interval(score, record.intervals.get(score)),
            radius=_radius(record.settings),
            engine=_engine(record),
            count=record.count,
            seconds=record.seconds,
            seed=record.seed,
            settings=", ".join(f"{key} {value}" for key, value in record.settings.items() if key not in OWN_COLUMN),
        )
        for run in runs
        for record in run.of_kind(*SHOWN)
        for score, value in _own_scores(record).items()
    ]


def to_text(tables: Iterable[Summary], width: int = 100) -> str:
    """The summaries for a terminal: value above, 95 % interval below, a dash where nothing was measured."""
    console = Console(file=io.StringIO(), width=width, color_system=None, legacy_windows=False)
    with console.capture() as capture:
        for summary in tables:
            # Text, not str: a run called "[red]" is a name, not markup.
            caption = f"Below each value its 95 % interval, rounded outwards. {DASH} not measured."
            caption += f" {CAPTION}" if summary.after else ""
            table = RichTable(title=Text(str(summary.protocol)), title_justify="left", caption=caption, pad_edge=False)
            table.add_column("run", overflow="fold")
            for column in summary.columns:
                heading = f"{summary.quantity(column)} {describe(column.score).arrow}\n{summary.radius(column)}"
                table.add_column(Text(heading), justify="right", overflow="fold")
            for run, cells in summary.rows.items():
                table.add_row(
                    Text(run), *(Text(_cell_text(cells.get(column), column.score)) for column in summary.columns)
                )
            console.print(table)
    return capture.get()


def _later(runs: Sequence[Run]) -> set[str]:
    """The keys of records of attacks that came after others."""
    return {key for run in runs for key in after_others(run.of_kind("attack"))}


def _summary(
    protocol: Protocol,
    found: dict[str, dict[Column, Record]],
    runs: Sequence[Run],
    scores: Sequence[str],
    later: Collection[str],
) -> Summary:
    """One table; `later` is of `_later`."""
    rows = {run: {c: _cells(record, scores)[c] for c, record in row.items()} for run, row in found.items()}
    settings = [record.settings for row in found.values() for record in row.values()]
    chances = {float(given["chance"]) for given in settings if "chance" in given}
    columns = list(dict.fromkeys(column for cells in rows.values() for column in cells))
    turns = list(dict.fromkeys(column.attack for column in columns if column.in_turn))

    def place(column: Column) -> tuple[int, bool, bool, int, str, str, float]:
        """By score: the clean number, then worst cases, single attacks, and last those in turn, as they were run."""
        is_single = bool(column.attack) and not column.is_worst
        radius = -1.0 if column.radius is None else column.radius
        turn = turns.index(column.attack) + 1 if column.in_turn else 0
        return scores.index(column.score), is_single, bool(column.attack), turn, *column.variant, radius

    ordered = sorted(columns, key=place)
    shown = {run.label: rows.get(run.label, {}) for run in runs if run.label in rows or run.data == protocol.data}
    after = frozenset(column for row in found.values() for column, record in row.items() if record.key in later)
    return Summary(protocol, tuple(ordered), shown, chances.pop() if len(chances) == 1 else None, after)


def _protocol(run: Run, record: Record) -> Protocol:
    settings = record.settings
    suite, mode, norm = (str(settings.get(key, "")) for key in ("suite", "mode", "norm"))
    precision = str(settings.get("precision", "")).replace("fp32", "")
    sought = f"sought in {settings['search']}" if "search" in settings else ""
    return Protocol(str(settings.get("data") or run.data), suite, mode, norm, precision or sought)


def _places(run: Run, record: Record, attacks: Sequence[Protocol]) -> list[Protocol]:
    """The tables a record belongs in: clean numbers stand beside every attack of the same data and suite."""
    own = _protocol(run, record)
    if record.kind in ATTACKED:
        return [own]
    shared = (own.data, own.suite, own.precision)
    beside = [p for p in attacks if (p.data, p.suite, p.precision) == shared and own.mode in ("", p.mode)]
    return beside or [own]


def _radius(settings: Mapping[str, Any]) -> str:
    """What a record's attack kept to; empty where there was none."""
    if not is_bounded(settings):
        return UNBOUNDED
    return show_radius(float(settings["radius"])) if "radius" in settings else ""


def _cells(record: Record, scores: Sequence[str]) -> dict[Column, Cell]:
    attack = record.kind in ATTACKED
    # Nine digits: the same radius read from a recipe (8/255) and computed (8 * (1 / 255)) is one column.
    bounded = is_bounded(record.settings)
    radius = round(float(record.settings["radius"]), 9) if attack and bounded and "radius" in record.settings else None
    name = record.name if bounded else title(record.name, record.settings)
    # An ERS of transferred attacks is one of several, by the run that they climbed on.
    apart = record.kind == "ers" and name != "ERS"
    variant = (name, _engine(record) if attack else "") if attack or apart else ("", "")
    return {
        Column(score, *variant, radius, record.kind == "worst_case", STANDING in record.settings): Cell(
            value, record.intervals.get(score), record.count
        )
        for score, value in _own_scores(record).items()
        if score in scores
    }


def _own_scores(record: Record) -> dict[str, float]:
    """What a record adds: the ten numbers beside an ERS stand in the records of their attacks already."""
    return {name: value for name, value in record.scores.items() if record.kind != "ers" or name == "ERS"}


def _engine(record: Record) -> str:
    settings = record.settings
    named = (("steps", "steps"), ("restarts", "restarts"), ("repeats", "runs"))
    return ", ".join(
        f"{settings[key]} {word if settings[key] != 1 else word[:-1]}" for key, word in named if key in settings
    )


def _cell_text(cell: Cell | None, score: str) -> str:
    """Value over interval; the interval is rounded outwards to whole numbers, so that a wide table fits 80 columns."""
    if cell is None:
        return DASH
    bounds = cell.interval and all(math.isfinite(bound) for bound in cell.interval) and cell.interval
    low_high = (
        f"\n{math.floor(bounds[0])}{DASH}{math.ceil(bounds[1])}" if bounds and describe(score).decimals == 1 else ""
    )
    return show(score, cell.value) + low_high
