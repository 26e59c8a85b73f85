"""What a board says of its rows in words: how they were trained, and what they never met."""

from collections.abc import Mapping, Sequence
from typing import Any

from robustmetric.report.clustering_schema import SEARCH, is_cut
from robustmetric.report.ledger import Protocol, Row
from robustmetric.report.met import ADAPTIVE


def not_met(met: Sequence[bool], words: str, are_behind: bool) -> str:
    """What to say where some entry never met the attack that is known to be stronger than those it met."""
    if all(met):
        return ""
    tail = "They stand behind the others" if are_behind else "Their order may change by it"
    return f" Not on record {'for some' if any(met) else 'for any'} of them: {words}. {tail}."


def cut_and_sought(ways: Mapping[Any, Sequence[Row]]) -> tuple[str, str]:
    """What to say where some entry met a part of an adaptive suite alone; where its attacks did not search in fp32."""
    blocks = [row["clustering"].get(part, {}) for rows in ways.values() for row in rows for part in ADAPTIVE]
    cut = " Some met a part of the adaptive attacks alone: their rows say which." if any(map(is_cut, blocks)) else ""
    found = " or ".join(sorted({block[SEARCH] for block in blocks if SEARCH in block}))
    return cut, f" Adaptive attacks of some searched in {found}; all are scored in fp32." if found else ""


def training(protocol: Protocol, more: str = "") -> str:
    """How much rows were trained and on what they were tested, and then `more`."""
    tested = "all queries" if protocol.queries is None else f"{protocol.queries:,} seeded queries"
    return f"{protocol.epochs} epochs at rate {protocol.rate:g}; {tested}.{more}"
