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
TRAINED = "Measured: CIFAR-10, ResNet-18, rate 0.4"
SWEEP = "Does smoothing buy robustness? CIFAR-10, WRN-16-2"
ROWS = {
    "plain": "plain-batch240", "Madry": "madry-eta7-batch240", "one step, hard labels": "one_step-batch240",
    "FS, smoothing 0.5": "scattering_smoothing0_5-eta1-batch240-group60",
    "FS, no smoothing": "scattering-eta1-batch240-group60",
    "FS, identity matching": "scattering_identity_smoothing0_5-eta1-batch240-group60",
    "FS, uniform matching": "scattering_uniform_smoothing0_5-eta1-batch240-group60",
    "random-targeted": "random_target-eta7-batch240",
}  # fmt: skip
LONG = "FS, smoothing 0.5, 200 epochs"
MEASURED = (
    "plain", "Madry", "random-targeted", "FS, no smoothing", "FS, identity matching", "FS, uniform matching",
    "FS, smoothing 0.5", LONG,
)  # fmt: skip
"""At rate 0.4, in the order of the table."""
TABLES = [*((TOO_SHORT, "scaled", name) for name in ROWS), *((TRAINED, "scaled_0.4", name) for name in MEASURED)]
TRANSFERRED = ("PGD-20", "PGD-100", "CW-20", "CW-100")
COLUMNS = {
    "FGSM": "FGSM", "PGD-20": "PGD-20", "PGD-100": "PGD-100", "CW-20": "CW-20", "CW-100": "CW-100",
    "feature match": "Feature match", "Square": "Square", "RayS": "RayS", "local search": "Local search",
    "**AutoAttack**": "AutoAttack",
}  # fmt: skip


def section(name: str) -> str:
    return PAGE.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def place_of(name: str, protocol: str, seed: int = 0) -> Path:
    """The file of a row; 200 epochs at rate 0.4 are a protocol of their own."""
    if name == LONG:
        name, protocol = "FS, smoothing 0.5", "long_0.4"
    return ROOT / "results" / "cifar10" / f"cifar10-resnet18-{ROWS[name]}-{protocol}-seed{seed}.json"


def row(name: str, protocol: str, seed: int = 0) -> dict[str, Any]:
    return json.loads(place_of(name, protocol, seed).read_text())


def cells(text: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]


@pytest.mark.parametrize(("place", "protocol", "name"), TABLES)
def test_white_box(place: str, protocol: str, name: str) -> None:
    head, _, *lines = cells(
        section(place).partition("\nThe rebuttal counts otherwise")[0].partition("Transfer from")[0]
    )
    expected = [other for where, _, other in TABLES if where == place]
    assert [first for first, *_ in lines] == expected and head[1:-1] == ["clean", *COLUMNS]
    (shown,) = [rest for first, *rest in lines if first == name]
    found = row(name, protocol)
    scores = found["classification"]["accuracy"]
    left = [f"{scores[attack]:.1f}" if attack in scores else "-" for attack in COLUMNS.values()]
    verdict = (found.get("masking") or {}).get("verdict", "-")
    assert [cell.strip("*") for cell in shown] == [f"{found['clean']['accuracy']:.1f}", *left, verdict]
    assert scores.get("worst case") == scores.get("AutoAttack"), "the page would have to tell of both"


def test_as_the_rebuttal_counts() -> None:
    head, _, *lines = cells(
        section(TRAINED).partition("\nThe rebuttal counts otherwise")[2].partition("\nSeed 1 of")[0]
    )
    assert head[1:] == list(TRANSFERRED) and [first for first, *_ in lines] == [n for n in MEASURED if n != "plain"]
    for first, *shown in lines:
        found = row(first, "scaled_0.4")["classification"]
        lowest, apart = found["lowest run"], found["max - min"]
        assert shown == [f"{lowest[attack]:.1f} ({apart[attack]:.1f})" for attack in TRANSFERRED]


