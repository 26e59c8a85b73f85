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
from robustmetric.jobs.certified_ledger import (
    read_certified_row,
    retrieval_block,
    retrieval_commands,
    retrieval_proofs,
)
from robustmetric.jobs.certify import recipe_of
from robustmetric.jobs.classifier_ledger import auto_rank, batch_name, classification, model_name, transfer
from robustmetric.jobs.clustering_ledger import clean_record, clustering_block
from robustmetric.jobs.cost import cost
from robustmetric.jobs.evaluations import Evaluations, all_queries, commands, gather
from robustmetric.jobs.folder import RunFolder, atomically
from robustmetric.jobs.origin import check_trained
from robustmetric.metrics.robustness import SUB_SCORES, ers
from robustmetric.records import Record
from robustmetric.report import clustering_names, clustering_rows
from robustmetric.report.curves import curve_of, to_csv
from robustmetric.report.data_names import NOTE
from robustmetric.report.ledger import (
    CLEAN,
    ENSEMBLES,
    LARGE,
    PROTOCOLS,
    RADII,
    Row,
    faults,
    longer,
    protocol,
    published,
    same_data,
)
from robustmetric.report.masking_flag import masking_block
from robustmetric.report.names import is_noise, label, steps

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
    "one_step": "Goodfellow et al. 2015",
    "random_target": "Kurakin et al. 2017",
    "scattering": "Zhang & Wang 2019",
    "random start": "Zhang & Wang 2019",
    "noise": "Cohen et al. 2019",
}


def write_rows(runs: Sequence[Path], out: Path) -> list[Path]:
    """One file per run folder in `out`, whole or not at all; a run without numbers is refused before any is written.

    Beside the row of a run that was trained lies what its epochs noted, `<id>.csv`.
    """
    rows = {row["id"]: row for row in map(_row, runs)}
    if len(rows) < len(runs):
        raise InputError(f"{len(runs)} runs make {len(rows)} rows: some share data, model, defence, protocol and seed")
    for name, row in rows.items():
        _check_same_weights(out / f"{name}.json", row)
    out.mkdir(parents=True, exist_ok=True)
    for run, (name, row) in zip(runs, rows.items(), strict=True):
        records.write_json(out / f"{name}.json", row)
        _write_curve(run, out / f"{name}.csv")
    return [out / f"{name}.json" for name in rows]


def _write_curve(run: Path, path: Path) -> None:
    results = RunFolder(run).results
    curve = curve_of(records.read(results)) if results.is_file() else {}
    if curve:
        atomically(path, lambda partial: partial.write_text(to_csv(curve)))


def _check_same_weights(path: Path, row: Row) -> None:
    """Refuse to write over a row of another training; one of the same weights is brought up to date."""
    try:
        there = json.loads(path.read_text()) if path.is_file() else row
    except json.JSONDecodeError as error:
        raise InputError(f"{path}, line {error.lineno}: not valid JSON; remove the file to write it anew") from error
    theirs, ours = (str(each.get("weights_sha256", "none"))[:16] for each in (there, row))
    if theirs != ours:
        raise InputError(
            f"{path} is a row of other weights ({theirs}) than this run's ({ours}); expected the same: train with "
            "another seed for a row of its own, or remove the file to replace it"
        )


def _row(path: Path) -> Row:
    """The row of a run that was trained and attacked, or of one that was fitted and certified."""
    return read_certified_row(path) if recipe_of(str(path), None) else read_row(path)


def read_row(path: Path) -> Row:
    """The row of one run folder."""
    folder = RunFolder(path)
    spec = folder.read_recipe()
    check_trained(path, spec)
    facts = json.loads(folder.summary.read_text()) if folder.summary.is_file() else {}
    weights = fingerprint_of(folder.weights) if folder.weights.is_file() else None
    if facts.get("unpacked") and weights != facts.get("weights_sha256"):
        raise InputError(
            f"{path} was unpacked from a copy in half precision: its numbers are of other weights than those of row "
            f"{facts['unpacked']}; expected the run itself, or its own weights, `unpack ROW --model FILE`"
        )
    found = _on_own_data(records.latest(records.read(folder.results)))
    data = str(facts.get("data"))
    measured = gather(found, weights, RADII.get(data))
    if measured.clean is None and not measured.clustered:
        raise InputError(
            f"{path} holds no evaluation of its weights by an ers, classification, autoattack, auto_rank or clustering "
            f"suite in fp32 on its own data; run `robustmetric evaluate {path} SUITE`, as ers28 (small images), ers224"
        )
    of_ensembles = bool(measured.clustered) and _is_of_ensembles(data, spec)
    tested = None if of_ensembles else measured.clean
    clean = tested or clean_record(measured.clustered)
    train = [record.seconds for record in found if record.kind == "train"]
    proofs = retrieval_proofs(found, weights)
    row: Row = {
        **_identity(path, spec, facts, clean, of_ensembles),
        "command": " && ".join([commands(facts, clean, measured.every), *retrieval_commands(facts, proofs)]),
        "commit": str(facts.get("commit")),
        "hardware": str(facts.get("hardware")),
        "wall_seconds": {
            **({"train": round(math.fsum(train), 1)} if train else {}),
            "evaluate": round(measured.seconds, 1),
        },
        "weights_sha256": weights,
        NOTE: clean.context.get(NOTE),
        "queries": clean.count,
        "clean": _rounded({score: clean.scores[score] for score in CLEAN if score in clean.scores}),
        **_blocks(measured, clean, RADII.get(data)),
        "certified": retrieval_block(proofs) or None,
        "cost_fe": cost(spec["defence"]),
        "images_per_second": _rate(found),
        "collapsed": facts.get("collapsed"),
        "mean_cosine": _mean_cosine(found),
    }
    row = {key: value for key, value in row.items() if value is not None and value != {}}
    wrong = faults(row)
    if wrong:
        raise InputError(f"{path}: {'; '.join(wrong)}")
    return row


