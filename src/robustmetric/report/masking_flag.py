"""Masking verdicts in the ledger: a row's `masking`, its schema, and the flag behind the name of a masked row."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from robustmetric.records import Record

KIND, LAST = "masking", "verdict"
"""Of the records; and the name of the one that sums up."""
MARK = "⚑"
WORDS = ("pass", "unclear", "fail")
NOT_RUN = "not run"
"""Of a check that could not be asked: no verdict, and none of the three."""
ALL_WORDS = (*WORDS, NOT_RUN)
VERDICTS = ("honest", "unclear", "masked")
KEYS = ("verdict", "checks", "radius", "images")
SEARCH = "search"
"""Also in the block where attacks did not search in fp32."""


def masking_record(records: Iterable[Record], weights: str | None = None, radius: float | None = None) -> Record | None:
    """The newest verdict on these weights at this radius (None: on any, at any); None without one."""
    made = [
        record
        for record in records
        if record.kind == KIND
        and record.name == LAST
        and (weights is None or weights.startswith(str(record.settings.get("weights", ""))))
        and (radius is None or math.isclose(record.settings["radius"], radius, rel_tol=1e-3))
    ]
    return made[-1] if made else None


def masking_block(records: Iterable[Record]) -> dict[str, Any] | None:
    """A row's `masking`: the newest verdict and every check, at which radius and on how many images; None without."""
    last = masking_record(records)
    if last is None:
        return None
    said = {"verdict": last.context["verdict"], "checks": dict(last.context["checks"])}
    sought = {SEARCH: last.settings[SEARCH]} if SEARCH in last.settings else {}
    return {**said, "radius": round(last.settings["radius"], 6), "images": last.count, **sought}


def faults(block: Any) -> list[str]:
    """What keeps a block from being a row's `masking`, in words."""
    if not isinstance(block, dict) or set(block) - {SEARCH} != set(KEYS) or not isinstance(block["checks"], dict):
        return [f"masking is not {{{', '.join(KEYS)}}}"]
    if block.get(SEARCH, "tf32") != "tf32":
        return [f"masking.{SEARCH} {block[SEARCH]!r} is not 'tf32'; it is left out for fp32"]
    for key in ("radius", "images"):
        if isinstance(block[key], bool) or not isinstance(block[key], int | float) or not block[key] > 0:
            return [f"masking.{key} {block[key]!r} is no number > 0"]
    found = [] if block["verdict"] in VERDICTS else [f"masking.verdict {block['verdict']!r} is none of {VERDICTS}"]
    found += [f"masking.checks.{name} {word!r} is none of {ALL_WORDS}" for name, word in block["checks"].items()
              if word not in ALL_WORDS]  # fmt: skip
    if not found and (block["verdict"] == "masked") != bool(failed(block)):
        found.append("masking.verdict is `masked` where a check fails, and only there")
    return found


def note(row: Mapping[str, Any]) -> str:
    """What stands behind a row's name in a table: the flag and the checks that failed, or nothing."""
    block = row.get("masking", {})
    return f" {MARK} masked ({', '.join(failed(block))})" if block.get("verdict") == "masked" else ""


def failed(block: Mapping[str, Any]) -> list[str]:
    """The checks that failed."""
    return [name for name, word in block["checks"].items() if word == "fail"]
