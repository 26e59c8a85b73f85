"""Evaluate: model + data -> gallery -> [attack -> score] + metrics -> records, each written as it comes."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from robustmetric.attacks.base import Attack, Climb, Outcome, run
from robustmetric.attacks.in_turn import InBytes, run_in_turn
from robustmetric.attacks.suite import Suite, Trial
from robustmetric.attacks.transfer import Surrogate, Transfer, transfer
from robustmetric.jobs.accuracy import measure_accuracy
from robustmetric.jobs.arena import Arena, embed
from robustmetric.jobs.climbs import Climbs
from robustmetric.jobs.ers import APART, SHARED, PerQuery, Store, batch_weights, summed_up
from robustmetric.jobs.pictures import Pictures, pictures_of
from robustmetric.jobs.progress import Bar
from robustmetric.jobs.surrogate import find_surrogate, surrogate_settings
from robustmetric.jobs.workers import full_precision
from robustmetric.jobs.worst_case import WorstCase, dressed, fitted, repeated, standing_settings
from robustmetric.metrics.average_precision import rank_metrics, without_positives
from robustmetric.metrics.clustering import cluster_metrics
from robustmetric.metrics.linear_probe import linear_probe
from robustmetric.metrics.robustness import bootstrap
from robustmetric.numerics.randomness import generator
from robustmetric.records import Record
from robustmetric.report.scores import show_radius
from robustmetric.types import Batch


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
        intervals={name: bootstrap(values) for name, values in per_query.items()},
        count=len(labels),
        seconds=time.monotonic() - began,
        seed=seed,
        context=dict(context),
    )
    return record, per_query


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
) -> tuple[Record, PerQuery, Pictures | None]:
    """One attack on every query: the record, its scores per query, and a few pictures, where it moves queries.

    In mode `compat` the mean over queries is that of batch means, and there are no pictures: images are not rounded.
    A fast arena runs its first batch in fp32 as well: the record's context says how far the mean scores lie apart.
    Batches whose climb is among `climbs`, from the other mode, are only scored: the record's context says how many.
    `standing` marks the queries to attack; the others are lost already, and score 0. `turn` draws other randomness.
    """
    if trial.repeats > 1:
        return _measure_repeats(arena, trial, settings, seed, context, lead, standing)
    began = time.monotonic()
    climbs, shared = climbs or Climbs(), 0
    climbs.begin(trial, arena.workers.device)
    sums: dict[str, Tensor] = {}
    pictures, apart = None, {}
    count, aside = len(arena.rows), 0.0
    whole, arena = arena, dressed(arena, trial.attack)
    exact = arena.exact if arena.fast else None
    source = find_surrogate(trial, arena)
    only = None if standing is None else standing.nonzero()[:, 0]
    exact_source = None if exact is None else find_surrogate(trial, exact)
    label = trial.label if trial.mode == "fixed" else f"{trial.label} ({trial.mode})"
    attacked = count if only is None else len(only)
    with Bar(title(label, trial.engine.ball.radius), attacked, shown=lead and arena.workers.rank == 0) as bar:
        for first, positions, batch in arena.batches(only):
            parts = (seed, first, 3, *([turn] if turn else []))
            randomness = generator(arena.workers.device, *parts)
            outcome = attack_batch(arena, trial, batch, randomness, source, climbs.of(first), only is not None)
            climbs.keep(first, outcome.climb)
            shared += outcome.shared
            for name, values in outcome.scores.items():
                sums.setdefault(name, torch.zeros(count))[positions] = values.float().cpu()
            if first == 0 and exact is not None:
                paused = time.monotonic()
                again = generator(arena.workers.device, *parts)
                scores = attack_batch(exact, trial, batch, again, exact_source, in_turn=only is not None).scores
                apart = {name: float((values - scores[name]).mean()) for name, values in outcome.scores.items()}
                aside = time.monotonic() - paused
            if first == 0 and trial.attack.role == "query" and trial.mode == "fixed" and not arena.is_of_classes:
                pictures = pictures_of(arena, trial, batch, outcome)
            bar.advance(len(positions) * arena.workers.ranks)
    if standing is not None:
        # A rank whose share is empty must take part in the sum too.
        sums.setdefault(arena.right, torch.zeros(count))
    per_query = {name: arena.workers.total(values) for name, values in sums.items()}
    weights = _weights(arena, trial)
    record = Record(
        kind="attack",
        name=trial.label,
        scores={name: _mean(values, weights) for name, values in per_query.items()},
        settings={**_described(settings, trial, standing), **whole.settings()},
        intervals={name: bootstrap(values, weights=weights) for name, values in per_query.items()},
        count=count,
        seconds=time.monotonic() - began - aside,
        seed=seed,
        context={
            **context,
            **({APART: apart} if apart else {}),
            **({SHARED: shared} if shared else {}),
        },
    )
    return record, per_query, pictures


def _measure_repeats(
    arena: Arena,
    trial: Trial,
    settings: Mapping[str, Any],
    seed: int,
    context: Mapping[str, Any],
    lead: bool,
    standing: Tensor | None,
) -> tuple[Record, PerQuery, Pictures | None]:
    """The runs of a trial that is repeated, as one record; the pictures are of the first."""
    once = replace(trial, repeats=1)
    runs = [
        measure_trial(arena, once, settings, seed, context, lead, standing=standing, turn=turn)
        for turn in range(trial.repeats)
    ]
    return *repeated(trial, [(record, values) for record, values, _ in runs], arena.right), runs[0][2]


def _described(settings: Mapping[str, Any], trial: Trial, standing: Tensor | None) -> dict[str, Any]:
    return {**settings, **trial.settings(), **surrogate_settings(trial), **standing_settings(standing)}


def _weights(arena: Arena, trial: Trial) -> Tensor | None:
    return batch_weights(len(arena.rows), arena.batch_size) if trial.mode == "compat" else None


def _mean(values: Tensor, weights: Tensor | None) -> float:
    return float(values.mean() if weights is None else (weights * values).sum() / weights.sum())


def attack_batch(
    arena: Arena,
    trial: Trial,
    batch: Batch,
    randomness: torch.Generator,
    source: Surrogate | None,
    earlier: Climb | None = None,
    in_turn: bool = False,
) -> Outcome:
    """One trial on one batch, all of its climbs; the arena is as the attack must see it (`dressed`)."""
    rounded = batch.inputs.dim() > 2 and trial.mode == "fixed" and trial.rounded
    model, gallery, seen = arena.model, arena.gallery, arena.seen
    if source is not None and isinstance(trial.attack, Transfer):
        climbed = (trial.attack.attack, trial.engine, source)
        return transfer(*climbed, model, batch, gallery, randomness, rounded=rounded, view=seen)
    # What ends at its goal ends there as an 8-bit image.
    engine = InBytes(trial.engine) if rounded and in_turn else trial.engine

    def climb(attack: Attack, some: Batch) -> Outcome:
        return run(attack, engine, model, some, gallery, randomness, rounded=rounded, view=seen, earlier=earlier)

    return run_in_turn(trial.attack, climb, batch, arena.right)


def title(name: str, radius: float | None) -> str:
    """A measurement as progress and results name it: `ES at 8/255`, or `clean`."""
    return name if radius is None else f"{name} at {show_radius(radius)}"


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

    What is in `finished` is not run again. In `folder` the scores per query are kept: a resumed run needs them for the
    interval of ERS.
    """
    suite = fitted(suite, arena)
    done = finished or {}
    base = {"suite": suite.name, **(settings or {})}
    store = Store(folder, writes=arena.workers.rank == 0)
    clean = _found(_expected("clean", "clean", base, arena, seed), done)
    if clean is None or (suite.survivors and store.of(clean) is None):
        clean, per_query = measure_clean(arena, base, seed, context)
        store.keep(clean, per_query)
        yield clean, None
    worst = WorstCase(suite, arena.right, store.of(clean) or {})
    climbs = Climbs()
    together: dict[tuple[str, str], list[tuple[Trial, Record]]] = {}
    for trial in suite.runs():
        standing = worst.standing(trial)
        record = _found(_expected("attack", trial.label, _described(base, trial, standing), arena, seed), done)
        if record is None or (suite.survivors and store.of(record) is None):
            record, per_query, pictures = measure_trial(
                arena, trial, base, seed, context, climbs=climbs, standing=standing
            )
            store.keep(record, per_query)
            yield record, pictures
        worst.note(trial, record, store.of(record) or {})
        group = together.setdefault((trial.mode, repr(trial.engine)), [])
        group.append((trial, record))
        total = summed_up(group, store, _weights(arena, trial))
        if total is not None:
            group.clear()
            if _found(total, done) is None:
                yield total, None
    for summary, per_query in worst.records():
        if _found(summary, done) is None:
            store.keep(summary, per_query)
            yield summary, None


def _found(expected: Record, done: Mapping[str, Record]) -> Record | None:
    """The newest record of this work, if it has been done."""
    return next((record for record in reversed(list(done.values())) if _same(expected, record)), None)


def _expected(kind: str, name: str, settings: Mapping[str, Any], arena: Arena, seed: int) -> Record:
    return Record(kind, name, {}, {**settings, **arena.settings()}, seed=seed)


def _same(expected: Record, found: Record) -> bool:
    """Whether a record is of this work: same name and seed, and every setting asked for is as asked."""
    return (expected.kind, expected.name, expected.seed) == (found.kind, found.name, found.seed) and all(
        found.settings.get(key) == value for key, value in expected.settings.items()
    )


def _chance(queries: Tensor, items: Tensor, own: bool) -> float:
    """R@1 in percent of an embedding that knows nothing."""
    same = torch.bincount(items, minlength=int(queries.max()) + 1)[queries] - int(own)
    return 100 * float(same.double().mean()) / (len(items) - int(own))
