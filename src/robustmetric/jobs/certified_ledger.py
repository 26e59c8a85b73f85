"""Certified runs -> rows of `results/tabular/<id>.json`. What was not proved is left out, never filled in."""

import json
from pathlib import Path
from typing import Any

from robustmetric import recipe, records
from robustmetric.errors import InputError
from robustmetric.jobs.folder import RunFolder
from robustmetric.records import Record
from robustmetric.report.certified import Row, faults
from robustmetric.report.ledger import header_of


def read_certified_row(path: Path) -> Row:
    """The row of one folder that `robustmetric certify` made of a recipe with a learner."""
    folder = RunFolder(path)
    facts = json.loads(folder.summary.read_text()) if folder.summary.is_file() else {}
    found = records.latest(records.read(folder.results))
    by_name = {record.name: record for record in found if record.kind == "certified" and "learner" in record.settings}
    proofs = list(by_name.values())  # the newest of each
    if not proofs:
        raise InputError(f"{path} holds nothing certified; run `robustmetric certify` on it first")
    fit = next((record for record in reversed(found) if record.kind == "train"), None)
    file, seed = Path(str(facts.get("recipe_file", folder.recipe))), proofs[0].seed
    row: Row = {
        "id": f"{file.stem}-seed{seed}",
        "data": proofs[0].settings["data"],
        "learner": proofs[0].settings["learner"],
        "recipe": file.as_posix(),
        "command": facts.get("command"),
        "commit": proofs[0].context["commit"],
        "hardware": proofs[0].context["hardware"],
        "seed": seed,
        "rows": proofs[0].settings["rows"],
        "points": proofs[0].count,
        "fit_seconds": None if fit is None else round(fit.seconds, 3),
        "certified": [_proof(record) for record in proofs],
        "published": header_of(recipe.shelf() / file.relative_to("recipes"))[1].get("published")
        if file.is_relative_to("recipes")
        else None,
    }
    row = {key: value for key, value in row.items() if value is not None}
    wrong = faults(row)
    if wrong:
        raise InputError(f"{path}: {'; '.join(wrong)}")
    return row


def _proof(record: Record) -> dict[str, Any]:
    radii = record.settings["radii"]
    proof = {
        "certificate": record.settings["certificate"],
        "name": record.name,
        "radii": radii,
        "error": [round(record.scores[f"error@{radius:g}"], 2) for radius in radii],
        "seconds": round(record.seconds, 3),
    }
    more = {"area": "area", "mean radius": "mean_radius"}
    return proof | {word: round(record.scores[key], 5) for key, word in more.items() if key in record.scores}
