"""Ledger rows of classifiers, and of retrieval under AutoRank: what each attack leaves, and what all of them leave."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from robustmetric.jobs.worst_case import KIND, LOWEST, SPREAD, WORST
from robustmetric.records import Record

PAPER_BATCH = 60
BLOCKS, LOCAL = ("accuracy", LOWEST, SPREAD), "local_search"


def classification(tested: Iterable[Record], radius: float | None) -> dict[str, Any]:
    """By score, the numbers of every attack and worst case at `radius` (None: at the one measured); empty if none.

    Local search, part of it without a bound, is a block of its own. Where two suites have a number under one name, that
    of `classification` counts.
    """
    found = [record for record in _at(tested, radius) if "accuracy" in record.scores]
    if not found:
        return {}
    found.sort(key=lambda record: record.settings.get("suite") == "classification")
    aside = [record for record in found if record.settings.get("suite") == LOCAL]
    found = [record for record in found if record not in aside]
    blocks = {
        block: {record.name: round(record.scores[block], 4) for record in found if block in record.scores}
        for block in BLOCKS
    }
    blocks[LOCAL] = {record.name: round(record.scores["accuracy"], 4) for record in aside}
    worst = next((record for record in reversed(found) if record.name == WORST), None)
    return {
        **_ball([*found, *aside]),
        **{block: numbers for block, numbers in blocks.items() if numbers},
        **({} if worst is None else {"worst_case_interval": _interval(worst, "accuracy")}),
    }


def auto_rank(tested: Iterable[Record], radius: float | None) -> dict[str, Any]:
    """The R@1 that AutoRank leaves, with its interval; empty where it was not run."""
    found = [record for record in _at(tested, radius) if record.kind == KIND and "R@1" in record.scores]
    last = next((record for record in reversed(found) if record.name == "AutoRank"), None)
    if last is None:
        return {}
    return {**_ball([last]), "R@1": round(last.scores["R@1"], 4), "R@1_interval": _interval(last, "R@1")}


def model_name(spec: Mapping[str, Any], usual: str) -> str:
    """A model as rows name it: that of its summary, with the size of a wide ResNet and what stands before its input."""
    model = spec.get("model") or {}
    before = "".join(f"{part['name']}_" for part in model.get("transforms", []))
    model = model["model"] if before else model
    trunk = model.get("trunk") or {}
    if trunk.get("name") == "wide_resnet":
        return f"{before}wide_resnet{trunk.get('depth', 28)}_{trunk.get('width', 10)}"
    return before + str(trunk.get("name", usual)) if before else usual


def batch_name(spec: Mapping[str, Any]) -> list[str]:
    """`batch40`, where a classifier was trained by another batch than the paper's: transport is within batches."""
    batch = (spec.get("sampler") or {}).get("batch")
    return [] if batch in (None, PAPER_BATCH) else [f"batch{batch}"]


def _at(tested: Iterable[Record], radius: float | None) -> list[Record]:
    """The attacked records at a radius; where none is given, at the first one found."""
    attacked = [record for record in tested if record.kind in ("attack", KIND) and "radius" in record.settings]
    if radius is None and attacked:
        radius = attacked[0].settings["radius"]
    return [r for r in attacked if radius is not None and math.isclose(r.settings["radius"], radius, rel_tol=1e-3)]


def _ball(found: Sequence[Record]) -> dict[str, Any]:
    return {"norm": found[0].settings["norm"], "radius": round(found[0].settings["radius"], 6)}


def _interval(record: Record, score: str) -> list[float]:
    return [round(bound, 4) for bound in record.intervals[score]]
