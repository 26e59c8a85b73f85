"""The formula sheet: what attacks climb, per row, as functions of embeddings. Larger is worse for the model."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn import functional

from robustmetric.losses.proxy_anchor import cosines, proxy_anchor
from robustmetric.numerics.distances import paired
from robustmetric.types import Embeddings

FAR = 1e4
"""Stands for "no such item" in a minimum over distances; distances between embeddings are far below it."""


def shift(z: Embeddings, origin: Embeddings) -> Float[Tensor, " batch"]:
    """ES (Zhou et al. 2020): how far the embedding has moved, d(z, origin)."""
    return paired(z, origin)


def nudged(origin: Embeddings, generator: torch.Generator | None) -> Embeddings:
    """`origin` moved by 1e-5 in a random direction: from a clean start d(z, origin) has no gradient, to this it has."""
    direction = torch.empty_like(origin).normal_(generator=generator)
    return origin + 1e-5 * direction / direction.norm(dim=1, keepdim=True)


def beside(origin: Embeddings) -> Embeddings:
    """`origin` less 1e-6 in every coordinate, as a distance that adds 1e-6 to each difference has it.

    The first step up is then along (1, ..., 1) for every image: a direction that all share, and a model can learn.
    """
    return origin - 1e-6


def clean_proxies(z: Embeddings, clean: Embeddings, own: Bool[Tensor, "batch batch"]) -> Float[Tensor, " batch"]:
    """Proxy-Anchor (Kim et al. 2020) with the batch's clean embeddings for proxies; all rows climb this one number.

    `own[i, j]`: whether the clean embedding j stands for the class of row i. The others repel, so that there is a
    gradient from a clean start too.
    """
    return proxy_anchor(cosines(z, clean), own).expand(len(z))


def approach(z: Embeddings, target: Embeddings) -> Float[Tensor, " batch"]:
    """GTM: nearness to a target item, -d(z, target)."""
    return -paired(z, target)


def alignment(z: Embeddings, target: Embeddings) -> Float[Tensor, " batch"]:
    """TMA (Tolias et al. 2019): cosine with a target item, whatever the lengths of the two."""
    return functional.cosine_similarity(z, target)


def promotion(
    chosen: Float[Tensor, "batch chosen"], others: Float[Tensor, "batch #chosen items"]
) -> Float[Tensor, " batch"]:
    """CA+, QA+ (Zhou et al. 2020): -mean max(0, chosen - other), 0 once the chosen item ranks first.

    `chosen` are the distances of the items to be moved up; `others` those of the whole gallery in the same list, the
    items that are no part of it infinitely far.
    """
    return -_mean((chosen[..., None] - others).relu(), others)


def demotion(
    chosen: Float[Tensor, "batch chosen"], others: Float[Tensor, "batch #chosen items"]
) -> Float[Tensor, " batch"]:
    """CA-, QA-, GTT: -mean max(0, other - chosen), 0 once the chosen item ranks last."""
    return -_mean((others - chosen[..., None]).masked_fill_(others.isinf(), 0).relu(), others)


def _mean(hinges: Float[Tensor, "batch chosen items"], others: Float[Tensor, "batch #chosen items"]) -> Tensor:
    """Over the items that are in the list, and then over the chosen."""
    return (hinges.sum(dim=2) / others.isfinite().sum(dim=2).clamp_min(1)).mean(dim=1)


def ordering(distances: Float[Tensor, "batch items"]) -> Float[Tensor, " batch"]:
    """FOA (Zhou et al., ICCV 2021): -max(0, d_1 - d_2) of two items, -sum_{i<j} max(0, d_i - d_j) / M^2 of M > 2.

    `distances` come in the wanted order, 0 once they rise.
    """
    items = distances.shape[1]
    late = (distances[:, :, None] - distances[:, None, :]).triu(diagonal=1).relu()
    return -late.sum(dim=(1, 2)) / (1 if items == 2 else items**2)


def misranking(distances: Float[Tensor, "batch items"], same: Bool[Tensor, "batch items"]) -> Float[Tensor, " batch"]:
    """LTM (Wang et al. 2020): -max(0, max distance to another class - min distance to the own class).

    `same` marks the items of the query's own class (the query itself left out by a distance of `FAR` or more).
    """
    nearest_same = distances.masked_fill(~same, FAR).amin(dim=1)
    farthest_other = distances.masked_fill(same | (distances >= FAR), 0).amax(dim=1)
    return -(farthest_other - nearest_same).relu()
