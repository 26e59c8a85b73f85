"""Closed-form lower bounds (Wang et al. 2020, Eq. 9) that leave few foreign sites to look at, by matrix products.

Distances from products lose digits, so every bound is taken at the unfavourable end of their error.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from robustmetric.certify.geometry import Sites
from robustmetric.numerics.distances import block, chunks, smallest


def by_class(sites: Sites, labels: Int[Tensor, " n"], width: int | None = None) -> Iterator[tuple[slice, slice]]:
    """(rows, members) for each run of equal labels, given in order; runs are cut to keep rows x members (width) few."""
    values, counts = torch.unique_consecutive(labels, return_counts=True)
    start = 0
    for value, count in zip(values.tolist(), counts.tolist(), strict=True):
        members = sites.members(value)
        for part in chunks(count, block(sites.w) // (width or members.stop - members.start)):
            yield slice(start + part.start, start + part.stop), members
        start += count


def nearest_member(
    sites: Sites, z: Float[Tensor, "n dim"], labels: Int[Tensor, " n"], allowed: Bool[Tensor, "n sites"] | None = None
) -> Int[Tensor, " n"]:
    """The site of class labels[n] (given in order) nearest to z[n], among those allowed."""
    found = torch.empty_like(labels)
    for rows, members in by_class(sites, labels):
        distance = sites.relative(z[rows], members)
        if allowed is not None:
            distance.masked_fill_(~allowed[rows, members], math.inf)
        found[rows] = distance.argmin(dim=1) + members.start
    return found


def nearest_members(
    sites: Sites, z: Float[Tensor, "n dim"], labels: Int[Tensor, " n"], count: int
) -> Bool[Tensor, "n sites"]:
    """Which sites are among the `count` nearest of their point's class; all of a smaller class."""
    allowed = torch.zeros((len(z), len(sites.w)), dtype=torch.bool, device=z.device)
    for rows, members in by_class(sites, labels):
        near = smallest(sites.relative(z[rows], members), min(count, members.stop - members.start))
        allowed[rows].scatter_(1, near + members.start, True)
    return allowed


def screen(
    sites: Sites, z: Float[Tensor, "n dim"], labels: Int[Tensor, " n"], count: int = 1
) -> tuple[Int[Tensor, "n count"], Float[Tensor, "n sites"]]:
    """The `count` nearest own sites, and per foreign site the least of their bounds on the way to it (own: infinity).

    With the nearest alone that bounds the way into the foreign site's cell. Each class has `count` members or more.
    """
    distance = sites.relative(z)
    positive = labels.new_empty((len(labels), count))
    for rows, members in by_class(sites, labels):
        near = distance[rows, members]
        near = near.argmin(dim=1, keepdim=True) if count == 1 else smallest(near, count)
        positive[rows] = near + members.start
    error = _distance_error(sites, z)[:, None]
    bound: Tensor | None = None
    for column in positive.unbind(dim=1):
        gap = distance - (distance.gather(1, column[:, None]) + error)
        gap = _quotient(gap, _between(sites, column, slice(None)))
        bound = gap if bound is None else torch.minimum(bound, gap, out=bound)
    assert bound is not None
    for rows, members in by_class(sites, labels):
        bound[rows, members] = math.inf
    return positive, bound


def kth_margin(
    sites: Sites,
    z: Float[Tensor, "pairs dim"],
    labels: Int[Tensor, " pairs"],
    negative: Int[Tensor, " pairs"],
    rank: int,
    allowed: Bool[Tensor, "pairs sites"] | None = None,
) -> Float[Tensor, " pairs"]:
    """k-th largest over own sites i of [d(z, j) - d(z, i)]+ / (2 ||u_i - u_j||), j the foreign site of each pair."""
    error = _distance_error(sites, z)
    found = z.new_empty(len(z))
    for rows, members in by_class(sites, labels):
        other = negative[rows]
        distance = sites.power[other] - 2 * (z[rows] * sites.u[other]).sum(dim=1)
        gap = (distance - error[rows])[:, None] - sites.relative(z[rows], members)
        margin = _quotient(gap, _between(sites, other, members))
        if allowed is not None:
            margin.masked_fill_(~allowed[rows, members], 0)
        found[rows] = margin.topk(rank, dim=1).values[:, -1]
    return found


def _distance_error(sites: Sites, z: Float[Tensor, "n dim"]) -> Float[Tensor, " n"]:
    """A bound on the error of the difference of two relative distances."""
    return 2 * sites.error(torch.linalg.vector_norm(z, dim=1))


def _between(sites: Sites, row: Int[Tensor, " n"], members: slice) -> Float[Tensor, "n some"]:
    """2 ||u - u'|| of the site of each row and these sites, not too small."""
    between = torch.addmm(4 * sites.size[members], sites.u[row], sites.u[members].T, alpha=-8)
    between += 4 * sites.size[row, None] + 8 * sites.rounding * sites.size.amax()
    # The product may be too small, and so may each u. Where the metric tells no site from another, all are 0 apart.
    return between.sqrt_().add_(4 * sites.rounding * sites.widest[1] + torch.finfo(between.dtype).tiny)


def _quotient(gap: Tensor, between: Tensor) -> Tensor:
    return gap.div_(between).clamp_min_(0)


def one_per_point(point: Int[Tensor, " pairs"], chosen: Bool[Tensor, " pairs"], points: int) -> Int[Tensor, " some"]:
    """The first of the chosen pairs of each point that has any: of equal solutions one is kept whole."""
    pairs = chosen.nonzero().flatten()
    first = torch.full((points,), len(point), dtype=torch.long, device=point.device)
    first.scatter_reduce_(0, point[pairs], pairs, "amin")
    return first[first < len(point)]


@dataclass(frozen=True)
class Queue:
    """Pairs (point, site) that may still matter, by point and then by bound."""

    point: Int[Tensor, " pairs"]
    site: Int[Tensor, " pairs"]
    bound: Float[Tensor, " pairs"]

    def __len__(self) -> int:
        return len(self.point)

    @classmethod
    def first(cls, bound: Float[Tensor, "n sites"], count: int) -> "Queue":
        """The `count` smallest bounds of each point; they are set to infinity in place."""
        values, site = bound.topk(min(count, bound.shape[1]), dim=1, largest=False)
        bound.scatter_(1, site, math.inf)
        point = torch.arange(len(bound), device=bound.device)[:, None].expand_as(site)
        there = values < math.inf
        return cls(point[there], site[there], values[there])

    @classmethod
    def below(cls, bound: Float[Tensor, "n sites"], limit: Float[Tensor, " n"]) -> "Queue":
        """All pairs whose bound is below the limit of their point."""
        point, site = (bound < limit[:, None]).nonzero(as_tuple=True)
        values = bound[point, site]
        order = values.argsort(stable=True)
        order = order[point[order].argsort(stable=True)]
        return cls(point[order], site[order], values[order])

    def place(self) -> Int[Tensor, " pairs"]:
        """0, 1, ... within each point."""
        return torch.arange(len(self), device=self.point.device) - torch.searchsorted(self.point, self.point)

    def split(self, count: int, limit: Float[Tensor, " n"]) -> tuple["Queue", "Queue"]:
        """The next `count` pairs of each point, and the rest; pairs no longer below the limit are in neither."""
        live = self._keep(self.bound < limit[self.point])
        is_next = live.place() < count
        return live._keep(is_next), live._keep(~is_next)

    def _keep(self, chosen: Bool[Tensor, " pairs"]) -> "Queue":
        return Queue(self.point[chosen], self.site[chosen], self.bound[chosen])
