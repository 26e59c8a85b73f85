"""The rebuttal's sweeps from rows of the ledger: PGD-100 beside AutoAttack, by smoothing and by images matched."""

import json
from pathlib import Path
from typing import Any

from commands import Command
from robustmetric.report.comparison import comparison
from robustmetric.report.ledger import faults
from robustmetric.report.scores import DASH
from robustmetric.report.smoothing import smoothing_figure, smoothing_tables


def row(
    kind: str, smoothing: str = "", pgd: float = 60.0, auto: float | None = 30.0, *, parts: str = "", seed: int = 0,
    lowest: float | None = None, **block: Any,
) -> dict[str, Any]:  # fmt: skip
    defence = kind + (f"_smoothing{smoothing}" if smoothing else "")
    eta = {"scattering": "-eta1", "madry": "-eta7"}.get(kind, "")
    name = f"cifar10-wide_resnet16_2-{defence}{eta}{parts}-short-seed{seed}"
    accuracy = {"PGD-100": pgd} | ({} if auto is None else {"AutoAttack": auto})
    extra = {} if lowest is None else {"lowest run": {"PGD-100": lowest}}
    return {
        "id": name, "data": "cifar10", "model": "wide_resnet16_2", "defence": defence, "recipe": "r", "command": "c",
        "commit": "abc", "hardware": "h", "protocol": "short", "seed": seed, "queries": 1000,
        "clean": {"accuracy": 85.0},
        "classification": {"norm": "linf", "radius": 0.031373, "accuracy": accuracy, **extra, **block},
    }  # fmt: skip


SWEPT = [
    row("scattering", "", 35.0, 33.0), row("scattering", "0_5", 64.0, 34.0), row("scattering", "0_8", 70.0, 31.0),
    row("madry", "", 44.0, 40.0), row("madry", "0_5", 46.0, 41.0),
]  # fmt: skip


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines() if line[:1] == "|"]


def test_rows_of_these_tests_are_rows_of_the_ledger() -> None:
    assert [faults(one) for one in SWEPT] == [[]] * len(SWEPT)


def test_smoothing_has_a_line_a_value_with_ours_and_what_was_published_apart() -> None:
    (table,) = smoothing_tables("cifar10", [{**row, "data_note": "a JPEG copy"} for row in SWEPT])
    assert table.startswith("### cifar10, label smoothing, a JPEG copy, protocol short, wide_resnet16_2, 8/255, ")
    (table,) = smoothing_tables("cifar10", SWEPT)
    assert table.startswith("### cifar10, label smoothing, protocol short, wide_resnet16_2, 8/255, batches of 60\n")
    head, _, *lines = cells(table)
    assert head == [
        "smoothing", "FS: PGD-100", "FS: AutoAttack", "Madry: PGD-100", "Madry: AutoAttack",
        "published (WRN-28-10), FS: PGD-100", "published (WRN-28-10), Madry: PGD-100",
    ]  # fmt: skip
    # The last two columns are those of the rebuttal.
    assert lines == [
        ["0", "35.0", "33.0", "44.0", "40.0", "35.3", "44.8"],
        ["0.5", "64.0", "34.0", "46.0", "41.0", "68.4", "46.1"],
        ["0.8", "70.0", "31.0", DASH, DASH, "69.7", "47.4"],
    ]


def test_seeds_are_averaged_and_of_several_runs_the_lowest_counts() -> None:
    more = [row("scattering", "0_5", 50.0, 36.0, seed=1), row("madry", "0_1", 40.0, None, lowest=47.0)]
    _, _, *lines = cells(smoothing_tables("cifar10", [*SWEPT, *more])[0])
    assert [line[:5] for line in lines if line[0] in ("0.1", "0.5")] == [
        ["0.1", DASH, DASH, "47.0", DASH], ["0.5", "57.0", "35.0", "46.0", "41.0"],
    ]  # fmt: skip


def test_only_rows_that_differ_in_smoothing_alone_share_a_table() -> None:
    fast = [row("scattering", word, parts="-batch240-group60") for word in ("", "0_5")]
    fast += [row("madry", "", parts="-batch240"), row("scattering", "", parts="-batch240", pgd=1.0)]
    others = [row("scattering_ipot", "0_5"), row("one_step", "0_5"), row("madry", "0_2", search="tf32")]
    others.append(row("madry", "0_6", radius=0.015686))
    other_steps = {**row("madry", "0_3"), "id": "cifar10-wide_resnet16_2-madry_smoothing0_3-eta10-short-seed0"}
    tables = smoothing_tables("cifar10", [*SWEPT, *fast, *others, other_steps])
    assert [table.partition("\n")[0].rpartition(", ")[2] for table in tables] == ["batches of 60", "batches of 240"]
    assert [line[0] for line in cells(tables[0])[2:]] == ["0", "0.5", "0.8"]
    # Without groups, 240 images are matched at once: not the paper's transport, and no point of this sweep.
    assert [line[:2] for line in cells(tables[1])[2:]] == [["0", "60.0"], ["0.5", "60.0"]]


