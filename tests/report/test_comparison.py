"""The tables of a folder of results: what was not measured, and rows that were not attacked."""

import json
from pathlib import Path
from typing import Any

import pytest

from commands import Command
from robustmetric.report.comparison import comparison
from robustmetric.report.ledger import why_not
from robustmetric.report.scores import DASH

ROW: dict[str, Any] = {
    "data": "cifar10", "model": "wide_resnet16_8", "recipe": "recipes/cifar10/fs_plain.yaml", "commit": "abc",
    "command": "robustmetric train cifar10/fs_plain", "hardware": "1 x GPU", "seed": 0, "queries": 1000,
    "protocol": "scaled", "defence": "plain",
}  # fmt: skip


def write(folder: Path, kind: str, **changes: Any) -> None:
    row = {**ROW, "id": f"{folder.name}-{changes.get('model', ROW['model'])}-{kind}-seed0", **changes}
    folder.mkdir(exist_ok=True)
    (folder / f"{row['id']}.json").write_text(json.dumps(row))


def test_a_classifier_that_was_not_attacked_is_still_in_a_table(tmp_path: Path) -> None:
    write(tmp_path / "cifar10", "plain-scaled", clean={"accuracy": 95.0})
    assert comparison(tmp_path / "cifar10").splitlines() == [
        "### cifar10, classifiers, protocol scaled, wide_resnet16_8, not attacked",
        "",
        "| defence | seed | clean | **AutoAttack** | **worst case** | images |",
        "| --- | --: | --: | --: | --: | --: |",
        f"| `plain` | 0 | 95.0 | {DASH} | {DASH} | 1000 |",
        "",
        "Percent right.",
    ]


def test_what_is_to_be_told_of_the_data_stands_in_every_heading_and_copies_are_not_mixed(tmp_path: Path) -> None:
    copy = {"data_note": "a JPEG copy"}
    write(tmp_path / "cifar10", "plain-scaled", clean={"accuracy": 95.0})
    write(tmp_path / "cifar10", "madry-scaled", clean={"accuracy": 85.0}, defence="madry", **copy)
    write(tmp_path / "cifar10", "act-scaled", clean={"R@1": 50.0}, defence="act", **copy)
    headings = [line for line in comparison(tmp_path / "cifar10").splitlines() if line.startswith("#")]
    assert headings == [
        "### cifar10 (a JPEG copy), protocol scaled",
        "### cifar10 (a JPEG copy), classifiers, protocol scaled, wide_resnet16_8, not attacked",
        "### cifar10, classifiers, protocol scaled, wide_resnet16_8, not attacked",
    ]


def test_rows_of_retrieval_stand_in_the_order_of_their_own_protocols(tmp_path: Path) -> None:
    for protocol in ("short", "scaled"):
        write(tmp_path / "cifar10", f"act-{protocol}", clean={"R@1": 50.0}, protocol=protocol, defence="act")
    text = comparison(tmp_path / "cifar10")
    assert 0 <= text.index("protocol scaled") < text.index("protocol short")


def test_what_is_published_and_was_not_measured_is_said(tmp_path: Path) -> None:
    clean = {"R@1": 30.0}
    write(tmp_path / "cub", "plain", data="cub", model="resnet18", protocol="full", queries=5924, clean=clean)
    assert "| not measured |" in comparison(tmp_path / "cub").split("### cub, clustering")[0]


@pytest.mark.parametrize("words", ["--table results/cub", "--table results/tabular", "--figure results/cub -o drawn"])
def test_a_folder_without_rows_is_refused_though_its_data_are_known(
    words: str, tmp_path: Path, command: Command
) -> None:
    folder = words.split()[1]
    (tmp_path / folder).mkdir(parents=True)
    error = command("ledger", *words.split()).error
    assert f"{folder} holds no rows, files named ID.json; expected a folder such as results/" in error
    assert f"robustmetric ledger RUN ... -o {folder}" in error


def test_the_name_of_data_alone_has_what_is_published_and_why_it_is_not_measured(command: Command) -> None:
    lines = command("ledger", "--table", "sop").out.splitlines()
    assert f"| `act` | 8 | 45.3 | 49.5 | not measured: no data | {DASH} | {DASH} | {DASH} | {DASH} |" in lines
    assert all("not measured: no data" in line for line in lines if line.startswith("| `"))
    # CUB is at hand, and so are weights of one backbone: nothing but time is in the way.
    assert "| not measured |" in command("ledger", "--table", "cub").out
    assert "sup is no folder of results" in command("ledger", "--table", "sup").error


def test_weights_that_are_not_at_hand_are_told_as_such() -> None:
    assert why_not("cub/act") == "no weights" and why_not("cub/mobilenet_v2-act") == ""
    assert why_not("sop/act") == "no data" == why_not("sop/mobilenet_v2-act")


def test_the_name_of_data_without_published_tables_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    monkeypatch.chdir(tmp_path)
    said = command("ledger", "--table", "cifar10")
    assert said.code == 2 and "nothing is published of cifar10 in tables of ours" in said.err
