"""The exact radius of 1-NN under any metric (Wang et al. 2020, Eq. 13): the way into the nearest foreign cell."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from robustmetric.certify.geometry import Sites
from robustmetric.certify.screening import Queue, nearest_member, one_per_point, screen
from robustmetric.numerics.quadratic_program import Row, Smallest, smallest_points

FIRST_WAVE = 2
"""Foreign sites tried per point before the bounds of all others are held against what these gave."""
MARGIN = 1e-6
"""Relative; how much longer than the smallest a perturbation is that no tie is left to."""
WIDE = 1e3
"""Perturbations inside a box count up to this many times the width of the data: a proof ends there.

Rounding errors are in proportion to it, so that a box as good as none does not cost all digits.
"""

Box = tuple[Float[Tensor, " dim"], Float[Tensor, " dim"]]
"""Lowest and highest value of each feature, in the coordinates of the sites."""


@dataclass(frozen=True)
class Exact:
    """What is known of each point's smallest perturbation."""

    radius: Float[Tensor, " n"]
    """Proved: no shorter perturbation leads into a foreign cell."""
    delta: Float[Tensor, "n dim"]
    """A perturbation into the closed cell of site `negative`, as long as the radius up to rounding; 0 where none."""
    negative: Int[Tensor, " n"]
    """-1 where no foreign cell can be reached."""

    def inside(
        self, sites: Sites, z: Float[Tensor, "n dim"], labels: Int[Tensor, " n"], box: "Box | None" = None
    ) -> Float[Tensor, "n dim"]:
        """A perturbation longer by `MARGIN`, or by rounding errors, that ends inside the cell: on towards its own site.

        A longer delta would not do: it may touch a cell at a corner and pass by.
        """
        site = sites.w[self.negative.clamp_min(0)]
        ahead = sites.coordinates.seen(site - z - self.delta)
        if box is not None:
            # A site outside the box does not tell where the cell goes on inside it.
            outside = ((site < box[0]) | (site > box[1])).any(dim=1)
            ahead = torch.where(outside[:, None], self.delta, ahead)
        length = torch.linalg.vector_norm(self.delta, dim=1)
        way = torch.linalg.vector_norm(ahead, dim=1).clamp_min(torch.finfo(length.dtype).tiny)
        share = torch.maximum(MARGIN * length / way, self._share_of_error(sites, z, labels, length / way))
        return self.delta + share.clamp_max(1)[:, None] * ahead

    def _share_of_error(self, sites: Sites, z: Tensor, labels: Tensor, most: Tensor) -> Tensor:
        """The share of the way to the site that makes up for the errors by which rows were moved outwards.

        There the row of the own site in the way gains half of its distance to the negative. Nothing where that would
        take more than `most`: the two sites all but coincide.
        """
        near = self.negative.clamp_min(0)
        far = nearest_member(sites, z + self.delta, labels)
        apart = ((sites.u[near] - sites.u[far]) * (sites.w[near] - sites.w[far])).sum(dim=1)
        share = 4 * sites.error(torch.linalg.vector_norm(z, dim=1)) / apart
        return torch.where((apart > 0) & (share < most), share, 0.0)

    def witness(
        self, sites: Sites, z: Float[Tensor, "n dim"], labels: Int[Tensor, " n"], box: "Box | None" = None
    ) -> Float[Tensor, "n dim"]:
        """A perturbation as long as the smallest, up to rounding, that ends inside the cell when longer by `MARGIN`."""
        return self.inside(sites, z, labels, box) / (1 + MARGIN)


@dataclass(frozen=True)
class Cells:
    """The problems (point, negative): get from z[point] to where the negative is no farther than any own site.

    Points come in the order of their labels; `allowed` leaves out own sites, which makes cells larger.
    """

    sites: Sites
    z: Float[Tensor, "n dim"]
    labels: Int[Tensor, " n"]
    point: Int[Tensor, " pairs"]
    negative: Int[Tensor, " pairs"]
    allowed: Bool[Tensor, "n sites"] | None = None
    box: Box | None = None
    error: Float[Tensor, " n"] | None = None
    """What rows are out by, where not every perturbation of interest is as short as the data are wide."""

    def row(self, pairs: Int[Tensor, " p"], positive: Int[Tensor, " p"]) -> Row:
        """No farther from the negative than from this own site."""
        point = self.point[pairs]
        error = None if self.error is None else self.error[point]
        return self.sites.bisector(self.z[point], self.negative[pairs], positive, error)

    def separate(self, delta: Float[Tensor, "p dim"], pairs: Int[Tensor, " p"]) -> Row:
        """Of all own sites, the one nearest to where delta leads is the one in the way."""
        point = self.point[pairs]
        moved = self.z[point] + delta
        allowed = None if self.allowed is None else self.allowed[point]
        row = self.row(pairs, nearest_member(self.sites, moved, self.labels[point], allowed))
        return row if self.box is None else outside_first(moved, delta, self.box, row)


