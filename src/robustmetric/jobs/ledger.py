"""Ledger: run folder -> one row of `results/<data>/<id>.json`. What was not measured is left out, never filled in."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from robustmetric import recipe, records
from robustmetric.errors import InputError
from robustmetric.jobs.certified_ledger import read_certified_row
from robustmetric.jobs.certify import recipe_of
from robustmetric.jobs.classifier_ledger import auto_rank, batch_name, classification, model_name
from robustmetric.jobs.folder import RunFolder
from robustmetric.metrics.robustness import SUB_SCORES, ers
from robustmetric.records import Record
from robustmetric.report.ledger import CLEAN, PROTOCOLS, RADII, Row, faults, label, protocol, published, steps
from robustmetric.report.masking_flag import masking_block

PAPERS = {
    "est": "Zhou et al. 2020",
    "ses": "Zhou et al. 2020",
    "rest": "Zhou et al. 2021",
    "act": "Zhou et al. 2021",
    "minmax": "Zhou & Patel 2022",
    "hm": "Zhou & Patel 2022",
    "free_hm": "Shafahi et al. 2019; Zhou & Patel 2022",
    "ca_tride": "Tian et al. 2024",
    "madry": "Madry et al. 2018",
    "scattering": "Zhang & Wang 2019",
}
KINDS = ("clean", "attack", "ers", "worst_case")
SUITES = ("ers", "classification", "autoattack", "auto_rank", "local_search")
"""The evaluations that make a row, by how their suites' names begin."""
UPDATE, STEP, LOOK = 3.0, 2.0, 1.0
"""Forward passes that an image costs: forward and full backward; forward and input gradient; forward alone."""
TRIPLET, PAIR = 1.5, 1.0
"""Images of all triplets, of their positives and negatives, per image of the batch: one triplet for two images."""


def write_rows(runs: Sequence[Path], out: Path) -> list[Path]:
    """One file per run folder in `out`, whole or not at all; a run without numbers is refused before any is written."""
    rows = {row["id"]: row for row in map(_row, runs)}
    if len(rows) < len(runs):
        raise InputError(f"{len(runs)} runs make {len(rows)} rows: some share data, model, defence, protocol and seed")
    out.mkdir(parents=True, exist_ok=True)
    for name, row in rows.items():
        records.write_json(out / f"{name}.json", row)
    return [out / f"{name}.json" for name in rows]


def _row(path: Path) -> Row:
    """The row of a run that was trained and attacked, or of one that was fitted and certified."""
    return read_certified_row(path) if recipe_of(str(path), None) else read_row(path)


def read_row(path: Path) -> Row:
    """The row of one run folder."""
    folder = RunFolder(path)
    spec = folder.read_recipe()
    facts = json.loads(folder.summary.read_text()) if folder.summary.is_file() else {}
    found = records.latest(records.read(folder.results))
    weights = fingerprint_of(folder.weights) if folder.weights.is_file() else None
    tested = _evaluation(found, weights, path)
    clean = next(record for record in tested if record.kind == "clean")
    file = facts.get("recipe_file") or _named_after(str(facts.get("name")))
    defence, data, seed = spec["defence"], str(facts.get("data")), int(spec.get("seed", 0))
    replays = int(defence.get("replays", 4)) if defence["name"] == "free_hm" else 1
    try:
        name = protocol(
            data, spec["epochs"], spec["optimiser"]["rate"], clean.count,
            clean.count == _all(clean), replays=replays,
        )  # fmt: skip
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    eta = steps(defence)
    kind = label(defence, data)
    model = model_name(spec, str(facts.get("model")))
    batch = batch_name(spec) if "accuracy" in clean.scores else []
    middle = [kind, *([f"eta{eta}"] if eta else []), *batch, *([name] if name != "full" else [])]
    row: Row = {
        "id": "-".join([data, model, *middle, f"seed{seed}"]),
        "data": data,
        "model": model,
        "defence": kind,
        "recipe": file,
        "command": _command(facts, clean, tested),
        "commit": str(facts.get("commit")),
        "seed": seed,
        "hardware": str(facts.get("hardware")),
        "wall_seconds": _seconds(found, tested),
        "weights_sha256": weights,
        "queries": clean.count,
        "clean": _rounded({score: clean.scores[score] for score in CLEAN if score in clean.scores}),
        "attacks": _attacks(tested, RADII.get(data)),
        "classification": classification(tested, RADII.get(data)),
        "auto_rank": auto_rank(tested, RADII.get(data)),
        "masking": masking_block(found, weights),
        "protocol": name,
        "cost_fe": cost(defence),
        "images_per_second": _rate(found),
        "collapsed": facts.get("collapsed"),
        "paper": PAPERS.get(defence["name"]),
        "published": _published(file, kind, eta, data),
    }
    row = {key: value for key, value in row.items() if value is not None and value != {}}
    wrong = faults(row)
    if wrong:
        raise InputError(f"{path}: {'; '.join(wrong)}")
    return row


def fingerprint_of(path: Path) -> str:
    """SHA-256 of a file's weights, as `folder.fingerprint` has it of a model: what records name by 16 digits."""
    digest = hashlib.sha256()
    for name, value in sorted(load_file(path).items()):
        digest.update(name.encode())
        digest.update(value.tobytes())
    return digest.hexdigest()


