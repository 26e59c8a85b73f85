"""The ledger as boards: by data, protocol and model every way of training, by what the strongest attack leaves it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from robustmetric import recipe
from robustmetric.report import clustering_rows, comparison, met
from robustmetric.report.board import (
    Board,
    Cell,
    Chapter,
    Column,
    cell,
    lowest_cell,
    make_board,
    make_entry,
    published_cell,
    put_behind,
)
from robustmetric.report.board_words import cut_and_sought, not_met, training
from robustmetric.report.classification import (
    LAST,
    ORDER,
    hastily_trained,
    left_by,
    name_of,
    on_all,
    where,
    without_classifiers,
)
from robustmetric.report.comparison import title_of
from robustmetric.report.data_names import data_place, data_title
from robustmetric.report.ledger import ENSEMBLES, LARGE, PROTOCOLS, Row, not_measured
from robustmetric.report.scores import describe, show

STRONGEST = "R@1 under its strongest attack"
RANKED = ("ES:R", "LTM", "GTM")
"""Scores of mode `fixed` that are R@1 under an attack, of which the lowest counts."""
SIDES = {"": "both sides", "query only": "queries alone", "gallery only": "gallery alone"}
"""Whose images are moved in an attack on clustering, by the part of its block."""
WHOLE_SUITE = "a whole suite of attacks that know of neighbours and votes"
PARTS = {"clean": "clean", "pgd10": "under PGD-10"}
"""What is published of clustering."""


Rows = Sequence[tuple[Row, bool]]
"""Rows of the ledger, and whether each is the reader's own."""
Grouping = Callable[[list[Row]], Mapping[tuple[str, str], Mapping[Any, list[Row]]]]
"""Rows by protocol and model, then by what tells one way of training from another."""


def chapters(rows: Rows) -> list[Chapter]:
    """The boards of every data set, known ones first: retrieval, clustering, classifiers, unmeasured; then proofs."""
    found: dict[tuple[bool, str, str], list[tuple[Row, bool]]] = {}
    for row, is_own in rows:
        data = str(row["data"])
        found.setdefault(("learner" in row, data_title(row), data), []).append((row, is_own))
    for data in dict.fromkeys(name.partition("/")[0] for name in recipe.listing()):
        if not any((is_proved, known) == (False, data) for is_proved, _, known in found):
            found[False, data_title({"data": data}), data] = []
    made = []
    for (is_proved, name, data), own in sorted(
        found.items(), key=lambda item: (item[0][0], data_place(item[0][2]), item[0])
    ):
        parts = (proofs,) if is_proved else (retrieval, clustering, classifiers)
        boards = tuple(one for part in parts for one in sorted(part(data, own), key=lambda one: one.stands_behind))
        missing = () if is_proved else unmeasured(data, [row for row, _ in own])
        made.append(Chapter(f"{name}: proofs" if is_proved else name, boards, missing))
    return [chapter for chapter in made if chapter.boards or chapter.unmeasured]


def unmeasured(data: str, rows: Sequence[Row]) -> tuple[tuple[str, str], ...]:
    """What was published of this data and is in no row, of retrieval and then of clustering: name, scores and why."""
    kinds = {comparison.kind_of(row) for row in comparison.of_retrieval(rows)}
    theirs = comparison.published_kinds(data)
    found = sorted(
        (_with_steps(*kind), _with_why(_in_words(block), block)) for kind, block in theirs.items() if kind not in kinds
    )
    ways = {(row["model"], clustering_rows.way_of(row)) for row in rows if clustering_rows.is_of_clustering(row)}
    for way, block in clustering_rows.published_ways(data).items():
        if way not in ways:
            told = ", ".join(f"R@1 {block[part]['R@1']:.1f} {words}" for part, words in PARTS.items())
            found.append((f"{way[1]} (clustering)", _with_why(told, block)))
    return tuple(found)


