"""Schema of what a ledger row has of several attacks: its blocks `classification`, `auto_rank` and `transfer`."""

import math
from collections.abc import Mapping
from typing import Any

SEARCHES = ("tf32", "fp16")
"""What attacks may have climbed in where it was not fp32; what they reached is judged in fp32 either way."""
_SOUGHT = (*SEARCHES, " and ".join(sorted(SEARCHES)))
"""The last where parts of a block were sought differently."""


def faults(row: Mapping[str, Any]) -> list[str]:
    """Faults of the three, in words: rates by attack, at one radius, the worst case below all of them."""
    found = []
    for key in ("classification", "auto_rank", "transfer"):
        block = row.get(key)
        if key not in row:
            continue
        if not isinstance(block, dict) or not _is_number(block.get("radius")) or "norm" not in block:
            found.append(f"{key} has no norm and radius")
        elif block.get("search", SEARCHES[0]) not in _SOUGHT:
            words = " or ".join(map(repr, SEARCHES))
            found.append(f"{key}.search {block['search']!r} is not {words}; it is left out for fp32")
        elif key == "transfer":
            found += _transfer(block)
        else:
            found += _rates(key, block)
    return found


def _rates(key: str, block: Mapping[str, Any]) -> list[str]:
    tables = {k: v for k, v in block.items() if isinstance(v, dict)} or {"R@1": {"R@1": block.get("R@1")}}
    rates = [value for table in tables.values() for value in table.values()]
    if not rates or not all(map(_is_rate, rates)):
        return [f"{key} has numbers that are not from 0 to 100"]
    if ("local_search" in block) != ("local_search_queries" in block):
        return [f"{key}: local_search and local_search_queries stand together or not at all"]
    if "local_search_queries" in block and not _is_count(block["local_search_queries"]):
        return [f"{key}.local_search_queries {block['local_search_queries']!r} is no count > 0"]
    worst = block.get("accuracy", {}).get("worst case")
    below = [] if worst is None else [name for name, rate in block["accuracy"].items() if rate < worst]
    if below:
        return [f"{key}: {', '.join(below)} below the worst case"]
    turns = block.get("in_turn", [])
    is_known = isinstance(turns, list) and set(map(str, turns)) <= set(block.get("accuracy", {}))
    return [] if is_known else [f"{key}.in_turn {turns!r} are no attacks of its accuracy"]


def _transfer(block: Mapping[str, Any]) -> list[str]:
    sources = block.get("sources")
    if not isinstance(sources, dict) or not sources:
        return ["transfer has no sources"]
    found = []
    for name, source in sources.items():
        if not isinstance(source, dict) or set(source) != {"weights", "queries", "accuracy"}:
            found.append(f"transfer.sources.{name} is not {{weights, queries, accuracy}}")
            continue
        rates = source["accuracy"].values() if isinstance(source["accuracy"], dict) else []
        if not rates or not all(map(_is_rate, rates)):
            found.append(f"transfer.sources.{name} has numbers that are not from 0 to 100")
        if not _is_count(source["queries"]):
            found.append(f"transfer.sources.{name}.queries {source['queries']!r} is no count > 0")
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_rate(value: Any) -> bool:
    return _is_number(value) and 0 <= value <= 100


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
