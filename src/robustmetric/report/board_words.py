"""What a board says of its rows in words: how they were trained, and what they never met."""

from collections.abc import Mapping, Sequence
from typing import Any

from robustmetric.report.clustering_schema import SEARCH, is_cut
from robustmetric.report.ledger import Protocol, Row

ADAPTIVE = ("adaptive_short", "adaptive")
"""Blocks of what suites leave that know of neighbours and votes."""


def not_met(ways: Mapping[Any, Sequence[Row]], key: str, words: str) -> str:
    """What to say where some entry never met the attack that is known to be stronger than those it met."""
    met = have_met(ways, key)
    if all(met):
        return ""
    tail = "They stand behind the others" if any(lacked(met, words)) else "Their order may change by it"
    return f" Not on record {'for some' if any(met) else 'for any'} of them: {words}. {tail}."


def have_met(ways: Mapping[Any, Sequence[Row]], key: str) -> list[bool]:
    """Of each entry whether an attack is on record for one of its seeds, be it cut."""
    return [any(key in part for row in rows for part in _parts(row)) for rows in ways.values()]


def have_met_all_adaptive(ways: Mapping[Any, Sequence[Row]]) -> list[bool]:
    """Of each entry whether a seed has met a suite of attacks that know of neighbours and votes, all of it."""
    blocks = [
        [row["clustering"][part] for row in rows for part in ADAPTIVE if part in row["clustering"]]
        for rows in ways.values()
    ]
    return [any(not is_cut(block) for block in found) for found in blocks]


def lacked(met: Sequence[bool], words: str) -> list[str]:
    """For each entry, the attack that it must meet to have a place beside those that did.

    Nothing where fewer than two did: the one that was attacked harder than all others would stand first by that alone.
    """
    return ["" if is_met or sum(met) < 2 else words for is_met in met]


def _parts(row: Row) -> tuple[str, ...]:
    """What was run on a row, by the names of its blocks and, of a classifier, of attacks."""
    return (*row, *row.get("clustering", ()), *row.get("classification", {}).get("accuracy", ()))


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
