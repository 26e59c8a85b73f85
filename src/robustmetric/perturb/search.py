"""What engines keep while they look: the best point of each row, and the rows that have yet to reach their goal."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, TypeVar, cast

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from robustmetric.perturb.active import FINER, Rowwise, Tally, size_for
from robustmetric.types import Inputs, Value

State = TypeVar("State")
"""A dataclass of tensors, each with one entry per row or per input."""


class Search:
    """The best point seen for each row at hand; with a goal, rows whose height reaches it leave, as in `climb_active`.

    What is climbed need not be the value: engines that look for the nearest point across a boundary keep minus its
    distance. Rows leave a `Rowwise` value alone; of another, all rows stay until all have reached the goal.
    """

    def __init__(self, value: Value, best: Inputs, height: Tensor, goal: float | None) -> None:
        self.value = value
        """Of the rows at hand."""
        self.best, self.height, self.goal = best, height, goal
        self.over = False
        """Whether every row has reached the goal."""
        self._all, self._whole = value, (best, height)
        self._rows, self._tally = torch.arange(len(height), device=height.device), Tally(height.device)

    def offer(self, x: Inputs, height: Tensor) -> Bool[Tensor, " rows"]:
        """Keep these points where they are higher (NaN never is) and the row is not yet at its goal; says where."""
        wins = is_higher(height, self.height)
        if self.goal is not None:
            wins = wins & ~(self.height >= self.goal)
        self.best = torch.where(per_input(wins, x), x, self.best)
        self.height = torch.where(wins, height, self.height)
        return wins

    def narrowed(self, state: State) -> State:
        """The state of the rows that go on; those at their goal leave once enough of them have got there."""
        if self.goal is None:
            return state
        searching = ~(self.height >= self.goal)
        left = self._tally.left(searching)
        self.over = left == 0
        count = len(self._whole[1])
        size = size_for(left, count, FINER)
        if self.over or size >= len(searching) or not isinstance(self._all, Rowwise):
            return state
        self._whole = self.result()
        # Those that search come first; the order is found on the device, only its length is known here.
        kept = searching.argsort(descending=True, stable=True)[:size]
        places = self._all.inputs_of(kept, len(searching))
        self._rows = self._rows[kept]
        self.value, self.best, self.height = self._all.some(self._rows), self.best[places], self.height[kept]
        return _some(state, kept, places, rows_before=len(searching))

    def result(self) -> tuple[Inputs, Tensor]:
        """The best point and its height of every row, those that left included."""
        best, height = self._whole
        if not isinstance(self._all, Rowwise):
            return self.best, self.height
        places = self._all.inputs_of(self._rows, len(height))
        return best.index_copy(0, places, self.best), height.index_copy(0, self._rows, self.height)


def _some(state: State, rows: Int[Tensor, " some"], places: Int[Tensor, " inputs"], *, rows_before: int) -> State:
    dataclass = cast(Any, state)
    tensors = {field.name: getattr(dataclass, field.name) for field in fields(dataclass)}
    chosen = {name: tensor[rows if len(tensor) == rows_before else places] for name, tensor in tensors.items()}
    return cast(State, replace(dataclass, **chosen))


def is_higher(height: Tensor, other: Tensor) -> Tensor:
    """Where the first of two heights is larger; NaN never is."""
    return (height > other) | (other.isnan() & ~height.isnan())


def kept(
    x: Inputs, height: Tensor, other: Inputs, other_height: Tensor, *, ties: bool = False
) -> tuple[Inputs, Tensor]:
    """Per row, whichever of two points is higher; of a tie, the first, or with `ties` the other."""
    wins = is_higher(other_height, height)
    if ties:
        wins = wins | (other_height == height)
    return torch.where(per_input(wins, x), other, x), torch.where(wins, other_height, height)


def per_input(values: Tensor, x: Inputs) -> Tensor:
    """One value per row, shaped to multiply `x`; a row of several inputs (Rowwise.width) has it at each of them."""
    return values.repeat(len(x) // len(values)).view(-1, *[1] * (x.dim() - 1))


Climb = Callable[[Value, Inputs, int], tuple[Inputs, Tensor]]
"""(value, clean, how many were before it) -> the best points and their heights."""


def best_of(climb: Climb, value: Value, clean: Inputs, *, times: int, goal: float | None) -> tuple[Inputs, Tensor]:
    """The best of several climbs per row; rows of a `Rowwise` value that have reached the goal climb no more."""
    best, height = climb(value, clean, 0)
    for before in range(1, times):
        if goal is None or not isinstance(value, Rowwise):
            best, height = kept(best, height, *climb(value, clean, before))
            continue
        rows = (~(height >= goal)).nonzero()[:, 0]
        if len(rows) == 0:
            break
        places = value.inputs_of(rows, len(height))
        other, other_height = kept(best[places], height[rows], *climb(value.some(rows), clean[places], before))
        best, height = best.index_copy(0, places, other), height.index_copy(0, rows, other_height)
    return best, height
