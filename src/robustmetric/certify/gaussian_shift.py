"""How far the centre of Gaussian noise can move before the mean of a function with values in [-1, 1] may fall.

Equations are those of docs/papers/certified_retrieval.md; (3) is Levine et al. 2019 and Salman et al. 2019, (4) the
idea of Kumar et al. 2020: Cohen's bound at every level of the function, added up.
"""

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor
from torch.special import ndtr, ndtri

from robustmetric.numerics.distances import BLOCK, chunks

STEPS = 30
"""Halvings of the radius: what is left is a hundred millionth of sigma."""
TAIL = 9.0
"""Phi(-9) is 1e-19: a level whose quantile lies this far below the shift is gone."""
SLACK = 1e-9
"""Means and levels must be passed by this much: float64 products of unit vectors are exact to about 1e-14."""


def radius_by_mean(
    mean: Float[Tensor, " functions"], threshold: Float[Tensor, " functions"], sigma: float
) -> float | None:
    """Within it no mean, at least `mean[j]` here, falls to `threshold[j]`; None where one is not above it here (Eq. 3).

    sigma * (Phi^-1((1 + mean) / 2) - Phi^-1((1 + threshold) / 2)), the least over the functions; infinite for none.
    """
    within = _within_reach(threshold)
    mean, threshold = mean[within], threshold[within] + SLACK
    if not len(threshold):
        return torch.inf
    if bool((mean <= threshold).any()):
        return None
    share = (1 + torch.stack([mean, threshold]).clamp(-1, 1)) / 2
    return sigma * float((ndtri(share[0]) - ndtri(share[1])).amin())


def radius_by_distribution(
    levels: Float[Tensor, "functions levels"], threshold: Float[Tensor, " functions"], sigma: float
) -> float | None:
    """As `radius_by_mean`, where h[j] >= t_k has at least the probability `levels[j, k]` here (Eq. 4).

    The t_k are the K inner edges of K + 1 equal bins of [-1, 1]. The largest r found, by halving, at which
    -1 + 2 / (K + 1) * sum_k Phi(Phi^-1(levels[j, k]) - r / sigma) is above threshold[j] for all j.
    """
    width = 2 / (levels.shape[1] + 1)
    within = _within_reach(threshold)
    quantile, threshold = ndtri(levels)[within], threshold[within]
    if not len(threshold):
        return torch.inf

    def passed(shift: float) -> Tensor:
        return width * ndtr(quantile - shift).sum(dim=1) - 1 > threshold + SLACK

    if not bool(passed(0.0).all()):
        return None
    low, high = 0.0, max(float(quantile.amax()), 0.0) + TAIL
    for _ in range(STEPS):
        middle = (low + high) / 2
        won = passed(middle)
        if bool(won.all()):
            low = middle
        else:
            # Those that pass here pass at every smaller shift: they decide nothing more.
            high, quantile, threshold = middle, quantile[~won], threshold[~won]
    return sigma * low


def _within_reach(threshold: Float[Tensor, " functions"]) -> Bool[Tensor, " functions"]:
    """Which are not below -1, up to rounding: no mean is, so that such a threshold is passed at any distance."""
    return threshold >= -1 - SLACK


def tally(
    z: Float64[Tensor, "batch dim"], directions: Float64[Tensor, "functions dim"], counts: Int[Tensor, "bins functions"]
) -> None:
    """Add to `counts[b, j]` how many <z, directions[j]> lie in the b-th of equal bins of [-1, 1]; the last is for 1."""
    bins = len(counts) - 1
    for columns in chunks(len(directions), BLOCK // len(z)):
        # A value on the edge of a bin, up to rounding, counts as below it.
        place = torch.mm(z, directions[columns].T).add_(1 - SLACK).mul_(bins / 2).long().clamp_(0, bins)
        counts[:, columns].scatter_add_(0, place, place.new_ones(()).expand_as(place))


def at_least(counts: Int[Tensor, "bins functions"]) -> Int[Tensor, "functions levels"]:
    """How many values reached each inner edge t_1 .. t_(bins - 1) of the bins."""
    return counts.flip(0).cumsum(dim=0).flip(0)[1:-1].T
