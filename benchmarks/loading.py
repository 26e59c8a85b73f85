"""What the data path costs a training: each way to the device against a step that needs no data, in one run.

    python benchmarks/loading.py --device cuda [--architecture resnet18] [--images 6000] [--batch 112] [--size 256]

The images are bytes in a memory-mapped file, cropped on the device; the step is a forward, a backward and an update, in
bfloat16 on a GPU, where it is fast and data most likely to be late. Ways: the same batch over and over (no loading);
all images on the device (resident, on a GPU only); fetched ahead by a thread, through pinned memory on a GPU (ahead);
gathered and copied between two steps (blocking).

`data_wait` is the share of time the host waited for batches. That of the blocking way includes the device's own work,
for which its copy waits; `lost`, the share of time that would be saved without loading, compares all ways alike.
"""

import argparse
import statistics
import tempfile
from collections.abc import Callable, Generator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from harness import Loop, measure, parser, save, settled
from robustmetric.data.base import Split
from robustmetric.data.sampler import Shuffled
from robustmetric.data.transforms import RandomCrop
from robustmetric.jobs.feed import Feed
from robustmetric.jobs.loading import Raw, Wait
from robustmetric.jobs.workers import describe
from robustmetric.numerics.randomness import generator
from robustmetric.types import Batch

FLOOR = "no loading"
Source = Callable[[], Generator[Raw, None, None]]
"""An epoch's batches, fetched one way."""
Step = Callable[[Batch], None]


def noise(folder: Path, count: int, size: int) -> Split:
    """Random images in a file, mapped into memory as the cache maps them."""
    path = folder / "images.npy"
    mapped = np.lib.format.open_memmap(path, mode="w+", dtype=np.uint8, shape=(count, 3, size, size))
    draw = np.random.default_rng(0)
    for row in range(count):
        mapped[row] = draw.integers(0, 256, mapped.shape[1:], dtype=np.uint8)
    mapped.flush()
    inputs = torch.from_numpy(np.load(path, mmap_mode="c"))
    sizes = torch.full((count, 2), size)
    return Split(inputs, torch.arange(count) % 2, tuple(map(str, range(count))), sizes, ("a", "b"))


def sources(feed: Feed, split: Split, order: list[Tensor]) -> dict[str, tuple[Feed, Source]]:
    """The ways to the device, each with the feed that completes its batches; `feed` keeps the images on the host."""
    device = feed.device

    def gather(rows: Tensor) -> Raw:
        return Raw(rows.to(device), split.inputs[rows].to(device))

    first = gather(order[0])
    ways: dict[str, tuple[Feed, Source]] = {FLOOR: (feed, lambda: (first for _ in order))}
    if device.type == "cuda":
        resident = Feed(split, device, resident=True)
        ways["resident"] = (resident, lambda: resident.stream(order))
    ways["ahead"] = (feed, lambda: feed.stream(order))
    ways["blocking"] = (feed, lambda: (gather(rows) for rows in order))
    return ways


def training_step(architecture: str, weights: str | None, example: Tensor) -> Step:
    """Forward, backward and update; half of the batch is drawn to the other half."""
    device = example.device
    model = settled(architecture, weights, example).train()
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-4)

    def step(batch: Batch) -> None:
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            one, other = model(batch.inputs).float().chunk(2)
        optimiser.zero_grad(set_to_none=True)
        (one - other).square().sum(dim=1).mean().backward()
        optimiser.step()

    return step


def epoch(feed: Feed, source: Source, crop: RandomCrop, step: Step, shares: list[float]) -> Loop:
    """One pass; each call notes the share of its time that was waited."""

    def loop() -> None:
        wait = Wait()
        for number, raw in enumerate(wait.on(source())):
            step(feed.transformed(raw, crop, generator(feed.device, 0, number)))
        shares.append(wait.share)

    return loop


def figures(times: dict[str, list[float]], shares: dict[str, list[float]], images: int) -> dict[str, dict[str, float]]:
    """A row per way, medians over the rounds."""
    rows = {}
    for name, values in times.items():
        lost = statistics.median(1 - floor / value for floor, value in zip(times[FLOOR], values, strict=True))
        rows[name] = {
            "images_per_second": round(images / statistics.median(values), 1),
            # The first call is the warm-up, which is not timed either.
            "data_wait": round(statistics.median(shares[name][1:]), 4),
            "lost": round(lost, 4),
        }
    return rows


def parse(argv: list[str] | None) -> argparse.Namespace:
    made = parser(__doc__, size=256, repeats=5)
    made.add_argument("--crop", type=int, default=224, help="pixels of a side of what the network sees")
    made.add_argument("--images", type=int, default=None, help="6000 on a GPU, 64 elsewhere")
    made.add_argument("--batch", type=int, default=None, help="112 on a GPU, 16 elsewhere")
    options = made.parse_args(argv)
    images, batch = (6000, 112) if torch.device(options.device).type == "cuda" else (64, 16)
    options.images, options.batch = options.images or images, options.batch or batch
    return options


def main(argv: list[str] | None = None) -> None:
    options = parse(argv)
    device = torch.device(options.device)
    torch.manual_seed(0)
    crop = RandomCrop(options.crop)
    with tempfile.TemporaryDirectory() as folder:
        split = noise(Path(folder), options.images, options.size)
        order = Shuffled(options.batch).batches(split.labels, epoch=0, seed=0)
        feed = Feed(split, device, resident=False)
        step = training_step(options.architecture, options.weights, feed.batch(order[0], crop).inputs)
        ways = sources(feed, split, order)
        shares: dict[str, list[float]] = {name: [] for name in ways}
        loops: dict[str, Loop] = {name: epoch(*way, crop, step, shares[name]) for name, way in ways.items()}
        times = measure(loops, device, options.repeats)
    rows = figures(times, shares, options.batch * len(order))
    print(f"{options.architecture}, {options.images} images of {options.size} px, {describe(device)}")
    print(f"{'':<12}{'images/s':>10}{'data wait':>11}{'lost':>8}")
    for name, row in rows.items():
        print(f"{name:<12}{row['images_per_second']:>10.1f}{row['data_wait']:>11.4f}{row['lost']:>8.4f}")
    save("loading", options, {"ways": rows})


if __name__ == "__main__":
    main()
