"""Ledger rows of classifiers, and of retrieval under AutoRank: what each attack leaves, and what all of them leave."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from robustmetric.jobs.worst_case import KIND, LEFT_OUT, LOWEST, SPREAD, WORST
from robustmetric.records import Record
from robustmetric.report.classification import PAPER_BATCH, WITHOUT
from robustmetric.report.turns import STANDING

BLOCKS, LOCAL, TRANSFER = ("accuracy", LOWEST, SPREAD), "local_search", "transfer"
FROM = " from "
"""Between a transferred attack and the run that it climbed on, in the name of a trial."""


def classification(tested: Iterable[Record], local: Iterable[Record], radius: float | None) -> dict[str, Any]:
    """By score, the numbers of every attack and worst case at `radius` (None: at the one measured); empty if none.

    Local search, part of it without a bound, is a block of its own, with its own number of queries. Where two suites
    have a number under one name, that of `classification` counts. Attacks that met only what those before them left are
    told `in_turn`: their numbers are of all of these. `worst_case_without` has the attacks that its worst case lacks.
    """
    found = _at((record for record in tested if "accuracy" in record.scores), radius)
    own = (record for record in local if "accuracy" in record.scores)
    aside = _at(own, found[0].settings["radius"] if found else radius)
    if not found and not aside:
        return {}
    found.sort(key=lambda record: record.settings.get("suite") == "classification")
    blocks = {
        block: {record.name: round(record.scores[block], 4) for record in found if block in record.scores}
        for block in BLOCKS
    }
    blocks[LOCAL] = {record.name: round(record.scores["accuracy"], 4) for record in aside}
    worst = next((record for record in reversed(found) if record.name == WORST), None)
    turns = [name for name, record in {record.name: record for record in found}.items() if STANDING in record.settings]
    return {
        **_ball([*found, *aside]),
        **{block: numbers for block, numbers in blocks.items() if numbers},
        **({"in_turn": turns} if turns else {}),
        **({f"{LOCAL}_queries": aside[0].count} if aside else {}),
        **({} if worst is None else {"worst_case_interval": _interval(worst, "accuracy")}),
        **({WITHOUT: worst.settings[LEFT_OUT]} if worst is not None and LEFT_OUT in worst.settings else {}),
    }


def auto_rank(tested: Iterable[Record], radius: float | None) -> dict[str, Any]:
    """The R@1 that AutoRank leaves, with its interval; empty where it was not run."""
    own = (record for record in tested if record.kind == KIND and record.name == "AutoRank" and "R@1" in record.scores)
    found = _at(own, radius)
    if not found:
        return {}
    last = found[-1]
    return {**_ball([last]), "R@1": round(last.scores["R@1"], 4), "R@1_interval": _interval(last, "R@1")}


def by_source(aside: Iterable[Record], radius: float | None) -> dict[str, list[Record]]:
    """The transferred attacks on a classifier by the run they climbed on: by its newest weights, on most queries.

    Those that searched in fp32, TF32 and float16 are not mixed: of these the one of most attacks, then fp32.
    """
    moved = _at((r for r in aside if "surrogate_weights" in r.settings and "accuracy" in r.scores), radius)
    found: dict[str, list[Record]] = {}
    for source in dict.fromkeys(source_of(record) for record in moved):
        own = [record for record in moved if source_of(record) == source]
        newest = own[-1].settings["surrogate_weights"]
        own = [record for record in own if record.settings["surrogate_weights"] == newest]
        most = max(record.count for record in own)
        ways: dict[str | None, list[Record]] = {}
        for record in own:
            if record.count == most:
                ways.setdefault(record.settings.get("search"), []).append(record)
        found[source] = ways[max(ways, key=lambda search: (len(ways[search]), search is None))]
    return found


def source_of(record: Record) -> str:
    """The name of the run that a transferred attack climbed on; RUN where its trial does not say."""
    return str(record.settings.get("trial", record.name)).partition(FROM)[2] or "RUN"


def transfer(sources: Mapping[str, Sequence[Record]]) -> dict[str, Any]:
    """By the run that was climbed on, what each transferred attack leaves; empty where none was run."""
    if not sources:
        return {}
    return {
        **_ball([record for own in sources.values() for record in own]),
        "sources": {
            source: {
                "weights": own[0].settings["surrogate_weights"],
                "queries": own[0].count,
                "accuracy": {r.name.partition(FROM)[0]: round(r.scores["accuracy"], 4) for r in own},
            }
            for source, own in sources.items()
        },
    }


def model_name(spec: Mapping[str, Any], usual: str) -> str:
    """A model as rows name it: that of its summary, with the size of a ResNet and what stands before its input."""
    model = spec.get("model") or {}
    before = "".join(f"{part['name']}_" for part in model.get("transforms", []))
    model = model["model"] if before else model
    trunk = model.get("trunk") or {}
    if trunk.get("name") == "wide_resnet":
        return f"{before}wide_resnet{trunk.get('depth', 28)}_{trunk.get('width', 10)}"
    if trunk.get("name") == "small_resnet":
        return f"{before}resnet{trunk.get('depth', 18)}"
    return before + str(trunk.get("name", usual)) if before else usual


def batch_name(spec: Mapping[str, Any]) -> list[str]:
    """`batch40`, where a classifier was trained by another batch than the paper's: transport is within batches.

    Where it is within groups of them, `batch240`, `group60`.
    """
    batch, group = (spec.get("sampler") or {}).get("batch"), (spec.get("defence") or {}).get("group")
    parts = [] if batch in (None, PAPER_BATCH) else [f"batch{batch}"]
    return parts if group in (None, batch) else [*parts, f"group{group}"]


def _at(found: Iterable[Record], radius: float | None) -> list[Record]:
    """The attacked among these records at a radius; where none is given, at the first one found."""
    # At radius 0 nothing is attacked.
    attacked = [record for record in found if record.kind in ("attack", KIND) and record.settings.get("radius")]
    if radius is None and attacked:
        radius = attacked[0].settings["radius"]
    return [r for r in attacked if radius is not None and math.isclose(r.settings["radius"], radius, rel_tol=1e-3)]


def _ball(found: Sequence[Record]) -> dict[str, Any]:
    """Where attacks looked, and in what precision, where not in fp32 throughout."""
    sought = " and ".join(sorted({str(record.settings["search"]) for record in found if "search" in record.settings}))
    ball = {"norm": found[0].settings["norm"], "radius": round(found[0].settings["radius"], 6)}
    return {**ball, "search": sought} if sought else ball


def _interval(record: Record, score: str) -> list[float]:
    return [round(bound, 4) for bound in record.intervals[score]]
