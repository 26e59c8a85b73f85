"""Rows of an array brought to a device ahead of their use, and how long a loop waited for them."""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from itertools import cycle
from typing import TypeVar

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

AHEAD = 2
"""Batches fetched before they are asked for; on a GPU each has a pinned buffer of its own."""

Item = TypeVar("Item")
Fetched = TypeVar("Fetched")


@dataclass(frozen=True)
class Raw:
    """A batch as it is stored: its rows of the split and, unless they are on the device anyway, its inputs."""

    rows: Int[Tensor, " batch"]
    inputs: Shaped[Tensor, "batch *shape"] | None
    copied: torch.cuda.Event | None = None
    """Set where the copy to the device may still be under way: `settled` before use."""

    def settled(self) -> "Raw":
        """The same batch, safe to use on the current stream: the device waits for the copy, the host does not."""
        if self.copied is None:
            return self
        current = torch.cuda.current_stream(self.rows.device)
        current.wait_event(self.copied)
        for tensor in (self.rows, self.inputs):
            if tensor is not None:
                # It was allocated on the copying stream, which must not reuse its memory while this one reads it.
                tensor.record_stream(current)
        return Raw(self.rows, self.inputs)


def ahead(fetch: Callable[[Item], Fetched], items: Iterable[Item]) -> Generator[Fetched, None, None]:
    """`fetch` of each item, in order, done in a thread that is up to `AHEAD` items in front of the reader.

    What `fetch` raises is raised here, in its turn. The thread ends with the generator: once the items are used up, or
    as soon as the generator is closed, which an early end of the loop that reads it does; a `fetch` under way is waited
    for.
    """
    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="loading")
    pending: deque[Future[Fetched]] = deque()
    try:
        for item in items:
            pending.append(pool.submit(fetch, item))
            if len(pending) > AHEAD:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


class Pinned:
    """Fetches rows of a host array to a GPU: gathered into pinned memory, copied on a stream of its own.

    The copies run beside the work of other streams; `Raw.settled` orders them before their use. Where `inputs` is None,
    only the row numbers are brought over.
    """

    def __init__(self, inputs: Shaped[Tensor, "n *shape"] | None, device: torch.device, largest: int) -> None:
        self.inputs, self.device = inputs, device
        self.stream = torch.cuda.Stream(device)
        self._buffers = cycle([_Buffer.of(inputs, largest) for _ in range(AHEAD)])

    def __call__(self, rows: Int[Tensor, " batch"]) -> Raw:
        buffer = next(self._buffers)
        if buffer.copied is not None:
            buffer.copied.synchronize()  # in the fetching thread: its last batch has left before this one comes in
        numbers = buffer.rows[: len(rows)].copy_(rows)
        inputs = None
        if self.inputs is not None and buffer.inputs is not None:
            inputs = torch.index_select(self.inputs, 0, rows, out=buffer.inputs[: len(rows)])
        with torch.cuda.stream(self.stream):
            there = numbers.to(self.device, non_blocking=True)
            moved = None if inputs is None else inputs.to(self.device, non_blocking=True)
            buffer.copied = self.stream.record_event()
        return Raw(there, moved, buffer.copied)


@dataclass
class _Buffer:
    """Pinned memory for one batch; free again once `copied` has happened."""

    rows: Int[Tensor, " largest"]
    inputs: Shaped[Tensor, "largest *shape"] | None
    copied: torch.cuda.Event | None = None

    @staticmethod
    def of(inputs: Tensor | None, largest: int) -> "_Buffer":
        rows = torch.empty(largest, dtype=torch.long, pin_memory=True)
        if inputs is None:
            return _Buffer(rows, None)
        return _Buffer(rows, torch.empty((largest, *inputs.shape[1:]), dtype=inputs.dtype, pin_memory=True))


class Wait:
    """How long a loop waited for its batches; it counts from the moment it is made.

    A wait is the time between asking for a batch and having it, on the host: nothing is synchronised for it. A GPU may
    wait less, busy with what was queued before; and where copies are what is slow, it waits for the last few of them
    unseen, until the fetching thread runs out of free buffers and the host waits too.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self._began = time.monotonic()

    def on(self, batches: Generator[Fetched, None, None]) -> Iterator[Fetched]:
        """The same batches, their waits counted; a loop that ends early closes `batches` too."""
        with closing(batches):
            while True:
                asked = time.monotonic()
                try:
                    batch = next(batches)
                except StopIteration:
                    return
                finally:
                    self.seconds += time.monotonic() - asked
                yield batch

    @property
    def share(self) -> float:
        """Of the time since it was made, 0 to 1."""
        return self.seconds / max(time.monotonic() - self._began, self.seconds, 1e-9)
