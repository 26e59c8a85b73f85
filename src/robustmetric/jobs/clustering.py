"""Clustering under attack: model + data -> [the whole set moved -> R@k, NMI, AMI, F1 by every reading] -> records."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from robustmetric.attacks.joint import Moved, WholeSet, embed_all, move_all
from robustmetric.attacks.suite import Suite, Trial
from robustmetric.errors import InputError
from robustmetric.jobs.arena import Arena, as_bytes
from robustmetric.jobs.diagnose import is_masking, run_masking
from robustmetric.jobs.evaluate import run_suite
from robustmetric.jobs.feed import Feed
from robustmetric.jobs.pictures import Pictures
from robustmetric.jobs.workers import full_precision
from robustmetric.metrics.average_precision import without_positives
from robustmetric.metrics.robustness import bootstrap
from robustmetric.metrics.voting import Reading, clusters_by_reading, recall_by_reading
from robustmetric.models.ensemble import Ensemble
from robustmetric.numerics.distances import chunks
from robustmetric.numerics.randomness import generator
from robustmetric.perturb.pgd import frozen
from robustmetric.records import Record
from robustmetric.types import Batch

KIND = "clustering"
KS = (1, 2, 4, 8, 10, 20)
"""Recall is stated at those of them that the gallery has neighbours for."""
SIDES = ("both sides", "query only", "gallery only")
"""Which side of a search is perturbed; clusters are made of one set, so only "both sides" has their scores."""
CLEAN = "neither side"


@dataclass(frozen=True)
class Crowd:
    """All images that an attack on clustering moves; where the gallery is apart, queries first and then the gallery."""

    batch: Batch
    queries: Int[Tensor, " queries"]
    items: Int[Tensor, " items"]
    exclude: Int[Tensor, " queries"]
    """Each query's own place among the items, -1 where it has none."""

    @staticmethod
    def of(arena: Arena) -> "Crowd":
        """The arena's images, as a model sees them."""
        device = arena.workers.device
        labels = arena.gallery.labels
        rows, exclude = arena.rows.to(device), arena.places.to(device)
        items = torch.arange(len(labels), device=device)
        inputs = _inputs(arena, arena.items, torch.arange(len(labels)))
        if arena.items is not arena.queries:
            inputs = torch.cat([_inputs(arena, arena.queries, arena.rows), inputs])
            labels = torch.cat([arena.queries.labels.to(device)[rows], labels])
            items, rows = items + len(rows), torch.arange(len(rows), device=device)
        return Crowd(Batch(inputs, labels, torch.arange(len(labels), device=device)), rows, items, exclude)

    @property
    def lonely(self) -> int:
        """Queries that have no item of their class to find: they cannot hit, whatever the model."""
        labels = self.batch.labels
        return int(without_positives(labels[self.queries], labels[self.items], self.exclude).sum())


def is_clustering(suite: Suite) -> bool:
    """Whether a suite is of attacks on a whole set, which this job runs."""
    return any(isinstance(trial.attack, WholeSet) for trial in suite.trials)


def run_any_suite(
    arena: Arena,
    suite: Suite,
    seed: int,
    context: Mapping[str, Any],
    settings: Mapping[str, Any] | None = None,
    finished: Mapping[str, Record] | None = None,
    folder: Path | None = None,
) -> Iterator[tuple[Record, Pictures | None]]:
    """A suite by the job it needs: this one where whole sets move, the diagnostics where they are asked for, else
    `run_suite`."""
    if not is_clustering(suite) and not is_masking(suite):
        yield from run_suite(arena, suite, seed, context, settings, finished, folder)
        return
    job = run_masking if is_masking(suite) else run_clustering
    for record in job(arena, suite, seed, context, settings, finished):
        yield record, None


def run_clustering(
    arena: Arena,
    suite: Suite,
    seed: int,
    context: Mapping[str, Any],
    settings: Mapping[str, Any] | None = None,
    finished: Mapping[str, Record] | None = None,
    reading: Reading | None = None,
) -> Iterator[Record]:
    """Clean, then every trial: one record for each side perturbed and each reading; last, the strongest attack of each.

    A trial whose records are all in `finished` is not run again. `reading` is by default that of the model's members.
    """
    if arena.workers.ranks > 1:
        raise InputError(f"a whole set is moved by one process, not {arena.workers.ranks}; expected --devices 1")
    reading = reading or Reading(voters(arena.model), ks=[k for k in KS if k < len(arena.gallery)])
    done = dict(finished or {})
    crowd = Crowd.of(arena)
    base = {"suite": suite.name, **(settings or {}), **_described(arena, crowd, reading)}
    trials: list[Trial | None] = [None, *suite.runs()]
    found: list[Record] = []
    for trial in trials:
        expected = _expected(trial, base, reading, seed, len(crowd.queries))
        if all(record.key in done for record in expected):
            found += [done[record.key] for record in expected]
            continue
        measured = _measure(arena, crowd, trial, expected, reading, seed, context)
        found += measured
        yield from measured
    yield from (record for record in strongest(found) if record.key not in done)


def voters(model: nn.Module) -> int:
    """How many members vote; a model that is no ensemble is one."""
    return len(model.members) if isinstance(model, Ensemble) else 1


