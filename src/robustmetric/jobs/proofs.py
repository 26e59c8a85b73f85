"""Radii, chunk by chunk: kept as they come, resumed where they stopped, and the record they make."""

import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from robustmetric.errors import InputError
from robustmetric.jobs.folder import load_arrays, save_arrays
from robustmetric.jobs.progress import Bar
from robustmetric.metrics.robustness import area_under_error, robust_curve, robust_error
from robustmetric.records import Record

Radii = npt.NDArray[np.float64]
CERTIFIED, EMPIRICAL = "certified", "empirical"
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
    kind: str = CERTIFIED
    """Of the record: proved radii, or `EMPIRICAL` ones, at which an attack got through."""


def proved(
    question: Question, radii: Sequence[float], folder: Path, seed: int, context: Mapping[str, Any]
) -> tuple[Record, Radii]:
    """The record of one question, whose error is stated at `radii`, and the radius of each point.

    Errors are in percent; one that would be proved at infinity is wrong at no radius.
    """
    settings = dict(question.settings)
    path = folder / f"{hashlib.sha256(json.dumps([question.name, settings, seed]).encode()).hexdigest()[:16]}.npz"
    found, before = _kept(path, question.count)
    began = time.monotonic()
    try:
        _prove_rest(question, found, lambda: _keep(path, found, before + time.monotonic() - began))
    finally:  # stopped or not, what was proved is kept
        _keep(path, found, before + time.monotonic() - began)
    return Record(
        kind=question.kind,
        name=question.name,
        scores=_scores(found, radii, question.is_retrieval),
        settings={**settings, "radii": list(radii)},
        count=question.count,
        seconds=before + time.monotonic() - began,
        seed=seed,
        context={**context, "curve": curve(found)},
    ), found


def _prove_rest(question: Question, found: Radii, keep: Callable[[], None]) -> None:
    """Fill in the radii from the first that is NaN on."""
    missing = np.flatnonzero(np.isnan(found))
    done = int(missing[0]) if len(missing) else question.count
    kept = time.monotonic()
    with Bar(question.name, question.count, done) as bar:
        for start in range(done, question.count, question.chunk):
            part = slice(start, min(start + question.chunk, question.count))
            radii = question.prove(part)
            if np.isnan(radii).any() or (radii < 0).any():
                raise InputError(
                    f"{question.name}: a radius of points {part.start} to {part.stop - 1} is NaN or negative"
                )
            found[part] = radii
            bar.advance(part.stop - part.start)
            if time.monotonic() - kept > KEEP_SECONDS:
                keep()
                kept = time.monotonic()


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
    arrays = load_arrays(path) or {}
    if {"radii", "seconds"} <= set(arrays) and arrays["radii"].shape == (count,):
        return arrays["radii"], float(arrays["seconds"])
    return np.full(count, np.nan), 0.0


def _keep(path: Path, radii: Radii, seconds: float) -> None:
    save_arrays(path, {"radii": radii, "seconds": np.array(seconds)})


def check_radii(radii: Sequence[float | int]) -> list[float]:
    """Radii to state a result at, in order; refused where one is no distance, or two would have one name."""
    if not radii or not all(isinstance(radius, int | float) and radius >= 0 for radius in radii):
        raise InputError(f"radii {list(radii)} are no list of distances, such as [0, 0.1, 0.2]")
    ordered = sorted({float(radius) for radius in radii})
    if len({f"{radius:g}" for radius in ordered}) < len(ordered):
        raise InputError(f"radii {list(radii)} are nearly equal; expected some that differ in six digits")
    return ordered