def _on_own_data(found: Sequence[Record]) -> list[Record]:
    """Without what was measured on other data (`--data`) than the run's own; all, of a run that does not say."""
    own = records.validated_on(found)
    # Records of training, and those of older versions, name no data.
    return [record for record in found if not own or record.settings.get("data_fingerprint") in {*own, None}]


def _blocks(measured: Evaluations, clean: Record, radius: float | None) -> dict[str, Any]:
    """What was measured under attack; `attacked_queries` where a row about clustering has its attacks on fewer."""
    tested, own = measured.tested, measured.clean
    return {
        "attacks": _attacks(tested, radius),
        "attacked_queries": own.count if own is not None and own.count != clean.count else None,
        "clustering": clustering_block(measured.clustered, radius) if measured.clustered else None,
        "classification": classification(tested, measured.local, radius),
        "auto_rank": auto_rank(tested, radius),
        "transfer": transfer(measured.sources),
        "masking": None if measured.masked is None else masking_block([measured.masked]),
    }


def _identity(
    path: Path, spec: Mapping[str, Any], facts: Mapping[str, Any], clean: Record, of_ensembles: bool
) -> dict[str, Any]:
    """What a row is called, the recipe it came from, its protocol, and what is published of it."""
    defence, data, seed = spec["defence"], str(facts.get("data")), int(spec.get("seed", 0))
    epochs, rate = int(spec["epochs"]), float(spec["optimiser"]["rate"])
    replays = int(defence.get("replays", 4)) if defence["name"] == "free_hm" else 1
    whole = clean.count == all_queries(clean)
    try:
        name = protocol(data, epochs, rate, clean.count, whole, replays=replays, clustered=of_ensembles)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    file = facts.get("recipe_file") or _named_after(str(facts.get("name")))
    if of_ensembles:
        model, eta = clustering_names.backbone(spec["model"]), None
        kind = clustering_names.kind(defence, is_long=epochs != ENSEMBLES[name].epochs)
        parts = [clustering_names.in_id(kind, defence)]
        theirs = clustering_rows.published_of(file, spec)
    else:
        model, eta = model_name(spec, str(facts.get("model"))), steps(defence)
        kind = label(defence, data)
        batch = batch_name(spec) if "accuracy" in clean.scores else []
        parts = [kind, *([f"eta{eta}"] if eta else []), *batch]
        theirs = _published(file, kind, eta, data, spec)
    parts += [name] if name != "full" else []
    return {
        "id": "-".join([data, model, *parts, f"seed{seed}"]),
        "data": data,
        "model": model,
        "defence": kind,
        "recipe": file,
        "seed": seed,
        "protocol": name,
        "paper": clustering_rows.SOURCE if of_ensembles else _paper(defence),
        "published": theirs,
    }


def _paper(defence: Mapping[str, Any]) -> str | None:
    return PAPERS.get("random start" if is_noise(defence) else defence["name"])


def _is_of_ensembles(data: str, spec: Mapping[str, Any]) -> bool:
    """Whether a run was trained as the tables about clustering are, or is a control for them."""
    epochs, rate = int(spec["epochs"]), float(spec["optimiser"]["rate"])
    return PROTOCOLS.get(data) is LARGE and any(
        epochs in (wanted.epochs, longer(wanted)) and math.isclose(rate, wanted.rate) for wanted in ENSEMBLES.values()
    )


def fingerprint_of(path: Path) -> str:
    """SHA-256 of a file's weights, as `folder.fingerprint` has it of a model: what records name by 16 digits."""
    digest = hashlib.sha256()
    for name, value in sorted(load_file(path).items()):
        digest.update(name.encode())
        digest.update(value.tobytes())
    return digest.hexdigest()


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


def _mean_cosine(found: Iterable[Record]) -> float | None:
    """That of clean test embeddings at the end of training, by which a collapse was judged."""
    seen = [record.scores["mean_cosine"] for record in found if "mean_cosine" in record.scores]
    return round(seen[-1], 5) if seen else None


def _rate(found: Iterable[Record]) -> float | None:
    epochs = [record for record in found if record.kind == "train"]
    seconds = math.fsum(record.seconds for record in epochs)
    return round(sum(record.count for record in epochs) / seconds, 1) if seconds else None


def _named_after(run: str) -> str:
    """The recipe a run folder was named after, for runs that do not say: `cub-act-seed0`; empty where there is none."""
    titles = {name.replace("/", "-"): f"recipes/{name}.yaml" for name in recipe.listing()}
    return titles.get(run.rpartition("-seed")[0], "")


def _published(name: str, kind: str, eta: int | None, data: str, spec: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the recipe's header says, if the run still is that row: an override may have made another of it."""
    try:
        shipped = recipe.load(recipe.locate(name)) if name else {}
    except InputError:
        return None
    defence = shipped.get("defence")
    same = defence is not None and (label(defence, data), steps(defence)) == (kind, eta) and same_data(shipped, spec)
    return published(name) if same and data in PROTOCOLS else None


def _rounded(scores: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in scores.items()}