def strongest(found: Iterable[Record]) -> list[Record]:
    """For each radius, side and reading, the smallest of every score over all attacks, and whose it is."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in found:
        if record.settings["sides"] != CLEAN:
            group = (record.settings["norm"], record.settings["radius"], record.settings["sides"])
            groups.setdefault((*group, record.settings["reading"]), []).append(record)
    return [_smallest(records) for records in groups.values()]


def _smallest(records: Sequence[Record]) -> Record:
    names = [name for name in records[0].scores if not name.endswith(" std")]
    least = {name: _weakest(records, name) for name in names}
    kept = ("suite", "data", "norm", "radius", "sides", "reading", "weights", "data_fingerprint")
    first = records[0]
    return replace(
        first,
        name=_name("strongest", first.settings["sides"], first.settings["reading"]),
        scores={name: record.scores[name] for name, record in least.items()},
        settings={
            **{key: first.settings[key] for key in kept if key in first.settings},
            "trial": "strongest",
            "by": {name: record.settings["trial"] for name, record in least.items()},
        },
        intervals={name: r.intervals[name] for name, r in least.items() if name in r.intervals},
        seconds=0.0,
    )


def _weakest(records: Sequence[Record], score: str) -> Record:
    return min(records, key=lambda record: record.scores[score])


@full_precision()
def _measure(
    arena: Arena,
    crowd: Crowd,
    trial: Trial | None,
    expected: Sequence[Record],
    reading: Reading,
    seed: int,
    context: Mapping[str, Any],
) -> list[Record]:
    began = time.monotonic()
    clean, moved, notes = _embeddings(arena, crowd, trial, reading, seed)
    found: dict[str, tuple[dict[str, dict[str, float]], dict[str, Any]]] = {}
    for sides in dict.fromkeys(record.settings["sides"] for record in expected):
        found[sides] = _scores(crowd, clean, moved, sides, reading)
    seconds = time.monotonic() - began
    return [
        replace(
            record,
            scores=found[record.settings["sides"]][0][record.settings["reading"]],
            intervals=found[record.settings["sides"]][1][record.settings["reading"]],
            seconds=seconds,
            context={**context, **notes},
        )
        for record in expected
    ]


def _embeddings(
    arena: Arena, crowd: Crowd, trial: Trial | None, reading: Reading, seed: int
) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Of all images, clean and moved, and what is to be noted of the climb."""
    if trial is None:
        with frozen(arena.model, arena.seen) as network:
            clean = embed_all(network, crowd.batch.inputs, arena.batch_size)
        return clean, clean, {}
    if not isinstance(trial.attack, WholeSet):
        raise InputError(
            f"trial {trial.label!r}: {trial.attack!r} moves single queries; expected whole_set, as in the others"
        )
    moved: Moved = move_all(
        trial.attack,
        trial.engine,
        arena.model,
        crowd.batch,
        generator(arena.workers.device, seed, 6),
        members=reading.members,
        chunk=arena.batch_size,
        rounded=crowd.batch.inputs.dim() > 2,
        view=arena.seen,
    )
    return moved.clean, moved.embeddings, {"percent_without_gradient_at_the_start": moved.flat}


def _scores(
    crowd: Crowd, clean: Float[Tensor, "n dim"], moved: Float[Tensor, "n dim"], sides: str, reading: Reading
) -> tuple[dict[str, dict[str, float]], dict[str, Any]]:
    """By reading, scores in percent and intervals of those that are per query."""
    queries = moved if sides in ("both sides", "query only") else clean
    items = moved if sides in ("both sides", "gallery only") else clean
    labels = crowd.batch.labels
    recall = recall_by_reading(
        queries[crowd.queries], items[crowd.items], labels[crowd.queries], labels[crowd.items], crowd.exclude, reading
    )
    per_query = {name: {score: 100 * v.cpu() for score, v in values.items()} for name, values in recall.items()}
    scores = {name: {score: float(v.mean()) for score, v in values.items()} for name, values in per_query.items()}
    if sides in ("both sides", CLEAN):
        clusters = clusters_by_reading(items[crowd.items], labels[crowd.items], reading)
        for name, values in clusters.items():
            scores[name] |= {score: 100 * value for score, value in values.items()}
    intervals = {name: {score: bootstrap(v) for score, v in values.items()} for name, values in per_query.items()}
    return scores, intervals


def _expected(trial: Trial | None, base: Mapping[str, Any], reading: Reading, seed: int, count: int) -> list[Record]:
    """The records of a trial, without their numbers: by these keys it is known whether it was run."""
    label = "clean" if trial is None else trial.label
    described = {} if trial is None else trial.settings()
    return [
        Record(
            kind=KIND,
            name=_name(label, sides, name),
            scores={},
            settings={**base, **described, "trial": label, "sides": sides, "reading": name},
            count=count,
            seed=seed,
        )
        for sides in ((CLEAN,) if trial is None else SIDES)
        for name in reading.names
    ]


def _name(label: str, sides: str, reading: str) -> str:
    return f"{label}, {sides}, {reading}"


def _described(arena: Arena, crowd: Crowd, reading: Reading) -> dict[str, Any]:
    described = {**arena.settings(), "reading_rules": {**asdict(reading), "ks": list(reading.ks)}}
    return {**described, "without_positives": crowd.lonely} if crowd.lonely else described


def _inputs(arena: Arena, feed: Feed, rows: Int[Tensor, " rows"]) -> Tensor:
    parts = [as_bytes(feed.batch(rows[part], arena.view)).inputs for part in chunks(len(rows), arena.batch_size)]
    return torch.cat(parts)