def test_transfer_to_the_short_rows() -> None:
    words = " ".join(section(TOO_SHORT).split())
    for name in ("FS, smoothing 0.5", "Madry"):
        (source,) = row(name, "scaled")["transfer"]["sources"].values()
        *most, last = [f"{source['accuracy'][attack]:.1f}" for attack in TRANSFERRED]
        assert f"{', '.join(most)} and {last} of {name.partition(',')[0]}" in words


def test_transfer_to_the_trained_rows() -> None:
    head, _, *lines = cells(section(TRAINED).partition("Transfer from")[2])
    assert head == ["of", *TRANSFERRED]
    assert [first for first, *_ in lines[:-1]] == [name for name in MEASURED if name != "plain"]
    for first, *rest in lines[:-1]:
        (source,) = row(first, "scaled_0.4")["transfer"]["sources"].values()
        assert rest == [f"{source['accuracy'][attack]:.1f}" for attack in TRANSFERRED]
    assert lines[-1] == ["published, of FS (WRN-28-10)", "89.0", "88.7", "88.9", "88.8"]


def test_what_is_said_of_the_trained_rows() -> None:
    words = " ".join(section(TRAINED).split())
    rows = {name: row(name, "scaled_0.4") for name in MEASURED}
    left = {name: found["classification"]["accuracy"] for name, found in rows.items()}
    madry, short, long = left["Madry"], left["FS, smoothing 0.5"], left[LONG]
    for attack in ("PGD-20", "PGD-100", "CW-20"):
        assert f"{attack} ({long[attack]:.1f} and {madry[attack]:.1f})" in words and long[attack] > madry[attack]
    assert long["FGSM"] > madry["FGSM"] and long["CW-100"] < madry["CW-100"] and long["RayS"] < long["PGD-100"]
    assert f"({long['CW-100']:.1f} and {madry['CW-100']:.1f})" in words
    assert f"({long['RayS']:.1f} left for {long['PGD-100']:.1f})" in words
    assert f"**{madry['AutoAttack'] - long['AutoAttack']:.1f} points below it under AutoAttack**" in words
    low, high = (rows[name]["classification"]["worst_case_interval"] for name in (LONG, "Madry"))
    assert f"95 % intervals {low[0]:.1f} to {low[1]:.1f} and {high[0]:.1f} to {high[1]:.1f}" in words
    gained = [long[attack] - short[attack] for attack in ("PGD-20", "PGD-100", "AutoAttack")]
    assert "raise PGD-20 by {:.1f} points, PGD-100 by {:.1f}, and lower AutoAttack by {:.1f}".format(
        *map(abs, gained)
    ) in words and gained[2] < 0 < min(gained[:2])
    gaps = [f"{found['PGD-20'] - found['AutoAttack']:.1f}" for found in (short, madry, long)]
    assert "PGD-20 is {} points above AutoAttack (Madry: {}), after 200 it is {}.".format(*gaps) in words
    none, identity = left["FS, no smoothing"], left["FS, identity matching"]
    bought = [short[attack] - none[attack] for attack in ("AutoAttack", "PGD-100")]
    assert "credits smoothing with {:.1f} points and PGD-100 with {:.1f}".format(*bought) in words
    assert f"has {identity['AutoAttack']:.1f} where transport has {short['AutoAttack']:.1f}" in words
    one, other = (
        rows[name]["classification"]["worst_case_interval"] for name in ("FS, identity matching", "FS, smoothing 0.5")
    )
    assert f"(intervals {one[0]:.1f} to {one[1]:.1f} and {other[0]:.1f} to {other[1]:.1f})" in words
    again = [row(name, "scaled_0.4", seed=1) for name in ("plain", "FS, smoothing 0.5")]
    numbers = [
        *(f["clean"]["accuracy"] for f in again),
        *(f["classification"]["accuracy"]["AutoAttack"] for f in again),
    ]
    assert "{:.1f} and {:.1f} clean, {:.1f} and {:.1f} after AutoAttack".format(*numbers) in words
    commits = {name: found["commit"][:7] for name, found in rows.items()}
    assert {name for name, commit in commits.items() if commit == "1720ffa"} == {"plain", "Madry", "FS, smoothing 0.5"}
    assert set(commits.values()) == {"1720ffa", "fd1e307"}


