"""Theorem 1 of Wang et al. (2020): a lower bound of the radius of k-NN, the k-th min over k-th max of triplet radii."""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from robustmetric.certify.geometry import Sites
from robustmetric.certify.screening import Queue, kth_margin, screen
from robustmetric.numerics.majority import majority_ranks


@torch.no_grad()
def bound_radii(
    sites: Sites,
    z: Float[Tensor, "n dim"],
    labels: Int[Tensor, " n"],
    n_neighbors: int,
    allowed: Bool[Tensor, "n sites"] | None = None,
) -> Float[Tensor, " n"]:
    """Lower bounds for points of known classes, given in the order of their labels.

    Of the own sites those `allowed` are used (any choice is sound); each class has enough members for its rank.
    """
    own_rank, foreign_rank = majority_ranks(n_neighbors)
    _, bound = screen(sites, z, labels, count=own_rank)
    best = z.new_full((len(z), foreign_rank), math.inf)
    rest, width = Queue.first(bound, 2 * foreign_rank), 2 * foreign_rank
    best = _merge(best, rest, _margins(sites, z, labels, rest, own_rank, allowed))
    rest = Queue.below(bound, best[:, -1])
    while len(rest):
        head, rest = rest.split(width, best[:, -1])
        best = _merge(best, head, _margins(sites, z, labels, head, own_rank, allowed))
        width *= 2
    return best[:, -1]


def _margins(
    sites: Sites, z: Tensor, labels: Tensor, pairs: Queue, rank: int, allowed: Tensor | None
) -> Float[Tensor, " pairs"]:
    point = pairs.point
    return kth_margin(sites, z[point], labels[point], pairs.site, rank, None if allowed is None else allowed[point])


def _merge(best: Float[Tensor, "n k"], pairs: Queue, margin: Float[Tensor, " pairs"]) -> Float[Tensor, "n k"]:
    """The k smallest values of each point so far, in order."""
    if not len(pairs):
        return best
    place = pairs.place()
    seen = best.new_full((len(best), int(place.max()) + 1), math.inf)
    seen[pairs.point, place] = margin
    return torch.cat([best, seen], dim=1).topk(best.shape[1], dim=1, largest=False, sorted=True).values
