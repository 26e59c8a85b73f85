"""What a board says of its rows in words: how they were trained, and what they never met."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from robustmetric.report.clustering_schema import SEARCH, is_cut
from robustmetric.report.ledger import Protocol, Row
from robustmetric.report.met import ADAPTIVE

METHODS = {
    "HM[": "Hardness manipulation [",
    "ACT[": "Anti-collapse triplets [",
    "EST[": "Embedding-shifted triplets [",
    "plain[": "No defence, triplets [",
}
"""What the abbreviations stand for that a recipe's header begins with."""
WHERE = re.compile(r": Proxy-Anchor|: CIFAR|,? (?:on )?(?:CUB-200|CARS-196|Fashion-MNIST)")
"""Where a header goes on to the data and the network, which a board names once for all."""
BESIDES = {
    r"_clean_share0(?!_\d)": "attacked images alone",
    r"_clean_share0_25": "clean images a quarter of the loss",
    r"_growing": "at a radius that grows",
    r"mixup_literal": "as its formulas are written",
    r"_as_proxies": "proxies in the place of classes",
}
"""Settings in a row's name that its recipe's header does not tell: they were given in its command."""


def in_words(row: Row, header: str) -> str:
    """What a way of training is, by the first line of its recipe; "" where that line tells no more than the name."""
    if "learner" in row:  # Certified k-NN on the digits: ARML (Wang et al. 2020); 1-NN exactly, ...
        return header.partition(": ")[2].partition(";")[0]
    words = WHERE.split(header)[0].rstrip(",")
    short = next((name for name in METHODS if words.startswith(name)), "")
    words = METHODS.get(short, "") + words.removeprefix(short)
    more = [said for name, said in BESIDES.items() if re.search(name, str(row["defence"])) and said not in words]
    return ", ".join([words, *more]) if words else ""


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
