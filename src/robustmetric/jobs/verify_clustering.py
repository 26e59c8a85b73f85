"""Verify of the block `clustering`: all images moved and clustered again, by the suites that are chosen.

Where the gallery moves too, queries do not fare independently of one another: an interval over queries is too narrow
for what other random starts make of it. So numbers under attack are compared on the row's kind of hardware alone.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

from robustmetric.jobs.agreement import Check, around, compared
from robustmetric.jobs.clustering import run_clustering, usual
from robustmetric.jobs.clustering_ledger import clean_record, clustering_block
from robustmetric.jobs.origin import Typed
from robustmetric.jobs.suites import load_suite
from robustmetric.jobs.verify_model import Again, Part, radius_of, seed_of
from robustmetric.jobs.worst_case import fitted
from robustmetric.numerics.kmeans import Backend, check_backend
from robustmetric.records import Record
from robustmetric.report.clustering_schema import COSINES, NOISE, SUITES, SWEEP
from robustmetric.report.ledger import RADII

BLOCK = "clustering"
MADE = {**{suite: (key,) for suite, key in SUITES.items()}, SWEEP: ("steps", "radii"), NOISE: ("noise",)}
"""By suite, the parts of the block that are by it."""


def is_about(again: Again) -> bool:
    """Whether the row's clean scores are those of its clustering."""
    return BLOCK in again.row and again.evaluations[0].words[0].startswith(BLOCK)


def names(again: Again) -> list[str]:
    """The suites that can be run again; that of a surrogate, whose weights are not at hand, cannot."""
    return [one.words[0] for one in _commands(again) if "surrogate" not in one.options]


def clustering(again: Again, chosen: Collection[str]) -> Part:
    """Clean scores and, where the starts of a climb are drawn alike, those under every suite that is chosen."""
    if BLOCK not in again.row:
        return Part()
    if not again.is_whole:
        return Part(left_out=[f"{BLOCK} (it needs all images: leave out --queries)"])
    commands = _commands(again)
    if not commands:
        return Part(left_out=[f"{BLOCK} (no command of the row measures it by a suite we ship)"])
    run = [one for one in commands if one.words[0] in chosen and not _reason_against(again, one)]
    records = [record for command in run for record in _records(again, command)]
    records = records or list(_records(again, commands[0], is_clean=True))
    checks = list(_clean(again, records)) if is_about(again) else []
    found = _flat(clustering_block(records, RADII.get(again.row["data"])))
    recorded = _flat(again.row[BLOCK])
    for key in recorded:
        if key in found:
            title = f"{BLOCK}, {', '.join(key)}"
            free = 0.0 if _part(key) == "clean" else again.rerouted
            score = COSINES if COSINES in key else key[-1]
            interval = around(score, found[key], free)
            checks.append(compared(score, recorded[key], found[key], records[0].count, interval, title))
    missing = dict.fromkeys(_part(key) for key in recorded if key not in found)
    return Part(checks, [f"{BLOCK}.{part}{_reason(again, part)}" for part in missing])


def _commands(again: Again) -> list[Typed]:
    return again.by(BLOCK) if BLOCK in again.row else []


def _records(again: Again, command: Typed, *, is_clean: bool = False) -> Iterator[Record]:
    """What a command leaves, or its clean records alone."""
    arena = again.arena(command)
    suite = fitted(load_suite(command.words[0], radius_of(command)), arena)
    # A suite that was cut left the numbers of its first attacks.
    run = again.row[BLOCK].get(SUITES.get(suite.name, ""), {}).get("attacks")
    kept = [] if is_clean else [trial for trial in suite.trials if run is None or trial.label in run]
    suite = replace(suite, trials=kept)
    kmeans = command.options.get("kmeans") or str(again.model.spec.get("kmeans", "torch"))
    check_backend(kmeans)
    return run_clustering(arena, suite, seed_of(command), {}, reading=usual(arena, cast(Backend, kmeans)))


def _clean(again: Again, records: list[Record]) -> Iterator[Check]:
    record = clean_record(records)
    for score, recorded in again.row["clean"].items():
        yield compared(score, recorded, record.scores[score], record.count, None)


def _flat(block: Mapping[str, Any], path: tuple[str, ...] = ()) -> dict[tuple[str, ...], float]:
    """The scores of a block, by where they stand in it; which attacks there were, and of how many, are none."""
    found: dict[tuple[str, ...], float] = {}
    for key, value in block.items():
        if isinstance(value, Mapping) and key != "by":
            found |= _flat(value, (*path, key))
        elif isinstance(value, int | float) and key != "of":
            found[*path, key] = value
    return found


def _part(key: tuple[str, ...]) -> str:
    """What of the block a number is part of: `pgd10`, also in another reading."""
    return key[2] if key[0] == "readings" else key[0]


def _reason(again: Again, part: str) -> str:
    """Why a part of the block was not measured, in brackets; the first suite that makes it counts."""
    made = [one for one in _commands(again) if part in MADE.get(one.words[0], ())]
    return f" ({_reason_against(again, made[0]) or f'name it: --attack {made[0].words[0]}'})" if made else ""


def _reason_against(again: Again, command: Typed) -> str:
    """Why the attacks of a command cannot be run again as they were; nothing where they can."""
    if not again.is_on_like_hardware:
        return "other hardware draws other starts"
    return f"its attacks climbed on {command.options['surrogate']}" if "surrogate" in command.options else ""
