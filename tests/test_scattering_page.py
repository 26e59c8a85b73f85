"""The tables of docs/papers/feature_scattering.md are the rows of the ledger, figure by figure."""

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "papers" / "feature_scattering.md").read_text()
TOO_SHORT = "Measured: CIFAR-10, ResNet-18, rate 0.1 for batches of 240: too short"
ROWS = {
    "plain": "plain-batch240", "Madry": "madry-eta7-batch240", "one step, hard labels": "one_step-batch240",
    "FS, smoothing 0.5": "scattering_smoothing0_5-eta1-batch240-group60",
    "FS, no smoothing": "scattering-eta1-batch240-group60",
    "FS, identity matching": "scattering_identity_smoothing0_5-eta1-batch240-group60",
    "FS, uniform matching": "scattering_uniform_smoothing0_5-eta1-batch240-group60",
    "random-targeted": "random_target-eta7-batch240",
}  # fmt: skip
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


@pytest.mark.parametrize("name", ROWS)
def test_white_box(name: str) -> None:
    head, _, *lines = cells(section(TOO_SHORT))
    assert [first for first, *_ in lines] == list(ROWS) and head[1:-1] == ["clean", *COLUMNS]
    (shown,) = [rest for first, *rest in lines if first == name]
    found = row(name, "scaled")
    scores = found["classification"]["accuracy"]
    left = [f"{scores[attack]:.1f}" if attack in scores else "-" for attack in COLUMNS.values()]
    verdict = (found.get("masking") or {}).get("verdict", "-")
    assert [cell.strip("*") for cell in shown] == [f"{found['clean']['accuracy']:.1f}", *left, verdict]
    assert scores.get("worst case") == scores.get("AutoAttack"), "the page would have to tell of both"


def test_transfer_and_what_the_words_say() -> None:
    words = " ".join(section(TOO_SHORT).split())
    for name in ("FS, smoothing 0.5", "Madry"):
        (source,) = row(name, "scaled")["transfer"]["sources"].values()
        *most, last = [f"{source['accuracy'][attack]:.1f}" for attack in ("PGD-20", "PGD-100", "CW-20", "CW-100")]
        assert f"{', '.join(most)} and {last} of {name.partition(',')[0]}" in words
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
