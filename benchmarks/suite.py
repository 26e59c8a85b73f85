"""What a whole attack suite costs per batch of queries, ours against the plain way, fp32 with TF32 off, in one run.

    python benchmarks/suite.py --device cuda [--architecture mobilenet_v2] [--queries 112] [--gallery 5924] [--size 224]

The plain way embeds the gallery anew for each attack; its share per batch of queries is counted. Ours embeds it once.
"""

import argparse
import math
from pathlib import Path

import numpy as np
import torch

import reference
from pgd import RESULTS, seconds
from robustmetric.attacks.base import run
from robustmetric.jobs.assemble import load_suite
from robustmetric.jobs.workers import describe, full_precision
from robustmetric.records import context, write_json
from robustmetric.types import Batch, Gallery
from views import settled


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--architecture", default="mobilenet_v2")
    parser.add_argument("--weights", default=None, help="a file of ImageNet weights")
    parser.add_argument("--queries", type=int, default=112)
    parser.add_argument("--gallery", type=int, default=5924)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--suite", default="ers224")
    parser.add_argument("--repeats", type=int, default=2)
    return parser.parse_args()


@full_precision()
def main() -> None:
    options = parse()
    device = torch.device(options.device)
    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = True
    images = torch.rand(options.gallery, 3, options.size, options.size, device=device)
    labels = torch.arange(options.gallery, device=device) // 59
    model = settled(options.architecture, options.weights, images[: options.queries])
    batch = Batch(images[: options.queries], labels[: options.queries], torch.arange(options.queries, device=device))
    gallery = Gallery(reference.embed(model, images), labels)
    share = seconds(lambda: reference.embed(model, images), device) / math.ceil(options.gallery / options.queries)
    climb = reference.Climb()
    rows: dict[str, dict[str, float]] = {}
    print(f"{options.architecture}, {options.queries} queries, gallery {options.gallery}, {describe(device)}, seconds")
    for trial in load_suite(options.suite).trials:
        name = trial.label

        def plain(name: str = name) -> None:
            rng = np.random.default_rng(0)
            clean = reference.embed(model, batch.inputs)
            targets = reference.choose(name, clean, batch, gallery, rng)
            moved = reference.perturb(
                model, lambda z: reference.LOSSES[name](z, targets, batch, gallery).sum(), batch.inputs, climb
            )
            reference.score(name, reference.embed(model, moved), clean, targets, batch, gallery)

        def ours(trial=trial) -> None:  # type: ignore[no-untyped-def]  # bound to the loop's trial
            generator = torch.Generator(device).manual_seed(0)
            run(trial.attack, trial.engine, model, batch, gallery, generator)

        ours()
        best = {
            "plain way": min(seconds(plain, device) for _ in range(options.repeats)) + share,
            "ours": min(seconds(ours, device) for _ in range(options.repeats)),
        }
        rows[name] = {**best, "ratio": best["plain way"] / best["ours"]}
        print(f"{name:<6}{best['plain way']:>8.2f}{best['ours']:>8.2f}{rows[name]['ratio']:>8.2f}", flush=True)
    total = {key: sum(row[key] for row in rows.values()) for key in ("plain way", "ours")}
    print(f"all   {total['plain way']:>8.2f}{total['ours']:>8.2f}{total['plain way'] / total['ours']:>8.2f}")
    figures = {
        "settings": {**vars(options), "weights": options.weights is not None},
        "seconds": rows,
        "total": {**total, "ratio": total["plain way"] / total["ours"]},
        "context": context(describe(device)),
    }
    RESULTS.mkdir(exist_ok=True)
    write_json(Path(RESULTS) / f"suite-{options.architecture}-{device.type}.json", figures)


if __name__ == "__main__":
    main()