def retrieval(data: str, rows: Rows) -> list[Board]:
    """Boards of what ranking attacks leave of R@1, and of ERS, which is never read alone."""
    theirs = comparison.published_kinds(data)
    columns = (
        Column("R@1", "clean R@1 as published, of another backbone", is_published=True),
        Column("ERS", "ERS as published (mode compat)", is_published=True),
        Column("clean R@1", describe("R@1").meaning),
        Column(
            STRONGEST, f"the lowest R@1 that any attack on record left: {', '.join(RANKED)} in mode fixed, AutoRank"
        ),
        *(Column(score, describe(score).meaning) for score in RANKED),
        Column("ERS fixed", describe("ERS").meaning),
        Column("ERS compat", "the same as the published tables compute it, faults included"),
        Column("cost", "forward passes per image and update, at most", sign=-1),
    )
    boards = []
    groups = _with_owner(rows, lambda own: comparison.grouped(comparison.of_retrieval(own)))
    for (protocol, model), kinds in groups.items():
        entries = []
        for (kind, is_own), seeds in kinds.items():
            block = theirs.get(kind, {})
            cells = [published_cell(block, "R@1"), published_cell(block, "ERS"), *_ranked_cells(seeds)]
            entries.append(make_entry(_with_steps(*kind), cells, seeds, is_own))
        title = f"Retrieval, {title_of(model)}, protocol {protocol}"
        are_met = [any(map(met.has_auto_rank, seeds)) for seeds in kinds.values()]
        entries = put_behind(entries, are_met, "AutoRank")
        lacking = not_met(are_met, "AutoRank, the worst case", any(entry.lacking for entry in entries))
        says = training(PROTOCOLS.get(data, LARGE)[protocol], lacking)
        made = make_board(title, says, columns, entries, headline=3, clean=2)
        boards.append(replace(made, is_sketch=protocol == "sketch", is_provisional=bool(lacking)))
    return boards


def clustering(data: str, rows: Rows) -> list[Board]:
    """Boards of rows whose every test image is moved: R@1 with both sides moved, with one, and by adaptive attacks."""
    columns = (
        Column("clean R@1", "as published", is_published=True),
        Column("PGD-10 R@1", "as published: both sides moved", is_published=True),
        Column("clean R@1", describe("R@1").meaning),
        Column("clean F1", describe("F1").meaning),
        Column(STRONGEST, "the lowest R@1 of any attack on record, whoever's images it moves"),
        *(Column(f"PGD-10, {side}", f"R@1 under the paper's attack, {side} moved") for side in SIDES.values()),
        Column("adaptive", "R@1 under the strongest attack that knows of neighbours and votes, both sides moved"),
        Column("cost", "forward passes per image and update, at most", sign=-1),
    )
    boards = []
    groups = _with_owner(
        rows, lambda own: clustering_rows.grouped(row for row in own if clustering_rows.is_of_clustering(row))
    )
    for (protocol, model), ways in groups.items():
        entries = []
        for (way, is_own), seeds in ways.items():
            block = seeds[0].get("published", {})
            theirs = [published_cell(block.get(part, {}), "R@1") for part in ("clean", "pgd10")]
            entries.append(make_entry(str(way), [*theirs, *_clustered_cells(seeds)], seeds, is_own))
        are_met = [any(map(met.all_adaptive, seeds)) for seeds in ways.values()]
        entries = put_behind(entries, are_met, "all of clustering_short or clustering_adaptive")
        cut, sought = cut_and_sought(ways)
        lacking = not_met(are_met, WHOLE_SUITE, any(entry.lacking for entry in entries)) + cut
        says = training(ENSEMBLES.get(protocol, LARGE[protocol]), lacking + sought)
        title = f"Clustering and search, all images moved, {title_of(model)}, protocol {protocol}"
        made = make_board(title, says, columns, entries, headline=4, clean=2)
        boards.append(replace(made, is_provisional=bool(lacking)))
    return boards


