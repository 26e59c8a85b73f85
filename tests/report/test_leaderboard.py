"""The page of all rows: ours and the reader's, with nothing on it that the ledger does not hold."""

import base64
import hashlib
import json
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from markupsafe import Markup
from matplotlib.figure import Figure
from test_boards import row
from test_page import Page

from commands import Command
from robustmetric.report import leaderboard
from robustmetric.report.board_words import in_words
from robustmetric.report.boards import chapters
from robustmetric.report.leaderboard import gather, render, shelf, write_leaderboard
from robustmetric.report.scores import DASH


def written(folder: Path, name: str = "mine") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    one = row(name, 41.0, recipe="my/recipe.yaml")
    (folder / f"{one['id']}.json").write_text(json.dumps(one))
    return folder


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("page")
    path = write_leaderboard([written(folder / "rows" / "cub").parent], folder / "out")
    return path.read_text(encoding="utf-8")


def test_every_row_that_we_ship_is_on_the_page_and_so_is_the_readers(text: str) -> None:
    page = Page(text)  # its tags balance
    for path in shelf().glob("*/*.json"):
        assert path.stem in page.text, path
    assert f"{len(list(shelf().glob('*/*.json'))) + 1} measured rows" in page.text
    assert "mine, 8 steps" in page.text and "yours" in page.text


def test_the_numbers_are_those_of_the_rows(text: str) -> None:
    found = json.loads((shelf() / "cub" / "cub-mobilenet_v2-hm_lga_ics-eta8-full_3e-5-seed0.json").read_text())
    (line,) = (part for part in text.split('<tr data-words="')[1:] if part.split('"')[0].endswith(found["id"].lower()))
    cells = Page(f"<table><tr>{line.rpartition('</details></th>')[2].partition('</tr>')[0]}</tr></table>").cells[0]
    fixed = found["attacks"]["fixed"]
    lowest = min((fixed[score], score) for score in ("ES:R", "LTM", "GTM"))
    assert cells == [
        *(f"{found['published'][score]:.1f}" for score in ("R@1", "ERS")), f"{found['clean']['R@1']:.1f}",
        f"{lowest[0]:.1f} {lowest[1]}", *(f"{fixed[score]:.1f}" for score in ("ES:R", "LTM", "GTM", "ERS")),
        f"{found['attacks']['compat']['ERS']:.1f}", f"{found['cost_fe']:.1f}", "1",
    ]  # fmt: skip


def test_entries_that_lack_the_strongest_attacks_have_no_place_and_an_upper_end(text: str) -> None:
    (line,) = (part for part in text.split('<tr data-words="')[1:] if "cars-mobilenet_v2-at-r8-seed0" in part[:200])
    assert f'<td class="place" data-value="5">{DASH}</td>' in line and "has not met all of clustering_short" in line
    assert '<td data-value="" class="headline">≤ 26.7<' in line, "and it sorts below what was measured"
    assert (
        "keeps 1.6 of 60.7 under adaptive attacks, both sides, the most of 4 that were attacked as hard"
        in Page(text).text
    )
    assert "Hollow points are upper ends" in text


def test_points_without_a_place_have_no_label(monkeypatch: pytest.MonkeyPatch) -> None:
    ranked = {"norm": "linf", "radius": 8 / 255, "R@1": 0.5}
    rows = [row(name, 30.0, auto_rank=ranked) for name in ("act", "est", "hm")]
    rows += [row(name, 35.0) for name in ("plain", "mine")]
    (board,) = (board for chapter in chapters([(one, False) for one in rows]) for board in chapter.boards)
    assert [place for place, _ in board.placed] == [1, 2, 3, None, None]
    drawn: list[Figure] = []
    monkeypatch.setattr(leaderboard, "to_svg", lambda figure, *words: drawn.append(figure) or Markup(""))
    leaderboard.chart(board, "chart")
    (axes,) = drawn[0].axes
    assert {text.get_text() for text in axes.texts} <= {"1", "2", "3"} and len(axes.lines) == 5
    assert axes.texts, "those with a place have theirs"


def test_data_that_most_have_met_come_first(text: str) -> None:
    titles = re.findall(r"<h2>(.*?)</h2>", text)
    assert titles[:4] == ["CUB-200-2011", "CIFAR-10", "CIFAR-10 (a JPEG copy)", "CARS196"]
    kinds = ["proofs" in title for title in titles[:-1]]
    assert kinds == sorted(kinds), "proofs come last"


def test_a_table_that_goes_on_casts_a_shade_at_its_right_edge(text: str) -> None:
    rule = re.search(r"\.scroll \{(.*?)\}", text, re.DOTALL)
    assert rule is not None and "overflow-x: auto" in rule[1]
    cover, shade = (line for line in rule[1].splitlines() if "linear-gradient" in line)
    assert "var(--card)" in cover and "local" in cover, "what hides the shade at the table's end moves with it"
    assert "var(--shade)" in shade and "scroll" in shade
    assert text.count("--shade: rgb(") == 2, "in light and in dark"
    # Cells of their own colour let it through.
    assert re.search(r"\.headline \{ background: color-mix\([^;]*transparent\); \}", text)


