"""What the benchmarks share: timing in turn, work counted in forwards, the device's peak, and the files of results.

Work is counted in forwards of one image (fe): a forward 1, a backward to the input alone 1, a full backward 2.
"""

import argparse
import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from robustmetric.jobs.closing import of_suite
from robustmetric.jobs.workers import describe
from robustmetric.models.backbone import encoder
from robustmetric.records import Record, context, write_json

RESULTS = Path(__file__).parent / "results"
FORWARD, INPUT_BACKWARD, FULL_BACKWARD = 1, 1, 2
"""In forwards of one image (DESIGN section 8)."""
MIB = 2**20

Loop = Callable[[], object]
"""What is timed: one call is one measurement."""


# Time.


def seconds(loop: Loop, device: torch.device) -> float:
    """How long one call takes, all of the device's work included."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    loop()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def measure(loops: dict[str, Loop], device: torch.device, repeats: int) -> dict[str, list[float]]:
    """Times of each loop, taken in turn so that a slower moment of the machine hits all of them."""
    for loop in loops.values():
        seconds(loop, device)
    times: dict[str, list[float]] = {name: [] for name in loops}
    for repeat in range(repeats):
        # Every other round runs backwards: none always follows the same neighbour.
        for name in list(loops)[:: 1 if repeat % 2 == 0 else -1]:
            times[name].append(seconds(loops[name], device))
    return times


def ratio(times: dict[str, list[float]], name: str, reference: str) -> float:
    """The median over rounds of one time over another of the same round."""
    return statistics.median(a / b for a, b in zip(times[name], times[reference], strict=True))


# Work.


def attack_work(images: int, steps: int, weight_gradients: bool = False) -> int:
    """fe of a climb; the plain way computes the gradients of the weights too."""
    return images * steps * (FORWARD + (FULL_BACKWARD if weight_gradients else INPUT_BACKWARD))


def update_work(images: int) -> int:
    """fe of a forward and a full backward."""
    return images * (FORWARD + FULL_BACKWARD)


def flops(model: nn.Module, image: Tensor) -> int:
    """Floating-point operations of one image's forward (a multiplication and an addition are two)."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(image[None])
    return counter.get_total_flops()


def peak(device: torch.device, repeats: int = 10) -> float:
    """FLOP/s of the best of some large square products: in bfloat16 on a GPU, in float32 elsewhere."""
    side, dtype = (8192, torch.bfloat16) if device.type == "cuda" else (1024, torch.float32)
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    best = min(measure({"product": lambda: a @ b}, device, repeats)["product"])
    return 2 * side**3 / best


@dataclass(frozen=True)
class Gauge:
    """Turns seconds and work into figures; made once per network and device."""

    forward_flops: int
    """Of one image."""
    peak_flops: float
    """Per second, as measured by `peak`."""

    @classmethod
    def of(cls, model: nn.Module, image: Tensor) -> "Gauge":
        return cls(flops(model, image), peak(image.device))

    def figures(self, seconds: float, fe: float, images: int) -> dict[str, float]:
        """A row of a table: time, work, images of the batch per second, share of the peak that was reached."""
        return {
            "milliseconds": round(1000 * seconds, 3),
            "fe": round(fe, 2),
            "images_per_second": round(images / seconds, 1),
            "share_of_peak": round(self.forward_flops * fe / seconds / self.peak_flops, 5),
        }

    def settings(self) -> dict[str, float]:
        return {"forward_gflop": round(self.forward_flops / 1e9, 4), "peak_tflops": round(self.peak_flops / 1e12, 3)}


TITLES = f"{'ms':>10}{'fe':>9}{'images/s':>10}{'peak':>8}"


def columns(row: Mapping[str, float]) -> str:
    """The figures of a row, under `TITLES`."""
    return f"{row['milliseconds']:>10.2f}{row['fe']:>9.1f}{row['images_per_second']:>10.1f}{row['share_of_peak']:>8.1%}"


# Memory.


def memory(loop: Loop, device: torch.device) -> float:
    """MiB that one call holds at most, beyond what was held before it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        loop()
        torch.cuda.synchronize(device)
        return (torch.cuda.max_memory_allocated(device) - before) / MIB
    before = _most_resident(anew=True)
    loop()
    return (_most_resident() - before) / MIB


def _most_resident(anew: bool = False) -> int:
    """Bytes the process has held at most; `anew` forgets what was before, where the system can (Linux)."""
    try:
        if anew:
            Path("/proc/self/clear_refs").write_text("5")
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


# Settings, networks and results.


def parser(
    text: str | None, architecture: str = "resnet18", size: int = 224, repeats: int = 7
) -> argparse.ArgumentParser:
    """The options that every benchmark of a network has; `text` is the script's docstring."""
    made = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--device", default="cpu")
    made.add_argument("--architecture", default=architecture)
    made.add_argument("--weights", default=None, help="a file of ImageNet weights")
    made.add_argument("--size", type=int, default=size, help="pixels of a side")
    made.add_argument("--repeats", type=int, default=repeats)
    made.add_argument("--results", type=Path, default=RESULTS, help="the folder to write to")
    return made


def settled(architecture: str, weights: str | None, clean: Tensor) -> nn.Module:
    """A network whose batch norms know the images, so that it is not collapsed; in eval mode."""
    model = encoder(architecture, weights=weights).to(clean.device)
    if weights is None:
        with torch.no_grad():
            for _ in range(20):
                model(clean)
    return model.eval()


def is_h200(device: torch.device) -> bool:
    """Whether this is the GPU that the expected times are for."""
    return "H200" in describe(device)


def of_queries(found: Sequence[Record], suite: str, queries: int | None) -> list[Record]:
    """A suite's records on so many queries (None: on all), of a folder that may hold those of other calls, too."""
    own = of_suite(found, suite, {}, seed=0)
    # A data set may have fewer.
    asked = max(count for one in own if (count := one.settings["queries"]) <= (queries or count))
    return of_suite(own, suite, {"queries": asked}, seed=0)


def save(name: str, options: argparse.Namespace, figures: Mapping[str, Any]) -> Path:
    """Write `<name>-<device>.json`: the settings, the figures, the commit and the hardware."""
    device = torch.device(options.device)
    given = {key: value for key, value in vars(options).items() if key != "results"}
    settings = {key: value.name if isinstance(value, Path) else value for key, value in given.items()}
    if "weights" in settings:
        settings["weights"] = options.weights is not None  # a path says nothing elsewhere
    options.results.mkdir(parents=True, exist_ok=True)
    path: Path = options.results / f"{name}-{device.type}.json"
    write_json(path, {"settings": settings, **figures, "context": context(describe(device))})
    return path
