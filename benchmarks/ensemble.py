"""What a step of ensemble adversarial training costs, adversaries shared by the members against the literal way.

    python benchmarks/ensemble.py --device cuda [--members 3] [--batch 168] [--size 224] [--steps 10]
        [--views exact fast compiled] [--precisions 32-true bf16-mixed] [--compile-update]

One run, both ways in turn. Each member trains on the same number of images either way: all of the batch but its own
part, clean and perturbed. Shared, the adversaries of a batch are made once against all members; literally, as the
algorithm of arXiv 2501.01025 is written, each member has those of its own images made for itself: N - 1 times the
climbs. (Both embed the clean batch once; the algorithm to the letter would do so N - 1 times.) A step is what the
training job does, data loading left out. `ratio` is the literal time over the shared one of the same precision and
view, `work` the same of their fe. Climbs are all in which the ways differ, so the ratio is below that of the work where
an attack is fast and the update is not: `alike` is the time that is spent in both, the update for the most part. With
`--compile-update` it is compiled where the view is, each member's images filled up to one size: as `train --fast` does,
with `--views compiled --precisions bf16-mixed`. Exit code 1 where a ratio is below 1.7 (an H200, the default sizes).
"""

import argparse
import copy
import statistics
import sys
from typing import get_args

import torch
from torch import Tensor

from harness import (
    TITLES,
    Gauge,
    Loop,
    attack_work,
    columns,
    is_h200,
    measure,
    parser,
    ratio,
    save,
    settled,
    update_work,
)
from robustmetric.defences.eat import EnsembleAdversarial
from robustmetric.jobs.workers import describe, full_precision
from robustmetric.losses.proxy_anchor import ProxyAnchor
from robustmetric.models.backbone import encoder
from robustmetric.models.ensemble import Ensemble
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD, View
from robustmetric.types import Batch
from train_step import turn

EXPECTED = 1.7
SIZES = (3, 168, 224, 10)
"""Members, images, pixels and steps that `EXPECTED` is for: those of the recipes."""
RADIUS = 8 / 255
WAYS = {"literal": False, "shared": True}