def test_batch_sizes_have_a_table_by_how_many_images_are_matched() -> None:
    rows = [row("scattering", "0_5", 58.0, 30.0, parts="-batch40"), row("scattering", "0_5", 64.0, 34.0),
            row("scattering", "0_5", 65.0, 33.0, parts="-batch80")]  # fmt: skip
    (table,) = smoothing_tables("cifar10", rows)
    assert table.partition("\n")[0].endswith(", images matched together, protocol short, wide_resnet16_2, 8/255, "
                                             "batches of as many")  # fmt: skip
    assert cells(table)[0] == ["images", "FS: PGD-100", "FS: AutoAttack", "published (WRN-28-10), FS: PGD-100"]
    assert cells(table)[2:] == [
        ["40", "58.0", "30.0", "58.7"], ["60", "64.0", "34.0", "68.4"], ["80", "65.0", "33.0", "68.4"],
    ]  # fmt: skip


def test_a_batch_in_groups_is_not_averaged_with_a_batch_of_that_size() -> None:
    alone = [row("scattering", "0_5", 64.0), row("scattering", "0_5", 58.0, parts="-batch40")]
    grouped = row("scattering", "0_5", 10.0, parts="-batch240-group60")
    (table,) = smoothing_tables("cifar10", [*alone, grouped])
    assert [line[:2] for line in cells(table)[2:]] == [["40", "58.0"], ["60", "64.0"]]
    more = row("scattering", "0_5", 20.0, parts="-batch240-group40")
    _, table = smoothing_tables("cifar10", [*alone, grouped, more])
    assert table.partition("\n")[0].endswith(", groups in batches of 240")
    assert [line[:2] for line in cells(table)[2:]] == [["40", "20.0"], ["60", "10.0"]]
    # The whole batch as one is the largest group of it.
    whole = row("scattering", "0_5", 30.0, parts="-batch240")
    _, table = smoothing_tables("cifar10", [*alone, grouped, more, whole])
    assert [line[:2] for line in cells(table)[2:]] == [["40", "20.0"], ["60", "10.0"], ["240", "30.0"]]
    # And stays among batches of other sizes, where these were measured.
    larger = row("scattering", "0_5", 25.0, parts="-batch80")
    first, second = smoothing_tables("cifar10", [larger, grouped, more, whole])
    assert [line[:2] for line in cells(first)[2:]] == [["80", "25.0"], ["240", "30.0"]]
    assert [line[:2] for line in cells(second)[2:]] == [["40", "20.0"], ["60", "10.0"], ["240", "30.0"]]


def write(folder: Path, rows: list[dict[str, Any]]) -> Path:
    folder.mkdir()
    for one in rows:
        (folder / f"{one['id']}.json").write_text(json.dumps(one))
    return folder


def test_one_command_prints_the_tables_and_another_draws_the_figure(tmp_path: Path, command: Command) -> None:
    folder, out = write(tmp_path / "cifar10", SWEPT), tmp_path / "made"
    found = command("ledger", "--table", folder)
    assert found.code == 0 and "label smoothing, protocol short" in found.out and comparison(folder) in found.out
    assert command("ledger", "--figure", folder, "-o", out).code == 0
    assert sorted(path.name for path in out.iterdir()) == ["smoothing-cifar10.png", "smoothing-cifar10.svg"]
    drawn = (out / "smoothing-cifar10.svg").read_text()
    for words in ("FS, PGD-100", "FS, AutoAttack", "Madry, PGD-100", "Madry, AutoAttack", "label smoothing"):
        assert f">{words}<" in drawn
    assert command("ledger", "--figure", folder, "-o", tmp_path / "again").code == 0
    again = (tmp_path / "again" / "smoothing-cifar10.svg").read_text()
    assert again == drawn, "the same rows make the same bytes"


def test_single_points_of_two_attacks_can_be_told_apart() -> None:
    figure = smoothing_figure([*SWEPT[:1], row("madry", "", 44.0, 40.0), row("madry", "0_5", 46.0, 41.0)])
    assert figure is not None
    by_label = {line.get_label(): line for axes in figure.axes for line in axes.lines}
    assert len(by_label["FS, PGD-100"].get_xdata()) == 1
    assert by_label["FS, PGD-100"].get_markerfacecolor() == "none" != by_label["FS, AutoAttack"].get_markerfacecolor()
    assert figure.axes[0].get_ylim() == (0, 60), "the highest number, 46, and some room above it"


def test_a_sweep_that_one_attack_has_not_met_has_no_panel_beside_one_that_both_have() -> None:
    weak = [row("scattering", word, 20.0, None, parts="-batch240-group60") for word in ("", "0_5")]
    both = smoothing_figure([*SWEPT, *weak])
    assert both is not None and len(both.axes) == 1 and "batches of 60" in both.axes[0].get_title()
    alone = smoothing_figure(weak)
    assert alone is not None and len(alone.axes) == 1


def test_one_value_of_each_of_two_defences_is_no_sweep() -> None:
    apart = [*SWEPT[:1], row("madry", "0_5", 46.0, 41.0)]
    assert smoothing_figure(apart) is None and smoothing_tables("cifar10", apart) == []


def test_one_smoothing_alone_makes_no_figure(tmp_path: Path, command: Command) -> None:
    folder = write(tmp_path / "cifar10", SWEPT[:1])
    assert "nor in label smoothing alone" in command("ledger", "--figure", folder, "-o", tmp_path / "made").error
    assert not (tmp_path / "made").exists()
