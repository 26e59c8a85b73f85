"""A board of the ledger: ways of training that may be compared, the best first, with the rows behind each."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from robustmetric.report import masking_flag
from robustmetric.report.ledger import Row
from robustmetric.report.pairs import fallen, is_collapsed
from robustmetric.report.scores import DASH, show
from robustmetric.report.seeds import mean, over_seeds


@dataclass(frozen=True)
class Column:
    """What one column holds; `sign` is 1 where more is better for the model, -1 where less is, else 0."""

    title: str
    meaning: str
    sign: int = 1
    is_published: bool = False


@dataclass(frozen=True)
class Cell:
    """A number as it is printed and as it is sorted, and a word below it."""

    text: str = DASH
    value: float | None = None
    below: str = ""


@dataclass(frozen=True)
class Entry:
    """One way of training: its name, its cells, the rows behind it (a row a seed), and what is to be said of it."""

    name: str
    cells: tuple[Cell, ...]
    rows: tuple[Row, ...]
    flags: tuple[str, ...] = ()
    is_own: bool = False
    """Whether it is the reader's, not ours."""
    lacking: str = ""
    """An attack that others of its board met and it did not: it stands behind them, without a place."""

    @property
    def is_collapsed(self) -> bool:
        """Whether a seed of it did: such an entry stands last, whatever its scores."""
        return any(map(is_collapsed, self.rows))


@dataclass(frozen=True)
class Board:
    """Entries that may be compared, the best first by the column `headline`; `clean` is the column to see it beside."""

    title: str
    says: str
    """How its rows were trained and tested."""
    columns: tuple[Column, ...]
    entries: tuple[Entry, ...]
    headline: int
    clean: int | None
    is_provisional: bool = False
    """Whether an attack that is known to be stronger was not run on all of them."""
    is_sketch: bool = False
    """Whether its rows are of models that have hardly begun, and it is shown when asked for."""

    @property
    def stands_behind(self) -> tuple[bool, bool]:
        """In which order boards are shown: those to compare on first, then those of one entry, then sketches."""
        return self.is_sketch, len(self.entries) == 1

    @property
    def placed(self) -> list[tuple[int | None, Entry]]:
        """The entries with their places; one that stands alone has won over nobody, and has none."""
        if len(self.entries) == 1:
            return [(None, self.entries[0])]
        places = count(1)
        return [(None if entry.lacking else next(places), entry) for entry in self.entries]


@dataclass(frozen=True)
class Chapter:
    """All boards of one data set, and what was published of it and not measured: name, and scores in words."""

    title: str
    boards: tuple[Board, ...]
    unmeasured: tuple[tuple[str, str], ...] = ()


def cell(values: Iterable[float | None]) -> Cell:
    """The mean over seeds."""
    known = list(values)
    return Cell(over_seeds(known), mean(known))


def lowest_cell(found: Sequence[tuple[str, float] | None]) -> Cell:
    """By seed an attack and what it leaves: their mean, and below it the attacks."""
    names = dict.fromkeys(one[0] for one in found if one is not None)
    return replace(cell(None if one is None else one[1] for one in found), below=" or ".join(names))


def published_cell(block: Mapping[str, Any], score: str) -> Cell:
    """What was published of a score."""
    value = block.get(score)
    return Cell("collapsed") if block.get("collapsed") else Cell(show(score, value), value)


def make_entry(name: str, cells: Sequence[Cell], rows: Sequence[Row], is_own: bool) -> Entry:
    """The entry with what its rows are flagged for."""
    masked = next((note for note in map(masking_flag.note, rows) if note), "")
    flags = (fallen(rows).strip(" ()"), masked.replace(masking_flag.MARK, "").strip())
    return Entry(name, tuple(cells), tuple(rows), tuple(filter(None, flags)), is_own)


def put_behind(entries: Sequence[Entry], met: Sequence[bool], attack: str) -> list[Entry]:
    """The entries that never met an attack know what they lack, if two of ours that did not collapse have met it.

    (One that alone was attacked so hard would stand first by that, and the reader's rows take no place from ours.)
    """
    able = [is_met and not (entry.is_own or entry.is_collapsed) for entry, is_met in zip(entries, met, strict=True)]
    lacking = attack if sum(able) > 1 else ""
    return [replace(entry, lacking="" if is_met else lacking) for entry, is_met in zip(entries, met, strict=True)]


def make_board(
    title: str, says: str, columns: Sequence[Column], entries: Sequence[Entry], headline: int, clean: int | None = None
) -> Board:
    """The board with its entries in order, ties by the clean column; columns that no entry fills are left out.

    The number of one that lacks the strongest attack of its board is an upper end of what that would leave.
    """
    needed = {headline} if clean is None else {headline, clean}
    filled = {i for i in range(len(columns)) if any(entry.cells[i].text != DASH for entry in entries)}
    kept = sorted(filled | needed)

    def place(entry: Entry) -> tuple[bool, bool, float, float]:
        value, beside = entry.cells[headline].value, None if clean is None else entry.cells[clean].value
        first = math.inf if value is None else -columns[headline].sign * value
        return bool(entry.lacking), entry.is_collapsed, first, math.inf if beside is None else -beside

    def shown(entry: Entry, column: int) -> Cell:
        found = entry.cells[column]
        is_upper_end = column == headline and entry.lacking and found.value is not None
        return replace(found, text=f"≤ {found.text}") if is_upper_end else found

    ordered = sorted(entries, key=place)
    return Board(
        title=title,
        says=says,
        columns=tuple(columns[i] for i in kept),
        entries=tuple(replace(entry, cells=tuple(shown(entry, i) for i in kept)) for entry in ordered),
        headline=kept.index(headline),
        clean=None if clean is None else kept.index(clean),
    )
