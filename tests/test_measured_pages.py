"""Tables of docs/masking.md and docs/performance.md are the committed results of benchmarks, figure by figure."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]


def result(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())
    return found


def table(page: str, section: str, place: int = 0) -> list[list[str]]:
    """The rows of a section's first table, or of a later one, without its head."""
    text = (ROOT / "docs" / page).read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    found = [block for block in text.split("\n\n") if block.lstrip("\n")[:1] == "|"]
    assert len(found) > place, f"{section} of {page} has {len(found)} tables"
    lines = found[place].strip().splitlines()
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
    half = [[one["with margin"] for name, one in run["objectives"].items() if name != "margin"] for run in runs]
    again = [sorted({run["margin, twice"], run["objectives"]["margin"]["with margin"]}) for run in runs]
    assert table("masking.md", "What Square and RayS climb in `auto_rank`", 1) == [
        ["half to another objective", *(" to ".join(f"{one:.1f}" for one in sorted({min(o), max(o)})) for o in half)],
        [
            "all to the margin, in two searches",
            *(" or ".join(f"{one:.1f}" for one in o) + (" (two draws)" if len(o) > 1 else "") for o in again),
        ],
    ]


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
    for name, table in tables.items():
        assert [GROUPS[name], f"{table['right']} of {table['of']}", f"{table['strictly']} of {table['of']}"] in shown
    honest, masked = (
        {said: sum(table[truth][said] for table in tables.values()) for said in ("honest", "unclear", "masked")}
        for truth in ("honest", "masked")
    )
    assert honest["masked"] == 0
    found, of, others = masked["masked"], sum(masked.values()), sum(honest.values())
    if effort:
        assert f"found {found} of the {of} masked models and flagged none of the {others} honest ones.**" in words
        assert f"{honest['unclear']} of the {others} honest models get it" in words
    else:
        assert f"{found} of {of} masked models found, none of {others} honest ones flagged.**" in words


def test_the_three_runs_of_the_detector_side_by_side() -> None:
    shown = table("masking.md", "The detector's own test")
    runs = (
        ("detector_fresh_suite-cpu", "detector_again_suite-cpu"),
        ("detector_fresh-cpu", "detector_again-cpu"),
        ("detector-cpu",),
    )
    for (_, _, *cells), names in zip(shown, runs, strict=True):
        tables = [one for name in names for one in result(name)["confusion"].values()]
        honest, masked = (
            {said: sum(one[truth][said] for one in tables) for said in ("honest", "unclear", "masked")}
            for truth in ("honest", "masked")
        )
        of, others, every = sum(masked.values()), sum(honest.values()), sum(one["of"] for one in tables)
        assert cells == [
            f"{masked['masked']} of {of}",
            f"{honest['masked']} of {others}",
            f"{honest['unclear']} of {others}",
            f"{sum(one['right'] for one in tables)} of {every}",
            f"{honest['honest'] + masked['masked']} of {every}",
        ]
        lower = sum(one["strictly"] for one in tables)
        assert honest["honest"] + masked["masked"] == lower
    words = " ".join((ROOT / "docs" / "masking.md").read_text().partition("\n## The detector's own test\n")[2].split())
    first = [cell.partition(" of ")[0] for cell in shown[0][2:5]]
    assert first[1] == "0" and (
        f"found {first[0]} of the 25 masked ones and flagged none of the 25 honest ones; "
        f"{first[2]} of the honest ones it called `unclear`.**" in words
    )


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
    assert "the same kind on Fashion-MNIST: 9.2 points in `worst_case`" in words


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
    assert table("masking.md", "The two halves on digits") == shown
    text = (ROOT / "docs" / "masking.md").read_text().partition("\n## The two halves on digits\n")[2]
    counts, words = found["confusion"]["test"], " ".join(text.split())
    honest, masked = (sum(counts[truth].values()) for truth in ("honest", "masked"))
    right = f"**{counts['right']} of the {counts['of']} models of the half `test` are judged right"
    assert f"{right} ({counts['strictly']} strictly): none of the {honest} honest models flagged" in words
    assert counts["honest"]["masked"] == 0 and f"{counts['masked']['masked']} of the {masked} masked ones" in words
    gaps = {
        row["name"]: (row["PGD-20"] - row["adaptive"], row["checks"]["worst_case"]["gap"], row["truth"])
        for row in found["exhibits"]
    }
    nearest = sorted((name for name, (*_, fact) in gaps.items() if fact == "honest"), key=lambda name: -gaps[name][0])
    assert table("masking.md", "The two halves on digits", 1) == [
        [name, *(f"{points:.1f}" for points in gaps[name][:2])] for name in nearest[:2]
    ]
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


