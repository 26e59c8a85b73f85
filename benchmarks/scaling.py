"""How time and memory grow with the batch, the attack's steps, the gallery and the members of an ensemble.

    python benchmarks/scaling.py --device cuda [--architecture resnet18] [--view fast] [--tiny]

`batch`, `steps` and `members` climb the distance from a fixed point, an 8-step attack unless steps are the matter.
`gallery` is the value and gradient of QA+ for 112 queries in 512 dimensions, `nearest` their ten nearest items; both
start from embeddings, and their work is that of the matrix products. Memory is what a call holds at most beyond what
was there before: allocated on a GPU, resident elsewhere. The ratio is the time of the plain way (`reference.py`) over
ours; it is left out where the plain way is expected to take longer than `--limit-seconds`.
"""

import argparse
import statistics
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional

import reference
from harness import TITLES, Gauge, Loop, attack_work, columns, measure, memory, parser, save, seconds, settled
from robustmetric.attacks.base import Targets
from robustmetric.attacks.query import Query
from robustmetric.jobs.workers import describe, full_precision
from robustmetric.models.ensemble import Ensemble
from robustmetric.numerics.distances import nearest, paired
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.gradient import value_and_gradient
from robustmetric.perturb.pgd import PGD, View, frozen
from robustmetric.types import Batch, Gallery

RADIUS, STEP = 8 / 255, 1 / 255
DIM = 512
NEAREST = 10
KINDS = ("batch", "steps", "gallery", "nearest", "members")

Row = dict[str, Any]
"""Figures of one size; `ratio` is None where the plain way was left out."""


@dataclass(frozen=True)
class Sizes:
    """What is varied, and what stays while another is varied."""

    batch: tuple[int, ...] = (28, 56, 112, 224, 448)
    steps: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    gallery: tuple[int, ...] = (10**3, 10**4, 10**5, 10**6)
    members: tuple[int, ...] = (1, 2, 3, 4, 5)
    images: int = 112
    passes: int = 8


TINY = Sizes(batch=(2, 4), steps=(1, 2), gallery=(100, 1000), members=(1, 2), images=4, passes=2)


@dataclass(frozen=True)
class Case:
    """One size: both sides of the comparison, and the work of ours in fe."""

    size: int
    ours: Loop
    plain: Loop
    fe: float
    images: int


def climbs(model: nn.Module, clean: Tensor, steps: int, view: View) -> tuple[Loop, Loop]:
    """An attack by our engine and by the plain way."""
    engine = PGD(Ball(RADIUS), steps=steps, step_size=STEP, random_start=False)
    with torch.no_grad():
        target = model(clean.flip(0))

    def ours() -> Tensor:
        with frozen(model, view) as embed:
            return engine(lambda x: paired(embed(x), target), clean)

    def plain() -> Tensor:
        climb = reference.Climb(RADIUS, STEP, steps)
        return reference.perturb(model, lambda z: -reference.distance(z, target).mean(), clean, climb)

    return ours, plain


def batch_cases(model: nn.Module, images: Tensor, sizes: Sizes, view: View) -> Iterator[Case]:
    for count in sizes.batch:
        yield Case(count, *climbs(model, images[:count], sizes.passes, view), attack_work(count, sizes.passes), count)


def steps_cases(model: nn.Module, images: Tensor, sizes: Sizes, view: View) -> Iterator[Case]:
    for steps in sizes.steps:
        loops = climbs(model, images[: sizes.images], steps, view)
        yield Case(steps, *loops, attack_work(sizes.images, steps), sizes.images)


def members_cases(models: list[nn.Module], images: Tensor, sizes: Sizes, view: View) -> Iterator[Case]:
    for count in sizes.members:
        ensemble = Ensemble(models[:count]).eval()
        loops = climbs(ensemble, images[: sizes.images], sizes.passes, view)
        yield Case(count, *loops, count * attack_work(sizes.images, sizes.passes), sizes.images)


def points(count: int, device: torch.device, seed: int) -> Tensor:
    """Unit vectors at random."""
    generator = torch.Generator(device).manual_seed(seed)
    return functional.normalize(torch.randn(count, DIM, device=device, generator=generator), dim=1)