def test_the_short_table_of_what_is_measured() -> None:
    lines = cells((ROOT / "docs" / "measured.md").read_text().partition("\n## Classifiers\n")[2].partition("\n## ")[0])[
        2:
    ]
    names = {"Madry, 40 epochs": "Madry", "FS, 40 epochs": "FS, smoothing 0.5", "FS, 200 epochs": LONG}
    assert [first for first, *_ in lines] == list(names)
    for first, clean, *left, verdict, _, _, _ in lines:
        found = row(names[first], "scaled_0.4")
        scores = [found["classification"]["accuracy"][attack] for attack in ("PGD-100", "CW-100", "AutoAttack")]
        assert [clean, *left] == [
            f"{found['clean']['accuracy']:.1f}",
            *(f"{one:.1f}" for one in scores[:2]),
            f"**{scores[2]:.1f}**",
        ]
        assert verdict == found["masking"]["verdict"]


def test_what_is_said_of_the_flags() -> None:
    words = " ".join(section(TRAINED).split())
    for name in ("Madry", "FS, smoothing 0.5"):
        checks = row(name, "scaled_0.4")["masking"]["checks"]
        assert set(checks.values()) == {"pass"} and len(checks) == 13
    checks = row(LONG, "scaled_0.4")["masking"]["checks"]
    failed, unclear = ([name for name, said in checks.items() if said == word] for word in ("fail", "unclear"))
    assert failed == ["loss_against_margin", "worst_case"]
    assert all(f"`{name}` fails" in words for name in failed)
    assert unclear == ["step_size", "gradient_free", "hard_label"]
    assert "`step_size`, `gradient_free` and `hard_label` are unclear" in words
    assert {checks[name] for name in ("black_box", "restarts", "loss_curves")} == {"pass"}


def test_the_verdicts_on_the_page_of_masking() -> None:
    text = (ROOT / "docs" / "masking.md").read_text().partition("\n### On ResNet-18, CIFAR-10\n")[2]
    lines = cells(text.partition("\n### ")[0])[2:]
    names = {"plain": "plain", "Madry": "Madry", "FS, 40 epochs": "FS, smoothing 0.5", "FS, 200 epochs": LONG}
    assert [first for first, *_ in lines] == list(names)
    for first, *rest in lines:
        found = row(names[first], "scaled_0.4")
        left, block = found["classification"]["accuracy"], found["masking"]
        truth = "masked" if left["PGD-20"] - left["worst case"] >= 10 else "honest"
        failed = ", ".join(f"`{name}`" for name, word in block["checks"].items() if word == "fail") or "-"
        assert rest == [f"{left['PGD-20']:.1f}", f"{left['worst case']:.1f}", truth, block["verdict"], failed]
        assert block["images"] == 200 and block["search"] == "fp16"


def test_what_the_diagonal_of_the_plan_holds() -> None:
    with place_of(LONG, "").with_suffix(".csv").open() as file:
        epochs = {line["epoch"]: line for line in csv.DictReader(file)}
    words = " ".join(section(TRAINED).split())
    held = [100 * float(epochs[epoch]["own"]) for epoch in ("60", "90", "200")]
    assert "falls from {:.0f} % at epoch 60 and {:.0f} % at epoch 90 to {:.0f} % at the end".format(*held) in words
    least = -(0.5 * math.log(0.5) + 0.5 * math.log(0.5 / 9))
    assert f"the loss to {float(epochs['200']['scattered']):.2f}, of {least:.2f} that such labels allow" in words


SMOOTHED = ("0", "0.1", "0.2", "0.3", "0.4", "0.5", "0.6", "0.8")


def swept() -> dict[str, list[str]]:
    lines = cells(section(SWEEP).partition("\n### ")[0])[2:]
    return {first: [cell.strip("*") for cell in rest] for first, *rest in lines}


