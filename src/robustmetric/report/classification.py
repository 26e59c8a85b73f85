"""Rows of classifiers side by side, as Markdown: the authors' protocol, what every attack leaves, and transfer."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from robustmetric.report import masking_flag
from robustmetric.report.data_names import with_note
from robustmetric.report.ledger import PROTOCOLS, Row
from robustmetric.report.scores import DASH, show, show_radius

ORDER = (
    "FGSM",
    "Clean-start FGSM",
    "PGD-20",
    "PGD-100",
    "CW-20",
    "CW-100",
    "Feature match",
    "Square",
    "RayS",
    "Local search",
)
"""The attacks of the authors' protocol and of their critics, each on all images."""
LAST = ("AutoAttack", "worst case")
PAPER_BATCH, PAPER_RATE = 60, 0.1
"""Of feature scattering: images of an update, and its rate."""
LOWEST, SPREAD, LOCAL = "lowest run", "max - min", "local_search"
WITHOUT = "worst_case_without"
"""Attacks of the suite that were left out of a row's worst case."""


def classification_tables(data: str, rows: Sequence[Row]) -> list[str]:
    """One table per copy of the data, protocol, model and radius, then one of transfer; none of retrieval."""
    groups: dict[tuple[str, str, str, str], list[Row]] = {}
    moved: dict[tuple[str, str, str, str], list[Row]] = {}
    for row in filter(_is_of_classifier, rows):
        at = where(row["classification"]) if "classification" in row else "not attacked"
        groups.setdefault((with_note(data, row), row["protocol"], row["model"], at), []).append(row)
        if "transfer" in row:
            at = f"{where(row['transfer'])}, transfer"
            moved.setdefault((with_note(data, row), row["protocol"], row["model"], at), []).append(row)
    made = [(key, _table(group)) for key, group in groups.items()]
    made += [(key, _transfer_table(group)) for key, group in moved.items()]
    return [
        f"### {name}, classifiers, protocol {protocol}, {model}, {at}\n\n{text}"
        for (name, protocol, model, at), text in made
    ]


def where(block: Mapping[str, Any]) -> str:
    """The radius, and the precision that attacks searched in where it is not fp32: such rows are compared apart."""
    sought = f", sought in {block['search']}" if "search" in block else ""
    return f"{show_radius(block['radius'])}{sought}"


def without_classifiers(rows: Iterable[Row]) -> list[Row]:
    """The rows of retrieval."""
    return [row for row in rows if not _is_of_classifier(row)]


def name_of(row: Row) -> str:
    """What tells a row from others of its table: defence, steps and batch, `madry_smoothing0_5-eta7`."""
    name = str(row["id"]).removeprefix(f"{row['data']}-{row['model']}-")
    return name.removesuffix(f"-seed{row['seed']}").removesuffix(f"-{row['protocol']}")


def _is_of_classifier(row: Row) -> bool:
    return "accuracy" in row["clean"]


def _table(rows: Sequence[Row]) -> str:
    """Accuracy in percent; of repeated attacks each image's worst, then in brackets the lowest run and max - min.

    Of local search as its authors have it, in brackets the number of images.
    """
    blocks = [row.get("classification", {}) for row in rows]
    known = {name for block in blocks for name in on_all(block)}
    attacks = [name for name in ORDER if name in known]
    searches = list(dict.fromkeys(name for block in blocks for name in block.get(LOCAL, {})))
    head = ["defence", "seed", "clean", *attacks, *searches, *(f"**{name}**" for name in LAST), "images"]
    lines = []
    for row in sorted(rows, key=lambda row: str(row["id"])):
        cells = [_cell(row, name) for name in attacks] + [_searched(row, name) for name in searches]
        cells += [_bold(_cell(row, name)) for name in LAST]
        clean = show("accuracy", row["clean"].get("accuracy"))
        lines.append([*_first_cells(row), clean, *cells, str(row["queries"])])
    return "\n\n".join(filter(None, [_markdown(head, lines), _caption(blocks), hastily_trained(rows)]))


