"""Verify of the blocks `clean` and `attacks`: scores without an attack, and the ten numbers in both modes."""

from collections.abc import Collection, Iterator

from robustmetric.attacks.suite import Trial
from robustmetric.jobs.agreement import Check, Interval, around, compared, spread, spread_by_batch
from robustmetric.jobs.arena import Arena
from robustmetric.jobs.climbs import Climbs
from robustmetric.jobs.ers import PerQuery
from robustmetric.jobs.evaluate import measure_clean, measure_trial
from robustmetric.jobs.origin import Typed
from robustmetric.jobs.suites import load_suite
from robustmetric.jobs.verify_model import Again, Part, radius_of, seed_of
from robustmetric.numerics.randomness import repeatable

ERS = ("ERS", "ERS_interval")
"""They follow from the ten scores."""


def clean(again: Again, command: Typed) -> Part:
    """The row's scores without an attack, as the first of its evaluations has them."""
    row, seed, arena = again.row, seed_of(command), again.arena(command, again.row["queries"])
    with repeatable(arena.workers.device, seed, 7):
        record, per_query = measure_clean(arena, {}, seed, {})
    checks = []
    for score, recorded in row["clean"].items():
        # The others are of the whole gallery, whatever the queries.
        is_sampled = score in per_query and record.count < row["queries"]
        interval = spread(per_query[score]) if is_sampled else None
        count = record.count if score in per_query else len(arena.gallery)
        checks.append(compared(score, recorded, record.scores[score], count, interval))
    return Part(checks)


def names(again: Again) -> list[str]:
    """The attacks that can be run again."""
    return [trial.label for _, trial in _trials(again)]


def attacks(again: Again, chosen: Collection[str]) -> Part:
    """The chosen attacks, in the modes that the row has."""
    climbs, checks = Climbs(), list[Check]()
    for command, trial in _trials(again):
        if trial.label in chosen:
            checks += _measured(again, command, trial, climbs)
    done = {check.name for check in checks}
    every = [_title(s, mode) for mode, block in again.row.get("attacks", {}).items() for s in block if s not in ERS]
    return Part(checks, [title for title in every if title not in done])


def _trials(again: Again) -> list[tuple[Typed, Trial]]:
    """By suites of the ten numbers, the modes of an attack side by side; where two have one, the later counts."""
    modes, found = [mode for mode in ("fixed", "compat") if mode in again.row.get("attacks", {})], {}
    for command in again.by("ers") if modes else ():
        for trial in load_suite(command.words[0], radius_of(command), modes).runs():
            found[trial.label, trial.mode] = (command, trial)
    return list(found.values())


def _measured(again: Again, command: Typed, trial: Trial, climbs: Climbs) -> Iterator[Check]:
    row, count = again.row, again.attacked
    arena = again.arena(command, count)
    record, per_query, _ = measure_trial(arena, trial, {}, seed_of(command), {}, climbs=climbs)
    for score in record.scores:
        recorded = row["attacks"][trial.mode].get(score)
        if recorded is not None:
            is_same, title = again.is_same(arena, count), _title(score, trial.mode)
            # Batches of a sample are others, so its mean over queries stands for the mean of the row's batch means.
            found = record.scores[score] if len(arena.rows) == count else float(per_query[score].mean())
            if is_same:
                interval = around(score, found, again.rerouted)
            else:
                interval = _interval(arena, trial, score, per_query, count)
            yield compared(score, recorded, found, record.count, interval, title)


def _interval(arena: Arena, trial: Trial, score: str, per_query: PerQuery, count: int) -> Interval:
    values = per_query[score]
    return spread_by_batch(score, values, count, arena.batch_size) if trial.mode == "compat" else spread(values)


def _title(score: str, mode: str) -> str:
    return score if mode == "fixed" else f"{score} {mode}"
