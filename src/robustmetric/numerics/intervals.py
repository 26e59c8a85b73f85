"""Confidence bounds of a mean: Clopper & Pearson (1934) for counts, Maurer & Pontil (2009) for [0, 1]."""

import math
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Float, Int
from scipy.special import betaincinv
from torch import Tensor

from robustmetric.errors import InputError


def clopper_pearson_lower(successes: Int[Tensor, "*shape"], trials: int, alpha: float) -> Float[Tensor, "*shape"]:
    """The probability p under which as many successes, or more, have the chance `alpha`; 0 where there were none.

    The true probability lies below it with chance at most `alpha`. One table per (trials, alpha) is kept.
    """
    check_alpha(alpha)
    if trials < 1:
        raise InputError(f"{trials} trials bound nothing; expected at least 1")
    if successes.numel() and not 0 <= int(successes.min()) <= int(successes.max()) <= trials:
        raise InputError(
            f"{int(successes.min())} to {int(successes.max())} successes of {trials} trials; expected 0 to {trials}"
        )
    return _table(trials, alpha).to(successes.device)[successes]


def clopper_pearson(successes: int, trials: int, level: float) -> tuple[float, float]:
    """The exact interval of the probability behind so many successes, with equal tails; outside with 1 - level."""
    counts = torch.tensor([successes, trials - successes])
    low, below = clopper_pearson_lower(counts, trials, (1 - level) / 2).tolist()
    return low, 1 - below


def empirical_bernstein_lower(
    mean: Float[Tensor, "*shape"], variance: Float[Tensor, "*shape"], trials: int, alpha: float
) -> Float[Tensor, "*shape"]:
    """Below the expectation of values in [0, 1] with chance at least 1 - alpha; `variance` is the unbiased one.

    mean - sqrt(2 V ln(2/alpha) / n) - 7 ln(2/alpha) / (3 (n - 1)), Theorem 4 of Maurer & Pontil.
    """
    check_alpha(alpha)
    if trials < 2:
        raise InputError(f"{trials} trials have no variance; expected at least 2")
    rate = math.log(2 / alpha)
    return mean - (2 * rate / trials * variance).sqrt() - 7 * rate / (3 * (trials - 1))


@lru_cache(maxsize=4)
def _table(trials: int, alpha: float) -> Float[Tensor, " counts"]:
    """The Clopper-Pearson lower bound of every count from 0 to `trials`: a quantile of a beta distribution."""
    counts = np.arange(1, trials + 1)
    return torch.from_numpy(np.concatenate([[0.0], betaincinv(counts, trials - counts + 1, alpha)]))


def check_alpha(alpha: float) -> None:
    """Refuse a chance of being wrong that is none."""
    if not 0 < alpha < 1:
        raise InputError(f"alpha {alpha} is no chance of being wrong; expected 0 < alpha < 1, such as 0.001")
