"""What PGD-100 and AutoAttack credit label smoothing with: feature scattering and PGD training on digits, some seeds.

    python benchmarks/smoothing.py [--smoothings 0 0.5 0.8] [--seeds 3] [--runs runs]

Trains `digits/classifier_scattering` and `digits/classifier_madry` (hard labels in its ascent, as published) with each
smoothing and seed, 20 s each on a CPU, and attacks the 540 test images by `autoattack_pgd100` at the radius of the
training. What is finished in `--runs` is not run again. The rows go to `smoothing-cpu.json` as they come.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from harness import RESULTS, of_queries, save
from robustmetric.jobs.folder import RunFolder
from robustmetric.jobs.sweep import is_finished
from robustmetric.jobs.target import evaluate
from robustmetric.jobs.train import train
from robustmetric.jobs.workers import Hardware

RADIUS = 0.15
SUITE = "autoattack_pgd100"
SMOOTHINGS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)
"""Those of the rebuttal's table."""
RECIPES = {
    "scattering": ("digits/classifier_scattering", []),
    "madry": ("digits/classifier_madry", ["defence.climbed={name: cross_entropy}"]),
    "plain": ("digits/classifier", []),
}
"""By defence: its recipe and what is changed in it besides the smoothing."""


def arguments(about: str) -> argparse.ArgumentParser:
    """What every benchmark of these networks is asked."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--settings", nargs="*", default=[], help="other settings of the training: epochs=1")
    parser.add_argument("--images", type=int, help="so many of the test images; default: all")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where run folders lie, and are made")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder to write to")
    return parser


def trained(defence: str, smoothing: float, seed: int, options: argparse.Namespace) -> Path:
    """The run folder of one network, trained unless it was."""
    recipe, changes = RECIPES[defence]
    folder = RunFolder(options.runs / f"digits-{defence}-s{smoothing:g}-seed{seed}")
    if not is_finished(folder):
        settings = [f"defence.loss.smoothing={smoothing:g}", *changes, *options.settings, f"seed={seed}"]
        train(recipe, settings, folder.path, resume=folder.recipe.is_file(), hardware=Hardware(options.device))
    return folder.path


def measured(defence: str, smoothing: float, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One network, trained and attacked unless it was: percent right, and the commit of the attacks."""
    folder, hardware = trained(defence, smoothing, seed, options), Hardware(options.device)
    done = evaluate(str(folder), SUITE, radius=RADIUS, queries=options.images, hardware=hardware)
    found = of_queries(done, SUITE, options.images)
    scores = {one.name: round(one.scores["accuracy"], 2) for one in found}
    row = {"defence": defence, "smoothing": smoothing, "seed": seed}
    return {**row, **scores, "images": found[-1].count, "commit": found[-1].context["commit"]}


def main(words: Sequence[str] | None = None) -> int:
    parser = arguments(__doc__ or "")
    parser.add_argument("--smoothings", type=float, nargs="+", default=list(SMOOTHINGS))
    parser.add_argument("--defences", nargs="+", choices=list(RECIPES), default=["scattering", "madry"])
    options = parser.parse_args(words)
    torch.set_num_threads(options.threads)
    rows: list[dict[str, Any]] = []
    for smoothing in options.smoothings:
        for seed in range(options.seeds):
            for defence in options.defences:
                rows.append(measured(defence, smoothing, seed, options))
                print(rows[-1], flush=True)
                save("smoothing", options, {"rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
