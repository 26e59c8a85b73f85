"""What learning a metric costs: ARML against a plain loop, and beside LMNN, ITML and NCA, in one run.

    ROBUSTMETRIC_DATA=... python benchmarks/arml.py [--device cuda] [--iterations 100] [--trials 5] [--nca-trials 5]

The plain loop is what the paper's text says, written down: full batch, autograd, neighbours searched among all rows at
every iteration, Adam at the released rate. Both metrics are certified exactly (1-NN, the first 1,000 test points after
`shuffle(random_state=42)`). ARML here is the default, at as many iterations. Exit code 1 where on a CPU the loop takes
less than 5 times as long, or certified errors differ by more than .01 at a radius, or, on an H200, ARML takes 2 s or
more. (7,291 rows are few for a GPU: what ARML spares there is hardly seen in the time.)

The table of running times repeats the one of the authors' rebuttal: all learners for as many iterations (they stop
earlier where they converge), the mean of some trials; NCA is scikit-learn's, and ours beside it. ITML and scikit-learn
run on a CPU alone. Times are in seconds of the clock and of the processor. The ratio is shown in both; on a CPU the
processor's decides, since both sides run one after the other on one thread, and what else the machine does meanwhile
falls on one of them.
"""

import argparse
import statistics
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.neighbors import NeighborhoodComponentsAnalysis
from sklearn.utils import shuffle
from torch import Tensor

from harness import RESULTS, Loop, is_h200, save, seconds
from robustmetric.certify.knn import RobustKNN
from robustmetric.data.tabular import Tabular
from robustmetric.jobs.workers import describe
from robustmetric.learn import ARML, ITML, LMNN, NCA

EXPECTED, TOLERANCE, H200_SECONDS = 5.0, 0.01, 2.0
RADII = (0.0, 0.5, 1.0, 1.5, 2.0, 2.5)
PUBLISHED = {"LMNN": 66.4, "ITML": 95.2, "NCA": 480.9, "ARML": 146.1, "ARML on a GPU": 10.6}
"""Seconds, USPS, 100 iterations, mean of 5 trials: Xeon E5-2620 v4, TITAN Xp."""


def plain_loop(x: Tensor, labels: Tensor, iterations: int, neighbours: int = 10, rate: float = 1e-3) -> Tensor:
    """M = G^T G as the paper's text says: Eq. 12 by autograd, all distances and both lists anew every time."""
    torch.manual_seed(0)
    factor = torch.eye(x.shape[1], device=x.device, requires_grad=True)
    optimiser = torch.optim.Adam([factor], lr=rate)
    each = torch.arange(len(x), device=x.device)
    is_same = labels[:, None] == labels
    is_same.fill_diagonal_(False)
    is_other = labels[:, None] != labels
    for _ in range(iterations):
        with torch.no_grad():
            z = x @ factor.T
            distances = torch.cdist(z, z)
            near = distances.masked_fill(~is_same, torch.inf).topk(neighbours, largest=False).indices
            far = distances.masked_fill(~is_other, torch.inf).topk(neighbours, largest=False).indices
        pick = torch.randint(neighbours, (2, len(x)), device=x.device)
        positive, negative = x[near[each, pick[0]]], x[far[each, pick[1]]]
        matrix = factor.T @ factor

        def squared(difference: Tensor, matrix: Tensor = matrix) -> Tensor:
            return (difference @ matrix * difference).sum(dim=1)

        length = ((positive - negative) @ matrix).square().sum(dim=1).clamp_min(1e-6).sqrt()
        margin = (squared(x - negative) - squared(x - positive)) / (2 * length)
        optimiser.zero_grad()
        (-margin).mean().backward()
        optimiser.step()
    return (factor.T @ factor).detach()


def timed(loop: Loop, device: torch.device) -> dict[str, float]:
    """Seconds of the clock, and of the processor."""
    begin = time.process_time()
    taken = seconds(loop, device)
    return {"seconds": round(taken, 3), "cpu_seconds": round(time.process_time() - begin, 3)}


def certified_errors(metric: Any, data: Mapping[str, np.ndarray], device: str) -> list[float]:
    """The share of test points that can be fooled within each radius."""
    classifier = RobustKNN(metric, device=device).fit(data["x_train"], data["y_train"])
    radii = np.asarray(classifier.certify(data["x_test"], data["y_test"]))
    return [round(float((radii <= r).mean()), 4) for r in RADII]


def load(file: str, test_points: int) -> dict[str, np.ndarray]:
    """A table in float32, in which both sides learn."""
    dataset = Tabular(file=file, scale=True).load()
    test = shuffle(dataset.queries.inputs.float().numpy(), dataset.queries.labels.numpy(), random_state=42)
    return {
        "x_train": dataset.train.inputs.float().numpy(),
        "y_train": dataset.train.labels.numpy(),
        "x_test": test[0][:test_points],
        "y_test": test[1][:test_points],
    }


