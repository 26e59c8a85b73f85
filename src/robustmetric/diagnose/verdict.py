"""How a masking check ended: a named verdict with its numbers and its curve, and what several of them say together."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from robustmetric.diagnose.thresholds import Word

INFINITE = 1e6
"""Stands for infinity in a record, which JSON does not have."""


@dataclass(frozen=True)
class Curve:
    """What a verdict is drawn from: lines by name, each as (across, up)."""

    across: str
    up: str
    lines: dict[str, tuple[list[float], list[float]]]
    is_logarithmic: bool = False


@dataclass(frozen=True)
class Verdict:
    """One check: its name, how it ended, the numbers it rests on, and one sentence."""

    name: str
    verdict: Word
    numbers: dict[str, float]
    said: str
    curve: Curve | None = field(default=None, compare=False)
    evidence: Mapping[str, Any] = field(default_factory=dict, compare=False)
    """What was measured beside it, as plain values for the record: no part of the verdict."""


def overall(verdicts: Sequence[Verdict]) -> str:
    """`masked` where any check fails, `unclear` where any is, else `honest`; those that were not run do not count."""
    words = {verdict.verdict for verdict in verdicts} - {"not run"}
    return "masked" if "fail" in words else "unclear" if "unclear" in words or not words else "honest"


def not_run(name: str, why: str) -> Verdict:
    """A check that could not be asked and why; it stands among the others, so that nobody takes it for done."""
    return Verdict(name, "not run", {}, f"not run: {why}")


def finite(numbers: Mapping[str, float]) -> dict[str, float]:
    """Those that JSON has: an infinite one by its stand-in; what is no number is left out, since 0 would be one."""
    return {name: max(min(one, INFINITE), -INFINITE) for name, one in numbers.items() if not math.isnan(one)}
