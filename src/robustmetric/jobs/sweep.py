"""Sweep: a recipe and values of its settings -> each combination trained, in turn -> a table as they come."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from robustmetric import recipe
from robustmetric.catalogue import NAMES
from robustmetric.errors import InputError
from robustmetric.jobs import assemble
from robustmetric.jobs.clustering import check_search
from robustmetric.jobs.combinations import Combination, combinations
from robustmetric.jobs.folder import RunFolder, atomically
from robustmetric.jobs.progress import say
from robustmetric.jobs.suites import load_suite
from robustmetric.jobs.target import evaluate
from robustmetric.jobs.train import check_classes, train
from robustmetric.jobs.workers import Hardware
from robustmetric.report.runs import read_run
from robustmetric.report.tables import summaries

TABLE = "sweep.csv"


def sweep(
    name: str,
    assignments: Sequence[str],
    out: Path | None = None,
    *,
    suite: str | None = None,
    radius: float | None = None,
    queries: int | None = None,
    batch_size: int = 128,
    search: str = "fp32",
    hardware: Hardware = Hardware(),  # noqa: B008  # frozen
) -> Path:
    """Train the product of all values; returns the table. What is finished is not run again, what was begun goes on.

    `radius`, `queries`, `batch_size` and `search` are those of `evaluate`, by `suite`.
    """
    _, where = assemble.resolve(name, [])
    home = out or Path("runs") / f"sweep-{assemble.title(where)}"
    runs = {RunFolder(home / one.name): one for one in combinations(assignments)}
    if suite is not None:
        check_search(load_suite(suite, radius), search)
    elif queries is not None or radius is not None or search != "fp32":
        raise InputError("--radius, --queries and --search are of an evaluation; expected --evaluate SUITE with them")
    hardware.check()
    for one in runs.values():
        recipe.look_over(assemble.resolve(name, one.overrides)[0], NAMES, where)
    for folder, one in runs.items():
        _check(name, one, folder)
    say(f"{home}: {len(runs)} runs of {name}, {sum(map(is_finished, runs))} finished before")
    table: list[dict[str, str]] = []
    for number, (folder, one) in enumerate(runs.items(), 1):
        before = is_finished(folder)
        if not before:
            train(name, one.overrides, folder.path, resume=folder.recipe.is_file(), hardware=hardware)
        if suite is not None:
            evaluate(
                str(folder.path), suite,
                radius=radius, queries=queries, batch_size=batch_size, search=search, hardware=hardware,
            )  # fmt: skip
        found = scores(folder.path)
        table.append({"run": one.name, **one.values, **found})
        write_table(home / TABLE, table)
        shown = "  ".join(f"{key} {value}" for key, value in found.items())
        say(f"{number}/{len(runs)}  {one.name}{' (finished before)' if before else ''}: {shown}")
    return home / TABLE


def is_finished(folder: RunFolder) -> bool:
    """Whether a training came to its end: its last act is to note whether the model collapsed."""
    if not (folder.summary.is_file() and folder.weights.is_file()):
        return False
    return "collapsed" in json.loads(folder.summary.read_text())


def _check(name: str, one: Combination, folder: RunFolder) -> None:
    """Build a recipe and let go of it: what is wrong with any of them is said before the first one runs."""
    spec, where = assemble.resolve(name, one.overrides)
    plan, dataset = assemble.load_plan(spec, where)
    check_classes(plan.model, dataset)
    old = folder.read_recipe() if folder.recipe.is_file() else spec
    changed = [repr(key) for key in {**old, **spec} if old.get(key) != spec.get(key)]
    if changed:
        raise InputError(
            f"{folder.path} was made with other settings for {', '.join(changed)}; expected the same ones, or another "
            "folder with -o"
        )


def scores(path: Path) -> dict[str, str]:
    """R@1 (or accuracy) at the end of training, and the headline of each suite that the run was evaluated by."""
    run = read_run(path)
    # None where somebody removed the records, to have the run attacked anew.
    seen = next((record.scores for record in reversed(run.of_kind("validation"))), {})
    found: dict[str, str] = {key: f"{seen[key]:.4g}" for key in ("R@1", "accuracy") if key in seen}
    for summary in summaries([run]):
        mode = " (compat)" if summary.protocol.mode == "compat" else ""
        for column in summary.columns:
            heading = " ".join(filter(None, [summary.quantity(column), summary.radius(column)]))
            found[f"{heading}{mode}"] = f"{summary.rows[run.label][column].value:.4g}"
    return found


def write_table(path: Path, table: Sequence[Mapping[str, str]]) -> None:
    """The rows so far as CSV, whole or not at all."""
    text = io.StringIO()
    columns = list(dict.fromkeys(key for row in table for key in row))
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    atomically(path, lambda partial: partial.write_text(text.getvalue()))
