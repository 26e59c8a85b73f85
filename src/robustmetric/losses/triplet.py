"""Triplet loss (Schroff et al. 2015) on Euclidean distances, and the hardness it is made of."""

from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from robustmetric.errors import InputError, nearest
from robustmetric.losses.base import MetricLoss
from robustmetric.losses.mining import Miner, Random
from robustmetric.numerics.distances import paired
from robustmetric.types import Embeddings, Labels, Triplets

Form = Literal["difference", "sum"]
Reduction = Literal["mean", "sum"]
ANY_NEGATIVE = Random()


def hardness(anchor: Embeddings, positive: Embeddings, negative: Embeddings) -> Float[Tensor, " batch"]:
    """H = d(a,p) - d(a,n), per triplet (Zhou & Patel 2022)."""
    return paired(anchor, positive) - paired(anchor, negative)


def triplet_values(
    anchor: Embeddings,
    positive: Embeddings,
    negative: Embeddings,
    margin: float,
    squared: bool = False,
    form: Form = "difference",
) -> Float[Tensor, " batch"]:
    """Per triplet: "difference" is max(0, d(a,p) - d(a,n) + margin); "sum" is d(a,p) + max(0, margin - d(a,n)).

    The sum form is Eq. 2 of the ensemble adversarial training paper. `squared` takes the squares of the distances.
    """
    near, far = paired(anchor, positive), paired(anchor, negative)
    if squared:
        near, far = near.square(), far.square()
    return (near - far + margin).relu() if form == "difference" else near + (margin - far).relu()


class Triplet(MetricLoss):
    """Triplets chosen by `miner`, their values averaged (triplets at zero included) or summed."""

    def __init__(
        self,
        miner: Miner = ANY_NEGATIVE,
        margin: float = 0.2,
        reduction: Reduction = "mean",
        squared: bool = False,
        form: Form = "difference",
    ) -> None:
        super().__init__()
        if isinstance(miner, str):
            raise InputError(f"miner {miner!r} is a word; write {{name: {miner}}}")
        if not callable(miner):
            raise InputError(f"miner {miner!r} chooses no triplets; expected a miner, such as {{name: semihard}}")
        if reduction not in get_args(Reduction):
            raise InputError(f"reduction {reduction!r} is not known{nearest(reduction, get_args(Reduction))}")
        if form not in get_args(Form):
            raise InputError(f"form {form!r} of the triplet loss is not known{nearest(form, get_args(Form))}")
        if margin < 0:
            raise InputError(f"margin {margin} would allow wrong order; expected a number >= 0, such as 0.2")
        self.miner, self.margin, self.reduction, self.squared, self.form = miner, margin, reduction, squared, form

    def mine(self, embeddings: Embeddings, labels: Labels, generator: torch.Generator | None = None) -> Triplets:
        return self.miner(embeddings, labels, generator)

    def forward(
        self,
        embeddings: Embeddings,
        labels: Labels,
        triplets: Triplets | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, ""]:
        triplets = triplets or self.mine(embeddings, labels, generator)
        a, p, n = triplets.of(embeddings)
        values = triplet_values(a, p, n, self.margin, squared=self.squared, form=self.form)
        return values.mean() if self.reduction == "mean" else values.sum()
