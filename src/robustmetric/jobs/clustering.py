"""Clustering under attack: model + data -> [the whole set moved -> R@k, NMI, AMI, F1 by every reading] -> records."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from robustmetric.attacks.joint import WholeSet, embed_all
from robustmetric.attacks.suite import Suite, Trial
from robustmetric.attacks.trail import Trail
from robustmetric.diagnose.collapse import mean_cosine
from robustmetric.errors import InputError
from robustmetric.jobs.arena import Arena, known_search
from robustmetric.jobs.chance import chance_settings
from robustmetric.jobs.crowd import Crowd, sampled
from robustmetric.jobs.diagnose import is_masking, run_masking
from robustmetric.jobs.evaluate import run_suite
from robustmetric.jobs.folder import save_arrays
from robustmetric.jobs.over_queries import Interval, intervals_by_group
from robustmetric.jobs.pictures import Pictures
from robustmetric.jobs.restarts import Restarts, move, voters
from robustmetric.jobs.surrogate import surrogate_settings
from robustmetric.jobs.workers import full_precision
from robustmetric.jobs.worst_case import fitted
from robustmetric.metrics.voting import Reading, clusters_by_reading, recall_by_reading
from robustmetric.numerics.kmeans import Backend
from robustmetric.numerics.randomness import repeatable
from robustmetric.perturb.pgd import frozen
from robustmetric.records import Record
from robustmetric.report.clustering_schema import COSINES, FLAT, LONELY, SEARCH
from robustmetric.report.worst_case_schema import SEARCHES

KIND = "clustering"
KS = (1, 2, 4, 8, 10, 20)
"""Recall is stated at those of them that the gallery has neighbours for."""
SIDES = ("both sides", "query only", "gallery only")
"""Which side of a search is perturbed; clusters are made of one set, so only "both sides" has their scores."""
CLEAN, STRONGEST = "neither side", "strongest"
SECONDS = "seconds of the climb"


def is_clustering(suite: Suite) -> bool:
    """Whether a suite is of attacks on a whole set, which this job runs."""
    return any(isinstance(trial.attack, WholeSet) for trial in suite.trials)


def check_search(suite: Suite, search: str) -> None:
    """Refuse what is not known, or what the attacks of a suite cannot search in."""
    fitting = ("fp32", "bf16") if is_clustering(suite) else ("fp32", *SEARCHES)
    if known_search(search) not in fitting:
        listed = f"{', '.join(fitting[:-1])} or {fitting[-1]}"
        raise InputError(f"suite {suite.name} searches in {listed}, not in {search}")


def run_any_suite(
    arena: Arena,
    suite: Suite,
    seed: int,
    context: Mapping[str, Any],
    settings: Mapping[str, Any] | None = None,
    finished: Mapping[str, Record] | None = None,
    folder: Path | None = None,
    kmeans: Backend = "torch",
) -> Iterator[tuple[Record, Pictures | None]]:
    """A suite by the job it needs: this one where whole sets move, the diagnostics, or else `run_suite`.

    `folder` is that of the run.
    """
    if is_masking(suite):
        kept = None if folder is None else folder / "masking"
        for record in run_masking(arena, suite, seed, context, settings, finished, kept):
            yield record, None
        return
    if not is_clustering(suite):
        kept = None if folder is None else folder / "queries"
        yield from run_suite(arena, suite, seed, context, settings, finished, kept)
        return
    suite = fitted(suite, arena)
    for record in run_clustering(arena, suite, seed, context, settings, finished, usual(arena, kmeans), folder):
        yield record, None


def usual(arena: Arena, kmeans: Backend = "torch") -> Reading:
    """How the arena's model is read where nobody says otherwise: by its members, at the k there are neighbours for."""
    return Reading(voters(arena.model), ks=[k for k in KS if k < len(arena.gallery)], backend=kmeans)