def outside_first(moved: Tensor, delta: Tensor, box: Box, row: Row) -> Row:
    """The row of the box where that is missed by more than `row` is."""
    normal, offset = row
    missed = (offset - (normal * delta).sum(dim=1)) / torch.linalg.vector_norm(normal, dim=1)
    beyond, feature = torch.maximum(box[0] - moved, moved - box[1]).max(dim=1)
    is_low = (box[0] - moved).gather(1, feature[:, None])[:, 0] == beyond
    sign = torch.where(is_low, 1.0, -1.0).to(delta.dtype)
    start = (moved - delta).gather(1, feature[:, None])[:, 0]
    wall = torch.where(is_low, box[0][feature] - start, start - box[1][feature])
    unit = torch.zeros_like(normal).scatter_(1, feature[:, None], sign[:, None])
    is_box = beyond > missed.nan_to_num(nan=0.0)
    return torch.where(is_box[:, None], unit, normal), torch.where(is_box, wall, offset)


@torch.no_grad()
def exact_radii(
    sites: Sites,
    z: Float[Tensor, "n dim"],
    labels: Int[Tensor, " n"],
    allowed: Bool[Tensor, "n sites"] | None = None,
    box: Box | None = None,
) -> Exact:
    """Smallest perturbations of points of known classes, given in the order of their labels."""
    positive, bound = screen(sites, z, labels)
    search = _Search(sites, z, labels, positive[:, 0], allowed, box)
    search.wave(Queue.first(bound, FIRST_WAVE))
    rest, width = Queue.below(bound, search.best), FIRST_WAVE
    while len(rest):
        width *= 2
        head, rest = rest.split(width, search.best)
        search.wave(head)
    return search.result()


class _Search:
    """Solves pairs in waves and remembers, per point, the best perturbation and what is proved."""

    def __init__(
        self, sites: Sites, z: Tensor, labels: Tensor, positive: Tensor, allowed: Tensor | None, box: Box | None
    ) -> None:
        self.sites, self.z, self.labels, self.positive = sites, z, labels, positive
        self.allowed, self.box = allowed, box
        self.best = z.new_full((len(z),), math.inf)
        self.proved = self.best.clone()
        self.delta = torch.zeros_like(z)
        self.negative = torch.full_like(labels, -1)
        size = torch.linalg.vector_norm(z, dim=1)
        self.slack = sites.rounding * (sites.widest[0] + float(size.amax()))
        self.reach, self.farthest = sites.widest[0] + size, torch.full_like(size, math.inf)
        if box is not None:
            farthest = torch.linalg.vector_norm(torch.maximum((box[0] - z).abs(), (box[1] - z).abs()), dim=1)
            self.reach = torch.minimum(farthest, WIDE * self.reach)
            self.farthest = torch.where(farthest <= self.reach, farthest, math.inf)
        self.error = sites.error(torch.maximum(size, self.reach - sites.widest[0]))

    def wave(self, pairs: Queue) -> None:
        """Solve these pairs."""
        cells = Cells(self.sites, self.z, self.labels, pairs.point, pairs.site, self.allowed, self.box, self.error)
        first = cells.row(torch.arange(len(pairs), device=self.z.device), self.positive[pairs.point])
        reach = None if self.box is None else self.farthest[pairs.point]
        found = smallest_points(cells.separate, first, self.best[pairs.point], reach, self.slack)
        self._keep(pairs, found)

    def _keep(self, pairs: Queue, found: Smallest) -> None:
        point = pairs.point
        # Rows allow for rounding in perturbations within reach; what lies beyond is proved only where nothing does.
        beyond = (found.bound > self.reach[point]) & (self.farthest[point] == math.inf)
        # A cell holds its own site, within reach, so that without a box rounding has misled us there.
        proved = torch.where(beyond, 0.0 if self.box is None else self.reach[point], found.bound)
        proved = torch.maximum(proved, pairs.bound)
        self.proved.scatter_reduce_(0, point, proved, "amin")
        length = torch.linalg.vector_norm(found.point, dim=1).masked_fill(~found.solved, math.inf)
        self.best.scatter_reduce_(0, point, length, "amin")
        wins = one_per_point(point, found.solved & (length == self.best[point]), len(self.z))
        self.delta[point[wins]] = found.point[wins]
        self.negative[point[wins]] = pairs.site[wins]

    def result(self) -> Exact:
        return Exact(self.proved, self.delta, self.negative)
