"""Rows of the ledger about clustering: how they are named, and as a table beside what is published."""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from robustmetric import recipe
from robustmetric.errors import InputError
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
NAMES = {"madry": "at", "naive_ensemble": "naive"}
"""Defences that the paper calls by another name."""
USUAL_LOSS = "proxy_anchor"
USUAL = {("madry", "clean_share"): 0.0, ("eat", "clean_share"): 0.5, ("trades", "weight"): 6.0}
MEMBERS, STEPS, STEPS_TO_EDGE = 3, 10, 4
"""Of the usual ensemble and the usual training attack, whose steps are a quarter of the radius."""
SIZES = {"bn_inception": 512}
USUAL_SIZE = 128
"""Of an embedding; `SIZES` are those of other architectures."""


def kind(defence: Mapping[str, Any], is_long: bool = False) -> str:
    """A defence as the files of this paper name it, `at`, `eat`, `no_split`, with what differs from the usual."""
    name, inner = str(defence["name"]), list(defence.get("defences") or [])
    if name == "one_student":
        differs = kind(defence["trained_by"], is_long).removeprefix("eat")
        return name + (f"_{differs}" if differs and not differs.startswith("_") else differs)
    parts = [NAMES.get(name, name)]
    if name == "eat" and not defence.get("divided", True):
        parts = ["no_split"]
    if defence.get("by_class"):
        parts = ["by_class"]
    if inner and all(part["name"] == "plain" for part in inner):
        parts.append("plain")
    if defence.get("goal") == "embedding" or defence.get("shared") is False:
        parts.append("literal")
    parts += [loss for loss in _losses(defence) if loss != USUAL_LOSS]
    members = len(inner or defence.get("losses") or range(MEMBERS))
    parts += [f"n{members}"] if members != MEMBERS else []
    for (of, key), usual in USUAL.items():
        if of == name and defence.get(key, usual) != usual:
            parts.append(f"{key}{float(defence[key]):g}".replace(".", "_"))
    objective = str(defence.get("objective", "label" if name == "madry" else "shift"))
    parts += [objective] if objective != "shift" else []
    parts += _climb(defence)
    return "_".join([*parts, *(["long"] if is_long else [])])


def _losses(defence: Mapping[str, Any]) -> list[str]:
    """The names of its metric losses, each once."""
    parts = (defence, *(defence.get("defences") or []))
    losses = [loss for part in parts for loss in (part.get("losses") or [part.get("loss")]) if loss]
    return list(dict.fromkeys(str(loss["name"]) for loss in losses))


def _climb(defence: Mapping[str, Any]) -> list[str]:
    """What differs from the usual in the training attack's steps and in their size, which is told in 255ths."""
    steps, size, radius = _inside(defence, "steps"), _inside(defence, "step_size"), radius_of(defence)
    parts = [f"steps{steps:g}"] if steps is not None and steps != STEPS else []
    if size is not None and radius is not None and not math.isclose(STEPS_TO_EDGE * size, radius, rel_tol=1e-3):
        parts.append(f"step_size{255 * size:g}".replace(".", "_"))
    return parts


def radius_of(defence: Any) -> float | None:
    """Of the training attack, wherever in the defence it stands; None where there is none."""
    return _inside(defence, "radius")


def _inside(spec: Any, key: str) -> float | None:
    """The first number under this key, at any depth."""
    if isinstance(spec, dict) and key in spec:
        return float(spec[key])
    parts = list(spec.values()) if isinstance(spec, dict) else spec if isinstance(spec, list) else []
    return next((number for part in parts if (number := _inside(part, key)) is not None), None)


def backbone(model: Mapping[str, Any]) -> str:
    """The architecture, of an ensemble that of its members, with the embedding's size and the norms if unusual."""
    inner = (model.get("members") or [None])[0] or model.get("trunk")
    if "architecture" not in model and isinstance(inner, dict):
        return backbone(inner)
    name = str(model.get("architecture") or model["name"])
    size, usual = model.get("dim", SIZES.get(name, USUAL_SIZE)), SIZES.get(name, USUAL_SIZE)
    norms = "_auxiliary" if model.get("batch_norm") == "auxiliary" else ""
    return (name if size == usual else f"{name}_dim{size}") + norms


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
            lines.append([f"`{title}`", name, *(_scores(own, key, FEW) for key in MEASURED)])
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


def named(kind: str, radius: float | None) -> str:
    """A way of training in a table: `eat-r8`."""
    return kind if radius is None else f"{kind}-r{255 * radius:g}"


def in_id(kind: str, defence: Mapping[str, Any]) -> str:
    """The same in an id: without a radius the usual loss is told too, since triplets have a `plain` of their own."""
    radius = radius_of(defence)
    return f"{kind}_{USUAL_LOSS}" if radius is None and USUAL_LOSS in _losses(defence) else named(kind, radius)


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


def _scores(blocks: Sequence[Mapping[str, Any]], key: str, shown: Sequence[str]) -> str:
    """Means over seeds of one part of their blocks; one dash where none has any of it."""
    if not any(block.get(key) for block in blocks):
        return DASH
    return " / ".join(over_seeds(block.get(key, {}).get(score) for block in blocks) for score in shown)


def _markdown(data: str, lines: Sequence[Sequence[str]], shown: Sequence[str]) -> str:
    theirs = f"published{RELEASES.get(data, '')}: clean"
    clean, attacked, *others = MEASURED.values()
    moved = "R@1, PGD-10 on queries / gallery alone"
    return _rows([f"defence ({' / '.join(shown)})", theirs, "PGD-10", clean, attacked, moved, *others, "seeds"], lines)


def _rows(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (head, ["---"] * len(head), *lines))


def _numbers(text: str) -> dict[str, float]:
    return {score: float(value) for score, value in re.findall(r"([A-Z][\w@]*) (\d[\d.]*)", text)}
