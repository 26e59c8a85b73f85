"""Pages about papers: each `file:line` (symbol) points at that symbol, or within sight of it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs" / "papers").glob("*.md"))
NEAR = 25
"""Lines by which a file may have grown since: still on the reader's screen."""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_references_lead_to_what_they_name(page: Path) -> None:
    found = re.findall(r"`([\w/]+\.py):(\d+)` \((\w+)\)", page.read_text())
    assert len(found) > 10
    for file, line, symbol in found:
        lines = (ROOT / "src" / "robustmetric" / file).read_text().splitlines()
        places = [i for i, text in enumerate(lines, 1) if re.match(rf"\s*(def |class )?{symbol}\b", text)]
        assert any(abs(place - int(line)) <= NEAR for place in places), f"{file}: {symbol} is at {places}, not {line}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_that_are_named_exist(page: Path) -> None:
    for name in re.findall(r"`((?:tests|recipes|docs)/[\w/.-]+\.\w+)`", page.read_text()):
        assert (ROOT / name).is_file(), name
