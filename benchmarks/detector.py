"""The masking checks on models whose truth is measured: who is flagged, and who should be.

    python benchmarks/detector.py [--images 300] [--epochs 15] [--half test] [--seed 0] [--effort suite]
    ROBUSTMETRIC_DATA=... python benchmarks/detector.py --half fresh  # or again

Trains a zoo of small models on digits (some minutes on a CPU): honest ones, and ones that hide their gradients. Masked
is who loses 10 points or more to the best adaptive attack after PGD-20. The thresholds of `diagnose/thresholds.py` were
fixed on the half `tuning`; the table of the half `test` is the detector's own score. `fresh` is a third group, on
Fashion-MNIST at 14 x 14, that nothing was tuned on, and `again` the same kinds of models on MNIST at 14 x 14; their
figures are written to `detector_fresh` and `detector_again`. Exits with 1 unless at least nine in ten of the last group
asked for are judged rightly and no honest model is flagged.
"""

import argparse
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from exhibits import Half, exhibits
from fresh_exhibits import fresh
from fresh_zoo import SOURCES, fresh_zoo
from harness import RESULTS, save
from masking_truth import subject_of, truth, usual_attack
from masking_zoo import Exhibit, Zoo
from robustmetric.diagnose.examine import examine
from robustmetric.diagnose.masking import Masking
from robustmetric.diagnose.verdict import overall
from robustmetric.errors import InputError

EFFORT = Masking(
    restarts=3, starts=4, start_steps=15, counts=(1, 2, 5, 10, 20, 50, 100), sizes=(0.3, 1.0, 2.0, 4.0), apgd_steps=30,
    queries=400, draws=10, votes=25, loss_starts=0,
)  # fmt: skip
"""A fraction of the default: these images are small. Most of many answers, since fewer tell less of a randomised
model than how often it was asked."""
SMALL = Masking(
    restarts=2, starts=3, start_steps=5, counts=(1, 5, 20, 40), sizes=(1.0, 2.0), apgd_steps=10, queries=60, draws=3,
    loss_starts=0,
)  # fmt: skip
EFFORTS = {"table": EFFORT, "suite": Masking(loss_starts=0), "small": SMALL}
"""What each check spends: as in the tables of docs/masking.md, as the suite we ship does, or to see that it runs. The
curves of each loss, of which no verdict hangs, are in none."""

Row = dict[str, Any]
Group = Half | Literal["fresh", "again"]


def judge(exhibit: Exhibit, zoo: Zoo, half: Group, effort: Masking, images: int, seed: int) -> Row:
    """What is true of an exhibit, and what the checks say."""
    began = time.perf_counter()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        subject = subject_of(exhibit, zoo, images)
        fact = truth(exhibit, zoo, subject, effort, seed)
        verdicts = list(
            examine(subject, usual_attack(zoo.images.radius), effort, torch.Generator().manual_seed(seed + 1))
        )
    said = overall(verdicts)
    return {
        "name": exhibit.name,
        "half": half,
        "clean": round(fact.clean, 2),
        "PGD-20": round(fact.usual, 2),
        "adaptive": round(fact.adaptive, 2),
        "truth": "masked" if fact.is_masked else "honest",
        "verdict": said,
        "is_right": fact.is_masked == (said == "masked"),
        "failed": [verdict.name for verdict in verdicts if verdict.verdict == "fail"],
        "unclear": [verdict.name for verdict in verdicts if verdict.verdict == "unclear"],
        "checks": {verdict.name: {key: round(v, 4) for key, v in verdict.numbers.items()} for verdict in verdicts},
        "seconds": round(time.perf_counter() - began, 1),
    }


def confusion(rows: Sequence[Row]) -> Row:
    """How many of each truth got each verdict, and how many were judged rightly: masked where they are, and only there.

    `strictly`: where an honest model must be called honest; `unclear`, which is no flag, is not right then.
    """
    counts = Counter((row["truth"], row["verdict"]) for row in rows)
    return {
        **{
            fact: {said: counts[fact, said] for said in ("honest", "unclear", "masked")}
            for fact in ("honest", "masked")
        },
        "right": sum(row["is_right"] for row in rows),
        "strictly": counts["honest", "honest"] + counts["masked", "masked"],
        "of": len(rows),
    }


def show(row: Row) -> str:
    figures = f"{row['clean']:>7.1f}{row['PGD-20']:>8.1f}{row['adaptive']:>10.1f}"
    words = f"{row['truth']:<8}{row['verdict']:<9}{'' if row['is_right'] else 'WRONG '}{', '.join(row['failed'])}"
    return f"{row['name']:<40}{figures}  {words}"


def parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=300)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--half", choices=[*get_args(Half), "both", *SOURCES], default="both")
    parser.add_argument("--only", nargs="*", help="exhibits by name")
    parser.add_argument("--effort", choices=list(EFFORTS), default="table", help="what each check spends")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=["cpu"], default="cpu")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder to write to")
    return parser.parse_args(argv)


def group(zoo: Zoo, name: Group, only: Sequence[str] | None) -> Iterator[Exhibit]:
    """The exhibits of a half, or of the group on other images."""
    return exhibits(zoo, name, only) if name in get_args(Half) else fresh(zoo, only)


def main(argv: list[str] | None = None) -> int:
    options = parse(argv)
    is_other = options.half in SOURCES
    try:
        zoo = fresh_zoo(options.epochs, options.seed, options.half) if is_other else Zoo(options.epochs, options.seed)
    except InputError as error:
        raise SystemExit(str(error)) from error
    halves: list[Group] = [options.half] if is_other else [h for h in get_args(Half) if options.half in (h, "both")]
    name = f"detector_{options.half}" if is_other else "detector"
    if options.effort != "table":
        name += f"_{options.effort}"
    rows: list[Row] = []
    for half in halves:
        print(f"{half:<40}{'clean':>7}{'PGD-20':>8}{'adaptive':>10}  truth   verdict  failed checks")
        for exhibit in group(zoo, half, options.only):
            row = judge(exhibit, zoo, half, EFFORTS[options.effort], options.images, options.seed)
            rows.append(row)
            print(show(row), flush=True)
            tables = {half: confusion([row for row in rows if row["half"] == half]) for half in halves}
            # As they come: at the suite's effort a group takes an hour and more.
            written = save(name, options, {"confusion": tables, "exhibits": rows})
    for half, table in tables.items():
        right = f"{table['right']} of {table['of']} right (strictly {table['strictly']}: `unclear` not counted)"
        print(f"{half}: {right}; of the honest {table['honest']}, of the masked {table['masked']}")
    print(written)
    last = tables[halves[-1]]
    return 0 if last["right"] >= 0.9 * last["of"] and not last["honest"]["masked"] else 1


if __name__ == "__main__":
    raise SystemExit(main())
