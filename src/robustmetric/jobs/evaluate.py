"""Evaluate: model + data -> gallery -> [attack -> score] + metrics -> records, each written as it comes."""

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from robustmetric.attacks.base import Climb, Outcome, run
from robustmetric.attacks.suite import Suite, Trial
from robustmetric.attacks.transfer import Surrogate, Transfer, transfer
from robustmetric.jobs.arena import Arena, as_bytes, embed
from robustmetric.jobs.climbs import Climbs
from robustmetric.jobs.ers import APART, SHARED, PerQuery, Store, batch_weights, summed_up
from robustmetric.jobs.progress import Bar
from robustmetric.jobs.surrogate import find_surrogate, surrogate_settings
from robustmetric.jobs.workers import full_precision
from robustmetric.metrics.average_precision import rank_metrics, without_positives
from robustmetric.metrics.clustering import cluster_metrics
from robustmetric.metrics.linear_probe import linear_probe
from robustmetric.metrics.robustness import bootstrap
from robustmetric.numerics.distances import nearest
from robustmetric.numerics.randomness import generator
from robustmetric.perturb.pgd import frozen
from robustmetric.records import Record
from robustmetric.report.scores import show_radius
from robustmetric.types import Batch

Pictures = dict[str, npt.NDArray[Any]]
"""What the report shows of an attack; see `_pictures`."""
EXAMPLES = 6
"""Queries kept as pictures per trial."""


