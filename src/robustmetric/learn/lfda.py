"""LFDA (Sugiyama, JMLR 2007): Fisher's discriminant with scatters that only count near rows of the same class."""

from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.learn.base import MetricLearner, rank_of
from robustmetric.numerics.distances import pairwise
from robustmetric.numerics.settings import check_choice, check_optional_counts
from robustmetric.types import Progress

ROUNDING = 1e-10
"""Directions with less than this share of the largest local scatter are constant: they tell nothing apart."""


class LFDA(MetricLearner):
    """Directions t with the largest t^T S_b t / t^T S_w t, scaled to t^T S_w t = 1.

    "weighted" multiplies each by the root of its ratio, "orthonormalized" makes them orthonormal, "plain" leaves them.
    `k` is the neighbour whose distance is a row's scale in the affinity (None: min(7, features - 1), as metric-learn);
    in small classes the last one.
    """

    def __init__(
        self,
        n_components: int | None = None,
        *,
        k: int | None = None,
        embedding: Literal["weighted", "orthonormalized", "plain"] = "weighted",
    ) -> None:
        self.n_components = n_components
        self.k = k
        self.embedding = embedding

    def _check(self) -> None:
        check_choice("embedding", self.embedding, ("weighted", "orthonormalized", "plain"))
        check_optional_counts(n_components=self.n_components, k=self.k)

    def _learn(self, x: Float[Tensor, "n dim"], labels: Int[Tensor, " n"]) -> Float[np.ndarray, "rank dim"]:
        rank = rank_of(self.n_components, x.shape[1])
        k = max(1, min(7, x.shape[1] - 1)) if self.k is None else self.k
        between, within = scatters(x - x.mean(dim=0), labels, k, self._tell)
        ratios, directions = discriminants(between, within)
        ratios, directions = ratios[:rank], directions[:rank]
        if self.embedding == "weighted":
            directions = directions * ratios.sqrt()[:, None]
        if self.embedding == "orthonormalized":
            directions = torch.linalg.qr(directions.T).Q.T
        if not bool(directions.any()):
            raise InputError(
                f"{len(x)} rows of {len(self.classes_)} classes show no direction that tells classes apart by what "
                "varies within them; expected classes of several distinct rows (repeated rows need a larger k)"
            )
        # Directions in which nothing varies have no ratio: they stay out of the metric.
        missing = torch.zeros((rank - len(directions), x.shape[1]), dtype=x.dtype)
        return torch.cat([directions, missing]).numpy()


def affinity(x: Float[Tensor, "n dim"], k: int) -> Float[Tensor, "n n"]:
    """exp(-|x_i - x_j|^2 / (s_i s_j)), s_i the distance of row i to its k-th neighbour; 0 where a scale is 0."""
    distances = pairwise(x, x)
    scale = distances.sort(dim=1).values[:, min(k, len(x) - 1)]
    scales = scale[:, None] * scale
    return torch.where(scales > 0, (-distances.square() / scales.clamp_min(torch.finfo(x.dtype).tiny)).exp(), 0)


def scatters(
    x: Float[Tensor, "n dim"], labels: Int[Tensor, " n"], k: int, progress: Progress | None = None
) -> tuple[Float[Tensor, "dim dim"], Float[Tensor, "dim dim"]]:
    """Local between-class and within-class scatter of centred rows: 1/2 sum W_ij (x_i - x_j)(x_i - x_j)^T each.

    In a class of m of n rows with affinity A: W_w = A / m and W_b = A (1/n - 1/m); between classes 0 and 1/n.
    """
    n = len(x)
    total = x.T @ x  # 1/2 sum over all pairs of (x_i - x_j)(x_i - x_j)^T / n, for rows about their mean
    within, local, plain = (torch.zeros_like(total) for _ in range(3))
    classes = int(labels.max()) + 1
    for c in range(classes):
        rows = x[labels == c]
        near = affinity(rows, k)
        spread = (rows.T * near.sum(dim=1)) @ rows - rows.T @ near @ rows
        within += spread / len(rows)
        local += spread / n
        centre = rows.mean(dim=0)
        plain += len(rows) / n * ((rows - centre).T @ (rows - centre))
        if progress is not None:
            progress(c + 1, classes)
    # Between classes all pairs count 1/n; within a class the affinity replaces the 1.
    return total - plain + local - within, within


def discriminants(
    between: Float[Tensor, "dim dim"], within: Float[Tensor, "dim dim"]
) -> tuple[Float[Tensor, " rank"], Float[Tensor, "rank dim"]]:
    """Ratios (falling) and directions t with t^T S_w t = 1, in the range of S_w, where alone a ratio is defined."""
    values, vectors = torch.linalg.eigh((within + within.T) / 2)
    is_there = values > ROUNDING * values[-1]
    whiten = vectors[:, is_there] / values[is_there].sqrt()
    ratios, rotated = torch.linalg.eigh(whiten.T @ ((between + between.T) / 2) @ whiten)
    return ratios.flip(0).clamp_min(0), (whiten @ rotated).T.flip(0)