def run_clustering(
    arena: Arena,
    suite: Suite,
    seed: int,
    context: Mapping[str, Any],
    settings: Mapping[str, Any] | None = None,
    finished: Mapping[str, Record] | None = None,
    reading: Reading | None = None,
    folder: Path | None = None,
) -> Iterator[Record]:
    """Clean, then every trial: one record for each side perturbed and each reading; last, the strongest attack of each.

    A trial whose records are all in `finished` is not run again; the strongest are of all that stand there too, such
    as transfers from a surrogate that is not named now. `reading` is by default the usual one. Of every trial that is
    run, `folder` gets embeddings of a few classes before and after, for pictures (`embeddings/*.npz`); while one of
    several restarts runs, also those that are finished (`restarts/*.npz`), with which it goes on after a cut.
    """
    if arena.workers.ranks > 1:
        raise InputError(f"a whole set is moved by one process, not {arena.workers.ranks}; expected --devices 1")
    check_search(suite, arena.search)
    reading = reading or usual(arena)
    done = dict(finished or {})
    crowd = Crowd.of(arena)
    said = {**(settings or {}), **chance_settings(arena)}
    base = {"suite": suite.name, **said, **_described(arena, crowd, reading)}
    planned = [(trial, _expected(trial, base, reading, seed, len(crowd.queries))) for trial in (None, *suite.runs())]
    left = [(trial, expected) for trial, expected in planned if any(record.key not in done for record in expected)]
    found, way = alike(done.values(), base, seed), Trail()
    clean: Tensor | None = None
    for place, (trial, expected) in enumerate(left, 1):
        began = time.monotonic()
        clean = _clean(arena, crowd, seed) if clean is None else clean
        memory = None if folder is None or "randomised" in said else Restarts(folder / "restarts", expected[0], clean)
        moved, notes = clean, dict[str, Any]()
        if trial is not None:
            way.begin(trial, [] if "randomised" in said else [later for later, _ in left[place:] if later is not None])
            moved, notes = move(arena, crowd, trial, reading, seed, clean, memory, way)
            notes |= _cosines(clean, moved)
        notes[SECONDS] = time.monotonic() - began + (memory.seconds if memory is not None else 0)
        measured = _measured(crowd, clean, moved, expected, reading, {**context, "chance": crowd.chance, **notes})
        if folder is not None and trial is not None:
            _keep(folder, suite.name, trial, arena, crowd, clean, moved)
        found += measured
        yield from measured
        if memory is not None:
            memory.forget()
    yield from (record for record in strongest(found, base) if record.key not in done)


def _cosines(clean: Float[Tensor, "n dim"], moved: Float[Tensor, "n dim"]) -> dict[str, dict[str, float]]:
    """Means over all images, where embeddings are of unit length: see `COSINES`."""
    own = functional.cosine_similarity(clean, moved).mean()
    found = {"clean": float(mean_cosine(clean)), "moved": float(mean_cosine(moved)), "own": float(own)}
    return {} if any(map(math.isnan, found.values())) else {COSINES: found}


def strongest(found: Iterable[Record], shared: Mapping[str, Any]) -> list[Record]:
    """For each radius, side and reading, the smallest of every score over all attacks, and whose it is.

    `shared` are the settings that all attacks have in common: the suite, the data, the arena and how it is read.
    """
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in found:
        if record.settings["sides"] != CLEAN and record.settings["trial"] != STRONGEST:
            group = (record.settings["norm"], record.settings["radius"], record.settings["sides"])
            groups.setdefault((*group, record.settings["reading"]), []).append(record)
    return [_smallest(records, shared) for records in groups.values()]


def alike(done: Iterable[Record], base: Mapping[str, Any], seed: int) -> list[Record]:
    """The records of this job that were made as `base` says, whatever their attack."""
    own = [record for record in done if record.kind == KIND and record.seed == seed]
    # What was searched in is said where it is not fp32 alone.
    own = [record for record in own if record.settings.get(SEARCH) == base.get(SEARCH)]
    return [r for r in own if all(key in r.settings and r.settings[key] == base[key] for key in base)]