@full_precision()
def measure_clean(
    arena: Arena, settings: Mapping[str, Any], seed: int, context: Mapping[str, Any]
) -> tuple[Record, PerQuery]:
    """Retrieval, clustering and a linear probe without an attack: the record, and what is known of each query."""
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
) -> tuple[Record, PerQuery, Pictures | None]:
    """One attack on every query: the record, its scores per query, and a few pictures, where it moves queries.

    In mode `compat` the mean over queries is that of batch means, and there are no pictures: images are not rounded.
    A fast arena runs its first batch in fp32 as well: the record's context says how far the mean scores lie apart.
    Batches whose climb is among `climbs`, from the other mode, are only scored: the record's context says how many.
    """
    began = time.monotonic()
    climbs, shared = climbs or Climbs(), 0
    climbs.begin(trial, arena.workers.device)
    sums: dict[str, Tensor] = {}
    pictures, apart = None, {}
    count, aside = len(arena.rows), 0.0
    exact = arena.exact if arena.fast else None
    source = find_surrogate(trial, arena)
    exact_source = None if exact is None else find_surrogate(trial, exact)
    label = trial.label if trial.mode == "fixed" else f"{trial.label} ({trial.mode})"
    with Bar(title(label, trial.engine.ball.radius), count, shown=lead and arena.workers.rank == 0) as bar:
        for first, positions, batch in arena.batches():
            randomness = generator(arena.workers.device, seed, first, 3)
            outcome = _attack(arena, trial, batch, randomness, source, climbs.of(first))
            climbs.keep(first, outcome.climb)
            shared += outcome.shared
            for name, values in outcome.scores.items():
                sums.setdefault(name, torch.zeros(count))[positions] = values.float().cpu()
            if first == 0 and exact is not None:
                paused = time.monotonic()
                again = generator(arena.workers.device, seed, first, 3)
                scores = _attack(exact, trial, batch, again, exact_source).scores
                apart = {name: float((values - scores[name]).mean()) for name, values in outcome.scores.items()}
                aside = time.monotonic() - paused
            if first == 0 and trial.attack.role == "query" and trial.mode == "fixed":
                pictures = _pictures(arena, trial, batch, outcome)
            bar.advance(len(positions) * arena.workers.ranks)
    per_query = {name: arena.workers.total(values) for name, values in sums.items()}
    weights = _weights(arena, trial)
    record = Record(
        kind="attack",
        name=trial.label,
        scores={name: _mean(values, weights) for name, values in per_query.items()},
        settings={**settings, **trial.settings(), **surrogate_settings(trial), **arena.settings()},
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


def _weights(arena: Arena, trial: Trial) -> Tensor | None:
    return batch_weights(len(arena.rows), arena.batch_size) if trial.mode == "compat" else None


def _mean(values: Tensor, weights: Tensor | None) -> float:
    return float(values.mean() if weights is None else (weights * values).sum() / weights.sum())


def _attack(
    arena: Arena,
    trial: Trial,
    batch: Batch,
    randomness: torch.Generator,
    source: Surrogate | None,
    earlier: Climb | None = None,
) -> Outcome:
    rounded = batch.inputs.dim() > 2 and trial.mode == "fixed"
    model, gallery, seen = arena.model, arena.gallery, arena.seen
    if source is not None and isinstance(trial.attack, Transfer):
        climbed = (trial.attack.attack, trial.engine, source)
        return transfer(*climbed, model, batch, gallery, randomness, rounded=rounded, view=seen)
    return run(
        trial.attack, trial.engine, model, batch, gallery, randomness, rounded=rounded, view=seen, earlier=earlier
    )


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
    """Clean retrieval, then every trial of a suite, and ERS where ten scores of one mode are there.

    What is in `finished` is not run again. In `folder` the scores per query are kept: a resumed run needs them for the
    interval of ERS.
    """
    done = finished or {}
    base = {"suite": suite.name, **(settings or {})}
    store = Store(folder, writes=arena.workers.rank == 0)
    if _found(_expected("clean", "clean", base, arena, seed), done) is None:
        record, per_query = measure_clean(arena, base, seed, context)
        store.keep(record, per_query)
        yield record, None
    climbs = Climbs()
    together: dict[tuple[str, str], list[tuple[Trial, Record]]] = {}
    for trial in suite.runs():
        earlier = _found(
            _expected("attack", trial.label, {**base, **trial.settings(), **surrogate_settings(trial)}, arena, seed),
            done,
        )
        if earlier is None:
            record, per_query, pictures = measure_trial(arena, trial, base, seed, context, climbs=climbs)
            store.keep(record, per_query)
            yield record, pictures
        group = together.setdefault((trial.mode, repr(trial.engine)), [])
        group.append((trial, earlier or record))
        total = summed_up(group, store, _weights(arena, trial))
        if total is not None:
            group.clear()
            if _found(total, done) is None:
                yield total, None


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


def _pictures(arena: Arena, trial: Trial, batch: Batch, outcome: Outcome) -> Pictures | None:
    """A few queries before and after, with their five nearest items as bytes, for the report."""
    if batch.inputs.dim() != 4:
        return None
    few = torch.linspace(0, len(batch) - 1, min(EXAMPLES, len(batch))).long().to(batch.inputs.device)
    k = min(5, len(arena.gallery) - 1)
    with frozen(arena.model, arena.seen) as network, torch.no_grad():
        clean = network(batch.inputs[few])
    found = {"query_label": batch.labels[few], "query": _to_uint8(batch.inputs[few])}
    found["perturbed"] = _to_uint8(outcome.inputs[few])
    for when, z in (("before", clean), ("after", outcome.embeddings[few])):
        _, top = nearest(z, arena.gallery.embeddings, k=k, exclude=batch.index[few])
        images = as_bytes(arena.items.batch(top.flatten().cpu(), arena.view)).inputs
        found[when] = _to_uint8(images).view(*top.shape, *images.shape[1:])
        found[f"{when}_label"] = arena.gallery.labels[top]
    arrays = {name: value.cpu().numpy() for name, value in found.items()}
    arrays["class_names"] = np.array(arena.class_names)
    arrays["radius"] = np.array(trial.engine.ball.radius)
    arrays["attack"] = np.array(trial.label)
    return arrays


def _to_uint8(images: Tensor) -> Tensor:
    return (images * 255).round().to(torch.uint8)


def _chance(queries: Tensor, items: Tensor, own: bool) -> float:
    """R@1 in percent of an embedding that knows nothing."""
    same = torch.bincount(items, minlength=int(queries.max()) + 1)[queries] - int(own)
    return 100 * float(same.double().mean()) / (len(items) - int(own))
