"""Evaluate: model + data -> gallery -> [attack -> score] + metrics -> records, each written as it comes."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from robustmetric.attacks.suite import Suite, Trial
from robustmetric.jobs.accuracy import measure_accuracy
from robustmetric.jobs.arena import Arena, embed
from robustmetric.jobs.attacked import attack_all
from robustmetric.jobs.chance import chance_settings
from robustmetric.jobs.climbs import Climbs
from robustmetric.jobs.closing import estimator
from robustmetric.jobs.ers import AIMS, APART, SHARED, PerQuery, Store, batch_weights, summed_up
from robustmetric.jobs.over_queries import intervals
from robustmetric.jobs.pictures import Pictures
from robustmetric.jobs.progress import say
from robustmetric.jobs.resume import find
from robustmetric.jobs.surrogate import surrogate_settings
from robustmetric.jobs.warned import warned_context, warned_of_square
from robustmetric.jobs.workers import full_precision
from robustmetric.jobs.worst_case import WorstCase, fitted, repeated, standing_settings
from robustmetric.metrics.average_precision import rank_metrics, without_positives
from robustmetric.metrics.clustering import cluster_metrics
from robustmetric.metrics.linear_probe import linear_probe
from robustmetric.numerics.distances import are_unit
from robustmetric.numerics.randomness import repeatable
from robustmetric.records import Record

Tell = Callable[[float, int], None]


@full_precision()
def measure_clean(
    arena: Arena, settings: Mapping[str, Any], seed: int, context: Mapping[str, Any]
) -> tuple[Record, PerQuery]:
    """Retrieval, clustering and a linear probe without an attack: the record, and what is known of each query.

    Of a classifier, its accuracy.
    """
    if arena.is_of_classes:
        return measure_accuracy(arena, settings, seed, context)
    began = time.monotonic()
    labels = arena.queries.labels[arena.rows].to(arena.workers.device)
    own = arena.items is arena.queries
    if own:
        z = arena.gallery.embeddings[arena.rows.to(arena.workers.device)]
    else:
        z = embed(arena.model, arena.queries, arena.view, arena.workers, arena.batch_size, arena.rows, arena.seen)
    exclude = arena.places.to(arena.workers.device)
    ks = tuple(k for k in (1, 2, 4, 8) if k < len(arena.gallery))
    found = rank_metrics(z, arena.gallery.embeddings, labels, arena.gallery.labels, exclude, ks)
    per_query = {name: 100 * values.float().cpu() for name, values in found.items()}
    scores = {name: float(values.mean()) for name, values in per_query.items()}
    clusters = cluster_metrics(arena.gallery.embeddings, arena.gallery.labels, seed=0)
    scores |= {name: 100 * value for name, value in clusters.items()}
    if len(arena.gallery.labels.unique()) < len(arena.gallery):
        scores["probe"] = 100 * linear_probe(arena.gallery.embeddings, arena.gallery.labels)
    alone = int(without_positives(labels, arena.gallery.labels, exclude).sum())
    extra = {"chance": _chance(labels, arena.gallery.labels, own)} | ({"without_positives": alone} if alone else {})
    record = Record(
        kind="clean",
        name="clean",
        scores=scores,
        settings={**settings, **arena.settings(), **extra},
        intervals=intervals(per_query),
        count=len(labels),
        seconds=time.monotonic() - began,
        seed=seed,
        context=dict(context),
    )
    return record, per_query


NOT_UNIT = "embeddings are not of unit length, and it counts distances from 0 to 2; the ten scores stand by themselves"


@full_precision()
def measure_trial(
    arena: Arena,
    trial: Trial,
    settings: Mapping[str, Any],
    seed: int,
    context: Mapping[str, Any],
    lead: bool = True,
    climbs: Climbs | None = None,
    standing: Tensor | None = None,
    turn: int = 0,
    tell: Tell | None = None,
) -> tuple[Record, PerQuery, Pictures | None]:
    """One attack on every query: the record, its scores per query, and a few pictures, where it moves queries.

    In mode `compat` the mean over queries is that of batch means, and there are no pictures: images are not rounded.
    A fast arena runs its first batch in fp32 as well: the record's context says how far the mean scores lie apart.
    Batches whose climb is among `climbs`, from the other mode, are only scored: the record's context says how many.
    `standing` marks the queries to attack; the others are lost already, and score 0. `turn` draws other randomness.
    `tell` is told what the first batch took.
    """
    if trial.repeats > 1:
        return _measure_repeats(arena, trial, settings, seed, context, lead, standing, tell)
    began, shown = time.monotonic(), lead and arena.workers.rank == 0
    found = attack_all(arena, trial, seed, climbs or Climbs(), standing, turn, shown=shown, tell=tell)
    per_query = {name: arena.workers.total(values) for name, values in found.sums.items()}
    aims = {} if found.aims is None else {AIMS: arena.workers.total(found.aims)}
    weights = _weights(arena, trial)
    record = Record(
        kind="attack",
        name=trial.label,
        scores={name: _mean(values, weights) for name, values in per_query.items()},
        settings={**_described(settings, trial, standing), **arena.settings()},
        intervals=intervals(per_query, weights),
        count=len(arena.rows),
        seconds=time.monotonic() - began - found.aside,
        seed=seed,
        context={
            **context,
            **({APART: found.apart} if found.apart else {}),
            **({SHARED: found.shared} if found.shared else {}),
        },
    )
    return record, {**per_query, **aims}, found.pictures


def _measure_repeats(
    arena: Arena,
    trial: Trial,
    settings: Mapping[str, Any],
    seed: int,
    context: Mapping[str, Any],
    lead: bool,
    standing: Tensor | None,
    tell: Tell | None,
) -> tuple[Record, PerQuery, Pictures | None]:
    """The runs of a trial that is repeated, as one record; the pictures are of the first."""
    once = replace(trial, repeats=1)
    runs = [
        measure_trial(
            arena, once, settings, seed, context, lead, standing=standing, turn=turn, tell=None if turn else tell
        )
        for turn in range(trial.repeats)
    ]
    return *repeated(trial, [(record, values) for record, values, _ in runs], arena.right), runs[0][2]


def _described(settings: Mapping[str, Any], trial: Trial, standing: Tensor | None) -> dict[str, Any]:
    return {**settings, **trial.settings(), **surrogate_settings(trial), **standing_settings(standing)}


def _weights(arena: Arena, trial: Trial) -> Tensor | None:
    return batch_weights(len(arena.rows), arena.batch_size) if trial.mode == "compat" else None


def _mean(values: Tensor, weights: Tensor | None) -> float:
    return float(values.mean() if weights is None else (weights * values).sum() / weights.sum())


def run_suite(
    arena: Arena,
    suite: Suite,
    seed: int,
    context: Mapping[str, Any],
    settings: Mapping[str, Any] | None = None,
    finished: Mapping[str, Record] | None = None,
    folder: Path | None = None,
) -> Iterator[tuple[Record, Pictures | None]]:
    """Clean retrieval, then every trial of a suite, ERS where ten scores of one mode are there, and the worst cases.

    Embeddings that are not of unit length have the ten scores and no ERS, which counts distances from 0 to 2.
    What is in `finished` is not run again. In `folder` the scores per query are kept: a resumed run needs them for the
    interval of ERS.
    """
    suite = fitted(suite, arena)
    done = finished or {}
    base = {"suite": suite.name, **(settings or {}), **chance_settings(arena)}
    context = {**context, **warned_context(arena, suite, is_randomised="randomised" in base)}
    store = Store(folder, writes=arena.workers.rank == 0)
    clean = find(_expected("clean", "clean", base, arena, seed), done)
    if clean is None or (suite.survivors and store.of(clean) is None):
        with repeatable(arena.workers.device, seed, 7):
            clean, per_query = measure_clean(arena, base, seed, context)
        store.keep(clean, per_query)
        yield clean, None
    worst = WorstCase(suite, arena.right, store.of(clean) or {})
    climbs, trials, told = Climbs(), suite.runs(), False
    together: dict[tuple[str, str], list[tuple[Trial, Record]]] = {}
    for place, trial in enumerate(trials):
        standing = worst.standing(trial)
        record = find(_expected("attack", trial.label, _described(base, trial, standing), arena, seed), done)
        if record is None or (suite.survivors and store.of(record) is None):
            # Told once: of the first that is run, with all that come after it.
            tell, told = None if told else _forecast(trials[place:], worst, len(arena.rows)), True
            said = {**context, **worst.turn(trial)}
            measured = measure_trial(arena, trial, base, seed, said, True, climbs, standing, tell=tell)
            record, per_query, pictures = measured
            store.keep(record, per_query)
            yield record, pictures
        worst.note(trial, record, store.of(record) or {})
        group = together.setdefault((trial.mode, repr(trial.engine)), [])
        group.append((trial, record))
        total = _ers_of(group, store, arena, trial)
        if total is not None and find(total, done) is None:
            yield total, None
    for summary, per_query in warned_of_square(arena, suite, worst.records()):
        if find(summary, done) is None:
            store.keep(summary, per_query)
            yield summary, None


def _forecast(ahead: Sequence[Trial], worst: WorstCase, queries: int) -> Tell:
    """What says how long these trials may take, those in turn on what is left by now."""
    standing = [worst.standing(trial) for trial in ahead]
    counts = [queries if left is None else int(left.sum()) for left in standing]
    return estimator(list(zip(ahead, counts, strict=True)), in_turn=any(left is not None for left in standing))


def _ers_of(group: list[tuple[Trial, Record]], store: Store, arena: Arena, last: Trial) -> Record | None:
    """ERS once the ten scores of one mode are there; where embeddings have other lengths, why there is none."""
    total = summed_up(group, store, _weights(arena, last))
    if total is None:
        return None
    group.clear()
    if bool(are_unit(arena.gallery.embeddings)):
        return total
    if arena.workers.rank == 0:
        say(f"no ERS in mode {last.mode}: {NOT_UNIT}")
    return None


def _expected(kind: str, name: str, settings: Mapping[str, Any], arena: Arena, seed: int) -> Record:
    return Record(kind, name, {}, {**settings, **arena.settings()}, seed=seed)


def _chance(queries: Tensor, items: Tensor, own: bool) -> float:
    """R@1 in percent of an embedding that knows nothing."""
    same = torch.bincount(items, minlength=int(queries.max()) + 1)[queries] - int(own)
    return 100 * float(same.double().mean()) / (len(items) - int(own))


chance_of = _chance
"""The same, for other jobs."""