@pytest.mark.parametrize("smoothing", SMOOTHED)
def test_smoothing(smoothing: str) -> None:
    assert tuple(swept()) == SMOOTHED
    label = "" if smoothing == "0" else f"_smoothing{smoothing.replace('.', '_')}"
    found: list[str] = []
    for kind, more in (("scattering", "eta1-batch240-group60"), ("madry", "eta7-batch240")):
        path = ROOT / "results" / "cifar10" / f"cifar10-wide_resnet16_2-{kind}{label}-{more}-short_0.4-seed0.json"
        found += small(path) if path.is_file() else ["-"] * 3
    assert swept()[smoothing] == found


def small(path: Path) -> list[str]:
    """Clean, PGD-100 and AutoAttack of a row."""
    one = json.loads(path.read_text())
    left = one["classification"]["accuracy"]
    return [f"{number:.1f}" for number in (one["clean"]["accuracy"], left["PGD-100"], left["AutoAttack"])]


def test_what_smoothing_is_credited_with() -> None:
    shown = {key: [float(cell) for cell in rest if cell != "-"] for key, rest in swept().items()}
    weak, strong = shown["0.5"][1] - shown["0"][1], shown["0.5"][2] - shown["0"][2]
    words = " ".join(section(SWEEP).split())
    assert f"credits smoothing 0.5 of FS with {weak:.1f} points, AutoAttack with {strong:.1f}" in words
    gaps = {key: values[1] - values[2] for key, values in shown.items()}
    smooth = [gap for key, gap in gaps.items() if key != "0"]
    assert f"is {gaps['0']:.1f} with hard labels and {min(smooth):.1f} to {max(smooth):.1f} with smoothed" in words
    flat = [shown[key][2] for key in SMOOTHED[1:-1]]
    assert f"is flat from 0.1 to 0.6 ({min(flat):.1f} to {max(flat):.1f})" in words
    errors = [math.sqrt(left * (100 - left) / 1000) for values in shown.values() for left in values]
    assert f"of these numbers is {min(errors):.1f} to {max(errors):.1f} points" in words


@pytest.mark.parametrize(
    ("place", "stem"),
    [(0, "eta1{}-short"), (1, "eta1-batch240{}-short_0.4")],
    ids=["batches", "groups"],
)
def test_how_many_images_are_matched(place: int, stem: str) -> None:
    first, _, second = section(SWEEP).partition("\n### Batch size")[2].partition("A batch is also")
    head, _, *lines = cells((first, second)[place])
    usual = ("60", "240")[place]
    columns = []
    for size in head[1:]:
        part = "" if size == usual else f"-{('batch', 'group')[place]}{size}"
        columns.append(
            small(
                ROOT / f"results/cifar10/cifar10-wide_resnet16_2-scattering_smoothing0_5-{stem.format(part)}-seed0.json"
            )
        )
    assert [[cell.strip("*") for cell in rest] for _, *rest in lines] == [
        list(line) for line in zip(*columns, strict=True)
    ]


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


def test_transfer_from_a_sibling_of_a_smaller_network() -> None:
    text = section("Transfer from a sibling: digits, three seeds").partition("\n### One pair on CIFAR-10, WRN-16-2\n")[
        2
    ]
    found = json.loads((ROOT / "benchmarks" / "results" / "sibling-cifar10-cpu.json").read_text())
    _, _, sibling, white, published = cells(text)
    moved = [f"{found['transfer'][attack]:.1f}" for attack in TRANSFERRED]
    assert sibling == ["found on the sibling", f"{found['clean']:.1f}", *moved]
    own = found["white-box"]["PGD-100"]
    assert white[1:] == [f"{found['clean']:.1f}", "-", f"{own:.1f}", "-", "-"]
    assert published[2:] == ["81.6", "81.0", "80.3", "79.8"]
    assert f"APGD-CE and APGD-T alone were run, which leave {found['white-box']['then APGD-T']:.1f}" in text
    lost = found["clean"] - found["transfer"]["PGD-100"], found["clean"] - own
    assert f"({lost[0]:.1f} of {lost[1]:.1f} points)" in text and 0.7 < lost[0] / lost[1] < 0.8
    assert found["context"]["commit"].startswith("57284dc") and "commit 57284dc" in text
