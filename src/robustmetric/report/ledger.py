"""The ledger: `results/<data>/<id>.json`, one measured row per file; its schema, its protocols, and its names."""

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robustmetric import recipe
from robustmetric.errors import InputError
from robustmetric.report import masking_flag
from robustmetric.report.certified_schema import retrieval_faults
from robustmetric.report.clustering_schema import faults as clustering_faults
from robustmetric.report.data_names import NOTE
from robustmetric.report.worst_case_schema import faults as worst_case_faults

Row = dict[str, Any]
"""One file: see `faults` for what it holds."""


@dataclass(frozen=True)
class Protocol:
    """How much a row was trained and tested: rows are compared within one protocol only. `queries` None is all."""

    epochs: int
    rate: float
    queries: int | None = None


LARGE = {
    "full": Protocol(75, 1e-5),
    "full_3e-5": Protocol(75, 3e-5),
    "short": Protocol(15, 3e-5, 1000),
    "sketch": Protocol(4, 5e-5, 500),
}
"""At 224 px, in pair-epochs: each image once as an anchor. A sketch is tested by ES and GTM alone."""
PROTOCOLS: dict[str, dict[str, Protocol]] = {
    **{data: LARGE for data in ("cub", "cars", "sop", "inshop")},
    **{data: {"full": Protocol(8, 1e-3)} for data in ("fashion", "mnist")},
    "digits": {"full": Protocol(30, 1e-3), "classifier": Protocol(20, 1e-3)},
    "cifar10": {
        "full": Protocol(200, 0.1),
        "scaled": Protocol(40, 0.1, 1000),
        "scaled_0.4": Protocol(40, 0.4, 1000),
        "short": Protocol(15, 0.1, 1000),
        "short_0.4": Protocol(15, 0.4, 1000),
        "long_0.4": Protocol(200, 0.4, 1000),
    },
}
"""By data; the one place that says what `full`, `short` and `sketch` mean. 0.4 is for batches of 240: 0.1 for 60."""
ENSEMBLES = {"full": Protocol(60, 1e-4), "short": Protocol(12, 1e-4)}
"""At 224 px, of rows about clustering, which is always of all images. The paper has 200 epochs."""
LONGER = 75 / 24
"""How many times the epochs a single model may have as a control: the forwards of EAT over those of AT."""

RADII = {
    **{data: 8 / 255 for data in ("cub", "cars", "sop", "inshop")},
    "fashion": 77 / 255,
    "mnist": 77 / 255,
    "cifar10": 8 / 255,
}
"""The published radius by data: numbers at another have no place in the ten. Other data have no published one."""

CLEAN = ("R@1", "accuracy", "R@2", "mAP", "mAP@10", "NMI", "AMI", "F1", "probe")
TEN = ("CA+", "CA-", "QA+", "QA-", "TMA", "ES:D", "ES:R", "LTM", "GTM", "GTT")
RANGES = {"TMA": (-1.0, 1.0), "ES:D": (0.0, 2.0), "AMI": (-100.0, 100.0)}
"""Of scores that are no rates in percent; AMI is below 0 where clusters agree less than by chance."""
WORDS = ("id", "data", "model", "defence", "recipe", "command", "commit", "hardware", "protocol")
COUNTS = ("seed", "queries", "attacked_queries")
NEEDED = (*WORDS, "seed", "queries", "clean")
OPTIONAL = (
    "wall_seconds", "weights_sha256", "attacks", "attacked_queries", "auto_rank", "clustering", "classification",
    "transfer", "certified", "masking", "cost_fe", "images_per_second", "collapsed", "mean_cosine", "paper",
    "published", NOTE,
)  # fmt: skip
WHERE = ("root", "cache", "skip_unreadable")
"""Settings of data that do not make other data of it."""
BACKBONES = {"ResNet-18": "resnet18", "C2F2": "convnet"}
"""The backbones of the published tables, as headers call them."""


