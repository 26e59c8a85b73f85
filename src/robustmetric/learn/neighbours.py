"""Whom a triplet learner compares: the nearest rows of the same class and of the others, found class by class."""

import warnings
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.numerics.distances import block, chunks, smallest


@dataclass(frozen=True)
class Candidates:
    """Of each anchor, nearest first; places beyond an anchor's count are filled with row 0 and never chosen."""

    anchors: Int[Tensor, " anchors"]
    positives: Int[Tensor, "anchors k"]
    positive_count: Int[Tensor, " anchors"]
    negatives: Int[Tensor, "anchors k"]
    negative_count: Int[Tensor, " anchors"]

    def __len__(self) -> int:
        return len(self.anchors)


class Classes:
    """The rows of each class, and those of all others; found once, since labels do not change."""

    def __init__(self, labels: Int[Tensor, " n"], positives: int = 1, negatives: int = 1) -> None:
        """Rows with at least so many other rows of their class, and so many of others, are anchors."""
        self.sizes: list[int] = torch.bincount(labels).tolist()
        usable = [c for c, size in enumerate(self.sizes) if size > positives and len(labels) - size >= negatives]
        if not usable:
            raise InputError(
                f"no row has {positives} others of its class and {negatives} of other classes (class sizes are "
                f"{min(self.sizes)} to {max(self.sizes)}); expected more rows per class"
            )
        self.members = [torch.nonzero(labels == c).flatten() for c in usable]
        self.others = [torch.nonzero(labels != c).flatten() for c in usable]

    def warn(self, n_neighbors: int) -> None:
        """Say, at the caller of `fit`, that some classes have fewer than `n_neighbors` rows beside the anchor."""
        small = sum(size <= n_neighbors for size in self.sizes)
        if small:
            warnings.warn(
                f"{small} of {len(self.sizes)} classes have at most {n_neighbors} rows (the smallest "
                f"{min(self.sizes)}); their rows have fewer than n_neighbors = {n_neighbors} neighbours of their class",
                stacklevel=4,
            )

    def candidates(self, z: Float[Tensor, "n dim"], n_neighbors: int) -> Candidates:
        """The `n_neighbors` nearest (fewer where a class has fewer) of each anchor on both sides."""
        positives, negatives = [], []
        for members, others in zip(self.members, self.others, strict=True):
            own = z[members]
            k = min(n_neighbors, len(members) - 1)
            positives.append(members[near(own, own, k, leave_out_self=True)])
            negatives.append(others[near(own, z[others], min(n_neighbors, len(others)))])
        return Candidates(torch.cat(self.members), *_stacked(positives, n_neighbors), *_stacked(negatives, n_neighbors))


@torch.no_grad()
def near(
    queries: Float[Tensor, "n dim"], items: Float[Tensor, "items dim"], k: int, leave_out_self: bool = False
) -> Int[Tensor, "n k"]:
    """Indices of the k nearest items of each query, nearest first; ties fall as they may.

    Candidates need an order, not distances: |item|^2 / 2 - query . item orders them in a third of the time or less that
    `numerics.distances.nearest` takes for exact distances and ties by index. `leave_out_self`: query i is item i.
    """
    half = items.square().sum(dim=1) / 2
    found = []
    for rows in chunks(len(queries), block(items) // len(items)):
        order = torch.addmm(half, queries[rows], items.T, alpha=-1)
        if leave_out_self:
            order.diagonal(rows.start).fill_(torch.inf)
        found.append(smallest(order, k, any_tie=True))
    return torch.cat(found)


def draw(
    candidates: Candidates, rows: Int[Tensor, " n"] | slice, generator: torch.Generator
) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"], Int[Tensor, " n"]]:
    """Anchors, and for each one of its positives and one of its negatives, uniformly at random (Eq. 12)."""
    anchors = candidates.anchors[rows]
    share = torch.rand((2, len(anchors)), generator=generator, device=anchors.device)
    positive = (share[0] * candidates.positive_count[rows]).long()
    negative = (share[1] * candidates.negative_count[rows]).long()
    return anchors, _pick(candidates.positives[rows], positive), _pick(candidates.negatives[rows], negative)


@torch.no_grad()
def binding(
    candidates: Candidates, rows: Int[Tensor, " n"] | slice, x: Tensor, factor: Tensor, ranks: tuple[int, int]
) -> tuple[Int[Tensor, " n"], Int[Tensor, " n"], Int[Tensor, " n"]]:
    """Anchors, and the pair of candidates where the bound of Theorem 1 is reached (Eq. 11).

    With `ranks` = (k, l): the l-th smallest over negatives of the k-th largest over positives of the margin.
    """
    z = x @ factor.T
    u = z @ factor
    anchors = candidates.anchors[rows]
    found = [
        _binding_of_few(candidates.anchors[rows][part], *_lists(candidates, rows, part), z, u, ranks)
        for part in chunks(len(anchors), block(x) // max(1, candidates.positives.shape[1] * x.shape[1]))
    ]
    positives, negatives = zip(*found, strict=True)
    return anchors, torch.cat(positives), torch.cat(negatives)


def _binding_of_few(
    anchors: Tensor,
    p: Tensor,
    p_count: Tensor,
    n: Tensor,
    n_count: Tensor,
    z: Tensor,
    u: Tensor,
    ranks: tuple[int, int],
) -> tuple[Tensor, Tensor]:
    to_p = (z[p] - z[anchors][:, None]).square().sum(dim=2)
    to_n = (z[n] - z[anchors][:, None]).square().sum(dim=2)
    length = torch.cdist(u[p], u[n], compute_mode="donot_use_mm_for_euclid_dist")
    margin = (to_n[:, None, :] - to_p[:, :, None]) / (2 * length.clamp_min(torch.finfo(z.dtype).tiny))
    places = torch.arange(p.shape[1], device=z.device)
    margin.masked_fill_((places >= p_count[:, None])[:, :, None], -torch.inf)
    own_rank, foreign_rank = ranks
    values, places_p = margin.sort(dim=1, descending=True)
    column, at_p = values[:, own_rank - 1], places_p[:, own_rank - 1]
    column = column.masked_fill(places >= n_count[:, None], torch.inf)
    at_n = column.sort(dim=1).indices[:, foreign_rank - 1]
    return _pick(p, _pick(at_p, at_n)), _pick(n, at_n)


def _lists(candidates: Candidates, rows: Tensor | slice, part: slice) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return (
        candidates.positives[rows][part],
        candidates.positive_count[rows][part],
        candidates.negatives[rows][part],
        candidates.negative_count[rows][part],
    )


def _stacked(lists: list[Tensor], width: int) -> tuple[Int[Tensor, "anchors k"], Int[Tensor, " anchors"]]:
    """Lists of several widths below one another, filled with 0, and the width of each row."""
    count = torch.cat([part.new_full((len(part),), part.shape[1]) for part in lists])
    filled = [torch.nn.functional.pad(part, (0, width - part.shape[1])) for part in lists]
    return torch.cat(filled), count


def _pick(lists: Int[Tensor, "n k"], place: Int[Tensor, " n"]) -> Int[Tensor, " n"]:
    return lists.gather(1, place[:, None])[:, 0]
