"""What a whole attack suite costs per batch of queries, ours against the plain way, in one run.

    python benchmarks/suite.py --device cuda [--architecture mobilenet_v2] [--queries 112] [--gallery 5924] [--fast]

The plain way runs in fp32 with TF32 off and embeds the gallery anew for each attack; its share per batch of queries is
counted. Ours embeds it once for the suite, and its share of that is counted too. Ours runs in fp32, TF32 off, and with
`--fast` also in bfloat16, with what that changes in each score: fp32 minus fast, same queries, same seeds, mean over
the queries. `published` are the seconds of the published code on an H200 (MobileNetV2, 224 px, 112 queries, 5,924
items, 32 steps). Exit code 1 where, on an H200 at those sizes, the suite in fp32 is less than 4 times as fast as the
plain way or as published, or `--fast` less than 12 times.
"""

import argparse
import math
import sys
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

import reference
from harness import TITLES, Gauge, Loop, attack_work, columns, is_h200, parser, save, seconds, settled
from robustmetric.attacks.base import Engine, run
from robustmetric.attacks.suite import Trial
from robustmetric.jobs.suites import load_suite
from robustmetric.jobs.workers import describe, full_precision
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD, Rowwise, View, frozen
from robustmetric.types import Batch, Gallery, Inputs, Value

PUBLISHED = {"CA": 4.05, "QA": 4.05, "GTT": 4.05, "LTM": 4.9, "TMA": 1.85, "ES": 1.85, "GTM": 1.85}
PUBLISHED_TOTAL = 30.8
EXPECTED = {"fp32": 4.0, "fast": 12.0}
SIZES = ("mobilenet_v2", 112, 5924, 224, "ers224", None)
"""What `PUBLISHED` and `EXPECTED` are for: architecture, queries, gallery, pixels, suite, its own steps."""
FP32: tuple[View, ...] = ("exact", "folded")
FAST: tuple[View, ...] = ("fast",)

Figures = dict[str, float]
Scores = dict[str, float]
"""Mean over the queries."""


@dataclass(frozen=True)
class Scene:
    """What is attacked; `share` is the time to embed the gallery, divided among its batches of queries."""

    model: nn.Module
    batch: Batch
    gallery: Gallery
    """As the plain way embeds it."""
    seen: dict[View, Gallery]
    """As each view embeds it."""
    share: float

    @property
    def shared_images(self) -> float:
        """How many images of the gallery are embedded per batch of queries."""
        return len(self.gallery) / math.ceil(len(self.gallery) / len(self.batch))


@dataclass
class Counting:
    """An engine that notes how many images it sends through the network: rows that stopped moving are left out."""

    engine: PGD
    images: int = 0

    @property
    def ball(self) -> Ball:
        return self.engine.ball

    def __call__(self, value: Value, clean: Inputs, generator: torch.Generator | None = None) -> Inputs:
        assert isinstance(value, Rowwise)

        def noted(x: Inputs, *constants: Tensor) -> Tensor:
            self.images += len(x)
            return value.value(x, *constants)

        return self.engine(replace(value, value=noted), clean, generator)


def plain_way(trial: Trial, scene: Scene) -> Loop:
    """One attack of `reference.py`, without the gallery."""
    name, model, batch, gallery = trial.label, scene.model, scene.batch, scene.gallery
    climb = replace(reference.Climb(), steps=trial.engine.steps)

    def loop() -> None:
        clean = reference.embed(model, batch.inputs)
        targets = reference.choose(name, clean, batch, gallery, np.random.default_rng(0))
        moved = reference.perturb(
            model, lambda z: reference.LOSSES[name](z, targets, batch, gallery).sum(), batch.inputs, climb
        )
        reference.score(name, reference.embed(model, moved), clean, targets, batch, gallery)

    return loop


def attacked(trial: Trial, engine: Engine, view: View, scene: Scene) -> Scores:
    """The same attack as the package runs it."""
    generator = torch.Generator(scene.batch.inputs.device).manual_seed(0)
    outcome = run(trial.attack, engine, scene.model, scene.batch, scene.seen[view], generator, view=view)
    return {name: float(values.mean()) for name, values in outcome.scores.items()}


@torch.no_grad()
def embedded(model: nn.Module, images: Tensor, view: View) -> Tensor:
    with frozen(model, view) as embed:
        return torch.cat([embed(part) for part in images.split(reference.CHUNK)])


def best_seconds(loop: Loop, device: torch.device, repeats: int) -> float:
    return min(seconds(loop, device) for _ in range(repeats))


def published(label: str) -> float | None:
    return PUBLISHED.get(label.rstrip("+-"))


def parse(argv: list[str] | None) -> argparse.Namespace:
    made = parser(__doc__, architecture="mobilenet_v2", repeats=2)
    made.add_argument("--queries", type=int, default=112)
    made.add_argument("--gallery", type=int, default=5924)
    made.add_argument("--suite", default="ers224")
    made.add_argument("--steps", type=int, default=None, help="instead of the suite's own")
    made.add_argument("--fast", action="store_true", help="time the bfloat16 views too")
    options = made.parse_args(argv)
    options.views = list(FP32 + (FAST if options.fast else ()))
    return options


