"""Rows of classifiers side by side, as Markdown: the authors' protocol, then what every attack together leaves."""

from collections.abc import Iterable, Sequence

from robustmetric.report import masking_flag
from robustmetric.report.ledger import Row
from robustmetric.report.scores import DASH, show, show_radius

ORDER = ("FGSM", "PGD-20", "PGD-100", "CW-20", "CW-100", "Feature match", "Square", "RayS", "Local search")
"""The attacks of the authors' protocol and of their critics, each on all images."""
LAST = ("AutoAttack", "worst case")
LOWEST, SPREAD = "lowest run", "max - min"


def classification_tables(data: str, rows: Sequence[Row]) -> list[str]:
    """One table per protocol, model and radius; a row that no classifier made is not among them."""
    groups: dict[tuple[str, str, float], list[Row]] = {}
    for row in rows:
        if "classification" in row:
            key = (row["protocol"], row["model"], row["classification"]["radius"])
            groups.setdefault(key, []).append(row)
    return [
        f"### {data}, classifiers, protocol {protocol}, {model}, {show_radius(radius)}\n\n{_table(group)}"
        for (protocol, model, radius), group in groups.items()
    ]


def _table(rows: Sequence[Row]) -> str:
    """Accuracy in percent; of repeated attacks each image's worst, then in brackets the lowest run and max - min."""
    known = {name for row in rows for name in row["classification"].get("accuracy", {})}
    attacks = [name for name in ORDER if name in known]
    head = ["defence", "seed", "clean", *attacks, *(f"**{name}**" for name in LAST), "images"]
    lines = [head, ["---", *["--:"] * (len(head) - 1)]]
    for row in sorted(rows, key=lambda row: str(row["id"])):
        cells = [_cell(row, name) for name in attacks] + [_bold(_cell(row, name)) for name in LAST]
        clean = show("accuracy", row["clean"].get("accuracy"))
        lines.append(
            [f"`{row['defence']}`{masking_flag.note(row)}", str(row["seed"]), clean, *cells, str(row["queries"])]
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(row: Row, name: str) -> str:
    block = row["classification"]
    value = block.get("accuracy", {}).get(name)
    if value is None:
        return DASH
    extra = [show(score, block[score][name]) for score in (LOWEST, SPREAD) if name in block.get(score, {})]
    return show("accuracy", value) + (f" ({', '.join(extra)})" if extra else "")


def _bold(text: str) -> str:
    return text if text == DASH else f"**{text}**"


def without_classifiers(rows: Iterable[Row]) -> list[Row]:
    """The rows of retrieval."""
    return [row for row in rows if "classification" not in row]
