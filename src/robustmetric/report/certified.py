"""Error against radius: the curves of certified records as PNG and SVG, and the rows of `results/tabular`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from robustmetric.errors import InputError
from robustmetric.records import Record
from robustmetric.report.plots import colour, new_axes

Row = dict[str, Any]
WORDS = ("id", "data", "learner", "recipe", "command", "commit", "hardware")
COUNTS = ("seed", "rows", "points")
PROOF = ("certificate", "name", "radii", "error", "seconds")
OPTIONAL = ("fit_seconds", "published")


def draw_curves(runs: Mapping[str, Sequence[Record]], out: Path) -> list[Path]:
    """`curves.png` and `curves.svg` in `out`: one line per certified record of every run."""
    lines = [(run, record) for run, found in runs.items() for record in found if "curve" in record.context]
    if not lines:
        return []
    figure, axes = new_axes("radius (l2)", "certified error, percent")
    for style, (run, record) in enumerate(lines):
        curve = record.context["curve"]
        axes.step(curve["radii"], curve["error"], where="post", color=colour(style), label=f"{run}, {record.name}")
    axes.set_ylim(0, 100)
    axes.set_xlim(left=0)
    axes.legend(frameon=False, fontsize=9)
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / f"curves.{kind}" for kind in ("png", "svg")]
    for path in paths:
        figure.savefig(path, dpi=150)
    return paths


def faults(row: Any) -> list[str]:
    """What keeps a row from being one of `results/tabular`, in words; nothing for a good row."""
    if not isinstance(row, dict):
        return [f"expected an object, found {type(row).__name__}"]
    needed = (*WORDS, *COUNTS, "certified")
    found = [f"{key} is missing" for key in needed if key not in row]
    found += [f"{key} is not known" for key in row if key not in (*needed, *OPTIONAL)]
    found += [f"{key} {row[key]!r} is no text" for key in WORDS if key in row and not isinstance(row[key], str)]
    found += [f"{key} {row[key]!r} is no count" for key in COUNTS if key in row and not isinstance(row[key], int)]
    for proof in row.get("certified", []):
        found += [f"a proof lacks {key}" for key in PROOF if key not in proof]
        errors = proof.get("error", [])
        if len(errors) != len(proof.get("radii", [])) or errors != sorted(errors):
            found.append(
                f"{proof.get('name')}: an error for each radius, none smaller than the one before, is expected"
            )
        if not all(0 <= error <= 100 for error in errors):
            found.append(f"{proof.get('name')}: errors {errors} are not in percent")
    return found


def read_certified(folder: Path) -> list[Row]:
    """Every row of a folder of certified results, by id; a file that does not keep to the schema is refused."""
    rows = []
    for path in sorted(folder.glob("*.json")):
        row = json.loads(path.read_text())
        found = faults(row)
        if found or row["id"] != path.stem:
            raise InputError(f"{path}: {'; '.join(found) or 'its id is not the name of the file'}")
        rows.append(row)
    return rows


def certified_table(folder: Path) -> str:
    """The rows of a folder as Markdown: a table per data set and proof, errors in percent, what is published beside."""
    groups: dict[tuple[str, str], list[tuple[Row, Row]]] = {}
    for row in read_certified(folder):
        for proof in row["certified"]:
            groups.setdefault((row["data"], proof["name"]), []).append((row, proof))
    parts = []
    for (data, name), lines in groups.items():
        radii = lines[0][1]["radii"]
        head = ["learner", *(f"{radius:g}" for radius in radii), "area", "fit, s", "certify, s", "published"]
        body = [_line(row, proof, name) for row, proof in sorted(lines, key=lambda line: line[1].get("area", 0.0))]
        table = [head, ["---"] * len(head), *body]
        parts.append(f"### {data}, {name}\n\n" + "\n".join(f"| {' | '.join(cells)} |" for cells in table))
    return "\n\n".join(parts)


def _line(row: Row, proof: Row, name: str) -> list[str]:
    """One learner; what is published is of 1-NN."""
    published = row.get("published", "")
    theirs = published.removeprefix("1-NN certified errors ") if name == "1-NN exact" and "errors" in published else ""
    learner = row["learner"].partition("(")[0]
    shown = [f"{error:.1f}" for error in proof["error"]]
    fit = f"{row['fit_seconds']:.1f}" if "fit_seconds" in row else ""
    return [learner, *shown, f"{proof['area']:.1f}" if "area" in proof else "", fit, f"{proof['seconds']:.1f}", theirs]