def attack_sides(
    trial: Trial, scene: Scene, gauge: Gauge, trials: int, options: argparse.Namespace
) -> tuple[dict[str, Figures], dict[str, Scores]]:
    """Figures of one attack by the plain way and by each view, and the scores under each view."""
    device, count = scene.batch.inputs.device, len(scene.batch)
    plain = best_seconds(plain_way(trial, scene), device, options.repeats) + scene.share
    # Clean and perturbed images are embedded once each.
    fe = scene.shared_images + 2 * count + attack_work(count, trial.engine.steps, weight_gradients=True)
    sides = {"plain way": {**gauge.figures(plain, fe, count), "ratio": 1.0}}
    scores = {}
    for view in options.views:
        counting = Counting(trial.engine)
        scores[view] = attacked(trial, counting, view, scene)
        loop = partial(attacked, trial, trial.engine, view, scene)
        taken = best_seconds(loop, device, options.repeats) + scene.share / trials
        fe = scene.shared_images / trials + 2 * count + attack_work(counting.images, steps=1)
        sides[view] = {**gauge.figures(taken, fe, count), "ratio": round(plain / taken, 3)}
    return sides, scores


def totals(rows: dict[str, dict[str, Figures]], gauge: Gauge, count: int, comparable: bool) -> dict[str, Figures]:
    """The whole suite, by side; where the sizes are the published ones, with the ratio to the published time."""
    found = {}
    for name in next(iter(rows.values())):
        taken, fe = (sum(sides[name][key] for sides in rows.values()) for key in ("milliseconds", "fe"))
        plain = sum(sides["plain way"]["milliseconds"] for sides in rows.values())
        found[name] = {**gauge.figures(taken / 1000, fe, count), "ratio": round(plain / taken, 3)}
        if comparable:
            found[name]["published_ratio"] = round(1000 * PUBLISHED_TOTAL / taken, 3)
    return found


def show(label: str, sides: dict[str, Figures], reported: float | None, changes: dict[str, Scores]) -> None:
    for name, side in sides.items():
        column = f"{1000 * reported:.0f}" if reported is not None and name == "plain way" else ""
        change = "  ".join(f"{score} {value:+.3f}" for score, value in changes.get(name, {}).items())
        print(f"{label:<6}{name:<11}{columns(side)}{side['ratio']:>8.2f}{column:>13}  {change}", flush=True)


def shortfalls(total: dict[str, Figures]) -> list[str]:
    """What is slower than expected; of several views of one precision the fastest counts."""
    found = []
    for kind, views in (("fp32", FP32), ("fast", FAST)):
        measured = [total[view] for view in views if view in total]
        for key, against in (("ratio", "the plain way"), ("published_ratio", "the published code")):
            best = max((side[key] for side in measured), default=EXPECTED[kind])
            if best < EXPECTED[kind]:
                found.append(f"{kind} is {best:.2f} times as fast as {against}; expected at least {EXPECTED[kind]:.0f}")
    return found


def prepare(options: argparse.Namespace) -> tuple[Scene, Gauge]:
    """Images at random, 59 of a class, the first of them queries."""
    device = torch.device(options.device)
    torch.manual_seed(0)
    images = torch.rand(options.gallery, 3, options.size, options.size, device=device)
    labels = torch.arange(options.gallery, device=device) // 59
    model = settled(options.architecture, options.weights, images[: options.queries])
    batch = Batch(images[: options.queries], labels[: options.queries], torch.arange(options.queries, device=device))
    gallery = Gallery(reference.embed(model, images), labels)
    embedding = seconds(lambda: reference.embed(model, images), device)
    # The first backward on a GPU tries kernels: before the clock starts.
    reference.perturb(model, lambda z: z.sum(), batch.inputs, reference.Climb(steps=1))
    seen: dict[View, Gallery] = {view: Gallery(embedded(model, images, view), labels) for view in options.views}
    scene = Scene(model, batch, gallery, seen, share=embedding / math.ceil(options.gallery / options.queries))
    return scene, Gauge.of(model, images[0])


@full_precision()
def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    device = torch.device(options.device)
    scene, gauge = prepare(options)
    trials = load_suite(options.suite).trials
    if options.steps is not None:
        trials = [replace(trial, engine=replace(trial.engine, steps=options.steps)) for trial in trials]
    print(f"{options.architecture}, {options.queries} queries, gallery {options.gallery}, {describe(device)}")
    print(f"{'':<17}{TITLES}{'ratio':>8}{'published ms':>13}  fp32 - view")
    rows: dict[str, dict[str, Figures]] = {}
    scores: dict[str, dict[str, Scores]] = {}
    changes: dict[str, dict[str, Scores]] = {}
    for trial in trials:
        label = trial.label
        rows[label], scores[label] = attack_sides(trial, scene, gauge, len(trials), options)
        exact = scores[label]["exact"]
        changes[label] = {
            view: {name: exact[name] - value for name, value in found.items()}
            for view, found in scores[label].items()
            if view != "exact"
        }
        show(label, rows[label], published(label), changes[label])
    sizes = (options.architecture, options.queries, options.gallery, options.size, options.suite, options.steps)
    total = totals(rows, gauge, options.queries, comparable=sizes == SIZES)
    show("all", total, PUBLISHED_TOTAL, {})
    figures = {
        "measured": gauge.settings(),
        "attacks": rows,
        "total": total,
        "published_seconds": {**{label: published(label) for label in rows}, "total": PUBLISHED_TOTAL},
        "scores": scores,
        "exact_minus_view": changes,
        "expected": EXPECTED,
    }
    save(f"suite-{options.architecture}", options, figures)
    failures = shortfalls(total) if is_h200(device) and sizes == SIZES else []
    print("\n".join(failures), end="\n" if failures else "")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
