"""The 25 pairs of source and destination (Zhou & Patel 2022, supplement Table 11), as two grids in Markdown."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from robustmetric.report.ledger import Row
from robustmetric.report.names import LETTERS
from robustmetric.report.scores import DASH, show

ORDER = tuple(LETTERS.values())
"""Sources from top to bottom, destinations from left to right: R, M, S, D, H."""
STEPS = 8
"""Of the published table."""
FEWEST = 3
"""Measured pairs that make a grid; fewer are seen well enough in the table of rows."""
COLLAPSED = "collapsed"
Kind = tuple[str, int | None]
Pair = tuple[str, str]


def grids(title: str, ours: Mapping[Kind, Sequence[Row]], theirs: Mapping[Kind, Mapping[str, Any]], model: str) -> str:
    """Ours, the published one, and whose models collapsed; empty where hardly a pair was measured.

    Numbers in a cell are R@1, and R@1 under ES and under GTM in mode `fixed`; the published ones are not of that mode.
    """
    kinds = {(source, goal): (f"hm_{source}_{goal}", STEPS) for source in ORDER for goal in ORDER}
    found = {pair: ours[kind] for pair, kind in kinds.items() if ours.get(kind)}
    if len(found) < FEWEST:
        return ""
    blocks = {pair: theirs[kind] for pair, kind in kinds.items() if kind in theirs}
    parts = [
        f"### {title}: the pairs of source (rows) and destination (columns), {STEPS} steps",
        f"Ours ({model}): R@1 / ES:R / GTM, fixed.",
        _grid(lambda pair: _ours(found.get(pair, []))),
    ]
    if blocks:
        parts += ["Published (ResNet-18): R@1 / ES:R / GTM.", _grid(lambda pair: _theirs(blocks.get(pair)))]
        parts.append(_agreement(found, blocks))
    return "\n\n".join(parts)


def _grid(cell: Callable[[Pair], str]) -> str:
    head = ["", *(letter.upper() for letter in ORDER)]
    lines = [head, ["---", *["--:"] * len(ORDER)]]
    lines += [[f"**{source.upper()}**", *(cell((source, goal)) for goal in ORDER)] for source in ORDER]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _ours(rows: Sequence[Row]) -> str:
    """Means over seeds; how many collapsed stands before them."""
    if not rows:
        return "not measured"
    blocks = [(row["clean"], row.get("attacks", {}).get("fixed", {})) for row in rows]
    scores = [_mean([block.get(score) for block in column]) for score, column in _columns(blocks)]
    fallen = sum(map(is_collapsed, rows))
    note = "" if not fallen else f"{COLLAPSED} " if len(rows) == 1 else f"{fallen} of {len(rows)} {COLLAPSED} "
    return note + " / ".join(scores)


def _columns(blocks: Sequence[tuple[Row, Row]]) -> list[tuple[str, list[Row]]]:
    clean, attacked = [c for c, _ in blocks], [a for _, a in blocks]
    return [("R@1", clean), ("ES:R", attacked), ("GTM", attacked)]


def _mean(values: Sequence[float | None]) -> str:
    numbers = [value for value in values if value is not None]
    return DASH if len(numbers) < len(values) else f"{statistics.fmean(numbers):.1f}"


def _theirs(block: Mapping[str, Any] | None) -> str:
    if block is None:
        return DASH
    return COLLAPSED if block.get(COLLAPSED) else " / ".join(show(s, block.get(s)) for s in ("R@1", "ES:R", "GTM"))


def _agreement(found: Mapping[Pair, Sequence[Row]], blocks: Mapping[Pair, Mapping[str, Any]]) -> str:
    """Which pairs collapsed here, there, and in both, of those that were measured."""
    here = {pair for pair, rows in found.items() if any(map(is_collapsed, rows))}
    there = {pair for pair, block in blocks.items() if block.get(COLLAPSED) and pair in found}
    parts = {"both": here & there, "ours alone": here - there, "published alone": there - here}
    said = [
        f"in {words}: {' '.join(map(_name, sorted(pairs, key=_place))) or 'none'}" for words, pairs in parts.items()
    ]
    return f"Collapsed, of {len(found)} pairs measured, {'; '.join(said)}."


def is_collapsed(row: Row) -> bool:
    """Whether the training of a row ended in a collapse."""
    return bool(row.get(COLLAPSED))


def fallen(rows: Sequence[Row]) -> str:
    """What stands behind the name or the number of rows some of which collapsed; nothing where none did."""
    count = sum(map(is_collapsed, rows))
    return "" if not count else f" ({COLLAPSED})" if len(rows) == 1 else f" ({count} of {len(rows)} {COLLAPSED})"


def _name(pair: Pair) -> str:
    return f"[{','.join(pair).upper()}]"


def _place(pair: Pair) -> tuple[int, int]:
    return ORDER.index(pair[0]), ORDER.index(pair[1])
