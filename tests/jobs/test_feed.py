"""The feed: the same batches whatever way they take to the device."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from robustmetric.data.base import Split
from robustmetric.data.protocols import Transform
from robustmetric.data.transforms import Identity, RandomCrop
from robustmetric.errors import InputError
from robustmetric.jobs.feed import Feed
from robustmetric.jobs.loading import Wait
from robustmetric.numerics.randomness import generator
from robustmetric.types import Batch

CPU = torch.device("cpu")
ROWS = [torch.tensor(rows) for rows in ([5, 0, 3, 3], [1, 2, 9, 8], [7, 6, 4, 0], [2, 5, 1, 3], [9])]
"""Batches as a sampler gives them: repetitions, and a smaller one at the end."""
CROP = RandomCrop(size=5)


def images(inputs: Tensor | None = None) -> Split:
    """Ten random images of 8 x 8; sizes and labels tell the rows apart."""
    if inputs is None:
        inputs = torch.randint(0, 256, (10, 3, 8, 8), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    sizes = torch.arange(20).view(10, 2) + 8
    return Split(inputs, torch.arange(10) % 3, tuple(f"image {i}" for i in range(10)), sizes, ("a", "b", "c"))


def streamed(feed: Feed, rows: list[Tensor], transform: Transform) -> list[Batch]:
    draws = (generator(feed.device, 7, step) for step in range(len(rows)))
    return [feed.transformed(raw, transform, next(draws)) for raw in feed.stream(rows)]


def one_by_one(feed: Feed, rows: list[Tensor], transform: Transform) -> list[Batch]:
    return [feed.batch(some, transform, generator(feed.device, 7, step)) for step, some in enumerate(rows)]


def assert_same(left: list[Batch], right: list[Batch]) -> None:
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        assert all(torch.equal(getattr(a, name), getattr(b, name)) for name in ("inputs", "labels", "index"))


def test_a_stream_gives_the_batches_of_single_calls_crop_for_crop() -> None:
    feed = Feed(images(), CPU)
    together = streamed(feed, ROWS, CROP)
    assert_same(together, one_by_one(feed, ROWS, CROP))
    assert together[0].inputs.shape == (4, 3, 5, 5) and together[-1].inputs.shape == (1, 3, 5, 5)
    other_draw = feed.batch(ROWS[0], CROP, generator(CPU, 8))
    assert not torch.equal(other_draw.inputs, together[0].inputs), "crops depend on the generator"


def test_a_memory_map_is_read_in_the_order_asked_for(tmp_path: Path) -> None:
    split = images()
    np.save(tmp_path / "images.npy", split.inputs.numpy())
    mapped = images(torch.from_numpy(np.load(tmp_path / "images.npy", mmap_mode="c")))
    found = streamed(Feed(mapped, CPU), ROWS, Identity())
    for batch, rows in zip(found, ROWS, strict=True):
        assert torch.equal(batch.inputs, split.inputs[rows].float() / 255)
        assert torch.equal(batch.labels, rows % 3) and torch.equal(batch.index, rows)


def test_a_transform_is_told_the_sizes_of_its_rows() -> None:
    told: list[Tensor] = []

    def note(pixels: Tensor, sizes: Tensor, generator: torch.Generator | None = None) -> Tensor:
        told.append(sizes)
        return pixels.float()

    streamed(Feed(images(), CPU), ROWS[:1], note)
    # Row r measured 2 r + 8 by 2 r + 9.
    assert told[0].tolist() == [[18, 19], [8, 9], [14, 15], [14, 15]]


def test_a_place_in_the_gallery_replaces_the_row() -> None:
    feed = Feed(images(), CPU)
    assert feed.batch(ROWS[0], CROP, index=torch.tensor([4, 3, 2, 1])).index.tolist() == [4, 3, 2, 1]
    assert feed.batch(ROWS[0], CROP).index.tolist() == [5, 0, 3, 3]


def test_no_rows_are_no_batches() -> None:
    assert list(Feed(images(), CPU).stream([])) == []


def test_an_error_while_gathering_comes_in_its_turn_and_ends_the_thread() -> None:
    stream = Feed(images(), CPU).stream([ROWS[0], torch.tensor([10]), ROWS[1]])
    assert next(stream).rows.tolist() == [5, 0, 3, 3]
    with pytest.raises(IndexError, match="out of range"):
        next(stream)
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("loading")]


def test_rows_of_a_table_come_in_the_precision_that_models_compute_in() -> None:
    rows = torch.rand(10, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    feed = Feed(images(rows), CPU)
    for batches in (streamed(feed, ROWS, Identity()), one_by_one(feed, ROWS, Identity())):
        assert all(torch.equal(batch.inputs, rows[some].float()) for batch, some in zip(batches, ROWS, strict=True))


def test_a_streamed_row_of_nan_is_named() -> None:
    inputs = torch.zeros(10, 4)
    inputs[8, 1] = torch.nan
    with pytest.raises(InputError, match="image 8: the input holds NaN or infinity"):
        streamed(Feed(images(inputs), CPU), ROWS, Identity())


class Slow(Tensor):
    """An array on a disk that takes 10 ms to give a batch."""

    @classmethod
    def __torch_function__(
        cls, function: Callable[..., Any], types: Any, arguments: Any = (), named: dict[str, Any] | None = None
    ) -> Any:
        found = super().__torch_function__(function, types, arguments, named or {})
        if function is Tensor.index_select:
            time.sleep(0.01)
            return found.as_subclass(Tensor)
        return found


@pytest.mark.parametrize(("step", "is_waited_for"), [(0.0, True), (0.08, False)])
def test_slow_data_is_waited_for_only_where_the_steps_are_faster(step: float, is_waited_for: bool) -> None:
    feed = Feed(images(images().inputs.as_subclass(Slow)), CPU)
    wait = Wait()
    for _ in wait.on(feed.stream(ROWS * 2)):
        time.sleep(step)
    # 10 batches of 10 ms: all of the time is waiting, or the first batch alone beside 10 steps of 80 ms. A busy machine
    # makes both sides slower, so the line between them is in the middle.
    assert (wait.share > 0.5) is is_waited_for


@pytest.mark.gpu
@pytest.mark.parametrize("transform", [CROP, Identity()], ids=lambda t: type(t).__name__)
def test_both_ways_to_the_gpu_give_the_same_batches(transform: Transform) -> None:
    device = torch.device("cuda")
    held, fetched = (Feed(images(), device, resident=resident) for resident in (True, False))
    assert held.inputs.is_cuda and not fetched.inputs.is_cuda
    expected = one_by_one(held, ROWS, transform)
    assert all(batch.inputs.is_cuda and batch.labels.is_cuda and batch.index.is_cuda for batch in expected)
    assert_same(one_by_one(fetched, ROWS, transform), expected)
    for feed in (held, fetched):
        assert_same(streamed(feed, ROWS, transform), expected)


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("resident", [True, False])
def test_on_the_gpu_a_stream_never_makes_the_host_wait_for_the_device(resident: bool) -> None:
    feed = Feed(images(), torch.device("cuda"), resident=resident)
    expected = one_by_one(feed, ROWS, CROP)
    torch.cuda.set_sync_debug_mode("error")
    try:
        found = streamed(feed, ROWS, CROP)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert_same(found, expected)
