"""The numbers of docs/papers/ensemble_adversarial_training.md, and of the README's table of it, are those measured."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "papers" / "ensemble_adversarial_training.md").read_text()
README = (ROOT / "README.md").read_text()
TIMES = json.loads((ROOT / "benchmarks" / "results" / "ensemble-mobilenet_v2-cuda.json").read_text())["rows"]
ROWS = {
    "none": "plain_proxy_anchor",
    "Mix-Up": "mixup_proxy_anchor",
    "TRADES": "trades-r8",
    "IAT": "iat-r8",
    "AT": "at-r8",
    "EAT": "eat-r8",
}


def row(name: str) -> dict[str, Any]:
    return json.loads((ROOT / "results" / "cars" / f"cars-mobilenet_v2-{ROWS[name]}-seed0.json").read_text())


def table(text: str, head: str) -> dict[str, list[str]]:
    """The cells of each line of a table, by the first."""
    lines = text.partition(f"\n{head}")[2].partition("\n\n")[0].splitlines()[2:]
    return {first: rest for first, *rest in ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)}


def recalls(name: str) -> tuple[float, float, float, float]:
    """R@1 clean, under PGD-10 with both sides moved, with queries alone and with the gallery alone."""
    block = row(name)["clustering"]
    attacked = block["pgd10"]
    return block["clean"]["R@1"], attacked["R@1"], attacked["query only"]["R@1"], attacked["gallery only"]["R@1"]


def adversarial(name: str) -> list[float]:
    """The adversarial term in the first and in the last epoch; EAT's is half the sum of its three members' losses."""
    head, *epochs = [
        line.split(",") for line in (ROOT / "results" / "cars" / f"{row(name)['id']}.csv").read_text().split()
    ]
    return [float(epochs[place][head.index("adversarial")]) for place in (0, -1)]


@pytest.mark.parametrize("name", ROWS)
def test_the_table_of_cars(name: str) -> None:
    shown = table(PAGE, "| | published: clean | PGD-10 | ours: clean |")
    assert shown.keys() == ROWS.keys()
    theirs, block = row(name)["published"], row(name)["clustering"]
    clean, both, queries, gallery = recalls(name)
    values = [theirs["clean"]["R@1"], theirs["pgd10"]["R@1"], clean, block["clean"]["F1"]]
    values += [both, block["pgd10"]["F1"], queries, gallery]
    assert shown[name] == [f"{value:.1f}" for value in values]


@pytest.mark.parametrize("name", ROWS)
def test_the_table_of_the_readme(name: str) -> None:
    shown = table(README, "| | published: clean, PGD-10 | ours: clean |")
    assert ROWS.keys() <= shown.keys()
    theirs, (clean, both, queries, _) = row(name)["published"], recalls(name)
    published = f"{theirs['clean']['R@1']:.1f}, {theirs['pgd10']['R@1']:.1f}"
    assert shown[name] == [published, *(f"{value:.1f}" for value in (clean, both, queries))]


def test_what_the_page_says_of_the_table() -> None:
    clean, both, queries, _ = zip(*map(recalls, ROWS), strict=True)
    of = dict(zip(ROWS, zip(clean, both, queries, strict=True), strict=True))
    assert f"as robust as AT** ({of['none'][1]:.1f} and {of['AT'][1]:.1f})" in PAGE
    kept = [round(100 * of[name][2] / of[name][0]) for name in ("AT", "IAT")]
    assert f"AT keeps {kept[0]} % of its R@1 with queries moved, IAT {kept[1]} % of a higher one" in PAGE
    above = [of[name][0] - row(name)["published"]["clean"]["R@1"] for name in ROWS]
    falls = "from {:.1f} in epoch 1 to {:.1f} in epoch 60".format(*(value * 2 / 3 for value in adversarial("EAT")))
    assert f"the adversarial loss of a member hardly falls, {falls}" in PAGE
    assert "while that of AT falls from {:.1f} to {:.1f}".format(*adversarial("AT")) in PAGE
    readings = {name: block["clean"]["R@1"] for name, block in row("EAT")["clustering"]["readings"].items()}
    members = [value for name, value in readings.items() if name.startswith("member")]
    assert f"(R@1 {of['EAT'][0]:.1f} by vote, {min(members):.1f} to {max(members):.1f} each" in PAGE
    assert f"{readings['concatenated']:.1f} side by side)" in PAGE
    margin = row("EAT")["clustering"]["adaptive_short"]
    sides = [margin["query only"]["R@1"], margin["gallery only"]["R@1"], margin["R@1"]]
    assert margin["attacks"] == ["margin"] and "leaves {:.1f}, {:.1f} and {:.1f}".format(*sides) in PAGE
    assert f"Clean R@1 is {min(above):.0f} to {max(above):.0f} points above the published rows" in PAGE
    assert f"AMI {row('TRADES')['clustering']['pgd10']['AMI']:.1f}." in PAGE
    assert all(f"suite `clustering` on {row(name)['queries']:,} test images" in PAGE for name in ROWS)
    assert all(f"at commit {row(name)['commit'][:7]}" in PAGE and row(name)["protocol"] == "full" for name in ROWS)


def test_the_times_of_the_step() -> None:
    shown = table(PAGE, "| update, attack | literal, ms |")
    for name, precision in (("fp32", "32-true"), ("bf16", "bf16-mixed")):
        for view in ("exact", "fast"):
            if f"{name}, {view}" in shown:
                pair = TIMES[f"{precision} {view}"]
                literal, shared = (pair[way]["milliseconds"] for way in ("literal", "shared"))
                alike = 2 * shared - literal
                expected = [f"{literal:,.0f}", f"{shared:,.0f}", f"{literal / shared:.2f}", f"{alike:.0f}"]
                assert shown[f"{name}, {view}"] == expected
    assert len(shown) == 3
    update = shown["fp32, fast"][-1]
    climbs = re.search(r"from ([\d,]+) ms to (\d+) and leaves", PAGE)
    assert climbs is not None
    assert f"the ratio is (2 x {climbs[2]} + {update}) / ({climbs[2]} + {update})" in PAGE
