"""Whether Square on another rank objective takes queries that Square on the margin of neighbours does not.

    python benchmarks/rank_objectives.py RUN [RUN ...] [--radius 0.1] [--queries 200] [--questions 5000]

Of each retrieval run, in percent of the queries: what Square leaves on every objective of `auto_rank` with so many
questions per query (`alone`), and together with Square on the margin, as many again (`with margin`). The margin asks
that number in all too, in one search (`margin, longer`) and in two (`margin, twice`); `beyond longer` and `beyond
twice` are what an objective takes and these do not, `after` what it takes of the queries that all of `auto_rank`
leaves. The margin stands among the objectives, drawn anew: what it gains is chance. Exit code 1 where the margin leaves
nothing of any run, so that objectives cannot be told apart.
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from harness import RESULTS, save
from robustmetric.attacks.suite import Trial
from robustmetric.jobs.arena import Arena
from robustmetric.jobs.evaluate import measure_clean, measure_trial
from robustmetric.jobs.suites import load_suite
from robustmetric.jobs.target import find_target
from robustmetric.jobs.workers import Workers
from robustmetric.perturb.gradient_free import Square

MARGIN, LONGER, TWICE = "margin", "margin, longer", "margin, twice"


def right_after(arena: Arena, trial: Trial, turn: int = 0, standing: Tensor | None = None) -> Tensor:
    """Which queries still find their class first."""
    return measure_trial(arena, trial, {}, 0, {}, lead=False, turn=turn, standing=standing)[1]["R@1"] > 0


def searches(radius: float, questions: int) -> dict[str, Trial]:
    """Square on each objective that `auto_rank` climbs by APGD."""
    trials = {trial.label: trial for trial in load_suite("auto_rank", radius).trials}
    square = trials["Square"].engine
    assert isinstance(square, Square)
    engine = replace(square, queries=questions)
    named = {label.removeprefix("APGD-"): trial for label, trial in trials.items() if label.startswith("APGD-")}
    return {name: replace(trial, label=f"Square-{name}", engine=engine) for name, trial in named.items()}


def compared(arena: Arena, radius: float, questions: int) -> dict[str, Any]:
    """What each objective leaves alone and with the margin, takes beyond the margin, and takes after AutoRank."""
    clean = measure_clean(arena, {}, 0, {})[1]["R@1"] > 0
    trials = searches(radius, questions)
    usual = clean & right_after(arena, trials[MARGIN])
    twice = usual & right_after(arena, trials[MARGIN], turn=1)
    longer = clean & right_after(arena, searches(radius, 2 * questions)[MARGIN])
    left = clean
    for trial in load_suite("auto_rank", radius).trials:
        left = left & right_after(arena, trial, standing=left)
    found: dict[str, Any] = {"clean": percent(clean), MARGIN: percent(usual), LONGER: percent(longer)}
    found |= {TWICE: percent(twice), "auto_rank": percent(left), "objectives": {}}
    for name, trial in trials.items():
        right = right_after(arena, trial, turn=2)
        rows = {"alone": clean & right, "with margin": usual & right, "after": left & ~right}
        rows |= {"beyond longer": longer & ~right, "beyond twice": twice & ~right}
        found["objectives"][name] = {key: percent(some) for key, some in rows.items()}
    return found


def percent(rows: Tensor) -> float:
    return round(100 * float(rows.float().mean()), 2)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--radius", type=float, default=0.1)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--questions", type=int, default=5000)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder to write to")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    found = {}
    for run in options.runs:
        target = find_target(str(run), data=None, out=None)
        workers = Workers(torch.device(options.device))
        size = options.queries
        arena = Arena.prepare(target.model, target.dataset, target.view, workers, limit=size, batch_size=size)
        found[run.name] = compared(arena, options.radius, options.questions)
        print(f"{run.name}: {found[run.name]}", flush=True)
    # Paths are this machine's.
    options.runs = list(found)
    save("rank_objectives", options, {"runs": found})
    return 0 if any(one[TWICE] > 0 for one in found.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
