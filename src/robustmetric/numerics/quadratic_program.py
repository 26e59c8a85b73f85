"""The smallest point of each of many polyhedra: a batched dual active-set method (Goldfarb & Idnani 1983), in float64.

Every iterate is the smallest point under some of the constraints, so its norm only rises, and its multipliers prove a
lower bound whatever ends the search. Only the active rows of each problem are held: a row comes in when a point
violates it, found by a function, so that a problem may have as many rows as it likes.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Row = tuple[Float[Tensor, "n dim"], Float[Tensor, " n"]]
"""The constraints `normal . x >= offset`, one for each of n problems."""
Separate = Callable[[Float[Tensor, "n dim"], Int[Tensor, " n"]], Row]
"""(points, problems) -> for each point the row of its problem that it violates most, or any if it violates none."""

DEPENDENT = 1e-12
"""A unit normal whose part outside the span of the active rows has a smaller square adds no direction of its own."""


@dataclass(frozen=True)
class Smallest:
    """What is known of each problem's smallest point."""

    point: Float[Tensor, "n dim"]
    bound: Float[Tensor, " n"]
    """No feasible point is shorter, whatever rounding did; infinity where it is proved that there is none."""
    solved: Bool[Tensor, " n"]
    """The point satisfies every row, so `bound` is its norm up to rounding; else the search was ended before."""


@dataclass(frozen=True)
class _State:
    """Problems still searched: point = sum of weight * row + entering_weight * entering. Rows have unit normals."""

    problem: Int[Tensor, " n"]
    point: Float[Tensor, "n dim"]
    rows: Float[Tensor, "n active dim"]
    offset: Float[Tensor, "n active"]
    weight: Float[Tensor, "n active"]
    gram: Float[Tensor, "n active active"]
    """Products of the rows; an unused place holds a row of zeros, and 1 on the diagonal."""
    used: Bool[Tensor, "n active"]
    entering: Float[Tensor, "n dim"]
    entering_offset: Float[Tensor, " n"]
    entering_weight: Float[Tensor, " n"]
    is_entering: Bool[Tensor, " n"]
    """A row is on its way in: blocked by an active row's multiplier, which was dropped."""

    def __len__(self) -> int:
        return len(self.problem)

    def keep(self, index: Tensor) -> "_State":
        return _State(*(getattr(self, field.name)[index] for field in fields(self)))

    def bound(self) -> Float[Tensor, " n"]:
        """weight . offset / ||point||: by weak duality no feasible point is shorter, for any weights >= 0."""
        return _quotient(self._dual(), torch.linalg.vector_norm(self.point, dim=1))

    def proved(self, slack: float) -> Float[Tensor, " n"]:
        """`bound` from the weights alone, at the unfavourable end of rounding and of `slack` in every offset."""
        total = self.weight.sum(dim=1) + self.entering_weight
        point = torch.bmm(self.weight[:, None], self.rows)[:, 0] + self.entering_weight[:, None] * self.entering
        largest = torch.maximum(self.offset.abs().amax(dim=1), self.entering_offset.abs())
        rounding = (self.rows.shape[1] + self.rows.shape[2] + 4) * torch.finfo(total.dtype).eps
        length = torch.linalg.vector_norm(point, dim=1) + rounding * total
        return _quotient(self._dual() - (slack + rounding * largest) * total, length).clamp_min(0)

    def _dual(self) -> Float[Tensor, " n"]:
        return (self.weight * self.offset).sum(dim=1) + self.entering_weight * self.entering_offset


@torch.no_grad()
def smallest_points(
    separate: Separate,
    first: Row,
    limit: Float[Tensor, " n"] | None = None,
    reach: Float[Tensor, " n"] | None = None,
    slack: float = 0.0,
    tolerance: float = 1e-10,
    steps: int = 200,
) -> Smallest:
    """The smallest x of each problem: `first` is the row that the origin violates most, `separate` finds all others.

    A problem whose bound reaches its `limit` is given up. Where no feasible point is longer than `reach`, a larger
    bound proves that there is none; without it only a row without a normal does, since rows that contradict one another
    cannot be told from rows that nearly do. Offsets are known, in units of distance, to within `slack`:
    the bounds allow for that, and rows missed by no more than `slack + tolerance * ||x||` count as satisfied. `steps`
    caps the rows that come and go.
    """
    state, out = _start(first, slack)
    limit = torch.full_like(out.bound, math.inf) if limit is None else limit
    for _ in range(steps):
        if not len(state):
            break
        state, satisfied = _enter(state, separate, slack, tolerance)
        state = _finish(state, out, satisfied, slack, solved=True)
        state = _step(state, out, slack)
        state = _finish(state, out, state.bound() >= limit[state.problem], slack, solved=False)
    _finish(state, out, torch.ones_like(state.is_entering), slack, solved=False)
    if reach is not None:
        out.bound[(out.bound > reach) & ~out.solved] = math.inf
    return out


