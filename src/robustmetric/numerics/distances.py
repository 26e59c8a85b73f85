"""Distances and exact neighbours: the only place that measures distance. Memory is bounded by chunks."""

import math
from collections.abc import Callable, Iterator

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from robustmetric.errors import InputError

BLOCK = 2**22
"""Distances held at one time; a handful of arrays of this size are alive together (16 MiB each in float32)."""
GPU_BLOCK = 2**24
"""The same on a GPU, which has the memory, and waits for the next call where calls are small."""
GROUP = 64
"""Columns whose minimum stands for them when the smallest of a long row are sought."""
ROUNDING = 8.0
"""Squared distances under `ROUNDING * epsilon * (|a|^2 + |b|^2)` are rounding error: the rows coincide."""


def pairwise(a: Float[Tensor, "n dim"], b: Float[Tensor, "m dim"]) -> Float[Tensor, "n m"]:
    """Euclidean distance of every row of `a` to every row of `b`, by matrix product, in float32 or better.

    Rows that agree up to rounding are at distance exactly 0, with gradient 0 (not NaN).
    """
    a, b = _precise(a, b)
    # A shift changes no distance, and keeps the digits when all points lie close together (a collapsed model).
    origin = b[:1].sum(dim=0).detach()
    a, b = a - origin, b - origin
    with torch.autocast(a.device.type, enabled=False):
        size = a.square().sum(dim=1)[:, None] + b.square().sum(dim=1)
        squared = torch.addmm(size, a, b.T, alpha=-2)
    coincide = squared <= ROUNDING * torch.finfo(size.dtype).eps * size.detach()
    return squared.masked_fill(coincide, 1).sqrt().masked_fill(coincide, 0)


@torch.no_grad()
def from_even_rows(rows: Float[Tensor, "n dim"]) -> Float[Tensor, "half n"]:
    """`pairwise(rows[0::2], rows)` in two thirds of its time: one shift and one norm per row, and no gradient."""
    rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
    rows = rows - rows[0]
    size = rows.square().sum(dim=1)
    squared = size[0::2, None] + size
    rounding = squared * (ROUNDING * torch.finfo(squared.dtype).eps)
    squared.addmm_(rows[0::2], rows.T, alpha=-2)  # in place, and so in full precision under autocast too
    return squared.masked_fill_(squared <= rounding, 0).sqrt_()


def squared_within(rows: Float[Tensor, "n dim"]) -> Callable[[Int[Tensor, " m"]], Float[Tensor, "m n"]]:
    """Squared distances of chosen rows to all rows, by one matrix product for each choice; no gradient.

    For many choices among the same rows: their shift and their norms are worked out once.
    """
    rows = rows.detach().to(torch.promote_types(rows.dtype, torch.float32))
    rows = rows - rows[0]
    size = rows.square().sum(dim=1)

    def squared(chosen: Tensor) -> Tensor:
        found = size[chosen, None] + size
        rounding = found * (ROUNDING * torch.finfo(found.dtype).eps)
        found.addmm_(rows[chosen], rows.T, alpha=-2)  # in place, and so in full precision under autocast too
        return found.masked_fill_(found <= rounding, 0)

    return squared


def are_unit(rows: Float[Tensor, "n dim"]) -> Bool[Tensor, ""]:
    """Whether all rows have length 1, to a hundredth: the distance of two is then from 0 to 2."""
    return ((rows.norm(dim=1) - 1).abs() < 0.01).all()


def paired(a: Float[Tensor, "n dim"], b: Float[Tensor, "n dim"]) -> Float[Tensor, " n"]:
    """Euclidean distance of each row of `a` to the same row of `b`; gradient 0 (not NaN) where they coincide."""
    a, b = _precise(a, b)
    return torch.linalg.vector_norm(a - b, dim=1)


