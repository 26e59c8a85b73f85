"""Verify: a row of the ledger + its weights -> measured again on some queries -> which numbers agree, and which do not.

The rule is in `agreement.py`. A row of `results/tabular` has no weights: its learner is fitted and certified anew.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from robustmetric.attacks.suite import Trial
from robustmetric.errors import InputError, nearest
from robustmetric.jobs import assemble
from robustmetric.jobs.agreement import Check, binomial, compared, spread
from robustmetric.jobs.arena import Arena
from robustmetric.jobs.certify import certify
from robustmetric.jobs.evaluate import measure_clean, measure_trial
from robustmetric.jobs.evaluations import BATCH, SUITES
from robustmetric.jobs.origin import Typed, typed
from robustmetric.jobs.workers import Hardware, Workers, describe
from robustmetric.jobs.zoo import weights_for
from robustmetric.models.checkpoint import load_weights
from robustmetric.numerics.randomness import repeatable
from robustmetric.recipe import Spec
from robustmetric.report.certified_schema import faults as certified_faults
from robustmetric.report.ledger import Row, faults

ATTACKS = ("ES", "GTM", "CA+")
"""Run when none is named: an embedding moved away, a query moved to another class, a candidate moved up."""
FEWEST = 16
"""Queries of a sample: the interval of fewer says nothing."""
NO_SCORES = ("clean", "attacks", "wall_seconds", "published")
"""Blocks of a row that are not left out: seen to, or no scores of ours."""


@dataclass(frozen=True)
class Verified:
    """One row, measured again."""

    id: str
    source: str
    """The file of its weights, or how it came to be without one."""
    hardware: str
    asked: int
    recorded: int
    """Queries or points: as now, and as the row has them."""
    checks: tuple[Check, ...]
    left_out: tuple[str, ...] = ()
    """Blocks of the row that were not measured again."""
    unit: str = "queries"

    @property
    def differing(self) -> list[Check]:
        """The numbers that do not agree."""
        return [check for check in self.checks if not check.agrees]

    def lines(self) -> Iterator[str]:
        """What was verified, a line for each number, and the outcome."""
        yield f"{self.id}: {self.source}, {self.asked} of {self.recorded} {self.unit}, {self.hardware}"
        width = max(len(check.name) for check in self.checks) + 2
        yield f"{'':<{width}}{'recorded':>9}{'found':>9}   may lie"
        for check in self.checks:
            low, high = check.interval
            outcome = "agrees" if check.agrees else "DIFFERS"
            numbers = f"{check.name:<{width}}{check.recorded:>9.4g}{check.found:>9.4g}"
            yield f"{numbers}   {f'{low:.4g} to {high:.4g}':<20}{outcome}"
        if self.left_out:
            yield f"not measured again: {', '.join(self.left_out)}"
        named = ", ".join(check.name for check in self.differing)
        yield (
            f"{len(self.differing)} of {len(self.checks)} differ: {named}" if named else f"all {len(self.checks)} agree"
        )


def verify(
    path: Path,
    *,
    model: Path | None = None,
    queries: int | None = None,
    attacks: Sequence[str] | None = None,
    device: str = "auto",
) -> Verified:
    """Measure a row again: on all of its queries, or on a sample of them, drawn with its seed."""
    row = read(path)
    count = row["points" if "learner" in row else "queries"]
    asked = count if queries is None else queries
    if not min(FEWEST, count) <= asked <= count:
        raise InputError(
            f"{asked} queries of the {count} of {path.stem}; expected from {min(FEWEST, count)} to {count}"
        )
    if "learner" in row:
        if model is not None or attacks:
            raise InputError(f"{path.stem} was fitted and certified, and is again; leave out --model and --attack")
        return _certified_anew(row, asked, "cpu" if device == "auto" else device)
    if "clustering" in row:
        raise InputError(f"{path.stem} is about clustering, which needs all images; evaluate again by its command")
    return _measured_anew(row, model or _in_zoo(path), asked, attacks, Hardware(accelerator=device))


def read(path: Path) -> Row:
    """One row, in whose file nothing is amiss."""
    try:
        row = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path} cannot be read as JSON; expected a row of the ledger, results/.../ID.json") from error
    wrong = certified_faults(row) if isinstance(row, dict) and "learner" in row else faults(row)
    if not wrong and row["id"] != path.stem:
        wrong = [f"id {row['id']!r} is not the name of the file"]
    if wrong:
        raise InputError(f"{path}: {'; '.join(wrong)}")
    return dict(row)


def _in_zoo(path: Path) -> Path:
    """The copy of a row's weights, in the zoo that lies beside its results."""
    place = (path.resolve().parent / ".." / ".." / "zoo" / f"{path.stem}.safetensors").resolve()
    if not place.is_file():
        raise InputError(f"{place} does not exist; name the weights of the row with --model, a file or a run folder")
    return place


# Encoders and classifiers.


