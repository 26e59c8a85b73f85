"""Run folders with made-up but complete records: what `train` and `evaluate` leave on disk, without running them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from robustmetric.records import Record

CONTEXT = {"commit": "abc1234", "versions": {"torch": "2.9.1"}, "python": "3.11.7", "hardware": "2 CPU cores"}
ES = {"suite": "demo", "norm": "linf", "steps": 32, "restarts": 3, "mode": "fixed"}

MakeRun = Callable[..., Path]


def clean(value: float, **settings: Any) -> Record:
    settings = {"suite": "demo", "data": "digits", "queries": 896, "gallery": 896, "chance": 20.0, **settings}
    return Record(
        "clean", "clean", {"R@1": value, "mAP": 71.25}, settings, {"R@1": (value - 1, value + 1)}, 896, 0.5, 0, CONTEXT
    )


def shift(value: float, radius: float, **settings: Any) -> Record:
    settings = {**ES, "radius": radius, **settings}
    interval = {"ES:R": (value - 2, value + 2)}
    return Record("attack", "ES", {"ES:D": 1.2345, "ES:R": value}, settings, interval, 896, 3.5, 0, CONTEXT)


def candidate(name: str, value: float, radius: float = 0.1, **settings: Any) -> Record:
    return Record("attack", name, {name: value}, {**ES, "radius": radius, **settings}, {}, 896, 3.5, 0, CONTEXT)


def epoch(i: int, **terms: float) -> Record:
    return Record("train", "epoch", {**terms, "epoch": float(i), "images_per_second": 5000.0}, {"epoch": i})


PLAIN = (
    clean(96.1),
    shift(30.5, 0.05),
    shift(4.0, 0.1),
    shift(0.2, 0.3),
    candidate("CA+", 2.5),
    candidate("CA-", 60.5),
)
EST = (
    clean(94.3),
    shift(80.6, 0.05),
    shift(61.3, 0.1),
    shift(19.9, 0.3),
    candidate("CA+", 24.5),
    candidate("CA-", 11.5),
)


def examples(n: int = 3, channels: int = 1, side: int = 8, **changes: Any) -> dict[str, Any]:
    """Arrays of `examples/<attack>.npz`: label 0 queries, right before, wrong after but for the last result."""
    generator = np.random.default_rng(0)
    images = generator.integers(30, 200, (n, 12, channels, side, side), dtype=np.uint8)
    arrays = {
        "query": images[:, 0],
        "perturbed": images[:, 0] + np.uint8(20),
        "before": images[:, 1:6],
        "after": images[:, 6:11],
        "query_label": np.zeros(n, int),
        "before_label": np.zeros((n, 5), int),
        "after_label": np.tile([1, 1, 1, 1, 0], (n, 1)),
        "class_names": np.array(["five", "six"]),
        "radius": np.float64(0.1),
        "attack": np.array("ES"),
    }
    return {**arrays, **changes}
