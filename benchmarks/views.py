"""What a training attack costs under each view of the model, against the plain way, in one run.

    python benchmarks/views.py --device cuda [--architecture mobilenet_v2] [--batch 168] [--size 224] [--steps 8]

The attack raises hardness, d(a,p) - d(a,n), of triplets of images: the inner loop of hardness-style training. The plain
way is `reference.perturb`: fp32, weight gradients on, optimisers per step, `.item()` per step. Batch norm statistics
are those of random images, so that no view works on a collapsed network. TF32 is off throughout. On a GPU `fast` and
`folded` are there twice: with our kernels where there are any (MobileNetV2, perturb/kernels.py), and by the library.
"""

import argparse
import statistics
from contextlib import AbstractContextManager, nullcontext
from typing import cast

import torch
from torch import Tensor, nn

import reference
from harness import TITLES, Gauge, Loop, attack_work, columns, measure, parser, ratio, save, settled
from robustmetric.jobs.workers import describe, full_precision
from robustmetric.losses.triplet import hardness
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.fast import fast_view
from robustmetric.perturb.pgd import PGD, View, frozen, value_and_gradient
from robustmetric.types import Embed

RADIUS, STEP = 8 / 255, 1 / 255
VIEWS = ("exact", "folded by the library", "folded", "fast by the library", "fast", "compiled")


def height(z: Tensor) -> Tensor:
    """What is climbed: the hardness of each triplet."""
    return hardness(*z.chunk(3))


def seen(model: nn.Module, name: str) -> AbstractContextManager[Embed]:
    """The model as a view shows it, by the view's name or that of one without kernels of our own."""
    view, _, library = name.partition(" by the ")
    if not library:
        return frozen(model, cast(View, view))
    dtype = torch.float32 if view == "folded" else None
    return nullcontext(fast_view(model, dtype=dtype, kernels=False))


def engine_loop(model: nn.Module, clean: Tensor, steps: int, view: str) -> Loop:
    """Our engine with one view; the view's refresh is part of the time, as in training."""
    engine = PGD(Ball(RADIUS), steps=steps, step_size=STEP, random_start=False)

    def loop() -> Tensor:
        with seen(model, view) as embed:
            # One number per image: a triplet's hardness belongs to its three images.
            return engine(lambda x: height(embed(x)).repeat(3) / 3, clean)

    return loop


def plain_loop(model: nn.Module, clean: Tensor, steps: int) -> Loop:
    """The plain way."""
    climb = reference.Climb(RADIUS, STEP, steps)
    return lambda: reference.perturb(model, lambda z: -height(z).sum(), clean, climb)


def agreement(model: nn.Module, clean: Tensor, view: str) -> float:
    """Share of pixels, among the larger half of the gradient, whose sign the view gets right at the clean images."""
    with frozen(model) as embed:
        _, exact = value_and_gradient(lambda x: height(embed(x)), clean)
    with seen(model, view) as embed:
        _, other = value_and_gradient(lambda x: height(embed(x)), clean)
    large = exact.abs() >= exact.abs().flatten()[:: max(1, exact.numel() // 10**6)].median()
    return float((exact.sign() == other.sign())[large].float().mean())


def parse(argv: list[str] | None) -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--batch", type=int, default=168)
    made.add_argument("--steps", type=int, default=8)
    return made.parse_args(argv)


@full_precision()
def main(argv: list[str] | None = None) -> None:
    options = parse(argv)
    device = torch.device(options.device)
    torch.manual_seed(0)
    clean = torch.rand(options.batch, 3, options.size, options.size, device=device)
    model = settled(options.architecture, options.weights, clean)
    gauge = Gauge.of(model, clean[0])
    views = ("exact", "fast") if device.type == "cpu" else VIEWS
    loops = {"plain way": plain_loop(model, clean, options.steps)}
    loops |= {view: engine_loop(model, clean, options.steps, view) for view in views}
    times = measure(loops, device, options.repeats)
    moved = {name: loop() for name, loop in loops.items()}
    with torch.no_grad():
        before = float(height(model(clean)).mean())
        reached = {name: float(height(model(x)).mean()) for name, x in moved.items()}
    rows = {}
    print(f"{options.architecture}, {options.batch} x {options.size} px, {options.steps} steps, {describe(device)}")
    print(f"{'':<22}{TITLES}{'faster':>8}{'hardness':>10}{'signs':>8}")
    for name, values in times.items():
        fe = attack_work(options.batch, options.steps, weight_gradients=name == "plain way")
        row = gauge.figures(statistics.median(values), fe, options.batch)
        row["faster"] = ratio(times, "plain way", name)
        row["hardness"] = reached[name]
        row["signs"] = agreement(model, clean, name) if name in views else 1.0
        rows[name] = row
        print(f"{name:<22}{columns(row)}{row['faster']:>8.2f}{row['hardness']:>10.4f}{row['signs']:>8.3f}")
    figures = {
        "measured": gauge.settings(),
        "hardness_before": before,
        "views": rows,
        "batch_norms_folded": fast_view(model).folded,
    }
    save(f"views-{options.architecture}", options, figures)


if __name__ == "__main__":
    main()
