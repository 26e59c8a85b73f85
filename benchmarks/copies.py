"""What a suite that no row of the ledger has met leaves of the rows whose weights lie in the zoo.

    python benchmarks/copies.py results/cub/ID.json [...] [--suite auto_rank] [--queries 500] [--runs runs]
    python benchmarks/copies.py results/cub/ID.json --suite masking --surrogate results/cub/OTHER.json

Each copy is unpacked to a run folder, unless that is there, and attacked; what is finished is not run again. The ledger
takes no numbers of a copy in half precision: they go to `copies-SUITE-DEVICE.json`, by row. Of a suite of attacks that
is what each leaves in its turn, `of` so many queries that it had to attack, and the worst case; of `masking` the
verdict, what its checks say and what they found; `--surrogate` is another row, whose copy transfer climbs on. Exit code
1 where no query of any row was answered rightly before the attacks.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from harness import RESULTS, of_queries, save
from robustmetric.jobs.folder import RunFolder
from robustmetric.jobs.target import evaluate
from robustmetric.jobs.unpack import unpack
from robustmetric.jobs.workers import Hardware
from robustmetric.jobs.worst_case import KIND, WORST
from robustmetric.records import Record
from robustmetric.report.turns import STANDING


def copied(row: Path, runs: Path) -> Path:
    """The run folder of a row's copy, unpacked unless it is there."""
    run = runs / row.stem
    if not RunFolder(run).weights.is_file():
        unpack(row, run)
    return run


def attacked(run: Path, suite: str, queries: int, batch: int, device: str, surrogate: Path | None) -> list[Record]:
    """The records of a suite on so many queries of a run folder."""
    hardware, source = Hardware(accelerator=device), None if surrogate is None else str(surrogate)
    found = evaluate(str(run), suite, queries=queries, batch_size=batch, surrogate=source, hardware=hardware)
    return of_queries(found, Path(suite).stem, queries)


def figures(found: Sequence[Record]) -> dict[str, Any]:
    """What is kept of a row: scores, whom each attack had to attack, and which code it was measured with."""
    by_kind = {kind: [one for one in found if one.kind == kind] for kind in ("clean", "attack", KIND, "masking")}
    row: dict[str, Any] = {"commit": found[-1].context["commit"]}
    for one in by_kind["clean"]:  # the checks of masking begin with none
        row["clean"] = shown(one)
    last = next((one for one in reversed(by_kind["masking"]) if "checks" in one.context), None)
    # A verdict's seconds are those of its checks.
    row["seconds"] = round(sum(one.seconds for one in found if one.kind in ("clean", "attack") or one is last))
    for one in by_kind["attack"]:
        turn = {"of": one.settings[STANDING]} if STANDING in one.settings else {}
        row.setdefault("left", {})[one.name] = shown(one) | turn
    for one in by_kind[KIND]:
        if one.name != WORST:
            row[one.name] = shown(one) | {"lost_first_to": one.context["lost_first_to"]}
    if last is not None:
        row["masking"] = {key: last.context[key] for key in ("verdict", "checks", "said")}
        # Another model is told by its folder, whose path says nothing elsewhere.
        row["masking"]["numbers"] = {
            one.name: {Path(name).name: round(value, 4) for name, value in one.scores.items()}
            for one in by_kind["masking"]
            if one is not last
        }
    return row


def shown(record: Record) -> dict[str, Any]:
    """R@1, or a classifier's accuracy, and its interval."""
    score = "R@1" if "R@1" in record.scores else "accuracy"
    return {score: round(record.scores[score], 2), "interval": [round(end, 2) for end in record.intervals[score]]}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+", type=Path)
    parser.add_argument("--suite", default="auto_rank")
    parser.add_argument("--surrogate", type=Path, help="a row whose copy is another model to climb on")
    parser.add_argument("--queries", type=int, default=500)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--runs", type=Path, default=Path("runs"), help="where run folders lie, and are made")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder to write to")
    options = parser.parse_args(words)
    torch.set_num_threads(options.threads)
    rows: dict[str, Any] = {}
    names = [path.stem for path in options.rows]
    surrogate = options.surrogate and copied(options.surrogate, options.runs)
    for path in options.rows:
        run = copied(path, options.runs)
        found = attacked(run, options.suite, options.queries, options.batch, options.device, surrogate)
        rows[path.stem] = figures(found)
        print(f"{path.stem}: {rows[path.stem]}", flush=True)
        given = argparse.Namespace(**{**vars(options), "rows": names, "surrogate": surrogate and surrogate.name})
        save(f"copies-{Path(options.suite).stem}", given, {"rows": rows})
    right = [row["clean"] for row in rows.values() if "clean" in row]
    return 0 if not right or any(one.get("R@1", one.get("accuracy")) > 0 for one in right) else 1


if __name__ == "__main__":
    sys.exit(main())