def _measured_anew(row: Row, model: Path, asked: int, attacks: Sequence[str] | None, hardware: Hardware) -> Verified:
    """Clean scores and some attacks of a trained model."""
    commands = typed(row["command"])
    train = next((one for one in commands if one.job == "train"), Typed("train", row["recipe"], [], {}))
    test = next(
        (one for one in commands if one.job == "evaluate" and one.words and one.words[0].startswith(SUITES)), None
    )
    if test is None:
        raise InputError(f"the command of {row['id']} evaluates nothing that can be verified: {row['command']!r}")
    trials = _trials(row, test.words[0], attacks)
    file = model / "model.safetensors" if model.is_dir() else model
    weights = weights_for(row, file)
    spec, where = assemble.resolve(train.target, train.words)
    network = assemble.load_model({**spec, "model": without_pretrained(spec["model"])}, where)
    load_weights(network, weights, str(file))
    workers = Workers.of(hardware.fabric())
    seed, batch = int(test.options.get("seed", 0)), int(test.options.get("batch", BATCH))
    arena = Arena.prepare(
        network, assemble.load_data(spec, where), assemble.load_view(spec, where), workers,
        limit=asked, seed=seed, batch_size=batch, shown=True,
    )  # fmt: skip
    checks = [*_clean(row, arena, seed), *_attacked(row, arena, trials, seed)]
    found = (str(file), describe(workers.device), asked, row["queries"], tuple(checks), _left_out(row, checks))
    return Verified(row["id"], *found)


def _left_out(row: Row, checks: Sequence[Check]) -> tuple[str, ...]:
    """The scores and blocks of a row that no check is about; ERS follows from its ten scores."""
    names = {"ERS", "ERS_interval", *(check.name for check in checks)}
    scores = [score for score in row.get("attacks", {}).get("fixed", {}) if score not in names]
    modes = [f"attacks.{mode}" for mode in row.get("attacks", {}) if mode != "fixed"]
    blocks = [key for key, value in row.items() if isinstance(value, dict | list) and key not in NO_SCORES]
    return (*scores, *modes, *blocks)


def without_pretrained(part: Spec) -> Spec:
    """A model's settings without the file it began from, which the row's own weights replace.

    "package" stays: it also says by which pixel statistics images are normalised.
    """
    if isinstance(part, list):
        return [without_pretrained(one) for one in part]
    if not isinstance(part, dict):
        return part
    kept = {key: value for key, value in part.items() if key != "weights" or value == "package"}
    return {key: without_pretrained(value) for key, value in kept.items()}


def _trials(row: Row, suite: str, attacks: Sequence[str] | None) -> list[Trial]:
    """The trials of the row's suite to run again: those named, or a few, in mode `fixed`."""
    if "fixed" not in row.get("attacks", {}):
        if attacks:
            raise InputError(f"{row['id']} has no attacks in mode fixed; leave out --attack {attacks[0]}")
        return []
    trials = {trial.label: trial for trial in assemble.load_suite(suite, modes=["fixed"]).runs()}
    for label in attacks or ():
        if label not in trials:
            raise InputError(f"{label!r} is no attack of {suite}{nearest(label, trials)}")
    return [trials[label] for label in attacks or ATTACKS if label in trials]


def _clean(row: Row, arena: Arena, seed: int) -> Iterator[Check]:
    with repeatable(arena.workers.device, seed, 7):
        record, per_query = measure_clean(arena, {}, seed, {})
    for score, recorded in row["clean"].items():
        # The others are of the whole gallery, whatever the queries.
        is_sampled = score in per_query and record.count < row["queries"]
        interval = spread(per_query[score]) if is_sampled else None
        count = record.count if score in per_query else len(arena.gallery)
        yield compared(score, recorded, record.scores[score], count, interval)


def _attacked(row: Row, arena: Arena, trials: Sequence[Trial], seed: int) -> Iterator[Check]:
    device = arena.workers.device
    is_same = len(arena.rows) == row["queries"] and _is_like(row, device)
    for trial in trials:
        record, per_query, _ = measure_trial(arena, trial, {}, seed, {})
        for score, found in record.scores.items():
            recorded = row["attacks"]["fixed"].get(score)
            if recorded is not None:
                yield compared(score, recorded, found, record.count, None if is_same else spread(per_query[score]))


def _is_like(row: Row, device: torch.device) -> bool:
    """Whether the row was made on this kind of hardware, which draws, and fits, the same."""
    return str(row["hardware"]).startswith("CPU") == (device.type == "cpu")


# Learners.


def _certified_anew(row: Row, asked: int, device: str) -> Verified:
    """The errors of every certificate of a learner that is fitted again."""
    (command,) = typed(row["command"])
    options: dict[str, Any] = {"device": device, "method": command.options.get("method"), "points": asked}
    with TemporaryDirectory() as folder:
        found = certify(command.target, Path(folder) / row["id"], command.words, **options)
    proofs = {record.name: record for record in found if record.kind == "certified"}
    is_same = asked == row["points"] and _is_like(row, torch.device(device))
    checks = []
    for proof in row["certified"]:
        record = proofs.get(proof["name"])
        if record is None:
            raise InputError(f"{row['id']}: its command certifies no {proof['name']!r}{nearest(proof['name'], proofs)}")
        for radius, recorded in zip(proof["radii"], proof["error"], strict=True):
            error = record.scores[f"error@{radius:g}"]
            interval = None if is_same else binomial(round(error * record.count / 100), record.count)
            title = f"{proof['name']}, error at {radius:g}"
            checks.append(compared(title, recorded, error, record.count, interval))
    hardware, left_out = describe(torch.device(device)), ("empirical",) if "empirical" in row else ()
    return Verified(row["id"], "fitted anew", hardware, asked, row["points"], tuple(checks), left_out, unit="points")
