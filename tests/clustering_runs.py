"""Run folders of models that were clustered under attack, with made-up numbers."""

from pathlib import Path
from typing import Any

from robustmetric import recipe, records
from robustmetric.jobs.clustering import strongest
from robustmetric.records import Record
from robustmetric.report.clustering import BOTH, CLEAN, GALLERY, QUERY

ENGINE = {"norm": "linf", "radius": 8 / 255, "steps": 10}
READINGS = ("member 1", "member 2", "member 3", "mean", "concatenated", "V1, C1", "V2, C2", "V3, C3")


def scores(recall: float, whole: bool = True) -> dict[str, float]:
    found = {"R@1": recall, "R@2": recall + 1, "R@8": recall + 8}
    return found | (
        {"NMI": recall + 10, "NMI std": 0.5, "AMI": recall, "F1": recall / 4, "F1 std": 0.1} if whole else {}
    )


def trial(suite: str, name: str, recall: float, reading: str, shared: dict[str, Any], **changes: Any) -> list[Record]:
    settings = {**shared, "suite": suite, "reading": reading, "trial": name, **ENGINE, **changes}
    return [
        Record(
            "clustering", f"{name}, {side}, {reading}", scores(recall + i, side == BOTH),
            {**settings, "sides": side}, {}, 8131, 60.0,
        )
        for i, side in enumerate((BOTH, QUERY, GALLERY))
    ]  # fmt: skip


def run(path: Path, name: str = "cars/eat_eat", changes: dict[str, Any] | None = None, alone: bool = False) -> Path:
    """A run folder as `train` and two evaluations leave it, with made-up numbers and no weights."""
    path.mkdir(parents=True)
    recipe.save({**recipe.load(recipe.locate(name)), **(changes or {})}, path / "recipe.yaml")
    facts = {
        "name": path.name, "data": "cars", "defence": "eat", "model": "ensemble", "commit": "abc1234",
        "hardware": "1 x GPU", "recipe_file": f"recipes/{name}.yaml", "command": f"robustmetric train {name} --fast",
        "collapsed": False,
    }  # fmt: skip
    records.write_json(path / "run.json", facts)
    shared = {"queries": 8131, "gallery": 8131, "weights": "ab" * 8, "batch": 128, "data": "cars", "precision": "fp32"}
    found = [Record("train", "epoch", {"adversarial": 0.1}, {"epoch": i}, {}, 8054, 50.0) for i in range(2)]
    for place, reading in enumerate(("alone",) if alone else READINGS):
        for suite in ("clustering", "clustering_adaptive", "clustering_sweep"):
            settings = {**shared, "suite": suite, "trial": "clean", "sides": CLEAN, "reading": reading}
            found.append(Record("clustering", f"clean, {reading}", scores(55.0 + place), settings, {}, 8131, 10.0))
        found += trial("clustering", "A1", 23.0 + place, reading, shared)
        for attack, recall in (("margin", 9.0), ("joint margin", 4.0)):
            found += trial("clustering_adaptive", attack, recall + place, reading, shared, steps=50)
        for steps in (1, 10):
            found += trial("clustering_sweep", f"A1 in {steps} steps", 30.0 - steps, reading, shared, steps=steps)
        found += trial("clustering_sweep", "A1", 12.0, reading, shared, radius=16 / 255)
    for suite in ("clustering", "clustering_adaptive", "clustering_sweep"):
        found += strongest([r for r in found if r.settings.get("suite") == suite], {**shared, "suite": suite})
    for record in found:
        records.append(path / "results.jsonl", record)
    return path