@torch.no_grad()
def nearest(
    queries: Float[Tensor, "n dim"],
    items: Float[Tensor, "items dim"],
    k: int,
    exclude: Int[Tensor, "n *excluded"] | None = None,
    chunk: int | None = None,
) -> tuple[Float[Tensor, "n k"], Int[Tensor, "n k"]]:
    """Distances and indices of the exact k nearest items of each query, nearest first, ties by lower index.

    `exclude[i]` is the item (or, as a row, the items) that query i may not retrieve, -1 for none. `chunk` is how many
    items are compared at a time; by default it follows from the sizes.
    """
    check_rows(queries, items, exclude)
    available = len(items) - _most_excluded(exclude)
    if not 1 <= k <= available:
        raise InputError(f"k = {k} neighbours asked of {available} items; expected 1 <= k <= {available}")
    chunk = chunk or _item_chunk(len(items), at_least=k)
    found = [
        _nearest_of_few(queries[rows], items, k, None if exclude is None else exclude[rows], chunk)
        for rows in chunks(len(queries), BLOCK // chunk)
    ]
    if not found:
        return queries.new_zeros((0, k)), torch.zeros((0, k), dtype=torch.long, device=queries.device)
    distances, indices = zip(*found, strict=True)
    return torch.cat(distances), torch.cat(indices)


@torch.no_grad()
def count_closer(
    queries: Float[Tensor, "n dim"],
    items: Float[Tensor, "items dim"],
    distance: Float[Tensor, " n"],
    exclude: Int[Tensor, "n *excluded"] | None = None,
    chunk: int | None = None,
) -> Int[Tensor, " n"]:
    """How many items lie strictly closer to query i than `distance[i]`: the rank, from 0, of what is that far.

    When what is that far is itself an item, exclude it: its distance measured here may differ in the last digit.
    """
    check_rows(queries, items, exclude)
    chunk = chunk or _item_chunk(len(items))
    counts = torch.zeros(len(queries), dtype=torch.long, device=queries.device)
    for rows in chunks(len(queries), BLOCK // chunk):
        for columns in chunks(len(items), chunk):
            distances = pairwise(queries[rows], items[columns])
            if exclude is not None:
                mask_excluded(distances, exclude[rows], first=columns.start)
            counts[rows] += (distances < distance[rows, None]).sum(dim=1)
    return counts


def mask_excluded(distances: Float[Tensor, "n m"], exclude: Int[Tensor, "n *excluded"], first: int = 0) -> None:
    """Put excluded items infinitely far away, in place; column 0 of `distances` is item `first`."""
    last = distances.shape[1] - 1
    for column in _columns(exclude).unbind(dim=1):
        place = (column - first)[:, None]
        inside = (place >= 0) & (place <= last)
        place = place.clamp(0, last)
        # Rows with nothing to exclude write back what they hold: no host synchronisation.
        distances.scatter_(1, place, distances.gather(1, place).masked_fill(inside, math.inf))


def smallest(values: Float[Tensor, "n m"], k: int, *, any_tie: bool = False) -> Int[Tensor, "n k"]:
    """Columns of the k smallest values of each row, in order, ties by lower column. No value may be NaN.

    With `any_tie` ties fall as they may, in less time.
    """
    width = values.shape[1]
    whole = width // GROUP * GROUP
    if whole < 4 * k * GROUP:
        return _first(values, k, any_tie)
    # The k smallest lie in the k groups with the smallest minima (of equal minima, those that come first), or after.
    chosen = _first(values[:, :whole].unflatten(1, (-1, GROUP)).amin(dim=2), k, any_tie)
    chosen = (chosen if any_tie else chosen.sort(dim=1).values)[:, :, None]
    columns = (chosen * GROUP + torch.arange(GROUP, device=values.device)).flatten(1)
    rest = torch.arange(whole, width, device=values.device).expand(len(values), -1)
    columns = torch.cat([columns, rest], dim=1)
    return columns.gather(1, _first(values.gather(1, columns), k, any_tie))


def _first(values: Tensor, k: int, any_tie: bool) -> Int[Tensor, "n k"]:
    if any_tie:
        return values.topk(k, dim=1, largest=False).indices
    return values.sort(dim=1, stable=True).indices[:, :k]


def block(x: Tensor) -> int:
    """How many distances to hold at one time where `x` lies."""
    return GPU_BLOCK if x.is_cuda else BLOCK


def chunks(total: int, size: int) -> Iterator[slice]:
    """Slices of at most `size` that cover `range(total)` in order."""
    for start in range(0, total, max(1, size)):
        yield slice(start, min(start + max(1, size), total))


def check_rows(queries: Tensor, items: Tensor, exclude: Tensor | None) -> None:
    """Refuse what has no nearest neighbour: NaN and infinity, and indices of items that are not there."""
    for name, rows in (("queries", queries), ("items", items)):
        # The sum of the extremes is finite only if all are: no array of flags beside a large gallery.
        if rows.numel() and not bool(torch.isfinite(rows.amin() + rows.amax())):
            raise InputError(f"{name} hold NaN or infinity; expected finite embeddings: check the model and its input")
    if exclude is not None and exclude.numel() and int(exclude.max()) >= len(items):
        raise InputError(
            f"exclude names item {int(exclude.max())}; expected indices below {len(items)}, or -1 for none"
        )


def _nearest_of_few(
    queries: Tensor, items: Tensor, k: int, exclude: Tensor | None, chunk: int
) -> tuple[Float[Tensor, "n k"], Int[Tensor, "n k"]]:
    """`nearest` for as many queries as fit beside one chunk: the best so far are merged with each chunk's best."""
    best: list[tuple[Tensor, Tensor]] = []
    for columns in chunks(len(items), chunk):
        distances = pairwise(queries, items[columns])
        if exclude is not None:
            mask_excluded(distances, exclude, first=columns.start)
        here = smallest(distances, min(k, distances.shape[1]))
        best.append((distances.gather(1, here), here + columns.start))
        # Earlier chunks come first and hold lower indices, so a stable order keeps ties by index.
        values, indices = (torch.cat(part, dim=1) for part in zip(*best, strict=True))
        order = values.sort(dim=1, stable=True).indices[:, :k]
        best = [(values.gather(1, order), indices.gather(1, order))]
    return best[0]


def _item_chunk(items: int, at_least: int = 1) -> int:
    """Items compared at a time: long enough for an efficient product, short enough that many queries fit beside it."""
    return max(1, min(items, max(2**14, 8 * at_least * GROUP)))


def _columns(exclude: Tensor) -> Int[Tensor, "n excluded"]:
    return exclude.flatten(1) if exclude.dim() > 1 else exclude[:, None]


def _most_excluded(exclude: Tensor | None) -> int:
    """The largest number of items that any one query may not retrieve."""
    return 0 if exclude is None or not exclude.numel() else int((_columns(exclude) >= 0).sum(dim=1).max())


def _precise(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Both in the wider of their types, float32 at least: half precision cannot tell near neighbours apart."""
    dtype = torch.promote_types(torch.promote_types(a.dtype, b.dtype), torch.float32)
    return a.to(dtype), b.to(dtype)