def protocol(
    data: str,
    epochs: int,
    rate: float | int,
    queries: int,
    all_queries: bool,
    replays: int = 1,
    clustered: bool = False,
) -> str:
    """The name of the protocol a row was made under; one that is none of them cannot be compared, and is refused.

    A defence that takes each batch `replays` times has that many times fewer epochs, rounded up. A `clustered` row may
    be of `ENSEMBLES` too.
    """
    known = list(PROTOCOLS.get(data, {}).items())
    if clustered and PROTOCOLS.get(data) is LARGE:
        known = [*ENSEMBLES.items(), *known]
    for name, wanted in known:
        tested = all_queries if wanted.queries is None else queries == wanted.queries
        allowed = [math.ceil(wanted.epochs / replays), *([longer(wanted)] if clustered else [])]
        if epochs in allowed and math.isclose(rate, wanted.rate) and tested:
            return name
    words = [f"{name}: {p.epochs} epochs at {p.rate:g}, {p.queries or 'all'} queries" for name, p in known]
    others = f"one of {sorted(PROTOCOLS)}; `report` and `compare` set runs on other data side by side"
    raise InputError(
        f"{epochs} epochs at rate {rate:g} with {queries} queries are no protocol of {data}; "
        f"expected {'; '.join(words) or others}"
    )


def longer(usual: Protocol) -> int:
    """The epochs of a single model that is given as many forwards as EAT."""
    return round(usual.epochs * LONGER + 1e-9)


def published(name: str) -> dict[str, Any] | None:
    """What a recipe's header says was published: source, model and scores; None where nothing was.

    A recipe with "none for this backbone", `mobilenet_v2-act`, has what its sibling has, `act`. What was published of a
    wide ResNet (classifiers) is told in tables of its own, never as if it were of the title's network.
    """
    path = recipe.shelf() / f"{name.removeprefix('recipes/').removesuffix('.yaml')}.yaml"
    title, lines = header_of(path)
    if lines.get("published", "").startswith("none for this backbone"):
        title, lines = header_of(path.with_stem(path.stem.partition("-")[2]))
    told = lines.get("published", "none")
    model = next((model for word, model in BACKBONES.items() if word in title), None)
    if model is None or told.startswith("none") or "WRN-" in told:
        return None
    source = re.search(r"\(([^()]*\d{4}[^()]*|robrank[^()]*)\)", title)
    about = {"source": source[1] if source else title, "model": model}
    if told.startswith("collapsed"):
        return {**about, "collapsed": True}
    numbers = re.findall(r"(\w[\w@:]*[+-]?) (-?\d[\d.]*)", f"{told}, {lines.get('attacked', '')}")
    return {**about, **{score: float(value) for score, value in numbers}}


def why_not(name: str) -> str:
    """What keeps a recipe from being measured, by its header: "no data", "no weights", or nothing but time."""
    told = header_of(recipe.shelf() / f"{name}.yaml")[1].get("measured", "")
    return next((f"no {word}" for word in ("data", "weights") if re.match(rf"no \(no .*\b{word}\b", told)), "")


def not_measured(why: str) -> str:
    """As tables say it."""
    return f"not measured: {why}" if why else "not measured"