def images(options: argparse.Namespace) -> Batch:
    """A class for every N images, so that each part holds one image of each."""
    torch.manual_seed(0)
    index = torch.arange(options.batch, device=options.device)
    inputs = torch.rand(options.batch, 3, options.size, options.size, device=options.device)
    return Batch(inputs, index // options.members, index)


def ensemble(options: argparse.Namespace, inputs: Tensor) -> Ensemble:
    """Members settled on the images, batch norm wholly fixed, as in the recipes."""
    members = []
    for _ in range(options.members):
        member = encoder(options.architecture, weights=options.weights, batch_norm="whole")
        member.load_state_dict(settled(options.architecture, options.weights, inputs).state_dict())
        members.append(member.to(inputs.device))
    return Ensemble(members)


def step(
    model: Ensemble, batch: Batch, steps: int, shared: bool, precision: str, view: View, compiled: bool = False
) -> Loop:
    """One turn of the training job's loop, the update `compiled` or not."""
    members = len(model.members)
    classes = int(batch.labels.max()) + 1
    losses = [ProxyAnchor(classes, model.dim // members, seed=seed) for seed in range(members)]
    attack = PGD(Ball(RADIUS), steps=steps, step_size=RADIUS / 4)
    method = EnsembleAdversarial(losses, attack, shared=shared)
    method.prepare(batch.labels)
    if compiled:
        method.steady = True
        for network in method.repeated(model):
            network.compile(dynamic=False)
    return turn(model, method, batch, precision, view)


def work(members: int, batch: int, steps: int, shared: bool) -> int:
    """fe of a step: clean embeddings, the climbs against all members, the updates on clean and perturbed images."""
    kept = batch // members * (members - 1)  # by each member
    climbed = batch if shared else members * kept
    return members * (batch + attack_work(climbed, steps) + 2 * update_work(kept))


def parse(argv: list[str] | None) -> argparse.Namespace:
    made = parser(__doc__, architecture="mobilenet_v2", repeats=5)
    made.add_argument("--members", type=int, default=3)
    made.add_argument("--batch", type=int, default=168, help="images of all parts together; a multiple of the members")
    made.add_argument("--steps", type=int, default=10, help="of the attack")
    made.add_argument("--views", nargs="+", choices=get_args(View), default=None)
    made.add_argument("--precisions", nargs="+", default=None, help="in Fabric's words: 32-true, bf16-mixed")
    made.add_argument("--compile-update", action="store_true", help="with the view compiled, the update too")
    options = made.parse_args(argv)
    if options.members < 2 or options.batch < 1 or options.batch % options.members:
        made.error(f"--batch {options.batch} cannot be cut into parts for --members {options.members} (2 or more)")
    on_gpu = torch.device(options.device).type == "cuda"
    options.views = options.views or (["exact", "fast", "compiled"] if on_gpu else ["exact"])
    options.precisions = options.precisions or (["32-true", "bf16-mixed"] if on_gpu else ["32-true"])
    return options


def compare(
    model: Ensemble, batch: Batch, gauge: Gauge, precision: str, view: View, options: argparse.Namespace
) -> dict[str, dict[str, float]]:
    """Both ways in one precision and view, timed in turn."""
    loops = {}
    for way, shared in WAYS.items():
        # Members of its own: a view is compiled for the largest shape it sees, which is not the same in both ways.
        own = copy.deepcopy(model).to(memory_format=torch.channels_last)
        compiled = options.compile_update and view == "compiled"
        loops[way] = step(own, batch, options.steps, shared, precision, view, compiled)
    times = measure(loops, batch.inputs.device, options.repeats)
    fe = {way: work(options.members, len(batch), options.steps, shared) for way, shared in WAYS.items()}
    medians = {way: 1000 * statistics.median(times[way]) for way in WAYS}
    return {
        way: {
            **gauge.figures(statistics.median(times[way]), fe[way], len(batch)),
            "ratio": round(ratio(times, "literal", way), 3),
            "work_ratio": round(fe["literal"] / fe[way], 3),
            "alike_milliseconds": round(alike(medians["literal"], medians["shared"], options.members), 3),
        }
        for way in loops
    }


def alike(literal: float, shared: float, members: int) -> float:
    """The part of a time that both ways spend: literally there are N - 1 times the climbs, and nothing else differs.

    Of two members no climb is spared, and all of the time is alike.
    """
    return shared - (literal - shared) / (members - 2) if members > 2 else shared


def shortfalls(rows: dict[str, dict[str, dict[str, float]]]) -> list[str]:
    """In words, the sides on which sharing gains less than expected."""
    return [
        f"{side}: sharing is {ways['shared']['ratio']:.2f} times faster; expected at least {EXPECTED}"
        for side, ways in rows.items()
        if ways["shared"]["ratio"] < EXPECTED
    ]


@full_precision()
def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    device = torch.device(options.device)
    batch = images(options)
    model = ensemble(options, batch.inputs)
    gauge = Gauge.of(model.members[0].eval(), batch.inputs[0])
    print(
        f"{options.members} x {options.architecture}, {options.batch} images, {options.size} px, {options.steps} steps,"
        f" {describe(device)}"
    )
    print(f"{'':<30}{TITLES}{'ratio':>8}{'work':>8}{'alike ms':>10}")
    rows: dict[str, dict[str, dict[str, float]]] = {}
    for precision in options.precisions:
        for view in options.views:
            side = f"{precision} {view}"
            rows[side] = compare(model, batch, gauge, precision, view, options)
            for way, row in rows[side].items():
                last = f"{row['ratio']:>8.2f}{row['work_ratio']:>8.2f}{row['alike_milliseconds']:>10.1f}"
                print(f"{side:<22}{way:<8}{columns(row)}{last}", flush=True)
            figures = {"measured": gauge.settings(), "rows": rows, "expected_ratio": EXPECTED}
            name = f"ensemble-{options.architecture}{'-compiled' if options.compile_update else ''}"
            save(name, options, figures)
    at_sizes = (options.members, options.batch, options.size, options.steps) == SIZES
    found = shortfalls(rows) if is_h200(device) and at_sizes else []
    print("\n".join(found), end="\n" if found else "")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
