"""Published and ours side by side, as Markdown: two halves that are never mixed, one table per protocol."""

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from robustmetric import recipe
from robustmetric.errors import InputError
from robustmetric.report import clustering_rows, masking_flag
from robustmetric.report.classification import classification_tables, without_classifiers
from robustmetric.report.data_names import with_note
from robustmetric.report.ledger import LARGE, PROTOCOLS, Row, not_measured, published, read_rows, why_not
from robustmetric.report.names import label, steps
from robustmetric.report.pairs import fallen, grids
from robustmetric.report.scores import DASH, show
from robustmetric.report.seeds import over_seeds
from robustmetric.report.smoothing import smoothing_tables

MODELS = {"resnet18": "ResNet-18", "mobilenet_v2": "MobileNetV2", "convnet": "C2F2"}
Kind = tuple[str, int | None]
"""A defence's label and its steps."""
Block = dict[str, Any]
"""What was published of a row; see `ledger.published`."""


def comparison(folder: Path) -> str:
    """The tables of `results/<data>`: every row of ours beside what was published of it, and what was not measured.

    The name of data alone, where no folder is called so, has what was published of it.
    """
    data = folder.resolve().name
    theirs = published_kinds(data)
    is_name = str(folder) == data and not folder.exists() and is_known(data)
    every = [] if is_name else read_rows(folder)
    clustered = [row for row in every if clustering_rows.is_of_clustering(row)]
    groups = grouped(of_retrieval(every))
    parts = [
        f"### {_named(data, ours)}, protocol {protocol}\n\n"
        f"{_table({kind: theirs.get(kind) for kind in ours}, ours, model)}"
        for (protocol, model), ours in groups.items()
    ]
    pairs = (
        grids(f"{data}, protocol {protocol}", ours, theirs, title_of(model))
        for (protocol, model), ours in groups.items()
    )
    parts += [text for text in pairs if text]
    measured = {kind for ours in groups.values() for kind in ours}
    missing = {kind: block for kind, block in theirs.items() if kind not in measured}
    if missing:
        parts.append(f"### {data}, not measured\n\n{_table(missing, {}, '')}")
    parts += [text] if (text := clustering_rows.table(data, clustered)) else []
    parts += [*classification_tables(data, every), *smoothing_tables(data, every)]
    if not parts:
        raise InputError(f"nothing is published of {data} in tables of ours; expected a folder of rows: results/{data}")
    return "\n\n".join(parts)


def _named(data: str, ours: Mapping[Kind, Sequence[Row]]) -> str:
    """The data of a table, with what a row of it must tell."""
    notes = [with_note(data, row) for rows in ours.values() for row in rows]
    return next((note for note in notes if note != data), data)


def of_retrieval(rows: Iterable[Row]) -> list[Row]:
    """The rows about retrieval: neither of classifiers nor of the tables about clustering, which train otherwise."""
    return [row for row in without_classifiers(rows) if not clustering_rows.is_of_clustering(row)]


def grouped(rows: Iterable[Row]) -> dict[tuple[str, str], dict[Kind, list[Row]]]:
    """By protocol and model, in the order of protocols, then by kind: the rows that differ in their seed alone."""
    groups: dict[tuple[str, str], dict[Kind, list[Row]]] = {}
    for row in sorted(rows, key=_place):
        groups.setdefault((row["protocol"], row["model"]), {}).setdefault(kind_of(row), []).append(row)
    return groups


def is_known(data: str) -> bool:
    """Whether we have recipes of this data."""
    return any(name.startswith(f"{data}/") for name in recipe.listing())


def published_kinds(data: str) -> dict[Kind, Block]:
    """By kind, what the headers of our recipes for this data say, and `why` none of them could be measured."""
    found: dict[Kind, Block] = {}
    for name in recipe.listing():
        block = published(name) if name.startswith(f"{data}/") else None
        if block is not None:
            defence = recipe.load(recipe.locate(name))["defence"]
            block = found.setdefault((label(defence, data), steps(defence)), block)
            # Of several backbones one may be had.
            block["why"] = why_not(name) and block.get("why", why_not(name))
    return found


def kind_of(row: Row) -> Kind:
    """A row's defence and its steps, which its id names."""
    eta = re.search(r"-eta(\d+)(-|$)", row["id"])
    return row["defence"], int(eta[1]) if eta else None


def _place(row: Row) -> int:
    """Of a row's protocol among those of its data."""
    return list(PROTOCOLS.get(row["data"], LARGE)).index(row["protocol"])


def _table(theirs: Mapping[Kind, Block | None], ours: Mapping[Kind, Sequence[Row]], model: str) -> str:
    """One line per kind of `theirs`: what was published, then what was measured, or that it was not."""
    models = sorted({block["model"] for block in theirs.values() if block is not None})
    left, right = ", ".join(title_of(name) for name in models), title_of(model)
    head = [
        "defence", "steps", f"published ({left}): R@1" if left else "published: R@1", "ERS",
        f"ours ({right}): R@1" if model else "ours", "ERS compat", "ERS fixed", "ES:R fixed", "seeds",
    ]  # fmt: skip
    lines = [head, ["---", *["--:"] * (len(head) - 1)]]
    for kind in sorted(theirs, key=lambda kind: (kind[0], kind[1] or 0)):
        name = [f"`{kind[0]}`", DASH if kind[1] is None else str(kind[1])]
        lines.append([*name, *_their_cells(theirs[kind]), *_our_cells(ours.get(kind, []), theirs[kind])])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def title_of(model: str) -> str:
    """A backbone as papers write it."""
    return MODELS.get(model, model)


def _their_cells(block: Block | None) -> list[str]:
    if block is None:
        return [DASH, DASH]
    if block.get("collapsed"):
        return ["collapsed", DASH]
    return [show("R@1", block.get("R@1")), show("ERS", block.get("ERS"))]


def _our_cells(rows: Sequence[Row], theirs: Block | None) -> list[str]:
    if not rows:
        return [not_measured((theirs or {}).get("why", "")), *[DASH] * 4]
    attacks = (("compat", "ERS"), ("fixed", "ERS"), ("fixed", "ES:R"))
    scores = [over_seeds(row.get("attacks", {}).get(mode, {}).get(score) for row in rows) for mode, score in attacks]
    note = fallen(rows) + next((flag for flag in map(masking_flag.note, rows) if flag), "")
    return [over_seeds(row["clean"].get("R@1") for row in rows) + note, *scores, str(len(rows))]
