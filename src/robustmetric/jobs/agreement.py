"""Whether a number measured again agrees with the one on record: the rule of `robustmetric verify`.

The recorded number must lie in the interval of the one found, widened on both sides by a tolerance. Where the same
queries are asked the same, the interval is the number itself; of a sample of them, and of attacks and fits on another
kind of hardware, which draws and adds otherwise, it is the 99.9 % interval of the mean over queries. What is no mean
over queries (scores of k-means, words of a check) has its own rule below.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from robustmetric.metrics.robustness import bootstrap
from robustmetric.numerics.intervals import clopper_pearson
from robustmetric.report.ledger import RANGES

LEVEL = 0.999
"""Of an interval. A row has ten to thirty numbers: one in fifty true rows has one outside."""
SAMPLES = 10_000
"""Means drawn by the bootstrap, so that ten lie outside."""
POINTS = 0.5
"""The tolerance, in points of a score: what 16 bits, and sums in another order, change."""
REROUTED = 1.5
"""Points more for an attack whose search rounding alone sends another way. On digits 1 and 2 threads end 0.9 apart (an
attack on 11-NN), weights and their copy in 16 bits 0.8 (GTM)."""
CLUSTER_POINTS = 2.0
"""Of scores that k-means makes, which starts from other points on other hardware."""
CLUSTERED = ("NMI", "AMI", "F1")
UNITS = {"TMA": 0.01, "ES:D": 0.02, "cosines": 0.02}
"""What a point is in scores that are no percentages: as in ERS, a hundredth of their range."""


Interval = tuple[float, float]


@dataclass(frozen=True)
class Check:
    """One number of a row, as recorded and as found."""

    name: str
    recorded: float
    found: float
    interval: Interval
    """Where the recorded number may lie, the tolerance included."""
    count: int
    """Queries (or points, or images) behind the one found."""
    words: tuple[str, ...] = ()
    """What the numbers stand for, where they are places in a list of words."""

    @property
    def agrees(self) -> bool:
        """Whether it lies there."""
        return self.interval[0] <= self.recorded <= self.interval[1]

    def shown(self, value: float) -> str:
        """A number of this check, or the word that it stands for."""
        return self.words[round(value)] if self.words else f"{value:.4g}"


def tolerance(score: str) -> float:
    """How far a number may be off though nothing was sampled, in the unit of its score."""
    return (CLUSTER_POINTS if score.removesuffix(" std") in CLUSTERED else POINTS) * UNITS.get(score, 1.0)


def around(score: str, found: float, points: float) -> Interval:
    """So many points to both sides of a rate; a mean of distances or cosines keeps to its tolerance."""
    free = 0.0 if score in UNITS else points
    return found - free, found + free


def compared(
    score: str, recorded: float, found: float, count: int, interval: Interval | None, title: str | None = None
) -> Check:
    """A number beside the recorded one, named by its score or `title`; `interval` None: nothing was sampled."""
    low, high = interval or (found, found)
    return Check(title or score, recorded, found, (low - tolerance(score), high + tolerance(score)), count)


def judged(title: str, recorded: str, found: str, words: Sequence[str], count: int, *, is_same: bool) -> Check:
    """A word beside the recorded one, of `words` in order: the same or, where not all was the same, next to it.

    A word comes of a number beyond a limit: one that lies at the limit falls to either side with 16 bits, or elsewhere.
    """
    places = {word: float(place) for place, word in enumerate(words)}
    free = 0.0 if is_same else 1.0
    low, high = max(places[found] - free, 0.0), min(places[found] + free, len(words) - 1.0)
    return Check(title, places[recorded], places[found], (low, high), count, tuple(words))


def spread(values: Float[Tensor, " n"]) -> Interval:
    """The interval of the mean: Clopper & Pearson's of scores that are 0 or 100 for each query, else by bootstrap."""
    if bool(torch.isin(values, torch.tensor([0.0, 100.0])).all()):
        return binomial(int((values > 0).sum()), len(values))
    return bootstrap(values, samples=SAMPLES, level=LEVEL)


def spread_by_batch(score: str, values: Float[Tensor, " n"], count: int, batch: int) -> Interval:
    """Where a mean of batch means over `count` queries may lie, of which these were drawn.

    In B batches, the last of r queries, it is (1 - 1/B) * full + last / B, where the mean over queries, whose interval
    is known, is (1 - r/count) * full + r/count * last: they are (1/B - r/count) * (last - full) apart, and `last` and
    `full` no more than the range of the score.
    """
    batches = -(-count // batch)
    last = count - (batches - 1) * batch
    low, high = RANGES.get(score, (0.0, 100.0))
    apart = (1 / batches - last / count) * (high - low)
    found = spread(values)
    return found[0] - apart, found[1] + apart


def rate(percent: float, count: int) -> Interval:
    """The interval of a share, in percent, of so many queries or points that are right or wrong."""
    return binomial(round(percent * count / 100), count)


def spread_of_runs(means: Sequence[float], count: int) -> tuple[Interval, Interval]:
    """Where the lowest of several runs, and max - min of them, may lie: every run in its interval at once."""
    level = 1 - (1 - LEVEL) / len(means)
    bounds = [binomial(round(mean * count / 100), count, level) for mean in means]
    lows, highs = [low for low, _ in bounds], [high for _, high in bounds]
    return (min(lows), min(highs)), (max(max(lows) - min(highs), 0.0), max(highs) - min(lows))


def binomial(successes: int, trials: int, level: float = LEVEL) -> Interval:
    """The exact interval, in percent, of the rate behind so many successes."""
    low, high = clopper_pearson(successes, trials, level)
    return 100 * low, 100 * high
