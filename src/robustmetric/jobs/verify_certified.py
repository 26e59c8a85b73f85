"""Verify of a row of `results/tabular`: its learner fitted, certified and attacked anew."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from robustmetric.errors import InputError, nearest
from robustmetric.jobs.agreement import REROUTED, Check, compared, rate, tolerance
from robustmetric.jobs.certify import certify
from robustmetric.jobs.origin import typed
from robustmetric.jobs.proofs import CERTIFIED, EMPIRICAL
from robustmetric.jobs.verify_model import Part, is_like
from robustmetric.records import Record
from robustmetric.report.ledger import Row

MEANS = "area and mean radius (compared on all points and like hardware)"


def certified(row: Row, asked: int, device: str) -> Part:
    """The errors of every certificate of a learner that is fitted again, and those that an attack reaches."""
    (command,) = typed(row["command"])
    attack = command.options.get("attack") if EMPIRICAL in row else None
    options: dict[str, Any] = {"method": command.options.get("method"), "attack": attack}
    with TemporaryDirectory() as folder:
        found = certify(command.target, Path(folder) / row["id"], command.words, device=device, points=asked, **options)
    is_same = asked == row["points"] and is_like(row, torch.device(device))
    checks, left_out = list[Check](), [] if is_same else [MEANS]
    if EMPIRICAL in row and attack is None:
        left_out.append(f"{EMPIRICAL} (the row's command names no --attack)")
    for block in (CERTIFIED, *([EMPIRICAL] if attack else [])):
        own = {record.name: record for record in found if record.kind == block}
        for curve in row[block]:
            checks += _curve(row, curve, own, is_same=is_same, free=REROUTED if block == EMPIRICAL else 0.0)
    return Part(checks, left_out)


def _curve(
    row: Row, curve: Mapping[str, Any], found: Mapping[str, Record], *, is_same: bool, free: float
) -> Iterator[Check]:
    """The numbers of one curve; where nothing was sampled, they may be `free` points off besides the tolerance."""
    record, name = found.get(curve["name"]), curve["name"]
    if record is None:
        raise InputError(f"{row['id']}: its command makes no {name!r}{nearest(name, found)}")
    for radius, recorded in zip(curve["radii"], curve["error"], strict=True):
        error = record.scores[f"error@{radius:g}"]
        interval = (error - free, error + free) if is_same else rate(error, record.count)
        yield compared("error", recorded, error, record.count, interval, f"{name}, error at {radius:g}")
    if is_same and "area" in curve:
        area = record.scores["area"]
        yield compared("area", curve["area"], area, record.count, (area - free, area + free), f"{name}, area")
    if is_same and "mean_radius" in curve and "mean radius" in record.scores:
        # A point is a hundredth of the largest radius.
        mean = record.scores["mean radius"]
        within = (tolerance("mean radius") + free) * max(curve["radii"]) / 100
        yield Check(f"{name}, mean radius", curve["mean_radius"], mean, (mean - within, mean + within), record.count)