def same_data(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two recipes have the same data, wherever it lies and however unreadable files are met."""
    own, others = (
        {key: value for key, value in dict(spec.get("data") or {}).items() if key not in WHERE} for spec in (one, other)
    )
    return own == others


def header_of(path: Path) -> tuple[str, dict[str, str]]:
    """The first line of a recipe's header, and the lines that begin with a word and a colon."""
    text = path.read_text() if path.is_file() else ""
    head = [line[2:] for line in text.splitlines() if line.startswith("# ")]
    return (head[0] if head else ""), {key: rest for key, _, rest in (line.partition(": ") for line in head)}


def read_rows(folder: Path) -> list[Row]:
    """Every row of a folder of results, by id; a file that does not keep to the schema is refused."""
    return read_folder(folder, faults, "results/cub")


def read_folder(folder: Path, faults: Callable[[Any], list[str]], example: str) -> list[Row]:
    """The same by a schema, of which `example` names a folder; one that holds no rows is refused too."""
    if not folder.is_dir():
        raise InputError(
            f"{folder} is no folder of results; expected the path of one, such as {example} of a checkout, or one that "
            "`robustmetric ledger RUN -o FOLDER` wrote"
        )
    rows = []
    for path in sorted(folder.glob("*.json")):
        try:
            row = json.loads(path.read_text())
        except json.JSONDecodeError as error:
            raise InputError(f"{path}, line {error.lineno}: not valid JSON") from error
        found = faults(row)
        if not found and row["id"] != path.stem:
            found = [f"id {row['id']!r} is not the name of the file"]
        if found:
            raise InputError(f"{path}: {'; '.join(found)}")
        rows.append(row)
    if not rows:
        raise InputError(
            f"{folder} holds no rows, files named ID.json; expected a folder such as {example}: rows of your own are "
            f"written by `robustmetric ledger RUN ... -o {folder}`"
        )
    return rows


def faults(row: Any) -> list[str]:
    """What keeps a row from being one of the ledger, in words; nothing for a good row."""
    if not isinstance(row, dict):
        return [f"expected an object, found {type(row).__name__}"]
    found = [f"{key} is missing" for key in NEEDED if key not in row]
    found += [f"{key} is not known" for key in row if key not in (*NEEDED, *OPTIONAL)]
    found += [f"{key} {row[key]!r} is no text" for key in (*WORDS, NOTE) if key in row and not _is_text(row[key])]
    found += [f"{key} {row[key]!r} is no count" for key in COUNTS if key in row and not _is_count(row[key])]
    if found:
        return found
    known = PROTOCOLS.get(row["data"], LARGE)
    if row["protocol"] not in known:
        found.append(f"protocol {row['protocol']!r} is none of {', '.join(known)}")
    elif "clustering" not in row and known[row["protocol"]].queries not in (None, row["queries"]):
        found.append(f"{row['queries']} queries are not those of protocol {row['protocol']}")
    if not row["id"].startswith(f"{row['data']}-{row['model']}-") or not row["id"].endswith(f"-seed{row['seed']}"):
        found.append(f"id {row['id']!r} is not <data>-<model>-...-seed<seed>")
    if "collapsed" in row and not isinstance(row["collapsed"], bool):
        found.append("collapsed is neither true nor false")
    if "mean_cosine" in row and not (_is_number(row["mean_cosine"]) and -1 <= row["mean_cosine"] <= 1):
        found.append(f"mean_cosine {row['mean_cosine']!r} is not from -1 to 1")
    if "weights_sha256" in row and not re.fullmatch(r"[0-9a-f]{64}", str(row["weights_sha256"])):
        found.append("weights_sha256 is not 64 hex digits")
    found += [f"{key} is empty; leave it out" for key in OPTIONAL if row.get(key) in ({}, [], "", None) and key in row]
    found += _block("clean", row["clean"], CLEAN)
    for mode, scores in row.get("attacks", {}).items():
        found += [] if mode in ("fixed", "compat") else [f"attacks.{mode} is no mode"]
        found += _block(f"attacks.{mode}", scores, (*TEN, "ERS", "ERS_interval"))
        if ("ERS" in scores) != (set(TEN) <= set(scores)):
            found.append(f"attacks.{mode}: ERS stands with its ten numbers or not at all")
    found += clustering_faults(row["clustering"]) if "clustering" in row else []
    found += worst_case_faults(row)
    found += retrieval_faults(row["certified"]) if "certified" in row else []
    found += masking_flag.faults(row["masking"]) if "masking" in row else []
    for key in ("cost_fe", "images_per_second"):
        if key in row and not (_is_number(row[key]) and row[key] > 0):
            found.append(f"{key} {row[key]!r} is no number > 0")
    for key in ("train", "evaluate"):
        if not _is_number(row.get("wall_seconds", {}).get(key, 0.0)):
            found.append(f"wall_seconds.{key} is no number")
    return found


def _block(name: str, block: Any, known: tuple[str, ...]) -> list[str]:
    """Faults of a block of scores: rates in percent, the others in their own range."""
    if not isinstance(block, dict) or not block:
        return [f"{name} is empty; leave it out"]
    found = [f"{name}.{score} is not known" for score in block if score not in known]
    for score, value in block.items():
        low, high = RANGES.get(score, (0.0, 100.0))
        numbers = value if score == "ERS_interval" and isinstance(value, list) and len(value) == 2 else [value]
        if not all(_is_number(number) and low <= number <= high for number in numbers) or numbers != sorted(numbers):
            found.append(f"{name}.{score} {value!r} is not from {low:g} to {high:g}")
    if not found and len(block) > 1 and not any(value for value in block.values()):
        found.append(f"{name} is filled with zeros; leave it out")
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0
