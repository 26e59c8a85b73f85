"""Rows of the ledger about clustering, as a table beside what is published."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from robustmetric import recipe
from robustmetric.errors import InputError
from robustmetric.report.clustering_names import backbone, kind, named, radius_of
from robustmetric.report.clustering_schema import SEARCH, is_cut
from robustmetric.report.ledger import Row, header_of, not_measured, same_data, why_not
from robustmetric.report.masking_flag import note
from robustmetric.report.pairs import fallen
from robustmetric.report.scores import DASH, show
from robustmetric.report.seeds import over_seeds

SOURCE = "arXiv 2501.01025"
SHOWN = {"inshop": ("NMI", "F1", "R@1", "R@10", "R@20")}
"""By data, the scores of a table: those that are published of it."""
USUALLY_SHOWN = ("NMI", "F1", "R@1", "R@2", "R@4", "R@8")
FEW = ("NMI", "F1", "R@1")
"""Of every reading of an ensemble."""
MEASURED = {
    "clean": "ours: clean",
    "pgd10": "PGD-10",
    "adaptive_short": "strongest of clustering_short",
    "adaptive": "strongest of clustering_adaptive",
}
"""Parts of the block `clustering`, as columns."""
ONE_SIDE = ("query only", "gallery only")
"""Of PGD-10: what is left of R@1 where the images of one side alone are moved."""
RELEASES = {"cub": " (CUB-200-2010)"}
"""By data, the release that the published numbers are of, where ours are of another."""


def published(name: str) -> dict[str, Any] | None:
    """What a recipe's header says was published, clean and under PGD-10; None where nothing was, or we have not got it.

    A digit that could not be read is left out with its number.
    """
    path = recipe.shelf() / f"{name.removeprefix('recipes/').removesuffix('.yaml')}.yaml"
    _, lines = header_of(path)
    clean, attacked = (_numbers(lines.get(key, "")) for key in ("published", "under PGD-10 at 8/255"))
    if not clean or not attacked:
        return None
    table = re.search(r"Table \d", lines.get("paper", ""))
    other = {"release": "CUB-200-2010"} if "CUB-200-2010" in lines["published"] else {}
    source = f"{SOURCE}, {table[0]}" if table else SOURCE
    return {"source": source, "model": "mobilenet_v2", **other, "clean": clean, "pgd10": attacked}


def is_of_clustering(row: Row) -> bool:
    """Whether a row was trained as this paper's tables are; see `ledger.ENSEMBLES`."""
    return row.get("paper") == SOURCE


def table(data: str, rows: Sequence[Row]) -> str:
    """Markdown: for every protocol and model ours beside the published; last, what is published and not measured."""
    shown = SHOWN.get(data, USUALLY_SHOWN)
    tables = grouped(rows)
    parts = []
    for (protocol, model), groups in tables.items():
        lines = [_line(title, group[0].get("published"), group, shown) for title, group in sorted(groups.items())]
        parts.append(f"### {data}, clustering, {model}, protocol {protocol}\n\n{_markdown(data, lines, shown)}")
        parts += [text] if (text := _by_reading(groups)) else []
    seen = {(model, title) for (_, model), groups in tables.items() for title in groups}
    missing = {key: block for key, block in published_ways(data).items() if key not in seen}
    if missing:
        lines = [_line(title, block, [], shown) for (_, title), block in missing.items()]
        models = ", ".join(dict.fromkeys(model for model, _ in missing))
        parts.append(f"### {data}, clustering, not measured ({models})\n\n{_markdown(data, lines, shown)}")
    return "\n\n".join(parts)


def grouped(rows: Iterable[Row]) -> dict[tuple[str, str], dict[str, list[Row]]]:
    """By protocol and model, then by the way of training: the rows that differ in their seed alone."""
    tables: dict[tuple[str, str], dict[str, list[Row]]] = {}
    for row in rows:
        tables.setdefault((row["protocol"], row["model"]), {}).setdefault(way_of(row), []).append(row)
    return tables


def _by_reading(groups: Mapping[str, Sequence[Row]]) -> str:
    """Ensembles by each of their readings, the headline first; nothing where there are none."""
    lines = []
    for title, rows in sorted(groups.items()):
        blocks = [row["clustering"] for row in rows]
        readings = [dict({block["reading"]: block}, **block.get("readings", {})) for block in blocks]
        for name in readings[0] if len(readings[0]) > 1 else ():
            own = [by_name.get(name, {}) for by_name in readings]
            lines.append([f"`{title}`", name, *(_scores(own, key, FEW, blocks) for key in MEASURED)])
    head = [f"defence ({' / '.join(FEW)})", "read by", *MEASURED.values()]
    return f"Every reading of the ensembles:\n\n{_rows(head, lines)}" if lines else ""


