"""Whether a number measured again agrees with the one on record: the rule of `robustmetric verify`.

The recorded number must lie in the interval of the one found, widened on both sides by a tolerance. Where the same
queries are asked the same, the interval is the number itself; of a sample of them, and of attacks and fits on another
kind of hardware, which draws and adds otherwise, it is the 99.9 % interval of the mean over queries.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from robustmetric.metrics.robustness import bootstrap
from robustmetric.numerics.intervals import clopper_pearson_lower

LEVEL = 0.999
"""Of an interval. A row has ten to thirty numbers: one in fifty true rows has one outside."""
SAMPLES = 10_000
"""Means drawn by the bootstrap, so that ten lie outside."""
POINTS = 0.5
"""The tolerance, in points of a score: what 16 bits, and sums in another order, change."""
CLUSTER_POINTS = 2.0
"""Of scores that k-means makes, which starts from other points on other hardware."""
CLUSTERED = ("NMI", "AMI", "F1")
UNITS = {"TMA": 0.01, "ES:D": 0.02}
"""What a point is in scores that are no percentages: as in ERS, a hundredth of their range."""


@dataclass(frozen=True)
class Check:
    """One number of a row, as recorded and as found."""

    name: str
    recorded: float
    found: float
    interval: tuple[float, float]
    """Where the recorded number may lie, the tolerance included."""
    count: int
    """Queries (or points, or images) behind the one found."""

    @property
    def agrees(self) -> bool:
        """Whether it lies there."""
        return self.interval[0] <= self.recorded <= self.interval[1]


def tolerance(score: str) -> float:
    """How far a number may be off though nothing was sampled, in the unit of its score."""
    return (CLUSTER_POINTS if score in CLUSTERED else POINTS) * UNITS.get(score, 1.0)


def compared(score: str, recorded: float, found: float, count: int, interval: tuple[float, float] | None) -> Check:
    """A number beside the recorded one; `interval` None: nothing was sampled."""
    low, high = interval or (found, found)
    return Check(score, recorded, found, (low - tolerance(score), high + tolerance(score)), count)


def spread(values: Float[Tensor, " n"]) -> tuple[float, float]:
    """The interval of the mean: Clopper & Pearson's of scores that are 0 or 100 for each query, else by bootstrap."""
    if bool(torch.isin(values, torch.tensor([0.0, 100.0])).all()):
        return binomial(int((values > 0).sum()), len(values))
    return bootstrap(values, samples=SAMPLES, level=LEVEL)


def binomial(successes: int, trials: int, level: float = LEVEL) -> tuple[float, float]:
    """The exact interval, in percent, of the rate behind so many successes."""
    low, below = clopper_pearson_lower(torch.tensor([successes, trials - successes]), trials, (1 - level) / 2).tolist()
    return 100 * low, 100 * (1 - below)