def classifiers(data: str, rows: Rows) -> list[Board]:
    """Boards of what attacks leave of a classifier's accuracy."""
    groups: dict[tuple[str, str, str], dict[tuple[str, bool], list[Row]]] = {}
    ours = {id(row) for row in without_classifiers(row for row, _ in rows)}
    for row, is_own in rows:
        if id(row) not in ours and "classification" in row:
            key = (row["protocol"], row["model"], where(row["classification"]))
            groups.setdefault(key, {}).setdefault((name_of(row), is_own), []).append(row)
    boards = []
    for (protocol, model, at), ways in groups.items():
        known = {name for seeds in ways.values() for row in seeds for name in on_all(row["classification"])}
        attacks = [name for name in (*ORDER, *LAST) if name in known]
        columns = (
            Column("clean", describe("accuracy").meaning),
            Column("strongest", "the lowest accuracy that any attack on record left, per image where all were run"),
            *(Column(name, f"accuracy under {name}") for name in attacks),
        )
        entries = [
            make_entry(name, _classified_cells(seeds, attacks), seeds, is_own) for (name, is_own), seeds in ways.items()
        ]
        title = f"Classifiers, {title_of(model)}, protocol {protocol}, at {at}"
        are_met = [any(map(met.has_auto_attack, seeds)) for seeds in ways.values()]
        entries = put_behind(entries, are_met, "AutoAttack")
        lacking = not_met(are_met, "AutoAttack", any(entry.lacking for entry in entries))
        hasty = hastily_trained([row for seeds in ways.values() for row in seeds])
        says = training(PROTOCOLS.get(data, LARGE)[protocol], f"{lacking}{hasty and f' {hasty}'}")
        made = make_board(title, says, columns, entries, headline=1, clean=0)
        boards.append(replace(made, is_provisional=bool(lacking)))
    return boards


def proofs(data: str, rows: Rows) -> list[Board]:
    """Boards of certified errors of tables: what no perturbation up to a radius exceeds; less is better."""
    groups: dict[str, list[tuple[Row, Mapping[str, Any], bool]]] = {}
    for row, is_own in rows:
        for proof in row["certified"]:
            groups.setdefault(str(proof["name"]), []).append((row, proof, is_own))
    boards = []
    for name, lines in groups.items():
        radii = list(dict.fromkeys(radius for _, proof, _ in lines for radius in proof["radii"]))
        columns = (
            *(Column(f"{radius:g}", f"percent of points that may be wrong within {radius:g}", -1) for radius in radii),
            Column("mean error", "mean of the error from 0 to the last radius", -1),
        )
        entries = [
            make_entry(Path(str(row["recipe"])).stem.partition("-")[2] or str(row["learner"]), cells, [row], is_own)
            for row, proof, is_own in lines
            for cells in [_proved_cells(proof, radii)]
        ]
        says = f"Proved error in percent by l2 radius, of {lines[0][0]['points']} test points."
        boards.append(make_board(f"{name}", says, columns, entries, headline=len(columns) - 1, clean=None))
    return boards


def strongest(row: Row) -> tuple[str, float] | None:
    """The attack on record that leaves the least of a row's R@1, and what it leaves; None where none was run."""
    fixed = row.get("attacks", {}).get("fixed", {})
    found = {score.removesuffix(":R"): float(fixed[score]) for score in RANKED if score in fixed}
    if met.has_auto_rank(row):
        found["AutoRank"] = float(row["auto_rank"]["R@1"])
    return _lowest(found)


def strongest_of_clustering(row: Row) -> tuple[str, float] | None:
    """The same of a row about clustering, over whose images are moved too."""
    block = row["clustering"]
    found: dict[str, float] = {}
    for part, title in (("pgd10", "PGD-10"), ("adaptive_short", "adaptive"), ("adaptive", "adaptive")):
        for side, words in SIDES.items():
            scores = block.get(part, {}) if not side else block.get(part, {}).get(side, {})
            if "R@1" in scores:
                key = f"{title}, {words}"
                found[key] = min(float(scores["R@1"]), found.get(key, 100.0))
    return _lowest(found)


