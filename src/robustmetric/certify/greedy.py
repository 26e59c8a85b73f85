"""The quadratic-program attack on k-NN (Wang et al. 2019): pull a pivot's side of the vote nearer than all others."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from robustmetric.certify.exact import Box, exact_radii, outside_first
from robustmetric.certify.geometry import Sites
from robustmetric.certify.screening import by_class, one_per_point
from robustmetric.certify.voting import Limits, Voter, clamp, foreign_starts, shorten
from robustmetric.numerics.distances import BLOCK, chunks, smallest
from robustmetric.numerics.quadratic_program import Row, smallest_points
from robustmetric.numerics.settings import check_counts, check_factors

NUDGES = (0.0, 1e-9, 1e-6, 1e-4, 1e-2)
"""Smallest points lie on the boundary, where the vote may go either way: shares of the rest of the way to the pivot."""


@dataclass(frozen=True)
class Majority:
    """Problem p: where all sites near[p], of one class, are no farther than any site of other classes but spared[p].

    With a majority of k near and K - k spared, no vote there can go to another class. Pairs come in the order of the
    class that is to win.
    """

    sites: Sites
    z: Float[Tensor, "pairs dim"]
    winner: Int[Tensor, " pairs"]
    near: Int[Tensor, "pairs k"]
    spared: Int[Tensor, "pairs rest"]
    box: Box | None = None

    @classmethod
    def around(
        cls,
        sites: Sites,
        z: Float[Tensor, "pairs dim"],
        centre: Float[Tensor, "pairs dim"],
        winner: Int[Tensor, " pairs"],
        n_neighbors: int,
        box: Box | None,
    ) -> "Majority":
        """The sites of the winner's class nearest to a centre are near, the foreign ones nearest to it are spared."""
        majority = n_neighbors // 2 + 1
        near, spared = winner.new_empty((len(z), majority)), winner.new_empty((len(z), n_neighbors - majority))
        for rows, members in by_class(sites, winner, width=len(sites.w)):
            distance = sites.relative(centre[rows])
            near[rows] = smallest(distance[:, members], majority) + members.start
            distance[:, members] = math.inf
            spared[rows] = smallest(distance, n_neighbors - majority)
        return cls(sites, z, winner, near, spared, box)

    def separate(self, delta: Float[Tensor, "p dim"], pairs: Int[Tensor, " p"]) -> Row:
        """The farthest of the near against the nearest of all others."""
        moved = self.z[pairs] + delta
        near = self.near[pairs]
        distance = self.sites.power[near] - 2 * torch.bmm(self.sites.u[near], moved[:, :, None])[:, :, 0]
        last = near.gather(1, distance.argmax(dim=1, keepdim=True))[:, 0]
        row = self.sites.bisector(self.z[pairs], last, self._nearest_other(moved, pairs))
        return row if self.box is None else outside_first(moved, delta, self.box, row)

    def _nearest_other(self, moved: Float[Tensor, "p dim"], pairs: Int[Tensor, " p"]) -> Int[Tensor, " p"]:
        found = torch.empty_like(pairs)
        for rows, members in by_class(self.sites, self.winner[pairs], width=len(self.sites.w)):
            distance = self.sites.relative(moved[rows])
            distance[:, members] = math.inf
            distance.scatter_(1, self.spared[pairs[rows]], math.inf)
            found[rows] = distance.argmin(dim=1)
        return found


