"""Masking verdicts in the ledger: a row's `masking`, its schema, and the flag behind the name of a masked row."""

from collections.abc import Iterable, Mapping
from typing import Any

from robustmetric.records import Record

KIND, LAST = "masking", "verdict"
"""Of the records; and the name of the one that sums up."""
MARK = "⚑"
WORDS = ("pass", "unclear", "fail")
VERDICTS = ("honest", "unclear", "masked")


def masking_block(records: Iterable[Record], weights: str | None = None) -> dict[str, Any] | None:
    """A row's `masking`: the newest verdict (on these weights, where given) and every check; None without one."""
    made = [
        record
        for record in records
        if record.kind == KIND
        and record.name == LAST
        and (weights is None or weights.startswith(str(record.settings.get("weights", ""))))
    ]
    if not made:
        return None
    return {"verdict": made[-1].context["verdict"], "checks": dict(made[-1].context["checks"])}


def faults(block: Any) -> list[str]:
    """What keeps a block from being a row's `masking`, in words."""
    if not isinstance(block, dict) or set(block) != {"verdict", "checks"} or not isinstance(block["checks"], dict):
        return ["masking is not {verdict, checks}"]
    found = [] if block["verdict"] in VERDICTS else [f"masking.verdict {block['verdict']!r} is none of {VERDICTS}"]
    found += [f"masking.checks.{name} {word!r} is none of {WORDS}" for name, word in block["checks"].items()
              if word not in WORDS]  # fmt: skip
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