def cost(defence: Mapping[str, Any]) -> float | None:
    """Forward passes per training image and update, at most (rows at their goal leave early); None if not known."""
    kind, attack = defence["name"], defence.get("attack") or {}
    climb = STEP * attack.get("steps", 0) * attack.get("restarts", 1)
    if kind == "plain":
        return UPDATE
    if kind in ("est", "ses", "madry"):
        again = kind == "ses" or (kind == "madry" and 0 < defence.get("clean_share", 0) < 1)
        return LOOK + climb + UPDATE * (2 if again else 1)
    if kind in ("scattering", "random_target"):
        return (LOOK if kind == "scattering" else 0) + climb + UPDATE
    if kind in ("act", "rest") or (kind == "minmax" and defence.get("clean_anchor")):
        return LOOK + climb * PAIR + UPDATE * TRIPLET
    if kind in ("hm", "minmax"):
        goal = defence.get("destination") or {}
        still = goal.get("name") == "mined" and goal.get("miner") == defence.get("source")
        term = defence.get("structure") or {}
        wanted = [part for part in term.get("triplet", ("a", "a~", "p")) if "~" not in part] if term else []
        return LOOK + (0 if still else climb * TRIPLET) + UPDATE * (TRIPLET + len(set(wanted)) / 2)
    if kind == "ca_tride":
        # Pairs on one batch, anchors, half as many, on the next.
        return LOOK + climb * (PAIR + PAIR / 2) / 2 + UPDATE * TRIPLET
    if kind == "free_hm":
        return LOOK / defence.get("replays", 4) + UPDATE * TRIPLET
    return None


def _evaluation(found: Iterable[Record], weights: str | None, path: Path) -> list[Record]:
    """The records of one evaluation in fp32 of the weights that lie there, by the `SUITES`: that of most queries."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in found:
        settings = record.settings
        if record.kind not in KINDS or not str(settings.get("suite", "")).startswith(SUITES):
            continue
        if settings.get("precision", "fp32") != "fp32":
            continue
        if weights is not None and not weights.startswith(str(settings.get("weights", ""))):
            continue
        key = (record.seed, *(settings.get(k) for k in ("queries", "gallery", "images", "weights", "data_fingerprint")))
        groups.setdefault(key, []).append(record)
    whole = [group for group in groups.values() if any(record.kind == "clean" for record in group)]
    if not whole:
        raise InputError(
            f"{path} holds no evaluation of its weights by an ers or classification suite in fp32; "
            f"run `robustmetric evaluate {path}`"
        )
    return max(whole, key=lambda group: (group[0].count, len(group)))


def _attacks(tested: Iterable[Record], radius: float | None) -> dict[str, dict[str, Any]]:
    """Per mode what was measured of the ten numbers at `radius` (None: at any); ERS of them where all are there."""
    blocks: dict[str, dict[str, Any]] = {}
    intervals: dict[str, list[float]] = {}
    for record in tested:
        mode = str(record.settings.get("mode", "fixed"))
        if radius is not None and not math.isclose(record.settings.get("radius", 0), radius, rel_tol=1e-3):
            continue
        if record.kind == "attack":
            known = {score: value for score, value in record.scores.items() if score in SUB_SCORES}
            blocks.setdefault(mode, {}).update(_rounded(known))
        elif record.kind == "ers" and "ERS" in record.intervals:
            intervals[mode] = [round(bound, 4) for bound in record.intervals["ERS"]]
    ordered = {mode: {s: block[s] for s in SUB_SCORES if s in block} for mode, block in blocks.items() if block}
    for mode, block in ordered.items():
        if len(block) == len(SUB_SCORES):
            block["ERS"] = round(ers(block), 4)
            block |= {"ERS_interval": intervals[mode]} if mode in intervals else {}
    return ordered


def _all(clean: Record) -> int | None:
    """How many queries there are in all: retrieval's gallery, where it is the queries; a classifier's test images."""
    return clean.settings.get("images", clean.settings.get("gallery"))


def _command(facts: Mapping[str, Any], clean: Record, tested: Iterable[Record]) -> str:
    """What was typed, with the folder a training makes by itself."""
    settings = clean.settings
    batches = sorted({str(record.settings["batch"]) for record in tested if "batch" in record.settings})
    some = [] if clean.count == _all(clean) else ["--queries", str(clean.count)]
    seed = ["--seed", str(clean.seed)] if clean.seed else []
    batch = ["--batch", batches[0]] if batches not in ([], ["128"]) else []
    evaluate = " ".join(["robustmetric evaluate", f"runs/{facts.get('name')}", settings["suite"], *some, *seed, *batch])
    return f"{facts['command']} && {evaluate}" if facts.get("command") else evaluate


def _seconds(found: Iterable[Record], tested: Iterable[Record]) -> dict[str, float]:
    train = [record.seconds for record in found if record.kind == "train"]
    evaluate = [record.seconds for record in tested if record.kind in ("clean", "attack")]
    return {**({"train": round(math.fsum(train), 1)} if train else {}), "evaluate": round(math.fsum(evaluate), 1)}


def _rate(found: Iterable[Record]) -> float | None:
    epochs = [record for record in found if record.kind == "train"]
    seconds = math.fsum(record.seconds for record in epochs)
    return round(sum(record.count for record in epochs) / seconds, 1) if seconds else None


def _named_after(run: str) -> str:
    """The recipe a run folder was named after, for runs that do not say: `cub-act-seed0`; empty where there is none."""
    titles = {name.replace("/", "-"): f"recipes/{name}.yaml" for name in recipe.listing()}
    return titles.get(run.rpartition("-seed")[0], "")


def _published(name: str, kind: str, eta: int | None, data: str) -> dict[str, Any] | None:
    """What the recipe's header says, if the run still is that row: an override may have made another of it."""
    try:
        shipped = recipe.load(recipe.locate(name))["defence"] if name else None
    except InputError:
        return None
    same = shipped is not None and (label(shipped, data), steps(shipped)) == (kind, eta)
    return published(name) if same and data in PROTOCOLS else None


def _rounded(scores: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in scores.items()}
