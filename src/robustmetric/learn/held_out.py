"""Rows kept aside while a metric is learned: over when they stop gaining, and the best metric they saw is kept."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.learn.margin import margins
from robustmetric.learn.neighbours import near


def aside(labels: Int[Tensor, " n"], share: float, generator: torch.Generator) -> Bool[Tensor, " n"]:
    """Which rows are kept aside: this share of each class, at random; two of each class stay at least."""
    kept = torch.zeros(len(labels), dtype=torch.bool, device=labels.device)
    for members in (torch.nonzero(labels == c).flatten() for c in labels.unique()):
        count = min(int(share * len(members)), len(members) - 2)
        order = torch.randperm(len(members), generator=generator, device=labels.device)
        kept[members[order[: max(0, count)]]] = True
    if not kept.any():
        raise InputError(
            f"validation={share} of {len(labels)} rows keeps none of any class aside; expected a larger share"
        )
    return kept


class HeldOut:
    """Looks at a metric now and then, by the mean radius that its 1-NN proves of the rows kept aside.

    A row's radius is the margin to the nearest row of another class over the nearest of its own, 0 where it is
    misclassified: errors and robustness in one number, cheap, and near the exact one (Wang et al. 2020, Eq. 9).
    """

    def __init__(
        self, x: Float[Tensor, "n dim"], labels: Int[Tensor, " n"], kept: Bool[Tensor, " n"], patience: int
    ) -> None:
        self.x, self.patience = x, patience
        self.parts = [
            tuple(torch.nonzero(mask).flatten() for mask in (kept & own, ~kept & own, ~kept & ~own))
            for own in (labels == c for c in labels[kept].unique())
        ]
        """Of each class: rows kept aside, rows learned from, rows learned from of other classes."""
        self.curve: list[float] = []
        self.best: Tensor | None = None

    def is_over(self, factor: Float[Tensor, "rank dim"]) -> bool:
        """Look at G; whether the last `patience` looks were no better than one before."""
        self.curve.append(self.mean_radius(factor))
        best = max(range(len(self.curve)), key=self.curve.__getitem__)
        if best == len(self.curve) - 1:
            self.best = factor.clone()
        return len(self.curve) - 1 - best >= self.patience

    @torch.no_grad()
    def mean_radius(self, factor: Float[Tensor, "rank dim"]) -> float:
        """In the units of the rows given."""
        z = self.x @ factor.T
        found = [
            margins(
                factor, self.x, rows, own[near(z[rows], z[own], 1)[:, 0]], foreign[near(z[rows], z[foreign], 1)[:, 0]]
            )
            for rows, own, foreign in self.parts
        ]
        return float(torch.cat(found).relu().mean())
