"""Which records of a run make its row of the ledger, and the commands that made them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from robustmetric.errors import InputError
from robustmetric.jobs.assemble import title
from robustmetric.jobs.classifier_ledger import LOCAL, TRANSFER, by_source, source_of
from robustmetric.jobs.clustering_ledger import clustering_records, seconds
from robustmetric.jobs.suites import asking_for_surrogate, load_suite
from robustmetric.jobs.surrogate import MODULE
from robustmetric.records import Record
from robustmetric.report.masking_flag import KIND as MASKING
from robustmetric.report.masking_flag import attacked_at, masking_record
from robustmetric.report.scores import show_radius

KINDS = ("clean", "attack", "ers", "worst_case")
SUITES = ("ers", "classification", "autoattack", "auto_rank")
"""The evaluations that make a row, by how their suites' names begin."""
BATCH = 128
"""Of a command that names none."""


@dataclass(frozen=True)
class Evaluations:
    """The records of a row. Those of `tested` share their queries; each of the others has its own number of them."""

    tested: Sequence[Record]
    clustered: Sequence[Record]
    local: Sequence[Record]
    """Of local search, whose cost allows few queries."""
    sources: Mapping[str, Sequence[Record]]
    """Of transferred attacks, by the run that they climbed on."""
    masked: Record | None
    """The verdict on masking."""

    @property
    def clean(self) -> Record | None:
        """The clean record of `tested`."""
        return next((record for record in self.tested if record.kind == "clean"), None)

    @property
    def every(self) -> list[Record]:
        """All of them."""
        moved = [record for own in self.sources.values() for record in own]
        return [*self.tested, *self.clustered, *self.local, *moved, *([self.masked] if self.masked else [])]

    @property
    def seconds(self) -> float:
        """Of all attacks, clean evaluations and checks."""
        apart = [record for record in self.every if record.kind in ("clean", "attack")]
        checks = self.masked.seconds if self.masked else 0.0
        return math.fsum([*(record.seconds for record in apart), seconds(self.clustered), checks])


def gather(found: Sequence[Record], weights: str | None, radius: float | None) -> Evaluations:
    """In fp32, of the weights that lie there: the evaluation of most queries, and what else was measured of them."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in _usable(found, weights, SUITES):
        key = (record.seed, *_shared(record, "queries", "gallery", "images", "search"), *_of(record))
        groups.setdefault(key, []).append(record)
    tested = _fullest(group for group in groups.values() if any(record.kind == "clean" for record in group))
    aside = [r for r in _usable(found, weights, (LOCAL, TRANSFER)) if tested and _of(r) == _of(tested[0])]
    searched: dict[tuple[Any, ...], list[Record]] = {}
    for record in aside:
        if str(record.settings["suite"]).startswith(LOCAL):
            searched.setdefault((record.seed, record.count, record.settings.get("search")), []).append(record)
    clustered = clustering_records(found, weights)
    return Evaluations(
        tested=tested,
        clustered=clustered,
        local=_fullest(searched.values()),
        sources=by_source(aside, radius),
        masked=masking_record(found, weights, radius, attacked=attacked_at([*tested, *clustered])),
    )


def _usable(found: Iterable[Record], weights: str | None, suites: tuple[str, ...]) -> list[Record]:
    return [
        record
        for record in found
        if record.kind in KINDS
        and str(record.settings.get("suite", "")).startswith(suites)
        and record.settings.get("precision", "fp32") == "fp32"
        # The blocks of the ten numbers, unlike the others, have no place to say what was searched in.
        and not (str(record.settings["suite"]).startswith("ers") and "search" in record.settings)
        and (weights is None or weights.startswith(str(record.settings.get("weights", ""))))
    ]


def _shared(record: Record, *keys: str) -> tuple[Any, ...]:
    return tuple(record.settings.get(key) for key in keys)


def _of(record: Record) -> tuple[Any, ...]:
    """What was evaluated, and on what."""
    return _shared(record, "weights", "data_fingerprint")


def _fullest(groups: Iterable[list[Record]]) -> list[Record]:
    """The group of most queries, of those the one of most records, of those the one that was sought in fp32."""
    return max(groups, key=lambda group: (group[0].count, len(group), "search" not in group[0].settings), default=[])


def all_queries(record: Record) -> int | None:
    """How many queries there are in all: retrieval's gallery, where it is the queries; a classifier's test images."""
    return record.settings.get("images", record.settings.get("gallery"))


def commands(facts: Mapping[str, Any], clean: Record, every: Sequence[Record]) -> str:
    """What was typed, and into which folder; a command for each suite and source of transfer."""
    typed = [f"{facts['command']}{_place(facts)}"] if facts.get("command") else []
    for suite in dict.fromkeys([clean.settings["suite"], *(record.settings["suite"] for record in every)]):
        own = [record for record in every if record.settings["suite"] == suite]
        words = ["robustmetric evaluate", f"runs/{facts.get('name')}", suite]
        sources: dict[str, list[Record]] = {}
        for record in own:
            if "surrogate_weights" in record.settings and (record.kind != MASKING or source_of(record) != "RUN"):
                sources.setdefault(source_of(record), []).append(record)
        for source, moved in (sources or {"": own}).items():
            named = moved[-1].settings.get(MODULE) or (f"runs/{source}" if source != "RUN" else source)
            surrogate = ["--surrogate", str(named)] if source else []
            rules = [record.settings.get("reading_rules", {}) for record in own]
            faiss = ["--kmeans", "faiss"] if any(rule.get("backend") == "faiss" for rule in rules) else []
            typed.append(" ".join([*words, *_radius(suite, own), *_options(moved), *surrogate, *faiss]))
    return " && ".join(typed)


def _place(facts: Mapping[str, Any]) -> str:
    """The option that names a training's folder, where it is not the one it makes by itself."""
    usual, name = f"{title(str(facts.get('recipe_file')))}-seed{facts.get('seed', 0)}", str(facts.get("name"))
    return "" if name == usual else f" --out runs/{name}"


def _radius(suite: str, own: Sequence[Record]) -> list[str]:
    """The radius that was asked for: the one at which the suite itself attacks nothing, as far as we have the suite."""
    try:
        # Which run is climbed on is no matter to the radius.
        surrogate = "RUN" if asking_for_surrogate(suite) else None
        usual = [trial.engine.ball.radius for trial in load_suite(suite, surrogate=surrogate).trials]
    except InputError:
        usual = []  # its file is elsewhere: what was asked for may as well be told
    found = {record.settings["radius"] for record in own if "radius" in record.settings}
    asked = [radius for radius in found if not any(math.isclose(radius, one, rel_tol=1e-3) for one in usual)]
    return ["--radius", show_radius(asked[0])] if len(asked) == 1 else []


def _options(own: Sequence[Record]) -> list[str]:
    """How many queries, which seed and batch: what the newest of a suite's records has, where it is not the usual."""
    record = own[-1]
    queries, batch = record.settings.get("queries", record.count), record.settings.get("batch", BATCH)
    return [
        *(["--queries", str(queries)] if queries != all_queries(record) else []),
        *(["--seed", str(record.seed)] if record.seed else []),
        *(["--batch", str(batch)] if batch != BATCH else []),
        *(["--search", str(record.settings["search"])] if "search" in record.settings else []),
    ]