def _start(first: Row, slack: float) -> tuple[_State, Smallest]:
    """Each problem under its first row alone; a problem whose first row holds at the origin is solved there."""
    normal, offset = _unit(*first)
    length = torch.linalg.vector_norm(normal, dim=1)
    violated = offset > slack
    nowhere = violated & (length == 0)
    out = Smallest(torch.zeros_like(normal), torch.where(nowhere, math.inf, torch.zeros_like(offset)), ~violated)
    index = (violated & (length > 0)).nonzero().flatten()
    normal, offset = normal[index], offset[index]
    one = torch.ones_like(offset)
    state = _State(
        problem=index,
        point=normal * offset[:, None],
        rows=normal[:, None],
        offset=offset[:, None],
        weight=offset[:, None].clone(),
        gram=one[:, None, None].clone(),
        used=one[:, None].bool(),
        entering=torch.zeros_like(normal),
        entering_offset=torch.zeros_like(offset),
        entering_weight=torch.zeros_like(offset),
        is_entering=torch.zeros_like(index, dtype=torch.bool),
    )
    return state, out


def _quotient(value: Tensor, length: Tensor) -> Tensor:
    return torch.where(length > 0, value / length.clamp_min(torch.finfo(length.dtype).tiny), 0.0)


def _unit(normal: Tensor, offset: Tensor) -> Row:
    """The same half-space with a normal of length 1; a row without a normal is left as it is."""
    length = torch.linalg.vector_norm(normal, dim=1)
    length = torch.where(length > 0, length, 1.0)
    return normal / length[:, None], offset / length


def _enter(state: _State, separate: Separate, slack: float, tolerance: float) -> tuple[_State, Bool[Tensor, " n"]]:
    """Give each problem without an entering row the one it violates most; the flags say where there is none."""
    satisfied = torch.zeros_like(state.is_entering)
    index = (~state.is_entering).nonzero().flatten()
    if not len(index):
        return state, satisfied
    point = state.point[index]
    normal, offset = _unit(*separate(point, state.problem[index]))
    missed = offset - (normal * point).sum(dim=1)
    satisfied[index] = missed <= slack + tolerance * torch.linalg.vector_norm(point, dim=1)
    if len(index) == len(state):
        return replace(state, entering=normal, entering_offset=offset), satisfied
    return (
        replace(
            state,
            entering=state.entering.index_copy(0, index, normal),
            entering_offset=state.entering_offset.index_copy(0, index, offset),
        ),
        satisfied,
    )


def _finish(state: _State, out: Smallest, done: Bool[Tensor, " n"], slack: float, *, solved: bool) -> _State:
    """Write the results of those that are done; the state of the others."""
    index = done.nonzero().flatten()
    if not len(index):
        return state
    finished = state.keep(index)
    out.point[finished.problem] = finished.point
    out.bound[finished.problem] = finished.proved(slack)
    out.solved[finished.problem] = solved
    return state.keep((~done).nonzero().flatten())


