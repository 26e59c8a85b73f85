"""The vote of the k nearest training points, and what every attack on it shares."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from robustmetric.certify.exact import Box
from robustmetric.certify.geometry import Matrix, Sites
from robustmetric.numerics.distances import block, chunks, nearest, smallest
from robustmetric.numerics.spectrum import factor

Limits = tuple[Float[Tensor, " features"], Float[Tensor, " features"]]
"""The lowest and the highest value of each feature."""
STARTS = 20
"""Training points of other classes that are asked first for a foreign vote, from the nearest on."""


@dataclass(frozen=True)
class Voter:
    """k-NN: the smaller label wins a tied vote, and a tied distance. Labels are 0, 1, ... without gaps."""

    inputs: Float[Tensor, "sites features"]
    labels: Int[Tensor, " sites"]
    n_neighbors: int = 1
    matrix: Matrix | None = None
    """Of the metric; None is the Euclidean one."""

    @property
    def classes(self) -> int:
        return len(self.sites.first) - 1

    @cached_property
    def sites(self) -> Sites:
        return Sites.of(self.inputs, self.labels, self.matrix)

    @cached_property
    def root(self) -> Float[Tensor, "features rank"] | None:
        """L of the metric L L^T."""
        return None if self.matrix is None else factor(self.matrix)

    def embed(self, x: Float[Tensor, "n features"]) -> Float[Tensor, "n rank"]:
        """Rows whose Euclidean distances are those of the metric."""
        return x if self.root is None else x @ self.root

    @cached_property
    def embedding(self) -> Float[Tensor, "sites rank"]:
        return self.embed(self.inputs)

    def arranged(self, limits: Limits | None) -> tuple[Sites, Box | None]:
        """The sites, and the limits in their coordinates: those of the inputs, where there are limits."""
        if limits is None:
            return self.sites, None
        sites = Sites.of(self.inputs, self.labels, self.matrix, keep_axes=True)
        return sites, (limits[0] - sites.coordinates.origin, limits[1] - sites.coordinates.origin)

    @torch.no_grad()
    def __call__(self, x: Float[Tensor, "n features"]) -> Int[Tensor, " n"]:
        """The label of each row."""
        found = torch.empty(len(x), dtype=torch.long, device=x.device)
        for rows in chunks(len(x), block(x) // len(self.labels)):
            distance = self.sites.relative(self.sites.coordinates.enter(x[rows]))
            # Sites are sorted by label, and of equal values both take the first.
            if self.n_neighbors == 1:
                found[rows] = self.sites.labels[distance.argmin(dim=1)]
            else:
                found[rows] = self._plurality(smallest(distance, self.n_neighbors))
        return found

    def _plurality(self, index: Int[Tensor, "n k"]) -> Int[Tensor, " n"]:
        votes = torch.zeros((len(index), self.classes), dtype=torch.long, device=index.device)
        votes.scatter_add_(1, self.sites.labels[index], torch.ones_like(index))
        return votes.argmax(dim=1)

    def differs(self, x: Float[Tensor, "n features"], labels: Int[Tensor, " n"]) -> Bool[Tensor, " n"]:
        """Where the vote is not for the label."""
        return self(x) != labels


Attack = Callable[[Voter, Float[Tensor, "n features"], Int[Tensor, " n"], Limits | None], Float[Tensor, "n features"]]
"""(voter, rows, their labels, limits) -> a perturbation of each row that changes its vote; NaN where none was found."""


def clamp(x: Float[Tensor, "n features"], limits: Limits | None) -> Float[Tensor, "n features"]:
    """`x` inside the limits, if there are any."""
    return x if limits is None else torch.minimum(torch.maximum(x, limits[0]), limits[1])


def is_inside(
    x: Float[Tensor, "n features"], delta: Float[Tensor, "n features"], limits: Limits | None
) -> Bool[Tensor, " n"]:
    """Which rows x + delta lie inside the limits, up to the rounding of a difference that is added again."""
    if limits is None:
        return torch.ones(len(x), dtype=torch.bool, device=x.device)
    moved, error = x + delta, 4 * torch.finfo(x.dtype).eps * (x.abs() + delta.abs())
    return ((moved - clamp(moved, limits)).abs() <= error).all(dim=1)


def shorten(
    voter: Voter,
    x: Float[Tensor, "n features"],
    labels: Int[Tensor, " n"],
    delta: Float[Tensor, "n features"],
    limits: Limits | None = None,
    steps: int = 25,
) -> Float[Tensor, "n features"]:
    """A part of each perturbation that still changes the vote, inside the limits, found by halving.

    What changes none stays as it is.
    """
    works = ~delta.isnan().any(dim=1)
    works &= voter.differs(x + delta.nan_to_num(nan=0.0), labels)
    index = works.nonzero().flatten()
    x, labels, whole = x[index], labels[index], delta[index]
    low, high = torch.zeros_like(whole[:, 0]), torch.ones_like(whole[:, 0])
    for _ in range(steps if len(index) else 0):
        middle = (low + high) / 2
        part = middle[:, None] * whole
        flipped = voter.differs(x + part, labels) & is_inside(x, part, limits)
        low, high = torch.where(flipped, low, middle), torch.where(flipped, middle, high)
    return delta.index_copy(0, index, high[:, None] * whole)


def foreign_starts(
    voter: Voter, x: Float[Tensor, "n features"], labels: Int[Tensor, " n"], limits: Limits | None
) -> Float[Tensor, "n features"]:
    """The way from each row to the nearest training point of another class whose own vote is foreign, or NaN."""
    found = torch.full_like(x, float("nan"))
    for label in labels.unique().tolist():
        rows = (labels == label).nonzero().flatten()
        foreign = clamp(voter.inputs[voter.labels != label], limits)
        asked, count = 0, STARTS
        while len(rows) and asked < len(foreign):
            count = min(count, len(foreign))
            _, index = nearest(x[rows], foreign, count)
            # A point is asked once, however many rows it is near to.
            near, place = index[:, asked:].unique(return_inverse=True)
            is_foreign = voter.differs(foreign[near], torch.full_like(near, label))[place]
            works = is_foreign.any(dim=1)
            start = foreign[index[:, asked:].gather(1, is_foreign.int().argmax(dim=1, keepdim=True))[:, 0]]
            found[rows[works]] = (start - x[rows])[works]
            rows, asked, count = rows[~works], count, 8 * count
    return found
