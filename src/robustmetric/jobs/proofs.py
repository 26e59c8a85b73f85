"""Radii, chunk by chunk: kept as they come, resumed where they stopped, and the record they make."""

import hashlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from robustmetric.jobs.folder import atomically
from robustmetric.jobs.progress import Bar
from robustmetric.metrics.robustness import area_under_error, robust_curve, robust_error
from robustmetric.records import Record

Radii = npt.NDArray[np.float64]
KEEP_SECONDS = 5.0
"""Radii are written at least this often."""
CURVE = 200
"""Points of a curve that a record holds, at most."""


@dataclass(frozen=True)
class Question:
    """What is to be proved of `count` points: `prove` gives the radii of some of them."""

    name: str
    count: int
    settings: Mapping[str, Any]
    prove: Callable[[slice], Radii]
    chunk: int = 100
    """Points proved at a time: what is lost when a run is stopped."""
    is_retrieval: bool = False
    """Whether the share that stays right is stated, as certified R@1, and not the error."""


def proved(
    question: Question, radii: Sequence[float], folder: Path, seed: int, context: Mapping[str, Any]
) -> tuple[Record, Radii]:
    """The record of one question, whose error is stated at `radii`, and the radius of each point.

    Errors are in percent; one that would be proved at infinity is wrong at no radius.
    """
    record = Record("certified", question.name, {}, {**question.settings, "radii": list(radii)}, seed=seed)
    path = folder / f"{hashlib.sha256(record.key.encode()).hexdigest()[:16]}.npz"
    found, before = _kept(path, question.count)
    began = time.monotonic()
    written = began
    done = int(np.isfinite(found).sum() + np.isposinf(found).sum())
    with Bar(question.name, question.count, done) as bar:
        for start in range(done, question.count, question.chunk):
            part = slice(start, min(start + question.chunk, question.count))
            found[part] = question.prove(part)
            bar.advance(part.stop - part.start)
            last = part.stop == question.count
            if last or time.monotonic() - written > KEEP_SECONDS:
                _keep(path, found, before + time.monotonic() - began)
                written = time.monotonic()
    taken = before + time.monotonic() - began
    scores = _scores(found, radii, question.is_retrieval)
    context = {**context, "curve": curve(found)}
    return replace(record, scores=scores, count=question.count, seconds=taken, context=context), found


def _scores(found: Radii, radii: Sequence[float], is_retrieval: bool) -> dict[str, float]:
    """The error (or what is left of R@1) at each radius, the mean error up to the last of them, and the mean radius."""
    errors = {radius: 100 * robust_error(found, radius) for radius in dict.fromkeys([0.0, *radii])}
    scores = {
        f"{'R@1' if is_retrieval else 'error'}@{radius:g}": 100 - error if is_retrieval else error
        for radius, error in errors.items()
    }
    if max(radii) > 0 and not is_retrieval:
        scores["area"] = 100 * area_under_error(found, max(radii))
    if np.isfinite(found).all():
        scores["mean radius"] = float(found.mean())
    return scores


def curve(found: Radii) -> dict[str, list[float]]:
    """The error in percent over all radii, at `CURVE` of its steps at most, for a plot."""
    steps, errors = robust_curve(found)
    places = np.unique(np.linspace(0, len(steps) - 1, min(CURVE, len(steps))).round().astype(int))
    return {"radii": steps.numpy()[places].tolist(), "error": (100 * errors.numpy()[places]).tolist()}


def _kept(path: Path, count: int) -> tuple[Radii, float]:
    """Radii found so far (NaN where there are none yet) and the seconds they took."""
    empty = np.full(count, np.nan)
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            radii, seconds = arrays["radii"], float(arrays["seconds"])
    except (OSError, ValueError, KeyError, EOFError):
        return empty, 0.0
    return (radii, seconds) if radii.shape == (count,) else (empty, 0.0)


def _keep(path: Path, radii: Radii, seconds: float) -> None:
    def write(partial: Path) -> None:
        with partial.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, radii=radii, seconds=np.array(seconds))

    atomically(path, write)
