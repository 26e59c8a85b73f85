"""What attacks on a classifier cost in each precision that they may search in, and what they find, in one run.

    python benchmarks/search.py --device cuda [--batch 1000] [--steps 20] [--queries 200]

PGD on cross entropy (a forward and a backward pass a step) and Square on the margin (forward passes alone), by the road
that `evaluate --search` takes: climbed in fp32, TF32 or float16, judged in fp32 with TF32 off. The network is ResNet-18
for 32 px with random weights, whose own answers to random images are the labels. `left` is the share of them that an
attack leaves, `agree` that of images on which it does as in fp32.
"""

import argparse
import statistics
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from torch import nn

from harness import RESULTS, TITLES, Gauge, attack_work, columns, measure, ratio, save
from robustmetric.attacks.base import Attack, run
from robustmetric.attacks.margin import Misclassify
from robustmetric.jobs.workers import describe, full_precision
from robustmetric.models.classifier import Classifier
from robustmetric.models.small_resnet import SmallResNet
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.engine import Engine
from robustmetric.perturb.gradient_free import Square
from robustmetric.perturb.pgd import PGD
from robustmetric.perturb.seeking import Search
from robustmetric.types import Batch, Gallery

SEARCHES: tuple[Search, ...] = ("fp32", "tf32", "fp16")
REFERENCE = SEARCHES[0]
CLASSES = 10


def network(images: torch.Tensor) -> nn.Module:
    """Random weights, and batch norms that know the images; in eval mode."""
    model = Classifier(SmallResNet(), classes=CLASSES).to(images.device)
    with torch.no_grad():
        for _ in range(20):
            model(images)
    return model.eval()


def attacks(radius: float, steps: int, queries: int) -> dict[str, tuple[Attack, Engine, int]]:
    """By name: attack, engine, and the passes of one image."""
    ball = Ball(radius)
    climb = PGD(ball, steps=steps, step_size=radius / 4)
    return {
        f"PGD-{steps}": (Misclassify("cross_entropy"), climb, attack_work(1, steps)),
        # Without a goal: images that are lost would leave, and there would be less to time.
        f"Square, {queries} queries": (Misclassify("margin"), Square(ball, queries), queries),
    }


def left_by(attack: Attack, engine: Engine, model: nn.Module, batch: Batch, search: Search) -> torch.Tensor:
    """Whether each image is still answered rightly."""
    nothing = Gallery(torch.zeros(0, CLASSES, device=batch.inputs.device), batch.labels[:0])
    draws = torch.Generator(batch.inputs.device).manual_seed(0)
    found = run(attack, engine, model, batch, nothing, draws, rounded=False, search=search)
    return found.embeddings.argmax(dim=1) == batch.labels


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--device", default="cpu")
    made.add_argument("--size", type=int, default=32, help="pixels of a side")
    made.add_argument("--repeats", type=int, default=3)
    made.add_argument("--results", type=Path, default=RESULTS, help="the folder to write to")
    made.add_argument("--batch", type=int, default=1000)
    made.add_argument("--steps", type=int, default=20)
    made.add_argument("--queries", type=int, default=200)
    made.add_argument("--radius", type=float, default=0.5 / 255, help="small: random weights withstand little")
    return made.parse_args(argv)


@full_precision()
def main(argv: Sequence[str] | None = None) -> None:
    options = parse(argv)
    device = torch.device(options.device)
    torch.manual_seed(0)
    images = torch.rand(options.batch, 3, options.size, options.size, device=device)
    model = network(images)
    with torch.no_grad():
        labels = model(images).argmax(dim=1)
    batch = Batch(images, labels, torch.arange(len(images), device=device))
    gauge, rows = Gauge.of(model, images[0]), {}
    print(f"{options.batch} x {options.size} px, radius {options.radius:.5f}, {describe(device)}")
    print(f"{'':<28}{TITLES}{'faster':>8}{'left':>8}{'agree':>8}")
    for name, (attack, engine, passes) in attacks(options.radius, options.steps, options.queries).items():
        loops = {search: partial(left_by, attack, engine, model, batch, search) for search in SEARCHES}
        times = measure({search: loop for search, loop in loops.items()}, device, options.repeats)
        stands = {search: loop() for search, loop in loops.items()}
        for search, values in times.items():
            row = gauge.figures(statistics.median(values), options.batch * passes, options.batch)
            row["faster"] = ratio(times, REFERENCE, search)
            row["left"] = 100 * float(stands[search].float().mean())
            row["agree"] = 100 * float((stands[search] == stands[REFERENCE]).float().mean())
            rows[f"{name}, {search}"] = row
            print(
                f"{name + ', ' + search:<28}{columns(row)}{row['faster']:>8.2f}{row['left']:>8.1f}{row['agree']:>8.1f}"
            )
    save("search", options, {"measured": gauge.settings(), "rows": rows})


if __name__ == "__main__":
    main()
