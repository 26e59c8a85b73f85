"""Run folders: what `train` and `evaluate` left on disk, read back as plain data."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from robustmetric.errors import InputError
from robustmetric.records import Record, latest, read


@dataclass(frozen=True)
class Run:
    """One run: who it is, how it was made, and its records. `label` is unique among the runs of a report."""

    path: Path
    label: str
    data: str
    defence: str
    model: str
    seed: int | None
    commit: str
    hardware: str
    recipe: str
    records: tuple[Record, ...]
    examples: tuple[Path, ...]
    recipe_file: str = ""
    """The recipe it was begun with, `recipes/cars/eat_eat.yaml`; its own settings, overrides included, are `recipe`."""
    collapse: str = ""
    """By what evidence the training found that the model had collapsed; empty where it did not."""

    command: str = ""
    """That trained or fitted the model, `robustmetric train ...`; empty where a model from elsewhere was evaluated."""

    @property
    def made_at(self) -> tuple[str, str]:
        """A heading, and the commit at which the model was made; of one from elsewhere, that it is not of here."""
        if self.command.startswith("robustmetric certify"):
            return "fitted at commit", self.commit
        is_trained = self.command or self.of_kind("train")
        return "trained at commit", self.commit if is_trained else "not trained in this folder"

    @property
    def fallen(self) -> str:
        """Of a model that collapsed: by what evidence, what is wrong with it, and what its scores are worth."""
        wrong = (
            "its search is no better than chance"
            if "at chance" in self.collapse
            else "all its embeddings lie in one place"
        )
        return f"has collapsed ({self.collapse}): {wrong}, and none of its scores counts, however good"

    def of_kind(self, *kinds: str) -> list[Record]:
        """The records of these kinds, in the order they were written."""
        return [record for record in self.records if record.kind in kinds]

    def context(self, key: str) -> list[str]:
        """The distinct values of one entry of the records' contexts, such as the commits the numbers came from."""
        found = (record.context.get(key) for record in self.records)
        return list(dict.fromkeys(_flat(value) for value in found if value))


def read_run(path: Path) -> Run:
    """The run in a folder; `results.jsonl` must hold a record, everything else may be missing."""
    if not path.is_dir():
        made = "demo` makes here" if path.parts[:1] == ("demo",) else "train` makes"
        raise InputError(f"{path} is not a folder; expected a run folder with results.jsonl, as `robustmetric {made}")
    results = path / "results.jsonl"
    if not results.is_file() and (inside := sorted(found.parent for found in path.glob("*/results.jsonl"))):
        named = " ".join(map(str, inside[:3])) + (" ..." if len(inside) > 3 else "")
        raise InputError(f"{path} is no run folder but holds {len(inside)} of them; expected one: {named}")
    try:
        records = latest(read(results))
    except (TypeError, AttributeError, KeyError) as error:
        raise InputError(
            f"{results} holds lines that are not records of this version ({error}); evaluate again"
        ) from error
    if not records:
        raise InputError(f"{results} holds no record; run `robustmetric evaluate {path} SUITE` first")
    facts = _facts(path / "run.json")
    recipe = path / "recipe.yaml"
    return Run(
        path=path,
        label=str(facts.get("name") or path.resolve().name),
        data=str(facts.get("data") or _first(records, "data")),
        defence=str(facts.get("defence", "")),
        model=str(facts.get("model", "")),
        seed=facts.get("seed"),
        commit=str(facts.get("commit", "")),
        hardware=str(facts.get("hardware", "")),
        recipe=recipe.read_text() if recipe.is_file() else _pretty(facts.get("recipe")),
        records=tuple(records),
        examples=tuple(sorted((path / "examples").glob("*.npz"))),
        recipe_file=str(facts.get("recipe_file") or ""),
        command=str(facts.get("command") or ""),
        collapse=str(facts.get("collapse") or "its training says so") if facts.get("collapsed") else "",
    )


def read_runs(paths: Sequence[Path]) -> list[Run]:
    """All runs of a report, each folder once, with labels made unique by seed or, failing that, by folder."""
    if not paths:
        raise InputError(
            "no run was given; expected one run folder or more, as in `robustmetric report runs/plain runs/est`"
        )
    by_folder = {path.resolve(): path for path in paths}
    runs = [read_run(path) for path in by_folder.values()]
    runs = _distinct(runs, [f"{run.label} (seed {run.seed})" for run in runs])
    return _distinct(runs, [f"{run.label}, {run.path}" for run in runs])


def _distinct(runs: list[Run], longer: list[str]) -> list[Run]:
    """The runs with the longer label wherever two share one."""
    times = Counter(run.label for run in runs)
    return [replace(run, label=long) if times[run.label] > 1 else run for run, long in zip(runs, longer, strict=True)]


def _facts(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        facts = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {error.lineno}: not valid JSON; copy it from the run or delete it") from error
    if not isinstance(facts, dict):
        raise InputError(f"{path}: expected an object with name, data, defence, ...; found {type(facts).__name__}")
    return facts


def _first(records: Iterable[Record], key: str) -> str:
    return next((str(record.settings[key]) for record in records if key in record.settings), "")


def _pretty(recipe: Any) -> str:
    return json.dumps(recipe, indent=2) if recipe else ""


def _flat(value: Any) -> str:
    """`{"torch": "2.9", "numpy": "2.3"}` as `torch 2.9, numpy 2.3`."""
    return ", ".join(f"{k} {v}" for k, v in value.items()) if isinstance(value, dict) else str(value)
