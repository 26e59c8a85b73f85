"""The leaderboard: every row of the ledger, and the reader's own, on one self-contained page."""

import base64
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from robustmetric import recipe
from robustmetric.report import certified_schema, ledger
from robustmetric.report.board import Board, Chapter, Entry
from robustmetric.report.board_words import in_words
from robustmetric.report.boards import chapters
from robustmetric.report.labels import label
from robustmetric.report.ledger import Row
from robustmetric.report.masking_flag import MARK, evidence
from robustmetric.report.page import environment, save
from robustmetric.report.plots import COLOURS, Series, draw, new_axes, swatch, to_svg
from robustmetric.report.scores import DASH, SCORES, describe, show

LINES = 7
"""Curves in one plot at most: as many as there are colours."""
FEWEST = 4
"""Entries that are worth a picture."""
TEN = (*ledger.TEN, "ERS")


def write_leaderboard(folders: Sequence[Path], out: Path) -> Path:
    """Read the ledger that we ship and folders of the reader's own rows, and write `out/index.html`."""
    return save(render(read_chapters(folders), [str(folder) for folder in folders]), out)


def read_chapters(folders: Sequence[Path]) -> list[Chapter]:
    """Boards of the ledger that we ship and of folders of the reader's own rows."""
    return chapters([(row, False) for row in gather([shelf()])] + [(row, True) for row in gather(folders)])


def shelf() -> Path:
    """Where the ledger lies: beside the recipes, inside an installed wheel or at the root of a source checkout."""
    return recipe.shelf().with_name("results")


def gather(folders: Iterable[Path]) -> list[Row]:
    """Every row of these folders, or of the folders in them; one without any is refused."""
    found = []
    for folder in folders:
        inner = [path for path in sorted(folder.glob("*")) if path.is_dir() and any(path.glob("*.json"))]
        for own in inner if inner and not any(folder.glob("*.json")) else [folder]:
            found += ledger.read_folder(own, _faults, "results/cub")
    return found


def _faults(row: Any) -> list[str]:
    """By the schema of its kind: a learner's row is a proof."""
    return (certified_schema.faults if isinstance(row, dict) and "learner" in row else ledger.faults)(row)


def render(found: Sequence[Chapter], folders: Sequence[str] = ()) -> str:
    """The page as text."""
    pages = environment()
    script = pages.get_template("leaderboard.js").render()
    used = [score for score in SCORES if score in ("R@1", "accuracy", "F1", *TEN)]
    return pages.get_template("leaderboard.html.j2").render(
        chapters=found,
        count=len({id(row) for chapter in found for board in chapter.boards for e in board.entries for row in e.rows}),
        leads=[(chapter.title, board, board.entries[0]) for chapter in found for board in _leading(chapter)],
        folders=folders,
        chart=chart,
        legend=legend,
        ten_scores=TEN,
        facts=facts,
        in_words=lambda row: in_words(row, what_it_is(row)),
        ten=ten,
        meanings={score: describe(score).meaning for score in used},
        script=Markup(script),
        # The one script that the page's own policy lets run.
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        MARK=MARK,
        DASH=DASH,
    )


def _leading(chapter: Chapter) -> list[Board]:
    """The board of a chapter to tell of first: of those under attack, the longest training with several entries."""
    return [board for board in chapter.boards if board.clean is not None and len(board.entries) > 1][:1]


def chart(board: Board, name: str) -> Markup | None:
    """Clean against attacked, a number for each entry; of proofs, error by radius. None where few entries tell it."""
    if board.clean is None:
        return _curves(board, name)
    clean, headline = board.clean, board.headline
    points = [(place, entry, entry.cells[clean].value, entry.cells[headline].value) for place, entry in board.placed]
    if sum(x is not None and y is not None for *_, x, y in points) < FEWEST:
        return None
    figure, axes = new_axes(f"{board.columns[clean].title}, percent", board.columns[headline].title)
    placed: list[tuple[tuple[float, float], str]] = []
    for place, entry, x, y in points:
        if x is None or y is None:
            continue
        style = COLOURS[1] if entry.is_own else COLOURS[-1] if entry.is_collapsed else COLOURS[0]
        marker, fill = "x" if entry.is_collapsed else "o", "none" if entry.lacking else "full"
        # Whole, also where nothing is left.
        axes.plot([x], [y], marker=marker, fillstyle=fill, color=style, markersize=6, linestyle="none", clip_on=False)
        placed.append(((x, y), "" if place is None else str(place)))
    axes.set_ylim(bottom=0)
    axes.margins(x=0.06, y=0.12)
    label(figure, axes, placed)
    return to_svg(figure, name, f"{board.columns[headline].title} against {board.columns[clean].title}: {board.title}")