def published_of(name: str, spec: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the recipe's header says, if these settings have that recipe's data, defence and backbone still."""
    try:
        shipped = recipe.load(recipe.locate(name)) if name else None
    except InputError:
        return None
    if shipped is None or shipped.get("defence") != spec.get("defence") or not same_data(shipped, spec):
        return None
    same = backbone(shipped["model"]) == backbone(spec["model"])
    return published(name) if same else None


def published_ways(data: str) -> dict[tuple[str, str], Row]:
    """By model and title, what the headers of this paper's recipes for this data say."""
    found: dict[tuple[str, str], Row] = {}
    for name in recipe.listing():
        block = published(name) if name.startswith(f"{data}/eat_") else None
        if block is not None:
            spec = recipe.load(recipe.locate(name))
            defence = spec["defence"]
            found[backbone(spec["model"]), named(kind(defence), radius_of(defence))] = {**block, "why": why_not(name)}
    return found


def way_of(row: Row) -> str:
    """How it was trained, as in a table: `eat-r8`."""
    found = re.search(r"-r([\d.]+)-", row["id"])
    return str(row["defence"]) + (f"-r{found[1]}" if found else "")


def _line(title: str, theirs: Row | None, ours: Sequence[Row], shown: Sequence[str]) -> list[str]:
    cells = [f"`{title}`" + fallen(ours) + next((flag for flag in map(note, ours) if flag), "")]
    for key in ("clean", "pgd10"):
        cells.append(" / ".join(show(score, (theirs or {}).get(key, {}).get(score)) for score in shown))
    if not ours:
        return [*cells, not_measured((theirs or {}).get("why", "")), *([DASH] * (len(MEASURED) + 1))]
    blocks = [row["clustering"] for row in ours]
    clean, attacked, *others = (_scores(blocks, key, shown) for key in MEASURED)
    return [*cells, clean, attacked, _one_side(blocks), *others, str(len(ours))]


def _one_side(blocks: Sequence[Mapping[str, Any]]) -> str:
    """R@1 under PGD-10 with one side moved: both sides may go the same way and find one another where they end."""
    attacked = [block.get("pgd10", {}) for block in blocks]
    return " / ".join(over_seeds(block.get(side, {}).get("R@1") for block in attacked) for side in ONE_SIDE)


def _scores(
    blocks: Sequence[Mapping[str, Any]],
    key: str,
    shown: Sequence[str],
    headlines: Sequence[Mapping[str, Any]] | None = None,
) -> str:
    """Means of one part of their blocks over the seeds that have it; one dash where none has.

    How it was measured is said behind them, by the headline's blocks where these are of another reading.
    """
    parts = [block[key] for block in blocks if block.get(key)]
    if not parts:
        return DASH
    means = " / ".join(over_seeds(part.get(score) for part in parts) for score in shown)
    notes = _notes([block.get(key, {}) for block in headlines or blocks])
    return f"{means} ({', '.join(notes)})" if notes else means


def _notes(parts: Sequence[Mapping[str, Any]]) -> list[str]:
    """What is to be said of numbers of several seeds: how many have any, what was searched in, which suite was cut."""
    had = [part for part in parts if part]
    notes = [f"{len(had)} of {len(parts)} seeds"] if len(had) < len(parts) else []
    quick = [part[SEARCH] for part in had if SEARCH in part]
    some = f": {len(quick)} of {len(had)} seeds" if len(quick) < len(had) else ""
    notes += [f"sought in {name}{some}" for name in sorted(set(quick))]
    fewest = min(filter(is_cut, had), key=lambda part: len(part["attacks"]), default=None)
    return notes + ([] if fewest is None else [f"{len(fewest['attacks'])} of {fewest['of']} attacks"])


def _markdown(data: str, lines: Sequence[Sequence[str]], shown: Sequence[str]) -> str:
    theirs = f"published{RELEASES.get(data, '')}: clean"
    clean, attacked, *others = MEASURED.values()
    moved = "R@1, PGD-10 on queries / gallery alone"
    return _rows([f"defence ({' / '.join(shown)})", theirs, "PGD-10", clean, attacked, moved, *others, "seeds"], lines)


def _rows(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines))


def _numbers(text: str) -> dict[str, float]:
    return {score: float(value) for score, value in re.findall(r"([A-Z][\w@]*) (\d[\d.]*)", text)}
