"""What was certified of a run -> `results/tabular/<id>.json` of a learner, a block of the row of an encoder.

What was not proved is left out, never filled in.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from robustmetric import recipe, records
from robustmetric.errors import InputError
from robustmetric.jobs.certify_retrieval import NAME, OPTIONS, QUERIES
from robustmetric.jobs.folder import RunFolder
from robustmetric.jobs.proofs import CERTIFIED, EMPIRICAL
from robustmetric.records import Record
from robustmetric.report.certified_schema import faults
from robustmetric.report.ledger import Row, header_of


def read_certified_row(path: Path) -> Row:
    """The row of one folder that `robustmetric certify` made of a recipe with a learner."""
    folder = RunFolder(path)
    facts = json.loads(folder.summary.read_text()) if folder.summary.is_file() else {}
    found = records.latest(records.read(folder.results))
    own = [record for record in found if "learner" in record.settings]
    proofs, attacked = (list({r.name: r for r in own if r.kind == kind}.values()) for kind in (CERTIFIED, EMPIRICAL))
    if not proofs:  # of several of one name the newest counts
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
        "kept_rows": None if fit is None or "kept" not in fit.scores else int(fit.scores["kept"]),
        "fit_seconds": None if fit is None else round(fit.seconds, 3),
        "certified": [_curve(record, "certificate") for record in proofs],
        "empirical": [_curve(record, "attack") for record in attacked] or None,
        "published": header_of(recipe.shelf() / file.relative_to("recipes"))[1].get("published")
        if file.is_relative_to("recipes")
        else None,
    }
    row = {key: value for key, value in row.items() if value is not None}
    wrong = faults(row)
    if wrong:
        raise InputError(f"{path}: {'; '.join(wrong)}")
    return row


def _curve(record: Record, by: str) -> dict[str, Any]:
    """What was proved, or reached, and by which certificate or attack."""
    radii = record.settings["radii"]
    curve = {
        by: record.settings[by],
        "name": record.name,
        "radii": radii,
        "error": [round(record.scores[f"error@{radius:g}"], 2) for radius in radii],
        "seconds": round(record.seconds, 3),
    }
    more = {"area": "area", "mean radius": "mean_radius"}
    return curve | {word: round(record.scores[key], 5) for key, word in more.items() if key in record.scores}


# Encoders.


def retrieval_proofs(found: Iterable[Record], weights: str | None) -> list[Record]:
    """The newest record of each certificate of these weights' retrieval."""
    own = [r for r in found if (r.kind, r.name) == ("certified", NAME)]
    own = [r for r in own if weights is None or weights.startswith(str(r.settings.get("weights", "")))]
    return list({(r.settings["certificate"], r.count, r.seed): r for r in own}.values())


def retrieval_block(proofs: Sequence[Record]) -> list[dict[str, Any]]:
    """Of each certificate what it proves: the R@1 that no perturbation (l2, in pixels from 0 to 1) takes away."""
    return [
        {
            **{word: record.settings[word] for word in OPTIONS},
            "certificate": record.settings["certificate"],
            "queries": record.count,
            "radii": radii,
            "R@1": [round(record.scores[f"R@1@{radius:g}"], 4) for radius in radii],
            "seconds": round(record.seconds, 1),
            **({"mean_radius": round(record.scores["mean radius"], 5)} if "mean radius" in record.scores else {}),
        }
        for record in proofs
        for radii in [sorted({0.0, *record.settings["radii"]})]
    ]


def retrieval_commands(facts: Mapping[str, Any], proofs: Sequence[Record]) -> list[str]:
    """What was typed for each."""
    typed = []
    for record in proofs:
        options = [f"--{word} {record.settings[word]}" for word in OPTIONS]
        points = [f"--points {record.count}"] if record.count != QUERIES else []
        seed = [f"--seed {record.seed}"] if record.seed else []
        typed.append(" ".join(["robustmetric certify", f"runs/{facts.get('name')}", *options, *points, *seed]))
    return typed
