"""What a check of data found, in values and in lines: parts, findings, a verdict, and the command to type next."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from robustmetric.data.census import Group, Part

SHOWN = 3
"""Of the items of a finding, so many are named in a line; JSON has all of them."""

Weight = Literal["fact", "look", "mend"]
"""A fact; something to look at, with which the data will do all the same; something to mend first."""
WEIGHTS: tuple[Weight, ...] = ("fact", "look", "mend")


@dataclass(frozen=True)
class Finding:
    """One thing that was found."""

    kind: str
    """A word for programs: `unreadable`, `mislabelled`."""
    weight: Weight
    says: str
    items: tuple[str, ...] = ()
    """Files, classes or rows it speaks of."""
    advice: str = ""

    def lines(self) -> list[str]:
        """As it is told: `mend: files that cannot be read as images: 4; replace them`, and the first few below it."""
        counted = f": {len(self.items):,}" if self.items else ""
        advice = f"; {self.advice}" if self.advice else ""
        more = [f"    and {len(self.items) - SHOWN:,} more"] if len(self.items) > SHOWN else []
        before = "" if self.weight == "fact" else f"{self.weight}: "
        return [f"{before}{self.says}{counted}{advice}", *(f"    {item}" for item in self.items[:SHOWN]), *more]


@dataclass(frozen=True)
class Report:
    """A checked data set."""

    path: str
    layout: str
    unit: Literal["images", "rows"]
    parts: tuple[Part, ...]
    findings: tuple[Finding, ...]
    next: tuple[str, ...] = ()
    """Commands to type, the first of them first."""
    note: str = ""
    """What stands for something else in these commands."""

    @property
    def is_usable(self) -> bool:
        """Whether nothing must be mended first."""
        return not self.count("mend")

    @property
    def verdict(self) -> str:
        """In a sentence."""
        if not self.is_usable:
            return "this data will not do yet; mend what is marked `mend`, then check again"
        return "this data will do" + ("; see what is marked `look`" if self.count("look") else "")

    def count(self, weight: Weight) -> int:
        """How many findings are of this weight."""
        return sum(finding.weight == weight for finding in self.findings)

    def lines(self) -> list[str]:
        """As people read it: what matters most stands last."""
        told = [line for weight in WEIGHTS for one in self.findings if one.weight == weight for line in one.lines()]
        commands = [f"next: {command}" for command in self.next]
        note = [f"({self.note})"] if self.note else []
        head = f"{self.path}: {self.layout}"
        return [head, *_table(self.parts, self.unit), *told, f"verdict: {self.verdict}", *commands, *note]

    def as_json(self) -> dict[str, Any]:
        """As programs read it."""
        return {**asdict(self), "is_usable": self.is_usable, "verdict": self.verdict}


def _table(parts: Sequence[Part], unit: str) -> list[str]:
    """A line for each part, its numbers below one another."""
    wide = max((len(f"{part.samples:,}") for part in parts), default=0)
    return [f"{part.name:<8} {part.samples:>{wide},} {unit} of {_classes(part)}" for part in parts]


def _classes(part: Part) -> str:
    """`1 class`, `10 classes, each of 5,000`, or how large they are."""
    if part.classes == 1:
        return "1 class"
    if part.smallest == part.largest:
        return f"{part.classes:,} classes, each of {part.largest:,}"
    return f"{part.classes:,} classes, of {part.smallest:,} to {part.largest:,} (median {part.median:,g})"


def equal(group: Group, *, with_labels: bool = False) -> str:
    """Samples that hold the same: `a.jpg (cat) = b.jpg (dog)`; of many, two that differ in class or part."""
    first = group[0]
    other = next((one for one in group[1:] if (one.label, one.part) != (first.label, first.part)), group[1])
    pair = " = ".join(f"{one.name} ({one.label})" if with_labels else one.name for one in (first, other))
    return pair if len(group) == 2 else f"{pair} ({len(group):,} in all)"
