"""Tables of docs/masking.md and docs/performance.md are the committed results of benchmarks, figure by figure."""

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def result(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    return found


def table(page: str, section: str) -> list[list[str]]:
    """The rows of a section's table, without its head."""
    text = (ROOT / "docs" / page).read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line[:1] == "|"]
    assert len(lines) > 2, f"{section} of {page} has no table"
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_what_square_takes_by_each_objective() -> None:
    runs = list(result("rank_objectives-cpu")["runs"].values())
    shown = {first: rest for first, *rest in table("masking.md", "What Square and RayS climb in `auto_rank`")}

    def each(*names: str, key: str) -> list[str]:
        return [", ".join(f"{run['objectives'][name][key]:.1f}" for name in names) for run in runs]

    for row, key in {
        "right without an attack": "clean",
        "left by the margin, 5,000 questions": "margin",
        "by the margin, 10,000 in one search": "margin, longer",
        "by the margin, 10,000 in two searches": "margin, twice",
    }.items():
        assert shown[row] == [f"{run[key]:.1f}" for run in runs]
    others = [[one["alone"] for name, one in run["objectives"].items() if name != "margin"] for run in runs]
    assert shown["left alone by ES, GTM, QA+, QA-, CA+, CA-"] == [f"{min(o):.1f} to {max(o):.1f}" for o in others]
    assert shown["taken beyond the two searches: ES, GTM"] == each("ES", "GTM", key="beyond twice")
    assert shown["QA+, QA-"] == each("QA+", "QA-", key="beyond twice")
    assert shown["CA+, CA-"] == each("CA+", "CA-", key="beyond twice")
    assert shown["the margin, drawn a third time"] == each("margin", key="beyond twice")


def test_how_much_faster_attacks_search_in_fewer_bits() -> None:
    expected = []
    for attack in ("PGD-20", "Square, 200 queries"):
        rows = [result("search-cuda")["rows"][f"{attack}, {search}"] for search in ("fp32", "tf32", "fp16")]
        expected.append([f"{attack}, ms", *(f"{row['milliseconds']:,.0f}" for row in rows)])
        expected.append(["faster than fp32", "1", *(f"{row['faster']:.1f}" for row in rows[1:])])
    assert table("performance.md", "Searching in TF32, float16 and bfloat16") == expected


GROUPS = {"fresh": "Fashion-MNIST", "again": "MNIST"}
DETECTOR = (
    "\n### At the effort of the suite we ship\n",
    "\n### At less effort, on 300 images\n",
    "\n### How it came to this\n",
)


