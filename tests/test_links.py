"""Links between pages lead somewhere, those to a section too."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "zoo").glob("*.md")])


def anchors(text: str) -> set[str]:
    """What a link may name: each heading in lower case, without its marks, spaces as hyphens."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE)
    headings = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


def lost(text: str, page: Path) -> list[str]:
    """Links to a file or a section that is not there."""
    found = []
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        path, _, section = link.partition("#")
        target = page.parent / path if path else page
        inside = text if target == page else target.read_text() if section and target.is_file() else ""
        if not target.exists() or (section and section not in anchors(inside)):
            found.append(link)
    return found


def test_a_lost_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("")
    text = (
        "## The `first`: part\n```\n# no heading\n```\n[a](#the-first-part) [b](#no-heading) [c](x.md) [d](page.md#e)"
    )
    assert lost(text, page) == ["#no-heading", "x.md", "page.md#e"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    assert lost(page.read_text(), page) == []
