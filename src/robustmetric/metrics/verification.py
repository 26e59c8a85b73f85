"""Verification: are two inputs the same class? Error rates over a threshold on a score, larger for more alike pairs."""

import torch
from jaxtyping import Float
from torch import Tensor

from robustmetric.errors import InputError


def roc(
    similar: Float[Tensor, " pairs"], different: Float[Tensor, " others"]
) -> tuple[Float[Tensor, " points"], Float[Tensor, " points"]]:
    """False and true positive rates as the threshold falls past every score, from (0, 0) to (1, 1).

    `similar` are the scores of pairs of one class, `different` of pairs of two; pairs at or above the threshold are
    accepted. Negate distances to use them as scores.
    """
    for name, scores in (("similar", similar), ("different", different)):
        if not len(scores) or bool(scores.isnan().any()):
            raise InputError(f"{len(scores)} {name} pairs, or NaN among them; expected at least one score, none NaN")
    thresholds = torch.cat([similar, different]).unique().flip(0)
    return _accepted(different, thresholds), _accepted(similar, thresholds)


def equal_error_rate(similar: Float[Tensor, " pairs"], different: Float[Tensor, " others"]) -> float:
    """The rate in [0, 1] at which false positives equal false negatives, on the straight lines between ROC points."""
    false_positive, true_positive = roc(similar, different)
    # Rises from -1 at (0, 0) to 1 at (1, 1); its zero is the equal error.
    gap = false_positive + true_positive - 1
    after = int((gap >= 0).int().argmax())
    before = after - 1
    weight = gap[after] / (gap[after] - gap[before])
    return float(torch.lerp(false_positive[after], false_positive[before], weight))


def true_positive_rate(
    similar: Float[Tensor, " pairs"], different: Float[Tensor, " others"], false_positive_rate: float = 1e-3
) -> float:
    """The largest share of similar pairs accepted by a threshold that accepts at most this share of different ones."""
    if not 0 <= false_positive_rate <= 1:
        raise InputError(f"false_positive_rate {false_positive_rate} is not a share; expected 0 to 1, such as 1e-3")
    false_positive, true_positive = roc(similar, different)
    return float(true_positive[false_positive <= false_positive_rate].max())


def _accepted(scores: Tensor, thresholds: Tensor) -> Float[Tensor, " points"]:
    """The share of scores at or above each falling threshold, after a first threshold above all of them."""
    below = torch.searchsorted(scores.sort().values, thresholds)
    share = (len(scores) - below).double() / len(scores)
    return torch.cat([share.new_zeros(1), share])
