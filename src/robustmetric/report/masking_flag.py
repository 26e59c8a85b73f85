"""Masking verdicts in the ledger: a row's `masking`, its schema, and the flag behind the name of a masked row."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from robustmetric.records import Record, is_bounded
from robustmetric.report.scores import show_radius
from robustmetric.report.worst_case_schema import SEARCHES

KIND, LAST = "masking", "verdict"
"""Of the records; and the name of the one that sums up."""
ATTACKS = ("attack", "worst_case", "clustering")
"""Kinds of records whose radii are those of a run's attacks."""
MARK = "⚑"
WORDS = ("pass", "unclear", "fail")
NOT_RUN = "not run"
"""Of a check that could not be asked: no verdict, and none of the three."""
ALL_WORDS = (*WORDS, NOT_RUN)
VERDICTS = ("honest", "unclear", "masked")
KEYS = ("verdict", "checks", "radius", "images")
SEARCH = "search"
"""Also in the block where attacks did not search in fp32."""
SAID = "said"
"""What the checks that did not pass have found, a sentence each; older records and rows do not say."""
EFFORT = "effort"
"""In the context of a verdict, what its checks might spend; older records do not say."""


def masking_record(
    records: Iterable[Record], weights: str | None = None, radius: float | None = None, attacked: Iterable[float] = ()
) -> Record | None:
    """The verdict that counts on these weights at this radius (None: on any, at any); None without one.

    Those at a radius that was `attacked` at come first. Of these the one on most images; of as many a masked one, else
    the newest. One that is not masked is left out where it spent less than a masked one: a rerun at a tiny radius, on
    few images or at less effort takes no flag away.
    """
    made = [
        record
        for record in records
        if record.kind == KIND
        and record.name == LAST
        and (weights is None or weights.startswith(str(record.settings.get("weights", ""))))
        and (radius is None or _is_among(record.settings["radius"], [radius]))
    ]
    radii = list(attacked)
    made = [record for record in made if _is_among(record.settings["radius"], radii)] or made
    masked = [record for record in made if record.context["verdict"] == "masked"]
    made = [one for one in made if one in masked or not any(_spent_less(one, other) for other in masked)]
    # max keeps the first of equals: the newest, from the end.
    return max(reversed(made), key=lambda last: (last.count, last.context["verdict"] == "masked"), default=None)


def attacked_at(records: Iterable[Record]) -> set[float]:
    """The radii of attacks among these, without those that kept to none."""
    attacks = (record.settings for record in records if record.kind in ATTACKS)
    return {float(settings["radius"]) for settings in attacks if "radius" in settings and is_bounded(settings)}


def masking_block(records: Iterable[Record]) -> dict[str, Any] | None:
    """A row's `masking`: the verdict that counts and every check, at which radius and on how many images; None without.

    It is on the weights of the newest record.
    """
    found = list(records)
    last = masking_record(found, _newest(found), attacked=attacked_at(found))
    if last is None:
        return None
    said = {"verdict": last.context["verdict"], "checks": dict(last.context["checks"])}
    sought = {SEARCH: last.settings[SEARCH]} if SEARCH in last.settings else {}
    told = {SAID: dict(last.context[SAID])} if last.context.get(SAID) else {}
    return {**said, "radius": round(last.settings["radius"], 6), "images": last.count, **sought, **told}


def flag(records: Iterable[Record], weights: str | None = None) -> str:
    """What stands beside the numbers of a run: that it is masked and the checks that failed, or nothing.

    It is of these weights, or of those of the newest record. The radius is told where no attack was at it.
    """
    last, at = _counting(records, weights)
    if last is None or last.context["verdict"] != "masked":
        return ""
    return f"masked{at}: fails {', '.join(failed(last.context))}"


def doubt(records: Iterable[Record]) -> str:
    """The checks that are unclear, where the verdict is, or nothing; the radius as in `flag`."""
    last, at = _counting(records)
    if last is None or last.context["verdict"] != "unclear":
        return ""
    names = [name for name, word in last.context["checks"].items() if word == "unclear"]
    return (", ".join(names) or "no check could be run") + at


def faults(block: Any) -> list[str]:
    """What keeps a block from being a row's `masking`, in words."""
    if not isinstance(block, dict) or set(block) - {SEARCH, SAID} != set(KEYS) or not isinstance(block["checks"], dict):
        return [f"masking is not {{{', '.join(KEYS)}}}"]
    if block.get(SEARCH, SEARCHES[0]) not in SEARCHES:
        words = " or ".join(map(repr, SEARCHES))
        return [f"masking.{SEARCH} {block[SEARCH]!r} is not {words}; it is left out for fp32"]
    for key in ("radius", "images"):
        if isinstance(block[key], bool) or not isinstance(block[key], int | float) or not block[key] > 0:
            return [f"masking.{key} {block[key]!r} is no number > 0"]
    found = [] if block["verdict"] in VERDICTS else [f"masking.verdict {block['verdict']!r} is none of {VERDICTS}"]
    found += [f"masking.checks.{name} {word!r} is none of {ALL_WORDS}" for name, word in block["checks"].items()
              if word not in ALL_WORDS]  # fmt: skip
    told = block.get(SAID, {})
    if not isinstance(told, dict) or not all(isinstance(words, str) for words in told.values()):
        return [*found, f"masking.{SAID} {told!r} is not a sentence for each of some checks"]
    found += [f"masking.{SAID}.{name} is of no check that is unclear or fails" for name in told
              if block["checks"].get(name) not in ("unclear", "fail")]  # fmt: skip
    if not found and (block["verdict"] == "masked") != bool(failed(block)):
        found.append("masking.verdict is `masked` where a check fails, and only there")
    return found


def note(row: Mapping[str, Any]) -> str:
    """What stands behind a row's name in a table: the flag and the checks that failed, or nothing."""
    block = row.get("masking", {})
    return f" {MARK} masked ({', '.join(failed(block))})" if block.get("verdict") == "masked" else ""


def evidence(row: Mapping[str, Any]) -> str:
    """What the checks of a row that did not pass have found, the failed ones first; nothing where it does not say."""
    block = row.get(KIND, {})
    told = sorted(block.get(SAID, {}).items(), key=lambda one: block["checks"][one[0]] != "fail")
    return "; ".join(
        f"{name} ({'fails' if block['checks'][name] == 'fail' else 'unclear'}): {words}" for name, words in told
    )


def failed(block: Mapping[str, Any]) -> list[str]:
    """The checks that failed."""
    return [name for name, word in block["checks"].items() if word == "fail"]


def _counting(records: Iterable[Record], weights: str | None = None) -> tuple[Record | None, str]:
    """The verdict that counts on these weights (None: the newest), and words for a radius that no attack was at."""
    found = list(records)
    radii = attacked_at(found)
    last = masking_record(found, _newest(found) if weights is None else weights, attacked=radii)
    if last is None or _is_among(radius := float(last.settings["radius"]), radii):
        return last, ""
    return last, f" at radius {show_radius(radius)}"


def _spent_less(one: Record, other: Record) -> bool:
    """Whether the checks of one verdict might spend less on anything than those of another, as far as both say."""
    mine, theirs = (record.context.get(EFFORT, {}) for record in (one, other))
    return any(mine[name] < theirs[name] for name in mine.keys() & theirs.keys())


def _newest(records: Iterable[Record]) -> str | None:
    named = [str(record.settings["weights"]) for record in records if "weights" in record.settings]
    return named[-1] if named else None


def _is_among(radius: float, radii: Iterable[float]) -> bool:
    return any(math.isclose(radius, one, rel_tol=1e-3) for one in radii)
