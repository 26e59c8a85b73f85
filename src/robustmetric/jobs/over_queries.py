"""95 % intervals of scores over queries: by bootstrap, and exact of a share where all are right, or all wrong.

Queries that all score alike resample to themselves: a bootstrap of none right in 8 would be sure that none ever is.
"""

from collections.abc import Hashable, Mapping
from typing import TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from robustmetric.metrics.robustness import bootstrap, bootstrap_each
from robustmetric.numerics.intervals import clopper_pearson
from robustmetric.report.scores import describe

LEVEL = 0.95

Interval = tuple[float, float]
Group = TypeVar("Group", bound=Hashable)


def intervals(
    per_query: Mapping[str, Float[Tensor, " n"]], weights: Float[Tensor, " n"] | None = None
) -> dict[str, Interval]:
    """By score, the interval of its mean over queries, or of that which `weights` make."""
    return {name: exact(name, v) or bootstrap(v, level=LEVEL, weights=weights) for name, v in per_query.items()}


def intervals_by_group(
    per_query: Mapping[Group, Mapping[str, Float[Tensor, " n"]]],
) -> dict[Group, dict[str, Interval]]:
    """The same of several groups of scores of the same queries, which are drawn once for all."""
    found = bootstrap_each(
        {(group, name): v for group, own in per_query.items() for name, v in own.items()}, level=LEVEL
    )
    return {
        group: {name: exact(name, v) or found[group, name] for name, v in own.items()}
        for group, own in per_query.items()
    }


def interval_of_gain(
    score: str, first: Float[Tensor, " n"], second: Float[Tensor, " n"], weights: Float[Tensor, " n"] | None = None
) -> Interval:
    """Of second minus first, both of the same queries: by bootstrap, pair by pair.

    Right and wrong answers that differ alike on every pair resample to themselves, and have exact bounds. Each pair is
    won with chance w, lost with l, else neither. n that are all won bound w from below by p (`exact`) and thereby w - l
    by p - (1 - p), as all others may be lost: above 0 from 6 pairs on, as in an exact sign test. n that are neither
    bound w and l from above by 1 - p each.
    """
    gains, both = second - first, torch.cat([first, second])
    is_answer = describe(score).is_share and bool(torch.isin(both, both.new_tensor([0, 100])).all())
    if not is_answer or not len(gains) or bool((gains != gains[0]).any()):
        return bootstrap(gains, level=LEVEL, weights=weights)
    most, gain = 100 * clopper_pearson(0, len(gains), LEVEL)[1], float(gains[0])
    if not gain:
        return -most, most
    return (100 - 2 * most, 100.0) if gain > 0 else (-100.0, 2 * most - 100)


def exact(score: str, values: Float[Tensor, " n"]) -> Interval | None:
    """Clopper & Pearson's, in percent, of a share where every query is right, or every one wrong; else None."""
    if not describe(score).is_share or not len(values):
        return None
    first = float(values[0])
    if first not in (0, 100) or bool((values != first).any()):
        return None
    low, high = clopper_pearson(len(values) if first else 0, len(values), LEVEL)
    return 100 * low, 100 * high
