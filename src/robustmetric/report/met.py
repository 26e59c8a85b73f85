"""Which of the strongest attacks a row of the ledger has met: numbers of weaker ones are upper ends beside theirs."""

import math
from collections.abc import Callable, Sequence

from robustmetric.report.clustering_schema import is_cut
from robustmetric.report.ledger import RADII, Row

ADAPTIVE = ("adaptive_short", "adaptive")
"""Blocks of what suites leave that know of neighbours and votes."""


def has_auto_rank(row: Row) -> bool:
    """AutoRank, at the published radius where there is one."""
    block = row.get("auto_rank", {})
    return "R@1" in block and math.isclose(block["radius"], RADII.get(row["data"], block["radius"]), rel_tol=1e-3)


def has_auto_attack(row: Row) -> bool:
    """AutoAttack, all of it."""
    return "AutoAttack" in row["classification"]["accuracy"]


def all_adaptive(row: Row) -> bool:
    """A suite of attacks that know of neighbours and votes, all of it."""
    return any(part in row["clustering"] and not is_cut(row["clustering"][part]) for part in ADAPTIVE)


def some_adaptive(row: Row) -> bool:
    """Some of its attacks."""
    return any(part in row["clustering"] for part in ADAPTIVE)


def attacked_hardest(rows: Sequence[Row], *tests: Callable[[Row], bool]) -> Sequence[Row]:
    """The seeds that pass the first test that any does, else all: others do not say what the strongest leaves."""
    found = ([row for row in rows if test(row)] for test in tests)
    return next((some for some in found if some), rows)
