"""Active-set climbing: rows that no longer move leave the batch, and when all have left the climb is over.

A signed or unit-gradient step moves a row by its gradient alone. A row whose gradient is zero stays where it is, so its
gradient is zero ever after: to leave it out changes nothing. Values that are capped at their goal (a hardness reached,
an item ranked first) have such rows; most others never do.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from robustmetric.perturb.ball import Ascent
from robustmetric.perturb.gradient import value_and_gradient
from robustmetric.types import Inputs

SHARES = (0.25, 0.5, 0.75, 1.0)
"""Batch sizes, as shares of the first: few, since compiling or tuning kernels for a new size costs seconds."""

FINER = (1 / 16, *(eighths / 8 for eighths in range(1, 9)))
"""The same for searches of thousands of steps, which a few rows often outlast by far: no more than an eighth waits."""


@dataclass(frozen=True)
class Rowwise:
    """A value that can be asked about some of its rows alone.

    `value(inputs, *constants)` gives one number per row, from that row alone; each of the `constants` has one entry per
    row. With `width` 3 a row is three inputs (a triplet): inputs lie in three equal blocks, row i the i-th of each.
    """

    value: Callable[..., Tensor]
    constants: tuple[Tensor, ...] = ()
    width: int = 1

    def __call__(self, x: Inputs) -> Tensor:
        return self.value(x, *self.constants)

    def some(self, rows: Int[Tensor, " rows"]) -> "Rowwise":
        """The same value of these rows."""
        return Rowwise(self.value, tuple(constant[rows] for constant in self.constants), self.width)

    def inputs_of(self, rows: Int[Tensor, " rows"], count: int) -> Int[Tensor, " inputs"]:
        """Where the inputs of these rows lie among those of `count` rows."""
        return (torch.arange(self.width, device=rows.device)[:, None] * count + rows).flatten()


def size_for(left: int, count: int, shares: Sequence[float]) -> int:
    """The smallest batch, of these shares of `count` rows, that holds those left."""
    return next(size for share in shares if (size := math.ceil(share * count)) >= left)


def climb_active(
    value: Rowwise, start: Inputs, clean: Inputs, steps: int, ascent_of: Callable[[Inputs], Ascent]
) -> Inputs:
    """`steps` steps up from `start`; `ascent_of(clean)` takes them, for any subset of the inputs."""
    count = len(start) // value.width
    whole, rows = start, torch.arange(count, device=start.device)
    x, move, now, tally = start, ascent_of(clean), value, Tally(start.device)
    for _ in range(steps):
        _, gradient = value_and_gradient(now, x)
        x = move(x, gradient)
        moving = gradient.flatten(1).any(dim=1).view(value.width, -1).any(dim=0)
        left = tally.left(moving)
        if left == 0:
            break
        size = size_for(left, count, SHARES)
        if size < len(rows):
            whole = whole.index_copy(0, value.inputs_of(rows, count), x)
            # Those that move come first; the order is found on the device, only its length is known here.
            rows = rows[moving.argsort(descending=True, stable=True)[:size]]
            places = value.inputs_of(rows, count)
            x, move, now = whole[places], ascent_of(clean[places]), value.some(rows)
    return x if len(rows) == count else whole.index_copy(0, value.inputs_of(rows, count), x)


class Tally:
    """How many rows still move, without making the device wait for the host.

    On a GPU the number is that of the step before: while the host waits for it, the device is busy with the present
    step. Rows only ever come to rest, so an older number is never too small.
    """

    def __init__(self, device: torch.device) -> None:
        self.lag = 1 if device.type == "cuda" else 0
        self._numbers: deque[tuple[Tensor, torch.cuda.Event | None]] = deque()

    def left(self, moving: Bool[Tensor, " rows"]) -> int:
        """Take note of this step; give the rows that move at most."""
        self._numbers.append(self._read(moving.sum()))
        if len(self._numbers) <= self.lag:
            return len(moving)
        number, copied = self._numbers.popleft()
        if copied is not None:
            copied.synchronize()
        return int(number)

    def _read(self, number: Tensor) -> tuple[Tensor, torch.cuda.Event | None]:
        if not number.is_cuda:
            return number, None
        host = torch.empty((), dtype=number.dtype, pin_memory=True)
        host.copy_(number, non_blocking=True)
        copied = torch.cuda.Event()
        # The number's own device, which need not be the current one.
        copied.record(torch.cuda.current_stream(number.device))
        return host, copied