def _curves(board: Board, name: str) -> Markup | None:
    """Proved error by radius, of the best entries."""
    radii = [float(column.title) for column in board.columns[:-1]]
    if len(radii) < 2:
        return None
    figure, axes = new_axes("l2 radius", "error that may be reached, percent")
    for style, entry in enumerate(board.entries[:LINES]):
        known = [
            (radius, cell.value) for radius, cell in zip(radii, entry.cells[:-1], strict=True) if cell.value is not None
        ]
        draw(axes, Series(style, tuple(radius for radius, _ in known), tuple(value for _, value in known)))
    axes.set_ylim(0, 100)
    return to_svg(figure, name, f"error by radius: {board.title}")


def legend(board: Board) -> list[tuple[Markup, str]]:
    """Of a plot with a line for each entry: sample and name."""
    shown = board.entries[:LINES] if board.clean is None else ()
    return [(swatch(style), entry.name) for style, entry in enumerate(shown)]


def what_it_is(row: Row) -> str:
    """The first line of its recipe's header."""
    name = Path(str(row["recipe"])).relative_to("recipes") if str(row["recipe"]).startswith("recipes/") else ""
    return ledger.header_of(recipe.shelf() / name)[0] if name else ""


def facts(row: Row, entry: Entry) -> list[tuple[str, str]]:
    """Where a row comes from, in words: what to type to make it, or to measure it again."""
    seconds = row.get("wall_seconds", {})
    times = [f"{name} {seconds[name]:,.0f} s" for name in ("train", "evaluate") if name in seconds]
    found = [
        ("recipe", f"{row['recipe']}: {what_it_is(row)}"),
        ("command", str(row["command"])),
        ("commit", str(row["commit"])[:10]),
        ("hardware", ", ".join([str(row["hardware"]), *times])),
        ("tested on", f"{row['queries']:,} queries" if "queries" in row else f"{row['points']:,} points"),
    ]
    if told := evidence(row):
        found.append(("is it real?", told))
    if not entry.is_own:
        folder = "tabular" if "learner" in row else row["data"]
        found.append(("measure it again", f"robustmetric verify results/{folder}/{row['id']}.json{_weights(row)}"))
    if row.get("published"):
        told = row["published"]
        found.append(("published", str(told["source"]) if isinstance(told, dict) else str(told)))
    return found


def _weights(row: Row) -> str:
    """Where a row's weights are, for `verify`: in the run of its command, where a checkout has no copy of them."""
    if "learner" in row or (recipe.shelf().parent / "zoo" / f"{row['id']}.safetensors").is_file():
        return ""
    made = re.search(r"--out (\S+)", str(row["command"]))
    return f" --model {made[1] if made else 'RUN'}"


def ten(row: Row) -> dict[str, list[str]]:
    """By mode, the ten numbers of ranking attacks and their ERS; empty where none were measured."""
    blocks = {mode: row.get("attacks", {}).get(mode, {}) for mode in ("fixed", "compat")}
    return {
        mode: [show(score, block[score]) if score in block else DASH for score in TEN]
        for mode, block in blocks.items()
        if block
    }


def as_lines(folders: Sequence[Path]) -> list[str]:
    """The same as JSON, an entry a line: data, board, place, name, numbers by column, seeds and flags."""
    return [
        json.dumps(
            {
                "data": chapter.title,
                "board": board.title,
                "place": place,
                "name": entry.name,
                "scores": _numbers(board, entry),
                "seeds": [row["seed"] for row in entry.rows],
                "flags": list(entry.flags),
                "has_not_met": entry.lacking or None,
                "own": entry.is_own,
            }
        )
        for chapter in read_chapters(folders)
        for board in chapter.boards
        for place, entry in board.placed
    ]


def _numbers(board: Board, entry: Entry) -> dict[str, float]:
    return {
        f"published {column.title}" if column.is_published else column.title: cell.value
        for column, cell in zip(board.columns, entry.cells, strict=True)
        if cell.value is not None
    }