def _step(state: _State, out: Smallest, slack: float) -> _State:
    """Move towards the entering row until it holds, or until an active row's multiplier is used up and the row dropped.

    Where neither can happen, the rows contradict one another, or nearly: these problems end with what that proves.
    """
    products, share, direction = _direction(state)
    size = direction.square().sum(dim=1)
    missed = state.entering_offset - (state.entering * state.point).sum(dim=1)
    whole = torch.where(size > DEPENDENT, missed / size.clamp_min(DEPENDENT), math.inf)
    blocking = state.used & (share > torch.finfo(share.dtype).eps)
    room = torch.where(blocking, state.weight / share.clamp_min(torch.finfo(share.dtype).eps), math.inf)
    room, blocker = room.min(dim=1)
    ended = (whole == math.inf) & (room == math.inf)
    index = ended.nonzero().flatten()
    if len(index):
        smallest = torch.finfo(size.dtype).eps ** 2
        far = missed[index] / size[index].clamp_min(smallest)
        out.bound[state.problem[index]] = _contradiction(state.keep(index), share[index], far, slack)
    length = torch.minimum(whole, room).masked_fill(ended, 0.0)
    moved = replace(
        state,
        point=state.point + torch.where(size > DEPENDENT, length, 0.0)[:, None] * direction,
        weight=(state.weight - length[:, None] * share).clamp_min(0.0),
        entering_weight=state.entering_weight + length,
        is_entering=room < whole,
    )
    if len(index):
        others = (~ended).nonzero().flatten()
        moved, products, blocker = moved.keep(others), products[others], blocker[others]
    return _admit(_drop(moved, blocker), products)


def _contradiction(
    state: _State, share: Float[Tensor, "n active"], far: Float[Tensor, " n"], slack: float
) -> Float[Tensor, " n"]:
    """The best bound on the ray along which the multipliers may grow for ever: at its start, `far` on it, at its end.

    Were the rows a contradiction, bounds would rise without end (Farkas' lemma); how far they do allows for rounding.
    """
    end = replace(state, weight=(-share).clamp_min(0.0) * state.used, entering_weight=torch.ones_like(far))
    between = replace(
        state, weight=state.weight + far[:, None] * end.weight, entering_weight=state.entering_weight + far
    )
    return torch.stack([at.proved(slack) for at in (state, between, end)]).amax(dim=0)


def _direction(state: _State) -> tuple[Float[Tensor, "n active"], Float[Tensor, "n active"], Float[Tensor, "n dim"]]:
    """The entering normal against the rows: products, shares of them, and what of it lies outside their span."""
    products = torch.bmm(state.rows, state.entering[:, :, None])
    factor, _ = torch.linalg.cholesky_ex(state.gram)
    share = torch.cholesky_solve(products, factor)
    direction = torch.baddbmm(state.entering[:, None], share.mT, state.rows, alpha=-1)
    # Once more on what is left: rows that are nearly parallel cost half the digits of the first solution.
    again = torch.cholesky_solve(torch.bmm(state.rows, direction.mT), factor)
    direction = torch.baddbmm(direction, again.mT, state.rows, alpha=-1)
    return products[:, :, 0], (share + again)[:, :, 0], direction[:, 0]


def _drop(state: _State, blocker: Int[Tensor, " n"]) -> _State:
    """Leave out the blocking row of each problem that still has a row entering, in place."""
    index = state.is_entering.nonzero().flatten()
    place = blocker[index]
    for part in (state.rows, state.offset, state.weight, state.used):
        part[index, place] = 0
    state.gram[index, place] = 0
    state.gram[index, :, place] = 0
    state.gram[index, place, place] = 1
    return state


def _admit(state: _State, products: Float[Tensor, "n active"]) -> _State:
    """Make the entering row an active one where it holds now."""
    index = (~state.is_entering).nonzero().flatten()
    if bool(state.used[index].all(dim=1).any()):
        state, products = _widen(state), torch.nn.functional.pad(products, (0, 1))
    place = (~state.used[index]).int().argmax(dim=1)
    state.rows[index, place] = state.entering[index]
    state.offset[index, place] = state.entering_offset[index]
    state.weight[index, place] = state.entering_weight[index]
    state.used[index, place] = True
    known = products[index]
    state.gram[index, place] = known
    state.gram[index, :, place] = known
    state.gram[index, place, place] = 1
    return replace(state, entering_weight=state.entering_weight * state.is_entering)


def _widen(state: _State) -> _State:
    """One more place for a row in every problem."""
    pad = torch.nn.functional.pad
    gram = pad(state.gram, (0, 1, 0, 1))
    gram[:, -1, -1] = 1
    return replace(
        state,
        rows=pad(state.rows, (0, 0, 0, 1)),
        offset=pad(state.offset, (0, 1)),
        weight=pad(state.weight, (0, 1)),
        used=pad(state.used, (0, 1)),
        gram=gram,
    )