def side_by_side(data: Mapping[str, np.ndarray], options: argparse.Namespace) -> dict[str, Any]:
    """Both learners once, after both have been warmed up by one iteration, and what their metrics withstand."""
    device = torch.device(options.device)
    x, labels = (torch.from_numpy(data[name]).to(device) for name in ("x_train", "y_train"))
    found: dict[str, Any] = {}

    def ours(iterations: int) -> None:
        learner = ARML(max_iter=iterations, random_state=0, device=options.device)
        found["ours"] = learner.fit(data["x_train"], data["y_train"])

    def loop(iterations: int) -> None:
        found["loop"] = plain_loop(x, labels, iterations)

    times = {}
    for name, learn in (("ours", ours), ("loop", loop)):
        learn(1)
        times[name] = timed(partial(learn, options.iterations), device)
    loop_matrix = found["loop"].double().cpu().numpy()
    errors = {
        "euclidean": certified_errors(None, data, options.device),
        "ours": certified_errors(found["ours"], data, options.device),
        "loop": certified_errors((loop_matrix + loop_matrix.T) / 2, data, options.device),
    }
    return {
        "times": times,
        "loop_over_ours": {unit: round(times["loop"][unit] / times["ours"][unit], 2) for unit in times["loop"]},
        "radii": RADII,
        "certified_error": errors,
        "largest_difference": round(max(abs(a - b) for a, b in zip(errors["ours"], errors["loop"], strict=True)), 4),
    }


def running_times(data: Mapping[str, np.ndarray], options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """Mean seconds of each learner for the same number of iterations."""
    common = {"max_iter": options.iterations}
    learners: dict[str, Any] = {
        "ARML": lambda seed: ARML(**common, random_state=seed, device=options.device),
        "LMNN": lambda seed: LMNN(**common, random_state=seed, device=options.device),
        "NCA, ours": lambda seed: NCA(**common, random_state=seed, device=options.device),
    }
    if options.device == "cpu":
        learners["ITML"] = lambda seed: ITML(**common, random_state=seed)
        learners["NCA"] = lambda seed: NeighborhoodComponentsAnalysis(**common, random_state=seed)
    table: dict[str, dict[str, Any]] = {}
    for name, make in learners.items():
        trials: list[dict[str, float]] = []
        for seed in range(options.nca_trials if name.startswith("NCA") else options.trials):
            learner = make(seed)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)  # so many iterations are what is asked for
                fit = partial(learner.fit, data["x_train"], data["y_train"])
                trials.append(timed(fit, torch.device(options.device)))
        if trials:
            means = {f"mean_{unit}": round(statistics.mean(row[unit] for row in trials), 3) for unit in trials[0]}
            table[name] = {**means, "trials": trials, "iterations": learner.n_iter_}
            print(
                f"{name:<10}{means['mean_seconds']:>10.2f} s, of the processor {means['mean_cpu_seconds']:.2f} s",
                flush=True,
            )
    return table


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--data", default="tabular/usps.npz")
    parser.add_argument("--iterations", type=int, default=100)
    parser.add_argument("--test-points", type=int, default=1000)
    parser.add_argument("--trials", type=int, default=5)
    parser.add_argument("--nca-trials", type=int, default=5, help="NCA takes as long as all others together")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder to write to")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    options = parse(words)
    torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    data = load(options.data, options.test_points)
    print(f"{options.data}, {len(data['x_train'])} rows, {options.iterations} iterations, {describe(device)}")
    figures = side_by_side(data, options)
    taken = {name: times["seconds"] for name, times in figures["times"].items()}
    faster = figures["loop_over_ours"]
    print(f"ARML {taken['ours']:.2f} s, plain loop {taken['loop']:.2f} s", flush=True)
    print(f"{faster['seconds']:.1f} times by the clock, {faster['cpu_seconds']:.1f} by the processor", flush=True)
    for name, errors in figures["certified_error"].items():
        print(f"{name:<10}" + "".join(f"{error:>8.3f}" for error in errors))
    figures["running_times"] = running_times(data, options)
    save("arml", options, {**figures, "published_seconds": PUBLISHED, "expected": EXPECTED})
    wrong = [
        device.type == "cpu" and faster["cpu_seconds"] < EXPECTED,
        figures["largest_difference"] > TOLERANCE,
        is_h200(device) and taken["ours"] >= H200_SECONDS,
    ]
    if any(wrong):
        print(
            f"expected {EXPECTED:.0f} times on a CPU, errors within {TOLERANCE}, "
            f"and on an H200 less than {H200_SECONDS:.0f} s"
        )
    return int(any(wrong))


if __name__ == "__main__":
    sys.exit(main())
