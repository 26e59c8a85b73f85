"""How much of a proof is left when only the nearest rows of a point's own class are asked (reply R4.3), at what cost.

    ROBUSTMETRIC_DATA=... python benchmarks/near_positives.py [--sets satimage usps] [--points 1000]

Of each test point the nearest 1, 2, 5, ... rows of its class stand for the class: a lower bound of its exact radius.
The mean of these over the mean exact radius, by exact programs and by the bound of Theorem 1, with the seconds of each,
on one thread. Exit code 1 where fewer rows prove more, or the bound more than the exact radius.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch

from certify import Table, tabular
from harness import RESULTS, save
from robustmetric.certify.knn import RobustKNN
from robustmetric.jobs.workers import describe

matplotlib.use("Agg")
from matplotlib import pyplot  # after the choice of backend

COUNTS = (1, 2, 5, 10, 20, 50, 100, 200, 500)
METHODS = ("exact", "bound")
Curves = dict[str, list[dict[str, Any]]]


def tightness(data: Table, counts: Sequence[int]) -> Curves:
    """By method, the mean radius for each number of near positives, and for all of them."""
    classifier = RobustKNN().fit(data.x, data.y)
    curves: Curves = {}
    for method in METHODS:
        curves[method] = []
        for count in [*counts, None]:
            began = time.process_time()
            radii = classifier.certify(data.queries, data.labels, method, positives=count)
            taken = time.process_time() - began
            assert not isinstance(radii, tuple)
            point = {"positives": count or "all", "mean_radius": float(radii.mean()), "seconds": round(taken, 3)}
            curves[method].append(point)
    whole = curves["exact"][-1]["mean_radius"]
    for point in (point for curve in curves.values() for point in curve):
        point["share_of_exact"] = round(point["mean_radius"] / whole, 5)
    return curves


def is_sound(curves: Curves) -> bool:
    """Whether more rows never prove less, and the bound no more than the exact radius; up to rounding."""
    means = {method: [point["mean_radius"] for point in curve] for method, curve in curves.items()}
    rising = all(np.diff(values).min() > -1e-9 for values in means.values())
    return bool(rising and (np.array(means["bound"]) <= np.array(means["exact"]) + 1e-9).all())


def plot(found: dict[str, Curves], path: Path) -> None:
    figure, axis = pyplot.subplots(figsize=(5, 3), layout="constrained")
    for name, curves in found.items():
        for method, curve in curves.items():
            values = [100 * point["share_of_exact"] for point in curve]
            axis.plot(range(len(values)), values, marker="o", label=f"{name}, {method}")
    axis.set_xticks(range(len(curve)), [str(point["positives"]) for point in curve])
    axis.set(xlabel="near positives", ylabel="mean radius, % of exact")
    axis.grid(True, alpha=0.3)
    axis.legend(frameon=False, fontsize=8)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", nargs="+", default=["satimage", "usps"])
    parser.add_argument("--points", type=int, default=1000)
    parser.add_argument("--counts", type=int, nargs="+", default=list(COUNTS))
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder to write to")
    options = parser.parse_args(words)
    options.device = "cpu"
    torch.set_num_threads(1)
    print(describe(torch.device("cpu")))
    found = {name: tightness(tabular(name, options.points), options.counts) for name in options.sets}
    for name, curves in found.items():
        for method, curve in curves.items():
            shares = "  ".join(f"{point['positives']}: {100 * point['share_of_exact']:.1f}" for point in curve)
            print(f"{name}, {method}: {shares}")
    plot(found, save("near_positives", options, {"sets": found}).with_suffix(".svg"))
    return 0 if all(map(is_sound, found.values())) else 1


if __name__ == "__main__":
    sys.exit(main())