def gallery_cases(device: torch.device, sizes: Sizes, forward_flops: int) -> Iterator[Case]:
    """QA+ and its gradient: a product of queries and items forward, another backward."""
    attack = Query("up")
    queries, none = points(sizes.images, device, seed=0), torch.full((sizes.images,), -1, device=device)
    for items in sizes.gallery:
        gallery = Gallery(points(items, device, seed=1), torch.zeros(items, dtype=torch.long, device=device))
        batch = Batch(queries, torch.zeros_like(none), none)
        targets = attack.choose(queries, batch, gallery, torch.Generator(device).manual_seed(2))

        def ours(gallery: Gallery = gallery, targets: Targets = targets) -> object:
            return value_and_gradient(lambda z: attack.value(z, targets, gallery), queries)

        def plain(gallery: Gallery = gallery, index: Tensor = targets["index"], batch: Batch = batch) -> object:
            z = queries.clone().requires_grad_()
            return reference.query_loss(z, index, batch, gallery, up=True).sum().backward()

        yield Case(items, ours, plain, 2 * product_flops(items, sizes) / forward_flops, sizes.images)


def nearest_cases(device: torch.device, sizes: Sizes, forward_flops: int) -> Iterator[Case]:
    """Ten nearest items: one product; the plain way sorts each query's whole list on the host."""
    queries = points(sizes.images, device, seed=0)
    for items in sizes.gallery:
        rows = points(items, device, seed=1)
        gallery = Gallery(rows, torch.zeros(items, dtype=torch.long, device=device))

        def ours(rows: Tensor = rows) -> object:
            return nearest(queries, rows, k=NEAREST)

        def plain(gallery: Gallery = gallery) -> object:
            return [reference.ranking(query, gallery, leave_out=-1)[:NEAREST] for query in queries]

        yield Case(items, ours, plain, product_flops(items, sizes) / forward_flops, sizes.images)


def product_flops(items: int, sizes: Sizes) -> int:
    return 2 * sizes.images * items * DIM


def plain_seconds(case: Case, device: torch.device, repeats: int, limit: float) -> float:
    """The median of as many calls as fit into the limit, one at least; one more warms up."""
    seconds(case.plain, device)
    times: list[float] = []
    while not times or (len(times) < repeats and sum(times) + max(times) <= limit):
        times.append(seconds(case.plain, device))
    return statistics.median(times)


def rows_of(cases: Iterator[Case], gauge: Gauge, device: torch.device, options: argparse.Namespace) -> dict[str, Row]:
    """Time, work, memory and ratio by size, shown as they come."""
    rows: dict[str, Row] = {}
    pace = 0.0  # seconds of the plain way per unit of size, from the size before
    for case in cases:
        taken = statistics.median(measure({"ours": case.ours}, device, options.repeats)["ours"])
        row: Row = {**gauge.figures(taken, case.fe, case.images), "mebibytes": round(memory(case.ours, device), 1)}
        row["ratio"] = None
        if pace * case.size <= options.limit_seconds:
            plain = plain_seconds(case, device, options.repeats, options.limit_seconds)
            row["ratio"], pace = round(plain / taken, 3), plain / case.size
        rows[str(case.size)] = row
        shown = "-" if row["ratio"] is None else f"{row['ratio']:.2f}"
        print(f"{case.size:>10}{columns(row)}{row['mebibytes']:>10.1f}{shown:>9}", flush=True)
    return rows


def parse(argv: list[str] | None) -> argparse.Namespace:
    made = parser(__doc__, repeats=3)
    made.add_argument("--view", choices=get_args(View), default="fast", help="how the attack sees the model")
    made.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    made.add_argument("--limit-seconds", type=float, default=20.0, help="of the plain way, per size")
    made.add_argument("--tiny", action="store_true", help="small sizes, for a CPU")
    return made.parse_args(argv)


@full_precision()
def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    device = torch.device(options.device)
    sizes = TINY if options.tiny else Sizes()
    torch.manual_seed(0)
    images = torch.rand(max(*sizes.batch, sizes.images), 3, options.size, options.size, device=device)
    known = images[: sizes.images]
    models = [settled(options.architecture, options.weights, known) for _ in range(max(sizes.members))]
    gauge = Gauge.of(models[0], images[0])
    makers: dict[str, Callable[[], Iterator[Case]]] = {
        "batch": lambda: batch_cases(models[0], images, sizes, options.view),
        "steps": lambda: steps_cases(models[0], images, sizes, options.view),
        "gallery": lambda: gallery_cases(device, sizes, gauge.forward_flops),
        "nearest": lambda: nearest_cases(device, sizes, gauge.forward_flops),
        "members": lambda: members_cases(models, images, sizes, options.view),
    }
    print(f"{options.architecture}, {options.size} px, view {options.view}, {describe(device)}")
    rows: dict[str, dict[str, Row]] = {}
    for kind in options.kinds:
        print(f"{kind:<10}{TITLES}{'MiB':>10}{'ratio':>9}")
        rows[kind] = rows_of(makers[kind](), gauge, device, options)
    save(
        f"scaling-{options.architecture}", options, {"measured": gauge.settings(), "sizes": asdict(sizes), "rows": rows}
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