@pytest.mark.parametrize(
    ("title", "header", "words"),
    [
        ({"defence": "hm_r_m"}, "HM[R,M] on CUB-200-2011, MobileNetV2, 8 steps.", "Hardness manipulation [R,M]"),
        ({"defence": "adp"}, "Diverse, ADP: Proxy-Anchor on CARS-196, MobileNetV2.", "Diverse, ADP"),
        ({"defence": "at_growing0_4"}, "AT: Proxy-Anchor on CARS-196.", "AT, at a radius that grows"),
        ({"defence": "eat_clean_share0"}, "EAT: Proxy-Anchor on CARS-196.", "EAT, attacked images alone"),
        ({"defence": "madry"}, "PGD-7, hard labels: CIFAR-10, ResNet-18.", "PGD-7, hard labels"),
        ({"learner": "nca()"}, "Certified k-NN on USPS: NCA (2004); 1-NN exactly.", "NCA (2004)"),
        ({"defence": "mine"}, "", ""),
    ],
)
def test_what_a_way_of_training_is_stands_below_its_name(title: dict[str, str], header: str, words: str) -> None:
    assert in_words(title, header) == words


def test_the_page_says_what_each_name_stands_for(text: str) -> None:
    assert (
        '<code>at_growing0_4-r8</code><small class="name">Adversarial training, at a radius that grows</small>' in text
    )


def test_how_to_measure_again_names_the_run_where_no_copy_of_its_weights_is_kept(text: str) -> None:
    kept = "cub-mobilenet_v2-act-eta8-short-seed0"
    assert f"robustmetric verify results/cub/{kept}.json<" in text, "its weights are in zoo/"
    assert "-batch240-scaled-seed0.json --model runs/cifar10-madry<" in text


def test_the_page_needs_nothing_from_outside_and_runs_its_own_script_alone(text: str) -> None:
    page = Page(text)
    outside = [
        value for _, key, value in page.attributes if key in ("src", "href") and not value.startswith(("#", "data:"))
    ]
    assert outside == []
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)
    assert script is not None
    digest = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in text and text.count("<script") == 1


def test_words_of_a_row_are_text_not_markup(tmp_path: Path) -> None:
    one = row("<b>bold</b>", 40.0, command="x && <script>alert(1)</script>")
    (tmp_path / "cub").mkdir()
    one["id"] = "cub-mobilenet_v2-bold-eta8-short-seed0"
    (tmp_path / "cub" / f"{one['id']}.json").write_text(json.dumps(one))
    made = render(chapters([(found, True) for found in gather([tmp_path])]), [str(tmp_path)])
    assert "<b>bold</b>" not in made and "&lt;b&gt;bold" in made and made.count("<script") == 1


def test_a_folder_of_rows_and_a_folder_of_such_folders_are_read_alike(tmp_path: Path) -> None:
    folder = written(tmp_path / "rows" / "cub")
    assert gather([folder]) == gather([tmp_path / "rows"]) != []


def test_the_command_writes_the_page_without_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from robustmetric.report.leaderboard import write_leaderboard; from pathlib import Path; "
        "write_leaderboard([], Path('out')); print('torch' in sys.modules)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert found.stdout.strip() == "False", found.stderr
    assert (tmp_path / "out" / "index.html").is_file()


def test_entries_as_json_have_place_name_and_numbers(command: Command, tmp_path: Path) -> None:
    written(tmp_path / "cub")
    found = [json.loads(line) for line in command("leaderboard", "cub", "--json").out.splitlines()]
    (own,) = [one for one in found if one["own"]]
    assert own["name"] == "mine, 8 steps" and own["scores"]["R@1 under its strongest attack"] == 4.0
    placed = [one for one in found if one["place"] is not None]
    assert len({(one["data"], one["board"], one["place"]) for one in placed}) == len(placed)
    boards = Counter((one["data"], one["board"]) for one in found)
    alone = {board for board, count in boards.items() if count == 1}
    assert alone, "a board of one, on which nobody is first"
    for one in found:
        is_alone = (one["data"], one["board"]) in alone
        assert (one["place"] is None) == (is_alone or one["has_not_met"] is not None)
    assert not (tmp_path / "leaderboard").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere"], "nowhere is no folder of results; expected the path of one, such as results/cub"),
        (["empty"], "empty holds no rows, files named ID.json; expected a folder such as results/cub"),
        (["broken"], "not valid JSON"),
    ],
)
def test_what_is_no_folder_of_rows_is_refused_in_one_line(
    words: list[str], said: str, command: Command, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "a.json").write_text("{")
    assert said in command("leaderboard", *words).error


def test_a_row_out_of_its_schema_is_refused_by_its_name(command: Command, tmp_path: Path) -> None:
    folder = written(tmp_path / "cub")
    (path,) = folder.glob("*.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "clean": {"R@1": 140.0}}))
    assert f"{path.name}: clean.R@1 140.0 is not from 0 to 100" in command("leaderboard", "cub").error