def test_how_time_grows() -> None:
    rows = result("scaling-resnet18-cuda")["rows"]

    def shown(kind: str, key: str) -> list[float]:
        return [one[key] for one in rows[kind].values()]

    ratios = [one["ratio"] for kind in ("batch", "steps", "members") for one in rows[kind].values() if one["ratio"]]
    page = " ".join((ROOT / "docs" / "performance.md").read_text().split())
    assert f"ours is {min(ratios):.1f} to {max(ratios):.1f} times as fast" in page
    for place, kind in enumerate(("batch", "steps", "members")):
        times, faster = table("performance.md", "Growth", place)
        wanted = zip(times[1:], shown(kind, "milliseconds"), strict=True)
        assert all(cell == f"{one:.{len(cell.partition('.')[2])}f}" for cell, one in wanted)
        assert faster[1:] == [f"{one:.1f}" if one else "-" for one in shown(kind, "ratio")]
    found = table("performance.md", "Growth", 3)
    for (times, held), kind in zip((found[:2], found[2:]), ("gallery", "nearest"), strict=True):
        wanted = zip(times[1:], shown(kind, "milliseconds"), strict=True)
        assert all(cell == f"{one:.{len(cell.partition('.')[2])}f}" for cell, one in wanted)
        assert held[1:] == [f"{one:,.0f}" for one in shown(kind, "mebibytes")]


def test_members_in_a_loop_on_streams_or_stacked() -> None:
    networks = result("ensembles-cuda")["networks"]
    rows = table("performance.md", "Ensembles")
    for row, name in zip(rows, ("mobilenet_v2", "resnet18", "convnet"), strict=True):
        five = [networks[name][what]["ratio_to_loop"]["5"] for what in ("attack", "train")]
        wanted = [one.get(way) for one in five for way in ("streams", "stacked")]
        assert [cell == "-" for cell in row[1:]] == [one is None for one in wanted]
        told = [(cell, one) for cell, one in zip(row[1:], wanted, strict=True) if one is not None]
        assert all(cell == f"{one:.{len(cell.partition('.')[2])}f}" for cell, one in told)


def test_miners_against_a_loop() -> None:
    found = result("miners-cpu")
    names = {
        "random, which needs no distances": "random",
        "distance-weighted": "distance_weighted",
        "soft-hard": "soft_hard",
        "semi-hard": "semi_hard",
        "hardest": "hardest",
    }
    medians = found["median_loop_over_ours"]
    *rows, last = table("performance.md", "Miners")
    for row, (shown, name) in zip(rows, names.items(), strict=True):
        cells = [float(cell) for cell in row[1:]]
        assert row[0] == shown and cells == pytest.approx([found["loop_over_ours"][name], medians[name]], abs=0.0501)
    mean = math.prod(medians.values()) ** (1 / len(medians))
    assert last == ["geometric mean", f"{found['geometric_mean']:.1f}", f"{mean:.1f}"]


def test_autoattack_beside_its_authors() -> None:
    models = result("autoattack-cpu")["models"]
    for name, *cells in table("performance.md", "AutoAttack"):
        one = models[name]["attacks"]["AutoAttack"]
        ratio = float(cells.pop())
        assert ratio == pytest.approx(one["ratio"], abs=0.0051)
        assert cells[:2] == [f"{one['ours']:.2f}", f"{one['theirs']:.2f}"]
        assert float(cells[2].rstrip(" %")) == one["agreement"]
    square = [models[name]["attacks"]["Square"] for name in ("plain", "madry", "scattering")]
    ours, theirs, ratios = table("performance.md", "AutoAttack", 2)
    assert ours[1:] == [f"{one['ours']:.1f}" for one in square]
    assert theirs[1:] == [f"{one['theirs']:.1f}" for one in square]
    assert ratios[1:] == [f"{one['ratio']:.2f}" for one in square]


def test_masking_of_two_encoders_of_photographs() -> None:
    found = result("copies-masking-cuda")
    text = (ROOT / "docs" / "masking.md").read_text().partition("\n### Two encoders of photographs, CUB-200-2011\n")[2]
    text = text.partition("\n### ")[0]
    lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line[:1] == "|"]
    shown = {first: rest for first, *rest in lines[2:]}
    rows = [found["rows"][f"cub-mobilenet_v2-{name}-eta8-full_3e-5-seed0"] for name in ("hm_lga_ics", "act")]
    numbers, source = [row["masking"]["numbers"] for row in rows], found["settings"]["surrogate"]

    def each(check: str, *names: str) -> list[str]:
        return ["; ".join(f"{one[check][name]:.0f}" for name in names) for one in numbers]

    assert shown["PGD-20 on ES"] == each("loss_against_margin", "ES")
    assert shown["PGD-20 on the margin of neighbours, the usual attack"] == each("restarts", "worst case per image")
    searched = zip(each("gradient_free", "Square"), each("hard_label", "RayS"), strict=True)
    assert shown["Square; RayS"] == [f"{square}; {rays}" for square, rays in searched]
    assert shown["transfer from a plain encoder"] == each("black_box", source)
    assert shown["all attacks together, each query's worst"] == each("worst_case", "and RayS")
    assert shown["**verdict**"] == [row["masking"]["verdict"] for row in rows] == ["honest", "unclear"]
    by_chance = [f"{one['binarisation']['found by chance']:.0f}" for one in numbers]
    assert "find {1} of its 100 planted examples ({0} of HM's)".format(*by_chance) in text
    words = [row["masking"]["checks"] for row in rows]
    assert [sum(word == "pass" for word in one.values()) for one in words] == [13, 12]
    assert words[1]["binarisation"] == "unclear"
    assert {row["commit"][:7] for row in rows} == {"372d15a"} and found["settings"]["queries"] == 100
