"""How rows of the ledger were trained, epoch by epoch: `results/<data>/<id>.csv` beside the row."""

import csv
import io
import math
from collections.abc import Iterable
from pathlib import Path

from robustmetric.errors import InputError
from robustmetric.records import Record

EPOCH = "epoch"
OF_THE_MACHINE = ("images_per_second", "data_wait")
"""What an epoch notes of the hardware; no part of a curve."""
RECALL, COSINE = VALIDATED = ("R@1", "mean_cosine")
"""What may be measured of the clean test set after an epoch."""

Curve = dict[str, list[float]]
"""By score, a value for every epoch."""


def curve_of(found: Iterable[Record]) -> Curve:
    """What the records of a training noted, where every epoch noted it; empty for a run that was not trained.

    With it stands what was measured of the clean test set, of a run that did so after every epoch.
    """
    epochs: dict[int, dict[str, float]] = {}
    seen: dict[int, dict[str, float]] = {}
    for record in found:
        by_kind = {"train": epochs, "validation": seen}.get(record.kind)
        if by_kind is not None and record.settings.get(EPOCH) is not None:
            by_kind[int(record.settings[EPOCH])] = record.scores
    if not epochs:
        return {}
    for number, scores in epochs.items():
        measured = {score: seen[number][score] for score in VALIDATED if score in seen.get(number, {})}
        epochs[number] = {**scores, **measured}
    every = set.intersection(*(set(scores) for scores in epochs.values()))
    names = [name for name in next(iter(epochs.values())) if name in every and name not in OF_THE_MACHINE]
    ordered = sorted(epochs)
    return {EPOCH: list(map(float, ordered)), **{name: [epochs[one][name] for one in ordered] for name in names}}


def to_csv(curve: Curve) -> str:
    """A line an epoch, five digits; empty where a number is none."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(curve)
    writer.writerows(
        [f"{value:.5g}" if math.isfinite(value) else "" for value in values]
        for values in zip(*curve.values(), strict=True)
    )
    return text.getvalue()


def read_curve(path: Path) -> Curve:
    """The same, read back."""
    try:
        first, *lines = csv.reader(path.read_text().splitlines())
        columns = zip(*([float(cell or "nan") for cell in line] for line in lines), strict=True)
        curve = dict(zip(first, map(list, columns), strict=True))
    except ValueError as error:
        raise InputError(
            f"{path} is no curve of training ({error}); write it anew with `robustmetric ledger`"
        ) from error
    if next(iter(curve), None) != EPOCH:
        raise InputError(f"{path} is no curve of training; expected numbers by epoch, as `robustmetric ledger` writes")
    return curve
