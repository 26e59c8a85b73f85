"""Metrics as their definitions say, in plain loops: what the fast ones are held against."""

import itertools
import math
from collections import Counter
from collections.abc import Hashable, Sequence

Rows = Sequence[bool]


def recall(relevant: Rows, k: int) -> float:
    return float(any(relevant[:k]))


def average_precision(relevant: Rows, depth: int | None = None, over: int | None = None) -> float:
    """Sum over the relevant ranks up to `depth` of the precision there, divided by `over` (all relevant by default)."""
    depth = len(relevant) if depth is None else depth
    total = sum(sum(relevant[: k + 1]) / (k + 1) for k in range(min(depth, len(relevant))) if relevant[k])
    return total / max(1, sum(relevant) if over is None else over)


def entropy(groups: Sequence[Hashable]) -> float:
    return -sum(c / len(groups) * math.log(c / len(groups)) for c in Counter(groups).values())


def mutual_information(a: Sequence[Hashable], b: Sequence[Hashable]) -> float:
    return entropy(a) + entropy(b) - entropy(list(zip(a, b, strict=True)))


def nmi(a: Sequence[int], b: Sequence[int]) -> float:
    mean = (entropy(a) + entropy(b)) / 2
    return mutual_information(a, b) / mean if mean else 1.0


def ami(a: Sequence[int], b: Sequence[int]) -> float:
    """Chance is the mean over every way to hand out the cluster numbers."""
    shuffled = [mutual_information(a, order) for order in itertools.permutations(b)]
    chance = sum(shuffled) / len(shuffled)
    return (mutual_information(a, b) - chance) / ((entropy(a) + entropy(b)) / 2 - chance)


def pairwise_f1(a: Sequence[int], b: Sequence[int]) -> float:
    pairs = [(a[i] == a[j], b[i] == b[j]) for i, j in itertools.combinations(range(len(a)), 2)]
    both, either = sum(x and y for x, y in pairs), sum(x + y for x, y in pairs)
    return 2 * both / either if either else 1.0


def rates(similar: Sequence[float], different: Sequence[float]) -> list[tuple[float, float]]:
    """(false, true) positive rates at every threshold, from above all scores downwards."""
    thresholds = [math.inf, *sorted({*similar, *different}, reverse=True)]
    return [
        (sum(s >= t for s in different) / len(different), sum(s >= t for s in similar) / len(similar))
        for t in thresholds
    ]


def equal_error_rate(similar: Sequence[float], different: Sequence[float]) -> float:
    """Walk the lines between neighbouring thresholds until false positives are no longer fewer than misses."""
    points = rates(similar, different)
    for (f0, t0), (f1, t1) in itertools.pairwise(points):
        for step in range(1001):
            f, t = f0 + (f1 - f0) * step / 1000, t0 + (t1 - t0) * step / 1000
            if f >= 1 - t:
                return f
    raise AssertionError("the last threshold accepts everything")


def true_positive_rate(similar: Sequence[float], different: Sequence[float], at_most: float) -> float:
    return max(t for f, t in rates(similar, different) if f <= at_most)
