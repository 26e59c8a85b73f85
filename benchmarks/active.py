"""What the active set saves on a real run of hardness manipulation: passes computed, time, and hardness reached.

    python benchmarks/active.py RUN --device cuda [--batches 20] [--view fast]

RUN is a run folder of a recipe with the defence `hm`. Batches of its training data are attacked with the goals of the
last epoch's mean loss, by the rows that still move and by all rows. The passes of the training itself, per epoch, are
in the run's results.jsonl, beside the hardness before and after the attack, and are copied here.
"""

import argparse
import statistics
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn

from harness import RESULTS, save, seconds
from robustmetric import records
from robustmetric.attacks.base import Engine
from robustmetric.data.sampler import Pairs
from robustmetric.defences.hardness import HardnessManipulation
from robustmetric.jobs import assemble
from robustmetric.jobs.feed import Feed
from robustmetric.jobs.folder import RunFolder
from robustmetric.numerics.randomness import generator
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD, Rowwise, View
from robustmetric.types import Batch, Inputs, Value

CURVES = ("before", "goal", "after", "passes", "triplet")


@dataclass
class AllRows:
    """The engine without the active set: every row takes part in every pass."""

    engine: PGD

    @property
    def ball(self) -> Ball:
        return self.engine.ball

    def __call__(self, value: Value, clean: Inputs, generator: torch.Generator | None = None) -> Inputs:
        assert isinstance(value, Rowwise)
        return self.engine(lambda x: value(x), clean, generator)


def load(run: str, device: torch.device) -> tuple[assemble.Plan, Feed]:
    """The plan of a run, with the weights it ended with and the mean loss of its last epoch."""
    folder = RunFolder(Path(run))
    plan, dataset = assemble.load_plan(folder.read_recipe(), run)
    if not isinstance(plan.defence, HardnessManipulation):
        raise SystemExit(f"{run} was trained with {type(plan.defence).__name__}; expected the defence hm")
    folder.load_weights(plan.model)
    plan.model.to(device).train()
    plan.defence.to(device).last_loss.fill_(curves(run)[-1]["triplet"])
    return plan, Feed(dataset.train, device)


def curves(run: str) -> list[dict[str, float]]:
    """What the training noted, epoch by epoch."""
    found = [record for record in records.read(RunFolder(Path(run)).results) if record.kind == "train"]
    return [{key: record.scores[key] for key in CURVES} for record in found]


def attack(defence: HardnessManipulation, model: nn.Module, batch: Batch, last_loss: Tensor) -> None:
    """One step's attack, leaving its figures in the defence; the goals are those of the last loss given."""
    defence.last_loss.copy_(last_loss)
    with torch.no_grad():
        defence(model, batch, generator(batch.inputs.device, 0, 1))


def parse(argv: list[str] | None) -> argparse.Namespace:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("run")
    made.add_argument("--device", default="cpu")
    made.add_argument("--batches", type=int, default=20)
    made.add_argument("--pairs", type=int, default=None, help="instead of the recipe's")
    made.add_argument("--view", choices=("exact", "fast"), default="fast")
    made.add_argument("--results", type=Path, default=RESULTS)
    return made.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    device = torch.device(options.device)
    plan, feed = load(options.run, device)
    sampler = plan.sampler if options.pairs is None else Pairs(2 * options.pairs)
    defence = plan.defence
    assert isinstance(defence, HardnessManipulation) and isinstance(defence.attack, PGD)
    view: View = options.view
    defence.view = view
    steps = defence.attack.steps
    ways: dict[str, Engine] = {"active": defence.attack, "all rows": AllRows(defence.attack)}
    last_loss = defence.last_loss.clone()
    figures: dict[str, dict[str, list[float]]] = {name: {} for name in ways}
    rows = list(sampler.batches(feed.labels, 0, plan.seed))[: options.batches + 1]
    for number, positions in enumerate(rows):
        batch = feed.batch(positions, plan.augment, generator(device, plan.seed, number))
        for name, engine in ways.items():
            defence.attack = engine
            taken = seconds(partial(attack, defence, plan.model, batch, last_loss), device)
            found = {key: float(value) for key, value in defence.measures.items()}
            for key, value in {**found, "milliseconds": 1000 * taken}.items():
                if number > 0:  # the first batch warms up
                    figures[name].setdefault(key, []).append(value)
    means = {way: {key: statistics.mean(values) for key, values in found.items()} for way, found in figures.items()}
    for way, found in means.items():
        print(f"{way:<10}" + "".join(f"{key:>14} {value:.4f}" for key, value in found.items()))
    epochs = curves(options.run)
    mean_passes = statistics.mean(epoch["passes"] for epoch in epochs)
    print(f"training: {mean_passes:.2f} passes per image on average over {len(epochs)} epochs, of {steps}")
    options.run = Path(options.run).name
    result = {"ways": means, "training": epochs, "mean_passes_in_training": mean_passes}
    save("active", options, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