def _smallest(records: Sequence[Record], shared: Mapping[str, Any]) -> Record:
    names = [name for name in records[0].scores if not name.endswith(" std")]
    least = {name: _weakest(records, name) for name in names}
    first = records[0]
    return replace(
        first,
        name=_name(STRONGEST, first.settings["sides"], first.settings["reading"]),
        scores={name: record.scores[name] for name, record in least.items()},
        settings={
            **shared,
            **{key: first.settings[key] for key in ("norm", "radius", "sides", "reading")},
            "trial": STRONGEST,
            "by": {name: record.settings["trial"] for name, record in least.items()},
        },
        intervals={name: r.intervals[name] for name, r in least.items() if name in r.intervals},
        seconds=0.0,
        context={key: value for key, value in first.context.items() if key not in (COSINES, FLAT)},
    )


def _weakest(records: Sequence[Record], score: str) -> Record:
    # Of equals the first by name, so that the order in which they were run changes no record.
    return min(records, key=lambda record: (record.scores[score], record.settings["trial"]))


@full_precision()
def _clean(arena: Arena, crowd: Crowd, seed: int) -> Tensor:
    """Embeddings of all images as they are: of every trial the same."""
    with repeatable(arena.workers.device, seed, 7), frozen(arena.model, arena.seen) as network:
        return embed_all(network, crowd.batch.inputs, arena.batch_size)


@full_precision()
def _measured(
    crowd: Crowd,
    clean: Tensor,
    moved: Tensor,
    expected: Sequence[Record],
    reading: Reading,
    context: Mapping[str, Any],
) -> list[Record]:
    """The expected records with their numbers; their seconds are those of the climb and of all scores together."""
    began = time.monotonic()
    found: dict[str, tuple[dict[str, dict[str, float]], dict[str, Any]]] = {}
    for sides in dict.fromkeys(record.settings["sides"] for record in expected):
        found[sides] = _scores(crowd, clean, moved, sides, reading)
    seconds = context[SECONDS] + time.monotonic() - began
    kept = {key: value for key, value in context.items() if key != SECONDS}
    return [
        replace(
            record,
            scores=found[record.settings["sides"]][0][record.settings["reading"]],
            intervals=found[record.settings["sides"]][1][record.settings["reading"]],
            seconds=seconds,
            context=kept,
        )
        for record in expected
    ]


def _keep(folder: Path, suite: str, trial: Trial, arena: Arena, crowd: Crowd, clean: Tensor, moved: Tensor) -> None:
    """Embeddings of a few classes before and after, for the report's picture."""
    radius = trial.engine.ball.radius
    search = "" if arena.search == "fp32" else f"-{arena.search}"
    title = f"{suite}-{trial.label}-{radius * 255:.2f}{search}".replace("/", "_")
    facts = {"suite": suite, "attack": trial.label, "radius": radius}
    arrays = sampled(crowd, clean, moved, arena.class_names) | {name: np.array(fact) for name, fact in facts.items()}
    save_arrays(folder / "embeddings" / f"{title}.npz", arrays)


def _scores(
    crowd: Crowd, clean: Float[Tensor, "n dim"], moved: Float[Tensor, "n dim"], sides: str, reading: Reading
) -> tuple[dict[str, dict[str, float]], dict[str, dict[str, Interval]]]:
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
    return scores, intervals_by_group(per_query)


def _expected(trial: Trial | None, base: Mapping[str, Any], reading: Reading, seed: int, count: int) -> list[Record]:
    """The records of a trial, without their numbers: by these keys it is known whether it was run."""
    label = "clean" if trial is None else trial.label
    described = {} if trial is None else {**trial.settings(), **surrogate_settings(trial)}
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
    return {**described, LONELY: crowd.lonely} if crowd.lonely else described