@dataclass(frozen=True)
class Greedy:
    """For 1-NN the exact smallest perturbation, a millionth longer. For k-NN, the shortest from any of several pivots.

    Pivots are the nearest foreign sites whose class can hold a majority. Each solution is improved `rounds` times: near
    and spared sites are chosen anew around it, which it still satisfies, so that the next can only be shorter; pivots
    whose first solution is more than `spread` times as long as the point's best are left out of that.
    """

    pivots: int = 10
    rounds: int = 3
    spread: float = 1.2

    def __post_init__(self) -> None:
        check_counts(pivots=self.pivots)
        check_counts(0, rounds=self.rounds)
        check_factors(spread=self.spread)

    @torch.no_grad()
    def __call__(
        self, voter: Voter, x: Float[Tensor, "n features"], labels: Int[Tensor, " n"], limits: Limits | None = None
    ) -> Float[Tensor, "n features"]:
        """A perturbation of each row; where no pivot gives one, part of the way to a foreign vote, or NaN."""
        sites, box = voter.arranged(limits)
        if voter.n_neighbors == 1:
            best = _into_nearest_cell(sites, sites.coordinates.enter(x), labels, box)
        else:
            best = self._from_pivots(voter, sites, x, labels, limits, box)
        best = clamp(x + best, limits) - x if limits is not None else best
        # A cell may be no more than a tie, where a foreign point coincides with an own one.
        missing = (~voter.differs(x + best.nan_to_num(nan=0.0), labels)).nonzero().flatten()
        best[missing] = shorten(
            voter, x[missing], labels[missing], foreign_starts(voter, x[missing], labels[missing], limits), limits
        )
        return best

    def _from_pivots(
        self, voter: Voter, sites: Sites, x: Tensor, labels: Tensor, limits: Limits | None, box: Box | None
    ) -> Float[Tensor, "n features"]:
        z = sites.coordinates.enter(x)
        pivot = _pivots(sites, z, labels, voter.n_neighbors // 2 + 1, self.pivots)
        point, column = (pivot >= 0).nonzero(as_tuple=True)
        site = pivot[point, column]
        order = site.argsort(stable=True)  # sites are sorted by class
        point, site = point[order], site[order]
        solved, delta = self._solve(sites, z, point, site, voter.n_neighbors, box)
        point, ahead = point[solved], sites.w[site[solved]] - z[point[solved]]
        return _shortest(len(x), point, _nudged(voter, x[point], labels[point], delta, ahead, sites, limits))

    def _solve(
        self, sites: Sites, z: Tensor, point: Tensor, site: Tensor, n_neighbors: int, box: Box | None
    ) -> tuple[Int[Tensor, " solved"], Float[Tensor, "solved dim"]]:
        """Which pairs (point, pivot) can be solved and are worth it, and their smallest perturbations."""
        pairs, delta = torch.arange(len(point), device=z.device), sites.w[site] - z[point]
        for _ in range(1 + self.rounds):
            start = z[point[pairs]]
            problem = Majority.around(sites, start, start + delta, sites.labels[site[pairs]], n_neighbors, box)
            first = problem.separate(torch.zeros_like(start), torch.arange(len(pairs), device=z.device))
            found = smallest_points(problem.separate, first)
            length = torch.linalg.vector_norm(found.point, dim=1).masked_fill(~found.solved, math.inf)
            best = z.new_full((len(z),), math.inf).scatter_reduce_(0, point[pairs], length, "amin")
            kept = found.solved & (length <= self.spread * best[point[pairs]])
            pairs, delta = pairs[kept], found.point[kept]
        return pairs, delta


def _into_nearest_cell(
    sites: Sites, z: Float[Tensor, "n dim"], labels: Int[Tensor, " n"], box: Box | None
) -> Float[Tensor, "n features"]:
    order = labels.argsort(stable=True)
    found = exact_radii(sites, z[order], labels[order], box=box)
    delta = found.inside(sites, z[order], labels[order], box).masked_fill((found.negative < 0)[:, None], float("nan"))
    return torch.empty_like(x := sites.coordinates.leave(delta)).index_copy(0, order, x)


def _pivots(
    sites: Sites, z: Float[Tensor, "n dim"], labels: Int[Tensor, " n"], majority: int, count: int
) -> Int[Tensor, "n count"]:
    """The nearest foreign sites of classes with a majority of members; -1 where there are fewer."""
    enough = torch.bincount(sites.labels) >= majority
    found = []
    for rows in chunks(len(z), BLOCK // len(sites.w)):
        distance = sites.relative(z[rows])
        distance.masked_fill_((sites.labels == labels[rows, None]) | ~enough[sites.labels], math.inf)
        index = smallest(distance, min(count, len(sites.w)))
        found.append(index.masked_fill(distance.gather(1, index) == math.inf, -1))
    return torch.cat(found)


def _nudged(
    voter: Voter, x: Tensor, labels: Tensor, delta: Tensor, to_pivot: Tensor, sites: Sites, limits: Limits | None
) -> Float[Tensor, "pairs features"]:
    """Each perturbation as little further to its pivot as changes the vote, then shortened; NaN where none does."""
    best = torch.full_like(x, float("nan"))
    for share in NUDGES:
        moved = sites.coordinates.leave(delta + share * (to_pivot - delta))
        moved = clamp(x + moved, limits) - x if limits is not None else moved
        index = (best.isnan().any(dim=1) & voter.differs(x + moved, labels)).nonzero().flatten()
        best[index] = moved[index]
    works = (~best.isnan().any(dim=1)).nonzero().flatten()
    best[works] = shorten(voter, x[works], labels[works], best[works], limits)
    return best


def _shortest(count: int, point: Int[Tensor, " pairs"], delta: Float[Tensor, "pairs features"]) -> Tensor:
    """Of the perturbations of each point the shortest; NaN where there is none."""
    length = torch.linalg.vector_norm(delta, dim=1).nan_to_num(nan=math.inf)
    best = length.new_full((count,), math.inf).scatter_reduce_(0, point, length, "amin")
    out = delta.new_full((count, delta.shape[1]), float("nan"))
    wins = one_per_point(point, (length == best[point]) & (length < math.inf), count)
    out[point[wins]] = delta[wins]
    return out
