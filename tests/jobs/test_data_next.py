"""The commands that a check of data ends with: they can be typed as they are."""

import shlex

import pytest
import typer

from robustmetric import recipe
from robustmetric.catalogue import CATALOGUE
from robustmetric.cli import app
from robustmetric.data.census import Part
from robustmetric.data.cub import Cub
from robustmetric.data.folder import Folder
from robustmetric.data.listing import ImageFiles
from robustmetric.data.manifest import Manifest
from robustmetric.jobs.certify import DEFAULT
from robustmetric.jobs.data_next import VOTERS, of_images, of_ours, of_table
from robustmetric.jobs.findings import Finding, Report
from robustmetric.overrides import override
from robustmetric.report.ledger import PROTOCOLS

UNREADABLE = Finding("unreadable", "mend", "unreadable", ("a",))
EMPTY = Finding("empty", "mend", "empty")


def report(path: str, *findings: Finding, rows: int = 20) -> Report:
    return Report(path, "", "images", (Part.of("train", "ab" * (rows // 2)),), findings)


def parsed(command: str) -> dict[str, object]:
    """What the command line makes of it."""
    program, name, *rest = shlex.split(command)
    assert program == "robustmetric"
    group = typer.main.get_command(app)
    found = group.get_command(group.make_context("robustmetric", [name]), name)
    return dict(found.make_context(name, rest).params)


@pytest.mark.parametrize(
    ("source", "data"),
    [
        (Folder("my photos"), {"name": "folder", "root": "my photos"}),
        (Folder("2024"), {"name": "folder", "root": "2024"}),
        (Folder("a: [b"), {"name": "folder", "root": "a: [b"}),
        (Manifest("list.csv"), {"name": "manifest", "file": "list.csv"}),
    ],
)
def test_images_are_attacked_then_trained_on_by_this_very_path(source: Folder | Manifest, data: dict[str, str]) -> None:
    path = source.root if isinstance(source, Folder) else source.file
    evaluate, train = map(parsed, of_images(report(path), source, can_train=True).next)
    assert evaluate["data"] == path and recipe.locate(str(evaluate["suite"]), "suites")
    overrides = train["overrides"]
    assert isinstance(overrides, list) and recipe.locate(str(train["recipe"]))
    assert override({}, overrides) == {"data": data, "model": {"name": "company.build"}}


def test_what_cannot_be_trained_on_is_only_evaluated() -> None:
    (command,) = of_images(report("photos"), Folder("photos"), can_train=False).next
    assert command.startswith("robustmetric evaluate ")


def test_without_a_gpu_the_training_is_the_short_one() -> None:
    short = PROTOCOLS["cub"]["short"]
    told = of_images(report("photos"), Folder("photos"), can_train=True, is_short=True)
    overrides = parsed(told.next[1])["overrides"]
    assert isinstance(overrides, list)
    spec = override({"epochs": 75, "optimiser": {"rate": 1e-5}}, overrides)
    assert (spec["epochs"], spec["optimiser"]) == (short.epochs, {"rate": short.rate})
    assert told.note.startswith("epochs=15 optimiser.rate=3e-5 is the short form, a fifth of the published length")
    cannot = of_images(report("photos"), Folder("photos"), can_train=False, is_short=True)
    assert "short" not in cannot.note and "epochs" not in " ".join(cannot.next)


def test_files_that_are_skipped_here_are_skipped_there() -> None:
    source = Folder("photos", skip_unreadable=True)
    assert all(parsed(one)["skip_unreadable"] for one in of_images(report("photos"), source, can_train=True).next)


@pytest.mark.parametrize(
    ("findings", "source", "command"),
    [
        ([UNREADABLE], Folder("photos"), "robustmetric data check photos --skip-unreadable"),
        ([UNREADABLE, EMPTY], Folder("photos"), "robustmetric data check photos"),
        ([EMPTY], Cub(skip_unreadable=True), "robustmetric data check photos --skip-unreadable"),
    ],
)
def test_what_must_be_mended_is_checked_again(findings: list[Finding], source: ImageFiles, command: str) -> None:
    assert of_images(report("photos", *findings), source, can_train=True).next == (command,)


@pytest.mark.parametrize("name", sorted(set(CATALOGUE["data"]) - {"folder", "manifest", "tabular"}))
def test_every_data_set_of_ours_has_a_recipe_to_begin_with(name: str) -> None:
    (command,) = of_ours(report(name)).next
    given = parsed(command)
    assert recipe.locate(str(given.get("recipe") or given["target"])).is_file()


def test_a_table_is_certified_scaled_where_columns_drown_others() -> None:
    (plain,) = of_table(report("mine.csv"), ["data.label=kind"]).next
    assert plain == "robustmetric certify tabular/digits-arml --data mine.csv data.label=kind"
    units = Finding("units", "look", "feature 1 spreads")
    (scaled,) = of_table(report("mine.csv", units), []).next
    assert scaled.endswith(" data.scale=true") and parsed(scaled)["data"] == "mine.csv"


def test_few_rows_are_asked_one_neighbour_alone() -> None:
    assert max(int(str(one.get("neighbours", 1))) for one in DEFAULT) == VOTERS
    (few,) = of_table(report("mine.csv", rows=10), []).next
    assert few.endswith(" --method exact") and parsed(few)["method"] == "exact"
