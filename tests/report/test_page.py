import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from sample_runs import EST, PLAIN, MakeRun, clean, epoch, examples, shift

from robustmetric.errors import InputError
from robustmetric.records import Record
from robustmetric.report.page import breakable, commands, write_page
from robustmetric.report.scores import DASH

VOID = {"meta", "link", "img", "br", "hr", "input"}


class Page(HTMLParser):
    """The page as a browser would take it apart: attributes, text, table cells; tags must balance."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.cells: list[list[str]] = []
        self.text = ""
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, key, value or "") for key, value in attributes]
        if tag == "tr":
            self.cells.append([])
        if tag in ("td", "th"):
            self.cells[-1].append("")
        if tag == "small":
            self.cells[-1][-1] += " "
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, key, value or "") for key, value in attributes]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data
        if "td" in self.open or "th" in self.open:
            self.cells[-1][-1] += data

    def row(self, name: str) -> list[str]:
        return next(row for row in self.cells if row and row[0].strip() == name)


def page(tmp_path: Path, *runs: Path) -> Page:
    path = write_page(list(runs), tmp_path / "out")
    assert path == tmp_path / "out" / "index.html"
    return Page(path.read_text(encoding="utf-8"))


def test_the_page_shows_the_numbers_of_the_records(make_run: MakeRun, tmp_path: Path):
    shown = page(tmp_path, make_run("plain", *PLAIN), make_run("est", *EST))
    assert shown.row("plain") == [
        "plain", "96.1 95.1 to 97.1", "30.5 28.5 to 32.5", "4.0 2.0 to 6.0", "0.2 -1.8 to 2.2", "2.5", "60.5", "896",
    ]  # fmt: skip
    assert [cell.split()[0] for cell in shown.row("est")] == [
        "est",
        "94.3",
        "80.6",
        "61.3",
        "19.9",
        "24.5",
        "11.5",
        "896",
    ]
    assert "the R@1 of plain falls from 96.1 to 4.0; est keeps 61.3 of its 94.3" in shown.text


def test_the_page_says_how_it_was_made(make_run: MakeRun, tmp_path: Path):
    shown = page(tmp_path, make_run("plain", *PLAIN))
    for fact in (
        "robustmetric report",
        "abc1234",
        "torch 2.9.1",
        "3.11.7",
        "2 CPU cores",
        "Single run:",
        "name: plain",
    ):
        assert fact in shown.text
    assert "percentile rank the attacker can reach for a chosen image" in shown.text
    assert "nearest embeddings" in shown.text and "what is left of the search." in shown.text
    assert "named rightly" not in shown.text


def test_three_seeds_are_no_single_run(make_run: MakeRun, tmp_path: Path):
    runs = [make_run(f"est{seed}", *EST, name="est", defence="est", seed=seed) for seed in range(3)]
    shown = page(tmp_path, *runs)
    assert "Single run" not in shown.text and "with 3 seeds or more" in shown.text
    assert shown.row("est (seed 2)")


def test_the_page_asks_for_nothing_outside_itself(make_run: MakeRun, tmp_path: Path):
    run = make_run("plain", *PLAIN, epoch(0, triplet=0.5), epoch(1, triplet=0.4))
    (run / "examples").mkdir()
    np.savez(run / "examples" / "ES.npz", **examples())
    shown = page(tmp_path, run)
    sources = [
        (tag, value) for tag, key, value in shown.attributes if key in ("src", "href", "xlink:href", "srcset", "action")
    ]
    assert sum(tag == "img" for tag, _ in sources) == 3 * 13
    assert all(value.startswith(("data:", "#")) for _, value in sources)
    text = (tmp_path / "out" / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"https?://|//cdn|@import|url\((?!#)|<script|<iframe", text)


def test_hostile_names_are_shown_and_not_obeyed(make_run: MakeRun, tmp_path: Path):
    hostile = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)> {{ 7 * 7 }} $\\frac$"
    settings = {"suite": hostile, "data": hostile}
    records = [Record("clean", "clean", {"R@1": 90.0, hostile: 1.0}, settings, count=5)]
    records += [
        Record("attack", "ES", {"ES:R": 9.0}, {**settings, "radius": 0.1, "mode": hostile, "x": hostile}, count=5)
    ]
    run = make_run(
        "a", *records, name=hostile, data=hostile, defence=hostile, model=hostile, commit=hostile, hardware=hostile
    )
    (run / "recipe.yaml").write_text(hostile)
    (run / "examples").mkdir()
    np.savez(run / "examples" / "ES.npz", **examples(class_names=np.array([hostile, "six"]), attack=np.array(hostile)))
    shown = page(tmp_path, run)
    assert not any(tag == "script" or key.startswith("on") for tag, key, _ in shown.attributes)
    assert ("img", "src", "x") not in shown.attributes
    assert shown.row(hostile) and f"query: {hostile}" in shown.text


def test_missing_numbers_are_dashes(make_run: MakeRun, tmp_path: Path):
    runs = make_run("plain", *PLAIN), make_run("half", clean(80.0)), make_run("young", epoch(0, triplet=0.5))
    shown = page(tmp_path, *runs)
    assert shown.row("half") == ["half", "80.0 79.0 to 81.0", *[DASH] * 5, "896"]
    assert shown.row("young") == ["young", *[DASH] * 7]
    assert "young has not been evaluated" in shown.text


def test_runs_with_training_only_still_make_a_page(make_run: MakeRun, tmp_path: Path):
    shown = page(tmp_path, make_run("young", epoch(0, triplet=0.5), epoch(1, triplet=0.4)))
    assert "No evaluation has been recorded yet" in shown.text
    assert ("svg", "aria-label", "training loss by epoch for young") in shown.attributes


def test_two_protocols_are_two_sections_with_ids_of_their_own(make_run: MakeRun, tmp_path: Path):
    run = make_run("plain", clean(96.1), shift(4.0, 0.1), shift(9.0, 0.1, mode="compat"))
    shown = page(tmp_path, run, make_run("est", clean(94.0), shift(61.0, 0.1)))
    assert "digits, suite demo, mode compat, linf" in shown.text
    ids = [value for _, key, value in shown.attributes if key == "id"]
    assert len(ids) == len(set(ids))


def test_the_gallery_marks_classes_in_words(make_run: MakeRun, tmp_path: Path):
    run = make_run("plain", *PLAIN)
    (run / "examples").mkdir()
    np.savez(run / "examples" / "ES.npz", **examples(n=1))
    shown = page(tmp_path, run)
    assert shown.text.count("✗ six") == 4 and shown.text.count("✓ five") == 6
    assert "difference × 6" in shown.text  # noqa: RUF001


def test_writing_leaves_no_half_page(make_run: MakeRun, tmp_path: Path):
    page(tmp_path, make_run("plain", *PLAIN))
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["index.html"]


def test_a_failed_report_keeps_the_old_page(make_run: MakeRun, tmp_path: Path):
    run = make_run("plain", *PLAIN)
    path = write_page([run], tmp_path / "out")
    old = path.read_text()
    (run / "examples").mkdir()
    (run / "examples" / "ES.npz").write_bytes(b"broken")
    with pytest.raises(InputError, match=r"ES\.npz"):
        write_page([run], tmp_path / "out")
    assert path.read_text() == old


def test_an_output_that_is_a_file_is_refused(make_run: MakeRun, tmp_path: Path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InputError, match="cannot be written"):
        write_page([make_run("plain", *PLAIN)], tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_reports_do_not_import_torch():
    # pyplot keeps figures in global state, so it stays out too.
    code = "import robustmetric.report.page, sys; assert not {'torch', 'matplotlib.pyplot'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_collapsed_run_is_said_to_be_one_above_its_numbers_and_beside_them(tmp_path: Path, make_run: MakeRun) -> None:
    """R@1 alone would not tell: a ranking survives any shrinking."""
    fallen = make_run("minmax", *EST, collapsed=True, collapse="mean pairwise cosine 0.9999")
    text = write_page([make_run("plain", *PLAIN), fallen], tmp_path / "page").read_text()
    page = Page(text)
    assert "⚑ minmax has collapsed (mean pairwise cosine 0.9999): all its embeddings lie in one place" in page.text
    assert any(cells and cells[0].startswith("minmax ") and "collapsed" in cells[0] for cells in page.cells)
    # Embeddings that are far apart may be in no order all the same.
    lost = make_run("lost", *EST, collapsed=True, collapse="R@1 15.0 at chance (15.3)")
    said = Page(write_page([lost], tmp_path / "lost").read_text()).text
    assert "⚑ lost has collapsed (R@1 15.0 at chance (15.3)): its search is no better than chance, and none of" in said
    assert "in one place" not in said
    sound = write_page([make_run("est", *EST, collapsed=False, collapse=None)], tmp_path / "other").read_text()
    assert "has collapsed" not in Page(sound).text


def test_commands_in_a_sentence_are_code_and_nothing_in_it_is_markup() -> None:
    assert commands("Train <one>, as in `robustmetric train a&b`.") == (
        "Train &lt;one&gt;, as in <code>robustmetric train a&amp;b</code>."
    )


def test_names_of_classes_break_between_their_words() -> None:
    assert breakable("101.White_Pelican") == "101.<wbr>White_<wbr>Pelican"
    assert breakable("<b>-5") == "&lt;b&gt;-5"


def test_the_advice_on_a_page_has_its_command_as_code(tmp_path: Path, make_run: MakeRun) -> None:
    text = write_page([make_run("plain", *PLAIN)], tmp_path / "page").read_text()
    assert "as in <code>robustmetric train cub/act</code>, evaluate it alike" in text and "`" not in Page(text).text
