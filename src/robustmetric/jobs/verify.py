"""Verify: a row of the ledger + its weights -> measured again, block by block -> which numbers agree, and which do not.

The rule is in `agreement.py`, each block in a file of its own, `verify_*.py`. A row of `results/tabular` has no
weights: its learner is fitted and certified anew.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from robustmetric.errors import InputError, nearest
from robustmetric.jobs import verify_attacks, verify_clustering, verify_masking, verify_turns
from robustmetric.jobs.agreement import Check
from robustmetric.jobs.row_model import read
from robustmetric.jobs.verify_certified import certified
from robustmetric.jobs.verify_model import Again, Measure, Part
from robustmetric.jobs.workers import Hardware, Workers, describe
from robustmetric.report.ledger import Row

ATTACKS = ("ES", "GTM", "CA+", "FGSM", "PGD-20", "APGD-CE", "AutoRank", "clustering", "masking")
"""Run when none is named, those of them that the row has: for rankings, for classifiers, and what has no parts."""
FEWEST = 16
"""Queries of a sample: the interval of fewer says nothing."""
BLOCKS: Sequence[tuple[Callable[[Again], list[str]], Measure]] = (
    (verify_attacks.names, verify_attacks.attacks),
    (verify_turns.names, verify_turns.attacks),
    (verify_clustering.names, verify_clustering.clustering),
    (verify_masking.names, verify_masking.masking),
)
"""For each block (or two of a kind), what can be chosen of it, and its measurement."""
OTHERS = {
    "transfer": "its attacks climbed on other runs, whose weights are not at hand",
    "certified": "prove again by the row's command",
}
"""Blocks that are not measured again, and why."""


@dataclass(frozen=True)
class Verified:
    """One row, measured again."""

    id: str
    source: str
    """The file of its weights, or how it came to be without one."""
    hardware: str
    asked: int
    recorded: int
    """Queries or points: as now, and as the row has them."""
    checks: tuple[Check, ...]
    left_out: tuple[str, ...] = ()
    """What of the row was not measured again."""
    unit: str = "queries"

    @property
    def differing(self) -> list[Check]:
        """The numbers that do not agree."""
        return [check for check in self.checks if not check.agrees]

    def lines(self) -> Iterator[str]:
        """What was verified, a line for each number, and the outcome."""
        yield f"{self.id}: {self.source}, {self.asked} of {self.recorded} {self.unit}, {self.hardware}"
        width = max(len(check.name) for check in self.checks) + 2
        yield f"{'':<{width}}{'recorded':>9}{'found':>9}   may lie"
        for check in self.checks:
            low, high = check.interval
            outcome = "agrees" if check.agrees else "DIFFERS"
            numbers = f"{check.name:<{width}}{check.shown(check.recorded):>9}{check.shown(check.found):>9}"
            yield f"{numbers}   {f'{check.shown(low)} to {check.shown(high)}':<20}{outcome}"
        if self.left_out:
            yield f"not measured again: {', '.join(self.left_out)}"
        named = ", ".join(check.name for check in self.differing)
        yield (
            f"{len(self.differing)} of {len(self.checks)} differ: {named}" if named else f"all {len(self.checks)} agree"
        )


def verify(
    path: Path,
    *,
    model: Path | None = None,
    queries: int | None = None,
    attacks: Sequence[str] | None = None,
    device: str = "auto",
) -> Verified:
    """Measure a row again: on all of its queries, or on a sample of them, drawn with its seed."""
    row = read(path)
    count = row["points" if "learner" in row else "queries"]
    asked = count if queries is None else queries
    if not min(FEWEST, count) <= asked <= count:
        raise InputError(
            f"{asked} queries of the {count} of {path.stem}; expected from {min(FEWEST, count)} to {count}"
        )
    if "learner" in row:
        if model is not None or attacks:
            raise InputError(f"{path.stem} was fitted and certified, and is again; leave out --model and --attack")
        return _certified_anew(row, asked, "cpu" if device == "auto" else device)
    again = Again(row, path, model, Workers.of(Hardware(accelerator=device).fabric()), asked)
    _check_named(again, attacks or ())
    return _measured_anew(again, attacks or ATTACKS)


def check(paths: Sequence[Path], attacks: Sequence[str]) -> None:
    """Refuse a name that one of the rows does not have before the first of them is measured."""
    for path in paths:
        row = read(path)
        if attacks and "learner" not in row:
            _check_named(Again(row, path, None, Workers(torch.device("cpu")), row["queries"]), attacks)


def _certified_anew(row: Row, asked: int, device: str) -> Verified:
    part, hardware = certified(row, asked, device), describe(torch.device(device))
    found = (hardware, asked, row["points"], tuple(part.checks), tuple(part.left_out))
    return Verified(row["id"], "fitted anew", *found, unit="points")


def _measured_anew(again: Again, attacks: Sequence[str]) -> Verified:
    """A trained model: clean scores, and of every block what is chosen."""
    row = again.row
    part = _clean(again)
    for _, measure in BLOCKS:
        part += measure(again, attacks)
    others = [f"{key} ({reason})" for key, reason in OTHERS.items() if key in row]
    strange = [f"suite {name} (not one we ship)" for name in again.strange]
    found = (describe(again.workers.device), again.asked, row["queries"], tuple(part.checks))
    return Verified(row["id"], str(again.file), *found, (*part.left_out, *others, *strange))


def _clean(again: Again) -> Part:
    """The row's clean scores; those of a row about clustering come with that block."""
    if not verify_clustering.is_about(again):
        return verify_attacks.clean(again, again.tested[0])
    if not again.is_whole:
        raise InputError(f"{again.row['id']} is about clustering, which needs all images; leave out --queries")
    return Part()


def _check_named(again: Again, attacks: Sequence[str]) -> None:
    """Refuse, before weights or data are asked for, a row without evaluations and a name that nothing in it has."""
    if not again.tested and not verify_clustering.is_about(again):
        row = again.row
        raise InputError(f"the command of {row['id']} evaluates nothing that can be verified: {row['command']!r}")
    known = [name for names, _ in BLOCKS for name in names(again)]
    for name in attacks:
        if not known:
            raise InputError(f"{again.row['id']} has no attack that can be run again; leave out --attack {name}")
        if name not in known:
            suites = ", ".join(command.words[0] for command in again.evaluations)
            raise InputError(f"{name!r} is no attack of {suites}{nearest(name, known)}")
