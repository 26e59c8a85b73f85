"""Pages about papers: each `file:line` (symbol) points at that symbol."""

import re
from pathlib import Path

import pytest

from paper_lines import PAGES, ROOT, places, references


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_references_lead_to_what_they_name(page: Path) -> None:
    found = list(references(page))
    assert len(found) > 10
    wrong = [
        f"{file}: {symbol} is at {places(file, symbol)}, not {line}"
        for file, line, symbol in found
        if line not in places(file, symbol)
    ]
    assert not wrong, f"{'; '.join(wrong)}; `python tests/paper_lines.py` puts them right"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_files_that_are_named_exist(page: Path) -> None:
    for name in re.findall(r"`((?:tests|recipes|docs)/[\w/.-]+\.\w+)`", page.read_text()):
        assert (ROOT / name).is_file(), name
