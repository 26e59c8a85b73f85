"""Tables of docs/masking.md and docs/performance.md are the committed results of benchmarks, figure by figure."""

import json
from pathlib import Path
from typing import Any

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
