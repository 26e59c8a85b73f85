"""The Empirical Robustness Score (Zhou & Patel 2022), errors against radius (Wang et al. 2020), bootstrap intervals."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar, overload

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.numerics.distances import BLOCK, chunks

Name = TypeVar("Name")
SUB_SCORES: dict[str, tuple[float, float]] = {
    "CA+": (0.0, 2.0),
    "CA-": (100.0, -1.0),
    "QA+": (0.0, 2.0),
    "QA-": (100.0, -1.0),
    "TMA": (100.0, -100.0),
    "ES:D": (100.0, -50.0),
    "ES:R": (0.0, 1.0),
    "LTM": (0.0, 1.0),
    "GTM": (0.0, 1.0),
    "GTT": (0.0, 1.0),
}
"""(offset, slope) from raw number to sub-score, higher is more robust. TMA is a cosine, ES:D 0-2, the others 0-100."""


def ers(scores: Mapping[str, float | int]) -> float:
    """The plain mean of ten sub-scores, 0-100, not clipped. Show R@1 beside it: a collapsed model scores about 30."""
    _check(scores)
    return sum(offset + slope * scores[name] for name, (offset, slope) in SUB_SCORES.items()) / len(SUB_SCORES)


def ers_per_query(scores: Mapping[str, Float[Tensor, " n"]]) -> Float[Tensor, " n"]:
    """`ers` of each query's own ten numbers; its mean over queries is `ers` of the means."""
    _check(scores)
    return torch.stack([offset + slope * scores[name] for name, (offset, slope) in SUB_SCORES.items()]).mean(dim=0)


def bootstrap(
    values: Float[Tensor, " n"],
    seed: int = 0,
    samples: int = 1000,
    level: float = 0.95,
    weights: Float[Tensor, " n"] | None = None,
) -> tuple[float, float]:
    """Percentile interval of the mean over queries: resample the queries, keep the middle `level` of the means.

    `weights` are those of a weighted mean; a query is drawn together with its own.
    """
    _check_resampling(len(values), samples, level)
    values = values.detach().double().cpu()
    weights = torch.ones_like(values) if weights is None else weights.double().cpu()
    drawn = _resamples(len(values), samples, seed)
    means = torch.cat([(weights * values)[rows].sum(dim=1) / weights[rows].sum(dim=1) for rows in drawn])
    low, high = torch.quantile(means, _tails(level)).tolist()
    return low, high


def bootstrap_each(
    values: Mapping[Name, Float[Tensor, " n"]], seed: int = 0, samples: int = 1000, level: float = 0.95
) -> dict[Name, tuple[float, float]]:
    """`bootstrap` of several scores of the same queries, drawn once for all of them: the same numbers, sooner."""
    if not values:
        return {}
    table = torch.stack([column.detach().double().cpu() for column in values.values()], dim=1)
    _check_resampling(len(table), samples, level)
    means = []
    for rows in _resamples(len(table), samples, seed):
        # How often each query was drawn: the sums of all scores are then one product.
        times = torch.zeros(rows.shape, dtype=torch.float64)
        times.scatter_add_(1, rows, torch.ones((), dtype=torch.float64).expand_as(rows))
        means.append(times @ table / len(table))
    low, high = torch.quantile(torch.cat(means), _tails(level), dim=0).tolist()
    return dict(zip(values, zip(low, high, strict=True), strict=True))


def _resamples(count: int, samples: int, seed: int) -> Iterator[Int[Tensor, "samples n"]]:
    """Queries drawn with replacement, as many as there are, so many times; some of the samples at a time."""
    generator = torch.Generator().manual_seed(seed)
    for part in chunks(samples, BLOCK // count):
        yield torch.randint(count, (part.stop - part.start, count), generator=generator)


def _tails(level: float) -> Float[Tensor, " 2"]:
    return torch.tensor([(1 - level) / 2, (1 + level) / 2], dtype=torch.float64)


def _check_resampling(count: int, samples: int, level: float) -> None:
    if not count:
        raise InputError("no values to resample; expected one per query")
    if not 0 < level < 1 or samples < 1:
        raise InputError(f"level={level}, samples={samples}; expected 0 < level < 1 and samples >= 1")


Array = np.ndarray[Any, np.dtype[Any]]
Radii = Float[Tensor, " n"] | Float[Array, " n"] | Sequence[float | int]
"""One per query: proved (a lower bound) or found by an attack (an upper bound); 0 where wrong, may be infinity."""


@overload
def robust_error(radii: Radii, radius: float | int) -> float: ...
@overload
def robust_error(radii: Radii, radius: Array | Sequence[float | int]) -> Float[Array, " m"]: ...
def robust_error(radii: Radii, radius: float | int | Array | Sequence[float | int]) -> float | Float[Array, " m"]:
    """The share of queries that a perturbation of this length may turn wrong: radii of at most `radius`.

    Certified where the radii are proved, empirical where an attack found them. At 0 it is the clean error. Of several
    lengths, an array of their shares.
    """
    lengths = np.asarray(radius)
    if lengths.dtype.kind not in "fiu" or lengths.ndim > 1 or not (lengths >= 0).all():
        raise InputError(f"radius {radius} is not a length; expected a number >= 0, or several")
    found = _radii(radii).sort().values
    share = torch.searchsorted(found, torch.from_numpy(lengths.astype(np.float64)), right=True).double() / len(found)
    return share.numpy() if lengths.ndim else float(share)


def robust_curve(radii: Radii) -> tuple[Float[Tensor, " steps"], Float[Tensor, " steps"]]:
    """Where the robust error rises, from 0 on, and its value from there to the next: the curve over all radii."""
    values = _radii(radii)
    steps = torch.cat([values.new_zeros(1), values[values < math.inf]]).unique()
    return steps, torch.searchsorted(values.sort().values, steps, right=True).double() / len(values)


def area_under_error(radii: Radii, limit: float | int) -> float:
    """The mean robust error over all radii from 0 to `limit`: 0 is robust beyond it, 1 is wrong everywhere.

    The integral of 1[rho <= r] over r from 0 to R is [R - rho]+.
    """
    if not 0 < limit < math.inf:
        raise InputError(f"limit {limit} bounds no area; expected a finite number > 0")
    return float((limit - _radii(radii)).clamp_min(0).mean() / limit)


def _radii(radii: Radii) -> Float[Tensor, " n"]:
    values = torch.as_tensor(radii).detach().double().cpu()
    if not len(values) or not bool((values >= 0).all()):
        raise InputError(
            f"{len(values)} radii of which some may be NaN or negative; expected one number >= 0 per query"
        )
    return values


def _check(scores: Mapping[str, object]) -> None:
    missing = [name for name in SUB_SCORES if name not in scores]
    if missing:
        raise InputError(f"ERS needs all of {', '.join(SUB_SCORES)}; missing: {', '.join(missing)}")
