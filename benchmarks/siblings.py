"""What of feature scattering and PGD training on digits falls to images found on a sibling, or on an undefended model.

    python benchmarks/siblings.py [--seeds 3] [--runs runs]

The networks of `smoothing.py`: feature scattering with smoothing 0.5, PGD training and plain training with hard labels.
A sibling is the same training with the next seed, of the last seed the first. What is finished in `--runs` is not run
again. The rows go to `siblings-cpu.json` as they come.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import torch

from harness import of_queries, save
from robustmetric.jobs.target import evaluate
from robustmetric.jobs.workers import Hardware
from smoothing import RADIUS, arguments, trained

SUITE = "transfer"
SMOOTHINGS = {"scattering": 0.5, "madry": 0.0, "plain": 0.0}


def measured(defence: str, seed: int, source: str, options: argparse.Namespace) -> dict[str, Any]:
    """Percent right of one network after images that were found on another, `sibling` or `undefended`."""
    other, its = (defence, (seed + 1) % options.seeds) if source == "sibling" else ("plain", seed)
    run, surrogate = (trained(name, SMOOTHINGS[name], at, options) for name, at in ((defence, seed), (other, its)))
    done = evaluate(
        str(run),
        SUITE,
        radius=RADIUS,
        queries=options.images,
        surrogate=str(surrogate),
        hardware=Hardware(options.device),
    )
    found, behind = of_queries(done, SUITE, options.images), f" from {surrogate.name}"
    moved = [one for one in found if one.name.endswith(behind)]
    scores = {one.name.removesuffix(behind): round(one.scores["accuracy"], 2) for one in moved}
    row = {"defence": defence, "seed": seed, "found_on": source}
    return {**row, **scores, "images": moved[-1].count, "commit": moved[-1].context["commit"]}


def main(words: Sequence[str] | None = None) -> int:
    parser = arguments(__doc__ or "")
    options = parser.parse_args(words)
    if options.seeds < 2:
        parser.error(f"--seeds {options.seeds} has no sibling; expected 2 or more")
    torch.set_num_threads(options.threads)
    rows: list[dict[str, Any]] = []
    for defence in ("scattering", "madry"):
        for source in ("undefended", "sibling"):
            for seed in range(options.seeds):
                rows.append(measured(defence, seed, source, options))
                print(rows[-1], flush=True)
                save("siblings", options, {"rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