def _lowest(found: Mapping[str, float]) -> tuple[str, float] | None:
    return min(found.items(), key=lambda item: item[1]) if found else None


def _ranked_cells(rows: Sequence[Row]) -> list[Cell]:
    blocks = {mode: [row.get("attacks", {}).get(mode, {}) for row in rows] for mode in ("fixed", "compat")}
    return [
        cell(row["clean"].get("R@1") for row in rows),
        lowest_cell([strongest(row) for row in met.attacked_hardest(rows, met.has_auto_rank)]),
        *(cell(block.get(score) for block in blocks["fixed"]) for score in RANKED),
        *(cell(block.get("ERS") for block in blocks[mode]) for mode in ("fixed", "compat")),
        cell([rows[0].get("cost_fe")]),
    ]


def _clustered_cells(rows: Sequence[Row]) -> list[Cell]:
    blocks = [row["clustering"] for row in rows]
    attacked = [block.get("pgd10", {}) for block in blocks]
    hardest = met.attacked_hardest(rows, met.all_adaptive, met.some_adaptive)
    some = [row for row in hardest if met.some_adaptive(row)]
    least = [min(row["clustering"][part]["R@1"] for part in met.ADAPTIVE if part in row["clustering"]) for row in some]
    adaptive = replace(cell(least), below=f"{len(some)} of {len(rows)} seeds" if 0 < len(some) < len(rows) else "")
    return [
        cell(block["clean"].get("R@1") for block in blocks),
        cell(block["clean"].get("F1") for block in blocks),
        lowest_cell([strongest_of_clustering(row) for row in hardest]),
        *(cell((block.get(side, {}) if side else block).get("R@1") for block in attacked) for side in SIDES),
        adaptive,
        cell([rows[0].get("cost_fe")]),
    ]


def _classified_cells(rows: Sequence[Row], attacks: Sequence[str]) -> list[Cell]:
    blocks = [on_all(row["classification"]) for row in rows]
    return [
        cell(row["clean"].get("accuracy") for row in rows),
        lowest_cell(
            [_lowest(left_by(row["classification"])) for row in met.attacked_hardest(rows, met.has_auto_attack)]
        ),
        *(cell(block.get(name) for block in blocks) for name in attacks),
    ]


def _proved_cells(proof: Mapping[str, Any], radii: Sequence[float]) -> list[Cell]:
    by_radius = dict(zip(proof["radii"], proof["error"], strict=True))
    return [*(cell([by_radius.get(radius)]) for radius in radii), cell([proof.get("area")])]


def _with_owner(rows: Rows, grouped: Grouping) -> dict[tuple[str, str], dict[tuple[Any, bool], list[Row]]]:
    """The groups of our rows and of the reader's, place by place; rows of the two never share an entry."""
    found: dict[tuple[str, str], dict[tuple[Any, bool], list[Row]]] = {}
    for is_own in (False, True):
        for place, ways in grouped([row for row, own in rows if own is is_own]).items():
            found.setdefault(place, {}).update({(way, is_own): seeds for way, seeds in ways.items()})
    return found


def _with_steps(defence: str, steps: int | None) -> str:
    return defence if steps is None else f"{defence}, {steps} {'step' if steps == 1 else 'steps'}"


def _in_words(block: Mapping[str, Any]) -> str:
    if block.get("collapsed"):
        return "collapsed"
    return ", ".join(f"{score} {show(score, block[score])}" for score in ("R@1", "ERS") if score in block)


def _with_why(told: str, block: Mapping[str, Any]) -> str:
    return f"{told}; {not_measured(block.get('why', ''))}"
