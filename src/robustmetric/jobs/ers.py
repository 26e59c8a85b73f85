"""ERS at the end of ten attacks: their scores per query, kept also across a resume, and the record they make."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from robustmetric.attacks.suite import Trial
from robustmetric.attacks.transfer import Transfer, source_name
from robustmetric.jobs.folder import beside, load_arrays, save_arrays
from robustmetric.metrics.robustness import SUB_SCORES, bootstrap, ers, ers_per_query
from robustmetric.records import Record

APART, SHARED = "fast_minus_fp32", "batches_climbed_in_another_mode"
"""What the context of one attack's record says beyond that of its run."""

AIMS = "targets"
"""Beside the scores: which items of the gallery the attack was told to aim at, drawn from the record's seed."""

PerQuery = Mapping[str, Tensor]
"""By score, one number per query; by `AIMS`, one row."""


class Store:
    """Scores per query of finished records: in memory, and one small file per record where there is a folder."""

    def __init__(self, folder: Path | None = None, *, writes: bool = True) -> None:
        self.folder = folder
        self.writes = writes
        self._kept: dict[str, PerQuery] = {}

    def keep(self, record: Record, values: PerQuery) -> None:
        """Take note of what a record's means were made of; on disk before the record is."""
        self._kept[record.key] = {name: value for name, value in values.items() if name in record.scores}
        if self.folder is None or not self.writes:
            return
        kinds = {name: torch.int32 if name == AIMS else torch.float32 for name in values}
        save_arrays(beside(self.folder, record), {name: values[name].to(kind).numpy() for name, kind in kinds.items()})

    def of(self, record: Record) -> PerQuery | None:
        """What was kept of a record; nothing where its file is gone or damaged."""
        if record.key in self._kept or self.folder is None:
            return self._kept.get(record.key)
        arrays = load_arrays(beside(self.folder, record))
        if arrays is None:
            return None
        values = {name: torch.from_numpy(array) for name, array in arrays.items() if name != AIMS}
        whole = set(values) <= set(record.scores) and all(v.shape == (record.count,) for v in values.values())
        return values if whole else None


def batch_weights(count: int, batch: int) -> Tensor:
    """Weights that make a mean over queries the mean of batch means: a smaller last batch counts as a whole one."""
    return torch.cat([torch.full((len(part),), 1 / len(part)) for part in torch.arange(count).split(batch)])


def summed_up(measured: Sequence[tuple[Trial, Record]], store: Store, weights: Tensor | None) -> Record | None:
    """The ERS record of attacks by one engine in one mode; None until they have all ten scores between them.

    Its interval resamples queries, all ten numbers of a query together; without their scores per query it has none.
    """
    by_score: dict[str, tuple[Trial, Record]] = {}
    for trial, record in measured:
        for name in record.scores:
            by_score.setdefault(name, (trial, record))
    if not set(SUB_SCORES) <= set(by_score):
        return None
    ten = {name: by_score[name][1] for name in SUB_SCORES}
    scores = {name: record.scores[name] for name, record in ten.items()}
    intervals = {name: record.intervals[name] for name, record in ten.items() if name in record.intervals}
    values = {name: kept[name] for name, record in ten.items() if name in (kept := store.of(record) or {})}
    if len(values) == len(ten):
        intervals["ERS"] = bootstrap(ers_per_query(values), weights=weights)
    last = measured[-1][1]
    attacks = list(dict.fromkeys(repr(by_score[name][0].attack) for name in SUB_SCORES))
    shared = {key: value for key, value in last.settings.items() if key != "attack"}
    return replace(
        last,
        kind="ers",
        name=_name(measured[-1][0]),
        scores={"ERS": ers(scores), **scores},
        settings={**shared, "attacks": attacks},
        intervals=intervals,
        context={key: value for key, value in last.context.items() if key not in (APART, SHARED)},
        seconds=sum({id(record): record.seconds for record in ten.values()}.values()),
    )


def _name(trial: Trial) -> str:
    """Of transferred attacks with the run that they climbed on: there is an ERS for each."""
    return f"ERS from {source_name(trial.attack.surrogate)}" if isinstance(trial.attack, Transfer) else "ERS"
