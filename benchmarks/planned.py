"""Plans of rows: what stands in a line of `benchmarks/plans/*.txt`, which `rows.py` makes."""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from robustmetric.errors import InputError
from robustmetric.jobs import assemble
from robustmetric.jobs.workers import Hardware

SURROGATE = "--surrogate"
PRECISION, USUAL_PRECISION = "--precision", Hardware().precision


@dataclass(frozen=True)
class Row:
    """One line of a plan."""

    name: str
    train: list[str]
    suites: list[list[str]]

    def resolve(self) -> dict[str, assemble.Spec]:
        """The settings it is trained with, but for what options change."""
        changes = [word for word in self.train[1:] if "=" in word and not word.startswith("-")]
        return assemble.resolve(self.train[0], changes)[0]

    @property
    def precision(self) -> str | None:
        """By which numbers it is trained, as its options say; None for --fast, which depends on the hardware."""
        said = [word for before, word in pairwise(self.train) if before == PRECISION]
        return said[-1] if said else None if "--fast" in self.train else USUAL_PRECISION


def read_plan(path: Path) -> list[Row]:
    """The rows of a plan; empty lines and those that begin with # are left out.

    A folder may stand again, trained alike, for suites that are to wait until the rows between have theirs.
    """
    rows: list[Row] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        where, above = f"{path}, line {number}", [row.name for row in rows]
        row = _read_row(line, where)
        if any(other.name == row.name and other.train != row.train for other in rows):
            raise InputError(f"{where}: {row.name} stands above with another training; expected the same, or a folder")
        for source in (source for suite in row.suites for source in sources(suite)):
            if source not in above:
                raise InputError(f"{where}: {source!r} is no row above; expected {SURROGATE} with the folder of one")
        rows.append(row)
    return rows


def _read_row(line: str, where: str) -> Row:
    try:
        name, *parts = [part.strip() for part in line.split(";")]
        split = [shlex.split(part) for part in parts]
    except ValueError as error:
        raise InputError(f"{where}: {line!r} cannot be read: {error}") from error
    if len(name.split()) != 1 or not split or not all(split):
        raise InputError(f"{where}: {line!r} is no row; expected 'folder; RECIPE ...; SUITE ...'")
    if name in (".", "..") or Path(name).name != name:
        raise InputError(f"{where}: {name!r} is no name of a folder; expected one without a slash")
    joined = [word for words in split for word in words if word.startswith("--") and "=" in word]
    if joined or any(word in ("--out", "-o") for words in split for word in words):
        raise InputError(
            f"{where}: {(joined or ['--out'])[0]!r} cannot stand in a row; expected options and values as two words, "
            "and no --out: the row's name is its folder"
        )
    return Row(name, split[0], split[1:])


def sources(words: Sequence[str]) -> list[str]:
    """Whose models an evaluation climbs on."""
    return [word for before, word in pairwise(words) if before == SURROGATE]


def choose(rows: Sequence[Row], names: Sequence[str] | None) -> tuple[list[Row], list[Row]]:
    """The rows of these names, all for None, and the others."""
    known = [row.name for row in rows]
    unknown = [name for name in names or [] if name not in known]
    if unknown:
        raise InputError(f"--only {unknown[0]!r} is no row of the plan; expected one of {', '.join(known)}")
    chosen = [row for row in rows if names is None or row.name in names]
    return chosen, [row for row in rows if row not in chosen]