def detector(part: int) -> tuple[str, list[list[str]]]:
    """Of the detector's own test at the suite's effort (0) or at less (1): its words, and the rows of its tables."""
    text = (ROOT / "docs" / "masking.md").read_text().partition(DETECTOR[part])[2].partition(DETECTOR[part + 1])[0]
    lines = [line for line in text.splitlines() if line[:1] == "|" and line[:2] != "|-"]
    return " ".join(text.split()), [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize(("part", "effort"), [(0, "_suite"), (1, "")])
def test_whom_the_detector_judges_rightly(part: int, effort: str) -> None:
    words, shown = detector(part)
    tables = {name: result(f"detector_{name}{effort}-cpu")["confusion"][name] for name in GROUPS}
    for name, table in tables.items():
        for truth in ("honest", "masked"):
            counts = [table[truth][said] for said in ("honest", "unclear", "masked")]
            assert [f"{truth}, {GROUPS[name]}", *map(str, [*counts, sum(counts)])] in shown
    fresh, again = tables.values()
    assert f"{fresh['right']} of {fresh['of']} and {again['right']} of {again['of']} right" in words
    honest, masked = (sum(sum(table[truth].values()) for table in (fresh, again)) for truth in ("honest", "masked"))
    assert fresh["honest"]["masked"] + again["honest"]["masked"] == 0
    assert f"no honest model of {honest} flagged" in words
    assert f"{fresh['masked']['masked'] + again['masked']['masked']} of {masked} masked ones found" in words
    strictly = [table["honest"]["honest"] + table["masked"]["masked"] for table in tables.values()]
    assert (", **{} of 25 and {} of 25** are" if effort else "(strictly {} and {})").format(*strictly) in words


def test_every_exhibit_of_the_detector_at_the_effort_of_the_suite() -> None:
    words, shown = detector(0)
    fresh, again = (result(f"detector_{name}_suite-cpu") for name in GROUPS)
    assert fresh["settings"]["images"] == again["settings"]["images"] == 200 and fresh["settings"]["effort"] == "suite"
    pairs = list(zip(fresh["exhibits"], again["exhibits"], strict=True))
    for pair in pairs:
        cells = [
            cell
            for row in pair
            for cell in (
                *(f"{row[key]:.0f}" for key in ("clean", "PGD-20", "adaptive")),
                row["truth"],
                row["verdict"] + ("" if row["is_right"] else " (**wrong**)"),
            )
        ]
        assert [pair[0]["name"], *cells] in shown
    gaps = {
        (row["truth"], place, row["name"]): row["checks"]["worst_case"]["gap"]
        for pair in pairs
        for place, row in enumerate(pair)
        if "gap" in row["checks"].get("worst_case", {})
    }
    scaled = "madry, logits / 1000"
    assert max((gap, name) for (truth, _, name), gap in gaps.items() if truth == "honest") == (9.2, scaled)
    assert gaps["masked", 1, scaled] == 9.3 and "9.3 to those of `worst_case`" in words


def test_whom_a_search_below_pgd_would_flag() -> None:
    rows = [row for name in GROUPS for row in result(f"detector_{name}_suite-cpu")["exhibits"]]
    searches = (("gradient_free", "Square"), ("hard_label", "RayS"))
    below = {"honest": 0, "masked": 0}
    for row in rows:
        asked = [(row["checks"].get(check, {}), search) for check, search in searches]
        below[row["truth"]] += any(search in one and one[search] < one["white-box"] for one, search in asked)
    words = " ".join((ROOT / "docs" / "masking.md").read_text().split())
    assert "would flag {honest} of the 25 honest models".format(**below) in words
    assert "(and {masked} of the 25 masked ones)".format(**below) in words


def test_every_exhibit_of_the_half_on_digits() -> None:
    found = result("detector-cpu")
    shown = [
        [
            row["name"], *(f"{row[key]:.0f}" for key in ("clean", "PGD-20", "adaptive")), row["truth"],
            row["verdict"] + ("" if row["is_right"] else " (**wrong**)"), ", ".join(row["failed"]),
        ]
        for row in found["exhibits"]
    ]  # fmt: skip
    assert table("masking.md", "The two halves on digits")[: len(shown)] == shown
    text = (ROOT / "docs" / "masking.md").read_text().partition("\n## The two halves on digits\n")[2]
    counts, words = found["confusion"]["test"], " ".join(text.split())
    honest, masked = (sum(counts[truth].values()) for truth in ("honest", "masked"))
    assert f"**{counts['right']} of {counts['of']} right (strictly {counts['strictly']}), none of the {honest}" in words
    assert counts["honest"]["masked"] == 0 and f"{counts['masked']['masked']} of the {masked} masked ones" in words
    assert f"commit {found['context']['commit'][:7]}" in words
    (again,) = [row for row in found["exhibits"] if row["name"] == "madry, retrieval"]
    assert f"loses {again['PGD-20'] - again['adaptive']:.1f} to the truth" in words


def test_what_bfloat16_gains_on_a_cpu() -> None:
    page = (ROOT / "docs" / "performance.md").read_text()
    text = page.partition("\n### On a CPU\n")[2].partition("\n## ")[0]
    lines = [line for line in text.splitlines() if line[:1] == "|"][2:]
    shown = [[cell.strip() for cell in line.strip("|").split("|")][1:] for line in lines]
    expected = []
    for architecture in ("resnet18", "mobilenet_v2"):
        rows = result(f"train_step-{architecture}-cpu")["rows"]
        for side in ("plain way", "32-true fast", "bf16-mixed fast"):
            figures = [rows[row][side] for row in ("hm_ics", "madry")]
            ratios = ["1" if side == "plain way" else f"{figure['ratio']:.1f}" for figure in figures]
            times = [f"{figure['milliseconds']:,.0f}" for figure in figures]
            expected.append([times[0], ratios[0], times[1], ratios[1]])
    assert shown == expected