def _caption(blocks: Sequence[Mapping[str, Any]]) -> str:
    brackets = "; in brackets the lowest run of several, and how far runs lie apart (each image's worst stands before)"
    return f"Percent right{brackets if any(LOWEST in block for block in blocks) else ''}."


def _transfer_table(rows: Sequence[Row]) -> str:
    """Accuracy in percent on images that were found on another run, the source."""
    sources = [
        (row, name, source)
        for row in sorted(rows, key=lambda row: str(row["id"]))
        for name, source in row["transfer"]["sources"].items()
    ]
    attacks = list(dict.fromkeys(attack for _, _, source in sources for attack in source["accuracy"]))
    lines = [
        [
            *_first_cells(row),
            f"`{name}`",
            *(show("accuracy", source["accuracy"].get(attack)) for attack in attacks),
            str(source["queries"]),
        ]
        for row, name, source in sources
    ]
    return _markdown(["defence", "seed", "source", *attacks, "images"], lines)


def _first_cells(row: Row) -> list[str]:
    return [f"`{name_of(row)}`{masking_flag.note(row)}", str(row["seed"])]


def _cell(row: Row, name: str) -> str:
    block = row.get("classification", {})
    value = on_all(block).get(name)
    if value is None:
        return DASH
    extra = [show(score, block[score][name]) for score in (LOWEST, SPREAD) if name in block.get(score, {})]
    extra += [f"without {one}" for one in block.get(WITHOUT, []) if name == LAST[1]]
    return show("accuracy", value) + (f" ({', '.join(extra)})" if extra else "")


def on_all(block: Mapping[str, Any]) -> dict[str, float]:
    """Without attacks that met only what those before them left, whose numbers are those of AutoAttack so far."""
    return {name: value for name, value in block.get("accuracy", {}).items() if name not in block.get("in_turn", [])}


def left_by(block: Mapping[str, Any]) -> dict[str, float]:
    """What each attack on all images leaves; where AutoAttack is not among them, told so, and its parts count."""
    found = on_all(block)
    if LAST[0] in found:
        return found
    parts = [block["accuracy"][name] for name in block.get("in_turn", [])]
    told = {f"{name}, without {LAST[0]}": value for name, value in found.items()}
    return {**told, f"a part of {LAST[0]}": min(parts)} if parts else told


def hastily_trained(rows: Iterable[Row]) -> str:
    """What is to be said of rows whose rate is that of far smaller batches than theirs; empty where there is none."""
    found = {}
    for row in rows:
        batch, known = batch_of(row), PROTOCOLS.get(str(row["data"]), {}).get(str(row["protocol"]))
        if known is not None and batch is not None and 2 * known.rate * PAPER_BATCH < PAPER_RATE * batch:
            found[f"batch{batch}"] = known.rate
    return " ".join(
        f"Rows of {name} had the rate {rate:g}, which is for smaller batches: they are trained too little, and not "
        "what is published under their names."
        for name, rate in found.items()
    )


def batch_of(row: Row) -> int | None:
    """240 of `-batch240-` in its id; None where it has the paper's."""
    return number_in(str(row["id"]), "batch")


def number_in(name: str, word: str) -> int | None:
    """40 of `-batch40` in a row's id, by the word."""
    found = re.search(rf"-{word}(\d+)(?=-|$)", name)
    return int(found[1]) if found else None


def _searched(row: Row, name: str) -> str:
    block = row.get("classification", {})
    value = block.get(LOCAL, {}).get(name)
    return DASH if value is None else f"{show('accuracy', value)} ({block[f'{LOCAL}_queries']})"


def _bold(text: str) -> str:
    return text if text == DASH else f"**{text}**"


def _markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    rule = ["---", *["--:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, rule, *lines))
