"""What mining costs: our vectorised miners against a Python loop over anchors, in one run.

    python benchmarks/miners.py [--device cuda] [--batch 112] [--dim 512] [--threads 1]

Both sides start from embeddings, so both include the distance matrix, but for our `random`, which needs none. What the
other four start from (`anchors_of`: checks, classes and distances) and the bare matrix product inside it are shown too:
no miner that needs them can be faster. Ratios are those of the fastest calls: on a busy machine the long calls of the
loop are cut up more, which flatters us in the median (kept in the results beside it). Exit code 1 where, on a CPU, the
geometric mean of the ratios falls below 20.
"""

import argparse
import statistics
import sys

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from harness import RESULTS, Loop, measure, ratio
from reference import mine
from robustmetric.jobs.workers import describe
from robustmetric.losses.mining import DistanceWeighted, Hardest, Miner, Random, SemiHard, SoftHard, anchors_of
from robustmetric.records import context, write_json

EXPECTED = 20.0
OURS: dict[str, Miner] = {
    "random": Random(),
    "semi_hard": SemiHard(),
    "soft_hard": SoftHard(),
    "distance_weighted": DistanceWeighted(),
    "hardest": Hardest(),
}


def paired_rows(batch: int, dim: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Embeddings in pairs, some pairs of one class, near enough to each other that every miner has hard ones."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(batch // 3, (batch // 2,), generator=generator).repeat_interleave(2)
    centres = torch.randn(batch // 3, dim, generator=generator)
    rows = functional.normalize(centres[labels] + 2 * torch.randn(batch, dim, generator=generator), dim=1)
    return rows.to(device), labels.to(device)


def loops(name: str, rows: Tensor, labels: Tensor) -> dict[str, Loop]:
    generator = torch.Generator(rows.device).manual_seed(0)
    rng = np.random.default_rng(0)
    return {
        "ours": lambda: OURS[name](rows, labels, generator).negative,
        "loop": lambda: mine(name, rows, labels, rng).negative,
    }


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch", type=int, default=112)
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--repeats", type=int, default=101)
    # Tensors this small gain little from a second thread, and lose much when another process holds its core.
    parser.add_argument("--threads", type=int, default=1)
    return parser.parse_args()


def main() -> int:
    options = parse()
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    rows, labels = paired_rows(options.batch, options.dim, device)
    milliseconds: dict[str, dict[str, float]] = {}
    ratios: dict[str, float] = {}
    medians: dict[str, float] = {}
    for name in OURS:
        times = measure(loops(name, rows, labels), device, options.repeats)
        fastest = {side: 1000 * min(values) for side, values in times.items()}
        milliseconds[name] = {side: round(value, 4) for side, value in fastest.items()}
        ratios[name] = fastest["loop"] / fastest["ours"]
        medians[name] = ratio(times, "loop", "ours")
    parts: dict[str, Loop] = {"anchors_of": lambda: anchors_of(rows, labels), "product": lambda: rows[0::2] @ rows.T}
    parts_milliseconds = {
        name: round(1000 * min(values), 4) for name, values in measure(parts, device, options.repeats).items()
    }
    mean = statistics.geometric_mean(ratios.values())

    print(f"batch {options.batch}, dim {options.dim}, {describe(device)}; milliseconds, fastest call")
    print(f"{'':<18}{'loop':>10}{'ours':>10}{'ratio':>8}")
    for name, sides in milliseconds.items():
        print(f"{name:<18}{sides['loop']:>10.3f}{sides['ours']:>10.3f}{ratios[name]:>8.1f}")
    for name, value in parts_milliseconds.items():
        print(f"{name + ' alone':<28}{value:>10.3f}")
    print(f"{'geometric mean':<38}{mean:>8.1f}")
    figures = {
        "settings": vars(options),
        "milliseconds": milliseconds,
        "loop_over_ours": {name: round(value, 2) for name, value in ratios.items()},
        "geometric_mean": round(mean, 2),
        "median_loop_over_ours": {name: round(value, 2) for name, value in medians.items()},
        "milliseconds_of_parts": parts_milliseconds,
        "expected": EXPECTED,
        "context": context(describe(device)),
    }
    RESULTS.mkdir(exist_ok=True)
    write_json(RESULTS / f"miners-{device.type}.json", figures)
    if device.type == "cpu" and mean < EXPECTED:
        print(f"our miners are {mean:.1f} times as fast as the loop; expected at least {EXPECTED:.0f}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
