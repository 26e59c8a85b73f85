"""Where the pages about papers point: each `file:line` (symbol). Run as a script, it puts the lines right."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs" / "papers").glob("*.md"))
REFERENCE = re.compile(r"`([\w/]+\.py):(\d+)` \((\w+)\)")


def references(page: Path) -> Iterator[tuple[str, int, str]]:
    """File, line and symbol of each."""
    for file, line, symbol in REFERENCE.findall(page.read_text()):
        yield file, int(line), symbol


def places(file: str, symbol: str) -> list[int]:
    """The lines at which a file defines a symbol; elsewhere it may only be used."""
    lines = (ROOT / "src" / "robustmetric" / file).read_text().splitlines()
    return [
        i for i, text in enumerate(lines, 1) if re.match(rf"\s*((async )?def |class ){symbol}\b|{symbol}\b.* = ", text)
    ]


def put_right(page: Path) -> None:
    """Every line as it is now; the nearest, where a file defines a symbol more than once."""

    def now(found: re.Match[str]) -> str:
        file, line, symbol = found.groups()
        nearest = min(places(file, symbol), key=lambda place: abs(place - int(line)))
        return f"`{file}:{nearest}` ({symbol})"

    page.write_text(REFERENCE.sub(now, page.read_text()))


if __name__ == "__main__":
    for each in PAGES:
        put_right(each)
