"""The tables of docs/papers/feature_scattering.md are the rows of the ledger, figure by figure."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "papers" / "feature_scattering.md").read_text()
TOO_SHORT = "Measured: CIFAR-10, ResNet-18, rate 0.1 for batches of 240: too short"
TRAINED = "Measured: CIFAR-10, ResNet-18, 40 epochs at rate 0.4"
SWEEP = "Does smoothing buy robustness? CIFAR-10, WRN-16-2"
ROWS = {
    "plain": "plain-batch240", "Madry": "madry-eta7-batch240", "one step, hard labels": "one_step-batch240",
    "FS, smoothing 0.5": "scattering_smoothing0_5-eta1-batch240-group60",
    "FS, no smoothing": "scattering-eta1-batch240-group60",
    "FS, identity matching": "scattering_identity_smoothing0_5-eta1-batch240-group60",
    "FS, uniform matching": "scattering_uniform_smoothing0_5-eta1-batch240-group60",
    "random-targeted": "random_target-eta7-batch240",
}  # fmt: skip
MEASURED = ("plain", "Madry", "FS, smoothing 0.5")
"""Of these, in protocol scaled_0.4."""
TABLES = [*((TOO_SHORT, "scaled", name) for name in ROWS), *((TRAINED, "scaled_0.4", name) for name in MEASURED)]
COLUMNS = {
    "FGSM": "FGSM", "PGD-20": "PGD-20", "PGD-100": "PGD-100", "CW-20": "CW-20", "CW-100": "CW-100",
    "feature match": "Feature match", "Square": "Square", "RayS": "RayS", "local search": "Local search",
    "**AutoAttack**": "AutoAttack",
}  # fmt: skip


def section(name: str) -> str:
    return PAGE.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def row(name: str, protocol: str) -> dict[str, Any]:
    return json.loads(
        (ROOT / "results" / "cifar10" / f"cifar10-resnet18-{ROWS[name]}-{protocol}-seed0.json").read_text()
    )


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]


@pytest.mark.parametrize(("place", "protocol", "name"), TABLES)
def test_white_box(place: str, protocol: str, name: str) -> None:
    head, _, *lines = cells(section(place))
    expected = [other for where, _, other in TABLES if where == place]
    assert [first for first, *_ in lines] == expected and head[1:-1] == ["clean", *COLUMNS]
    (shown,) = [rest for first, *rest in lines if first == name]
    found = row(name, protocol)
    scores = found["classification"]["accuracy"]
    left = [f"{scores[attack]:.1f}" if attack in scores else "-" for attack in COLUMNS.values()]
    verdict = (found.get("masking") or {}).get("verdict", "-")
    assert [cell.strip("*") for cell in shown] == [f"{found['clean']['accuracy']:.1f}", *left, verdict]
    assert scores.get("worst case") == scores.get("AutoAttack"), "the page would have to tell of both"


@pytest.mark.parametrize(("place", "protocol"), [(TOO_SHORT, "scaled"), (TRAINED, "scaled_0.4")])
def test_transfer(place: str, protocol: str) -> None:
    words = " ".join(section(place).split())
    for name in ("FS, smoothing 0.5", "Madry"):
        (source,) = row(name, protocol)["transfer"]["sources"].values()
        *most, last = [f"{source['accuracy'][attack]:.1f}" for attack in ("PGD-20", "PGD-100", "CW-20", "CW-100")]
        assert f"{', '.join(most)} and {last} of {name.partition(',')[0]}" in words


def test_what_is_said_of_the_trained_rows() -> None:
    words = " ".join(section(TRAINED).split())
    madry, scattered = (row(name, "scaled_0.4") for name in ("Madry", "FS, smoothing 0.5"))
    theirs, ours = (found["classification"]["accuracy"] for found in (madry, scattered))
    less = theirs["AutoAttack"] - ours["AutoAttack"]
    better = scattered["clean"]["accuracy"] - madry["clean"]["accuracy"]
    assert f"FS is {less:.1f} points less robust" in words and f"{better:.1f} points better on clean images" in words
    low, high = (found["classification"]["worst_case_interval"] for found in (scattered, madry))
    assert f"{low[0]:.1f} to {low[1]:.1f} and {high[0]:.1f} to {high[1]:.1f}, are apart" in words and low[1] < high[0]
    gaps = [f"{left['PGD-20'] - left['AutoAttack']:.1f}" for left in (ours, theirs)]
    assert f"PGD-20 is {gaps[0]} points above AutoAttack (Madry: {gaps[1]})" in words
    assert all(min(left["Square"], left["RayS"]) > left["PGD-20"] for left in (ours, theirs))
    assert all(set(found["masking"]["checks"].values()) == {"pass"} for found in (scattered, madry))
    assert len(scattered["masking"]["checks"]) == 13
    assert abs(ours["Feature match"] - ours["AutoAttack"]) < 1
    assert f"of Madry {theirs['Feature match'] - theirs['AutoAttack']:.1f} more" in words
    assert all(row(name, "scaled_0.4")["commit"].startswith("1720ffa") for name in MEASURED)
    assert not [path for path in (ROOT / "results" / "cifar10").glob("*scaled_0.4*.json") if "_uniform_" in path.stem]


def test_what_the_diagonal_of_the_plan_holds() -> None:
    (path,) = (ROOT / "results" / "cifar10").glob(f"cifar10-resnet18-{ROWS['FS, smoothing 0.5']}-scaled_0.4-*.csv")
    with path.open() as file:
        epochs = {line["epoch"]: line for line in csv.DictReader(file)}
    early, late = (100 * float(epochs[epoch]["own"]) for epoch in ("24", "40"))
    words = " ".join(section(TRAINED).split())
    assert (
        f"After 24 epochs the plan has {early:.0f} % of its mass on the diagonal, after 40 it has {late:.0f} %" in words
    )
    least = -(0.5 * math.log(0.5) + 0.5 * math.log(0.5 / 9))
    assert f"the loss, {float(epochs['40']['scattered']):.2f}, is still above the {least:.2f}" in words


@pytest.mark.parametrize("smoothing", ["0", "0.2", "0.5", "0.8"])
def test_smoothing(smoothing: str) -> None:
    shown = {first: rest for first, *rest in cells(section(SWEEP))[2:]}
    assert list(shown) == ["0", "0.2", "0.5", "0.8"]
    label = "" if smoothing == "0" else f"_smoothing{smoothing.replace('.', '_')}"
    found = []
    for kind, more in (("scattering", "eta1-batch240-group60"), ("madry", "eta7-batch240")):
        name = f"cifar10-wide_resnet16_2-{kind}{label}-{more}-short_0.4-seed0.json"
        one = json.loads((ROOT / "results" / "cifar10" / name).read_text())
        left = one["classification"]["accuracy"]
        found += [one["clean"]["accuracy"], left["PGD-100"], left["AutoAttack"]]
    assert [cell.strip("*") for cell in shown[smoothing]] == [f"{number:.1f}" for number in found]


def test_what_smoothing_is_credited_with() -> None:
    shown = {first: [float(cell.strip("*")) for cell in rest] for first, *rest in cells(section(SWEEP))[2:]}
    weak, strong = shown["0.5"][1] - shown["0"][1], shown["0.5"][2] - shown["0"][2]
    words = " ".join(section(SWEEP).split())
    assert f"credits smoothing 0.5 of FS with {weak:.1f} points, AutoAttack with {strong:.1f}" in words
    gaps = {key: values[1] - values[2] for key, values in shown.items()}
    smooth = [gap for key, gap in gaps.items() if key != "0"]
    assert f"is {gaps['0']:.1f} with hard labels and {min(smooth):.1f} to {max(smooth):.1f} with smoothed" in words
    errors = [math.sqrt(left * (100 - left) / 1000) for values in shown.values() for left in values]
    assert f"of these numbers is {min(errors):.1f} to {max(errors):.1f} points" in words


def test_what_the_words_say_of_the_short_rows() -> None:
    words = " ".join(section(TOO_SHORT).split())
    madry, scattered = (row(name, "scaled") for name in ("Madry", "FS, smoothing 0.5"))
    ours, theirs = (found["classification"]["accuracy"] for found in (scattered, madry))
    assert {attack for attack in ours if ours[attack] > theirs[attack]} == {"Local search"}
    assert all(3 < left["PGD-20"] - left["AutoAttack"] < 4.2 for left in (ours, theirs))
    assert set(madry["masking"]["checks"].values()) == {"pass"} and len(madry["masking"]["checks"]) == 13
    unclear = [name for name, said in scattered["masking"]["checks"].items() if said != "pass"]
    assert unclear == ["loss_against_margin", "worst_case"] and f"unclear (`{unclear[0]}` and `{unclear[1]}`" in words
    assert row("plain", "scaled")["masking"]["checks"]["black_box"] == "not run"
    one = row("one step, hard labels", "scaled")
    own = one["classification"]["accuracy"]["Clean-start FGSM"]
    assert f"its own attack leaves {own:.1f} of {one['clean']['accuracy']:.1f}" in words
    assert "12 epochs, 2,508 steps" in words and 12 * -(-50_000 // 240) == 2508
