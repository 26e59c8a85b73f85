"""The numbers of docs/papers/ensemble_adversarial_training.md and of their table in docs/measured.md, as measured."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from robustmetric.report.scores import DASH

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "papers" / "ensemble_adversarial_training.md").read_text()
WORDS = " ".join(PAGE.split())
MEASURED = (ROOT / "docs" / "measured.md").read_text()
TIMES, COMPILED = (
    json.loads((ROOT / "benchmarks" / "results" / f"ensemble-mobilenet_v2{which}-cuda.json").read_text())["rows"]
    for which in ("", "-compiled")
)
ROWS = {
    "none": "plain_proxy_anchor",
    "Mix-Up": "mixup_proxy_anchor",
    "TRADES": "trades-r8",
    "IAT": "iat-r8",
    "AT": "at-r8",
    "EAT": "eat-r8",
    "ADP": "adp_proxy_anchor",
}
BY_BETA = {
    "AT": "at-r8-short",
    "EAT, beta 0": "eat_clean_share0-r8-short",
    "EAT, beta 0.25": "eat_clean_share0_25-r8-short",
    "EAT, beta 0.5": "eat-r8-short",
}
BIRDS = {
    "none": "plain_proxy_anchor-short",
    "Mix-Up": "mixup_proxy_anchor-short",
    "TRADES": "trades-r8-short",
    "IAT": "iat-r8-short",
    "AT": "at-r8-short",
    "ADP": "adp_proxy_anchor-short",
    "naive ensemble of AT": "naive-r8-short",
    "EAT without the split": "no_split-r8-short",
    "EAT": "eat-r8-short",
    "AT for EAT's forwards": "at_long-r8-short",
    "AT, F(x) for the label": "at_literal-r8-short",
    "Mix-Up, F(x) for the label": "mixup_literal_proxy_anchor-short",
    "TRADES, F(x) as proxies": "trades_as_proxies-r8-short",
}
TABLES = {
    "| | published: clean | PGD-10 | ours: clean |": ("cars", ROWS),
    "| | published: clean | PGD-10 | ours in short: clean |": ("cars", BY_BETA),
    "| | published (2010): clean | PGD-10 | ours in short: clean |": ("cub", BIRDS),
}


SECOND = {name: BIRDS[name] for name in ("none", "AT", "AT for EAT's forwards", "EAT without the split", "EAT")}
WIDER = {
    "AT, 8/255": "at-r8-short",
    "AT, 16/255": "at-r16-short",
    "EAT, 8/255": "eat-r8-short",
    "EAT, 16/255": "eat-r16-short",
    "TRADES, 16/255": "trades-r16-short",
    "IAT, 16/255": "iat-r16-short",
}
GROWING = {"AT": "at_growing0_4-r8", "EAT": "eat_clean_share0_growing0_4-r8"}
GROWN = {
    "none, seed 1": ("plain_proxy_anchor", 1),
    "Mix-Up, seed 1": ("mixup_proxy_anchor", 1),
    "IAT, seed 1": ("iat-r8", 1),
    "ADP, seed 1": ("adp_proxy_anchor", 1),
    "AT": ("at-r8", 0),
    "AT, a radius that grows": (GROWING["AT"], 0),
    "EAT, beta 0.5": ("eat-r8", 0),
    "EAT, beta 0, a radius that grows": (GROWING["EAT"], 0),
}


def read(data: str, title: str, seed: int = 0) -> dict[str, Any]:
    return json.loads((ROOT / "results" / data / f"{data}-mobilenet_v2-{title}-seed{seed}.json").read_text())


def row(name: str) -> dict[str, Any]:
    return read("cars", ROWS[name])


def table(text: str, head: str) -> dict[str, list[str]]:
    """The cells of each line of a table, by the first."""
    lines = text.partition(f"\n{head}")[2].partition("\n\n")[0].splitlines()[2:]
    return {first: rest for first, *rest in ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)}


def recalls(found: dict[str, Any]) -> tuple[float, float, float, float]:
    """R@1 clean, under PGD-10 with both sides moved, with queries alone and with the gallery alone."""
    block = found["clustering"]
    attacked = block["pgd10"]
    return block["clean"]["R@1"], attacked["R@1"], attacked["query only"]["R@1"], attacked["gallery only"]["R@1"]


def adversarial(found: dict[str, Any]) -> list[float]:
    """The adversarial term by epoch; EAT's is half the sum of its three members' losses."""
    path = ROOT / "results" / found["data"] / f"{found['id']}.csv"
    head, *epochs = [line.split(",") for line in path.read_text().split()]
    return [float(epoch[head.index("adversarial")]) for epoch in epochs]


@pytest.mark.parametrize(("head", "name"), [(head, name) for head, (_, rows) in TABLES.items() for name in rows])
def test_the_tables_of_the_page(head: str, name: str) -> None:
    shown, (data, rows) = table(PAGE, head), TABLES[head]
    assert shown.keys() == rows.keys()
    found = read(data, rows[name])
    theirs, block = found.get("published"), found["clustering"]
    clean, both, queries, gallery = recalls(found)
    values = [clean, block["clean"]["F1"], both, block["pgd10"]["F1"], queries, gallery]
    published = [theirs[key]["R@1"] for key in ("clean", "pgd10")] if theirs else [None, None]
    assert shown[name] == [DASH if value is None else f"{value:.1f}" for value in [*published, *values]]
    assert found["protocol"] == ("short" if "short" in head else "full")


@pytest.mark.parametrize("name", ROWS)
def test_the_table_of_all_that_is_measured(name: str) -> None:
    shown = table(MEASURED, "| | published: clean, PGD-10 | ours: clean |")
    assert ROWS.keys() <= shown.keys()
    theirs, (clean, both, queries, _) = row(name).get("published"), recalls(row(name))
    published = f"{theirs['clean']['R@1']:.1f}, {theirs['pgd10']['R@1']:.1f}" if theirs else DASH
    assert shown[name] == [published, *(f"{value:.1f}" for value in (clean, both, queries))]


FOUND = {
    "none, seed 1": ("plain_proxy_anchor", 1),
    "AT": ("at-r8", 0),
    "EAT, as we read the paper": ("eat-r8", 0),
    "AT, a radius that grows": (GROWING["AT"], 0),
    "EAT, attacked images alone, a radius that grows": (GROWING["EAT"], 0),
}


def test_what_was_found_comes_first() -> None:
    section = PAGE.partition("\n## What was found\n")[2].partition("\n## ")[0]
    shown, said = table(section, "| | published: clean, PGD-10 |"), " ".join(section.split())
    assert list(shown) == list(FOUND)
    for name, (title, seed) in FOUND.items():
        found, theirs = read("cars", title, seed), read("cars", title).get("published")
        block = found["clustering"]
        left = [block["pgd10"]["query only"]["R@1"]]
        left += [part["query only"]["R@1"] for part in [block.get("adaptive_short")] if part]
        strong = f"**{min(left):.1f}**" if len(left) > 1 else DASH
        published = DASH if "grows" in name else ", ".join(f"{theirs[key]['R@1']:.1f}" for key in ("clean", "pgd10"))
        assert shown[name] == [published, *cells(list(recalls(found)[:3])), strong], name
    none, at, eat, single, several = (read("cars", *FOUND[name])["clustering"] for name in FOUND)
    assert eat["pgd10"]["R@1"] < min(at["pgd10"]["R@1"], none["pgd10"]["R@1"])
    assert several["pgd10"]["R@1"] > max(single["pgd10"]["R@1"], row("EAT")["published"]["pgd10"]["R@1"])
    most = {
        data: max(
            part["query only"]["R@1"]
            for path in (ROOT / "results" / data).glob("*.json")
            for part in [json.loads(path.read_text()).get("clustering", {}).get("adaptive_short")]
            if part
        )
        for data in ("cars", "cub")
    }
    assert f"leave at most {most['cars']:.1f}** of any row of CARS" in said and f"[{most['cub']:.1f} on CUB]" in said
    assert eat["adaptive_short"]["attacks"] == ["margin"] and "adaptive_short" not in at
    assert "EAT as we read it has met one of them, AT at one radius none." in said


def test_what_the_page_says_of_the_digits() -> None:
    """From its own table, which is of runs that no row keeps."""
    shown = table(PAGE, "| | clean | PGD-10, both sides | PGD-10, queries alone | margin")
    means = {name: [float(cell.split()[0]) for cell in row_] for name, row_ in shown.items()}
    three, betas = means["three without a defence"], ("0", "0.25", "0.5", "0.75")
    eats = {beta: means[f"EAT, beta {beta}"] for beta in betas} | {"none": means["EAT without the split, beta 0.5"]}
    above = {beta: max(ours - theirs for ours, theirs in zip(eat, three, strict=True)) for beta, eat in eats.items()}
    assert f"by more than {max(above.values()):.1f} (under the margin, with beta 0.5" in WORDS
    assert max(above, key=above.__getitem__) == "0.5"
    assert f"have a standard deviation of {shown['EAT, beta 0.5'][3].split()[-1]})" in WORDS
    assert all(eats[beta][side] < three[side] for beta in betas[:3] for side in (1, 2))
    ends = [means[f"EAT, beta {beta}"][2] for beta in (betas[0], betas[-1])]
    ends += [means[f"AT, beta {beta}"][3] for beta in (betas[0], betas[-1])]
    assert "moved from {} to {}). Under the margin that of AT falls ({} to {}).".format(*ends) in WORDS
    for kind in ("EAT", "AT"):
        for side in (0, 1, 2):
            rising = [means[f"{kind}, beta {beta}"][side] for beta in betas]
            assert rising == sorted(rising)


def test_what_the_page_says_of_the_table() -> None:
    clean, both, queries, _ = zip(*map(recalls, map(row, ROWS)), strict=True)
    of = dict(zip(ROWS, zip(clean, both, queries, strict=True), strict=True))
    assert f"as robust as AT** ({of['none'][1]:.1f} and {of['AT'][1]:.1f})" in WORDS
    kept = [round(100 * of[name][2] / of[name][0]) for name in ("AT", "IAT")]
    assert f"AT keeps {kept[0]} % of its R@1 with queries moved, IAT {kept[1]} % of a higher one" in WORDS
    above = [of[name][0] - row(name)["published"]["clean"]["R@1"] for name in ROWS if "published" in row(name)]
    first, *_, last = (value * 2 / 3 for value in adversarial(row("EAT")))
    falls = f"from {first:.1f} in epoch 1 to {last:.1f} in epoch 60"
    assert f"the adversarial loss of a member hardly falls, {falls}" in WORDS
    at = adversarial(row("AT"))
    assert f"while that of AT falls from {at[0]:.1f} to {at[-1]:.1f}" in WORDS
    apart = max(abs(a - b) for a, b in zip(at[:6], adversarial(read("cars", BY_BETA["AT"])), strict=False))
    assert f"its loss in them is within {apart:.3f} of the other's in each" in WORDS
    assert f"has more of it: {of['ADP'][0]:.1f} by vote" in WORDS and of["ADP"][0] > of["EAT"][0]
    assert f"of its R@1 {of['ADP'][2]:.1f} is left" in WORDS
    assert f"highest number of the table under the paper's attack ({max(both):.1f})" in WORDS and of["ADP"][1] == max(
        both
    )
    readings = {name: block["clean"]["R@1"] for name, block in row("EAT")["clustering"]["readings"].items()}
    members = [value for name, value in readings.items() if name.startswith("member")]
    assert f"(R@1 {of['EAT'][0]:.1f} by vote, {min(members):.1f} to {max(members):.1f} each" in WORDS
    assert f"{readings['concatenated']:.1f} side by side)" in WORDS
    margin = row("EAT")["clustering"]["adaptive_short"]
    sides = [margin["query only"]["R@1"], margin["gallery only"]["R@1"], margin["R@1"]]
    assert margin["attacks"] == ["margin"] and "leaves {:.1f}, {:.1f} and {:.1f}".format(*sides) in WORDS
    assert f"Clean R@1 is {min(above):.0f} to {max(above):.0f} points above the published rows" in WORDS
    assert f"AMI {row('TRADES')['clustering']['pgd10']['AMI']:.1f}." in WORDS
    assert all(f"suite `clustering` on {row(name)['queries']:,} test images" in WORDS for name in ROWS)
    assert all(f"at commit {row(name)['commit'][:7]}" in WORDS and row(name)["protocol"] == "full" for name in ROWS)


def test_what_the_page_says_of_the_birds() -> None:
    of = {name: recalls(read("cub", title)) for name, title in BIRDS.items()}
    naive, whole, eat, single = (
        of[name] for name in ("naive ensemble of AT", "EAT without the split", "EAT", "AT for EAT's forwards")
    )
    assert naive[1] > eat[1] > whole[1] and naive[2] > max(eat[2], whole[2]) and eat[0] > naive[0]
    assert f"the naive ensemble keeps {naive[2]:.1f}, EAT {eat[2]:.1f} with and without the split" in WORDS
    assert f"{eat[2]:.1f}" == f"{whole[2]:.1f}"
    together = [
        read("cub", f"{name}-r8-short")["clustering"]["readings"]["concatenated"]["pgd10"]["R@1"]
        for name in ("naive", "eat", "no_split")
    ]
    by_vote = f"by vote, {naive[1]:.1f}, {eat[1]:.1f} and {whole[1]:.1f}"
    assert f"{by_vote} (side by side {together[0]:.1f}, {together[1]:.1f} and {together[2]:.1f})" in WORDS
    assert f"the split gains {eat[1] - whole[1]:.1f} of R@1 by vote" in WORDS
    assert f"keeps {of['TRADES, F(x) as proxies'][2]:.1f} of that with queries moved" in WORDS
    assert single[2] == max(queries for _, _, queries, _ in of.values()) and single[0] < eat[0] / 2
    assert single[3] == max(gallery for _, _, _, gallery in of.values())
    more = {name: both for name, (_, both, _, _) in of.items() if both > single[1]}
    assert list(more) == ["none", "ADP", "Mix-Up, F(x) for the label"]
    assert f"have more, {min(more.values()):.1f} to {max(more.values()):.1f}, for the reason" in WORDS
    assert f"{single[2]:.1f} with queries moved, EAT {eat[2]:.1f}" in WORDS
    assert f"38 take it from {of['AT'][0]:.1f} to {single[0]:.1f}" in WORDS
    assert (
        "falls to {1:.1f} by the paper's attack with both sides moved and to {2:.1f} with one".format(*of["none"])
        in WORDS
    )
    assert f"an attack that did nothing would leave {of['none'][0]:.1f}" in WORDS
    assert read("cub", BIRDS["AT, F(x) for the label"])["collapsed"]
    assert all(
        f"commit {read(data, t)['commit'][:7]}" in WORDS for data, rows in TABLES.values() for t in rows.values()
    )
    assert all(f"{read('cub', title)['queries']:,} test images" in WORDS for title in BIRDS.values())


def by_side(part: dict[str, Any]) -> list[float | None]:
    """R@1 with both sides moved, with queries alone and with the gallery alone."""
    return [part.get("R@1"), *(part.get(side, {}).get("R@1") for side in ("query only", "gallery only"))]


def strongest(block: dict[str, Any]) -> list[float | None]:
    """R@1 by side, then AMI: the lowest of PGD-10 and of the attacks of `clustering_short`; nothing without these."""
    if block.get("adaptive_short", {}).get("attacks", ["margin"]) == ["margin"]:  # one alone is told elsewhere
        return [None] * 4
    parts = [[*by_side(part), part["AMI"]] for part in (block["pgd10"], block["adaptive_short"])]
    return [min(pair) for pair in zip(*parts, strict=True)]


def cells(values: list[float | None]) -> list[str]:
    return [DASH if value is None else f"{value:.1f}" for value in values]


@pytest.mark.parametrize("name", SECOND)
def test_the_table_of_the_second_seed(name: str) -> None:
    shown = table(PAGE, "| | clean | noise | noise in queries |")
    assert shown.keys() == SECOND.keys()
    found = read("cub", SECOND[name], seed=1)
    block = found["clustering"]
    noise, adaptive = by_side(block.get("noise", {}).get("8", {}))[:2], block["adaptive_short"]
    *left, scattered = strongest(block)
    measured = [block["clean"]["R@1"], *noise, *by_side(block["pgd10"]), *left]
    assert shown[name] == cells([*measured, block["clean"]["AMI"], scattered])
    assert adaptive["search"] == "bf16" and len(adaptive["attacks"]) == adaptive["of"] == 4
    assert found["protocol"] == "short" and f"commit {found['commit'][:7]}" in WORDS
    assert f"{found['queries']:,} test images" in WORDS


@pytest.mark.parametrize("name", WIDER)
def test_the_table_of_the_wider_radius(name: str) -> None:
    shown = table(PAGE, "| | ours in short: clean | F1 | PGD-10, both sides | F1 | queries | gallery |")
    assert shown.keys() == WIDER.keys()
    found = read("cars", WIDER[name])
    block = found["clustering"]
    both, *one_side = by_side(block["pgd10"])
    values = [block["clean"]["R@1"], block["clean"]["F1"], both, block["pgd10"]["F1"], *one_side]
    assert shown[name] == cells([*values, *strongest(block)[:3]])
    assert found["protocol"] == "short" and found["commit"][:7] in WORDS


@pytest.mark.parametrize("name", GROWN)
def test_the_table_of_the_radius_that_grows(name: str) -> None:
    shown = table(PAGE, "| | ours: clean | F1 | noise in queries |")
    assert shown.keys() == GROWN.keys()
    found = read("cars", *GROWN[name])
    block, met = found["clustering"], found["clustering"].get("adaptive_short", {}).get("attacks", [])
    if name.partition(",")[0] in ("IAT", "ADP"):
        assert len(met) == 3 and "IAT and ADP have met three of the four" in WORDS and "joint soft k-means" not in met
    else:
        assert len(met) in (0, 1, 4)
    *left, scattered = strongest(block)
    noise, clean = by_side(block.get("noise", {}).get("8", {}))[1], block["clean"]
    measured = [clean["R@1"], clean["F1"], noise, *by_side(block["pgd10"]), *left]
    assert shown[name] == cells([*measured, clean["AMI"], scattered])
    assert found["protocol"] == "full" and f"commit {found['commit'][:7]}" in WORDS
    shown_there = table(MEASURED, "| | published: clean, PGD-10 | ours: clean |")
    if "grows" in name:
        first = name.replace("beta 0", "attacked images alone")
        assert shown_there[first] == [DASH, *cells([clean["R@1"], *by_side(block["pgd10"])[:2]])]


def test_what_the_page_says_of_the_radius_that_grows() -> None:
    at, eat = (read("cars", title)["clustering"] for title in GROWING.values())
    still, theirs = row("AT")["clustering"], row("EAT")["published"]
    (clean, both, queries), (before, fixed, alone) = (
        [block["clean"]["R@1"], *by_side(block["pgd10"])[:2]] for block in (at, still)
    )
    ours = f"R@1**: {eat['clean']['R@1']:.1f} clean and {eat['pgd10']['R@1']:.1f} under the paper's attack"
    assert f"{ours} (published {theirs['clean']['R@1']:.1f} and {theirs['pgd10']['R@1']:.1f})" in WORDS
    assert eat["clean"]["R@1"] > theirs["clean"]["R@1"] and eat["pgd10"]["R@1"] > theirs["pgd10"]["R@1"]
    assert f"F1 under attack, {eat['pgd10']['F1']:.1f} for {theirs['pgd10']['F1']:.1f}" in WORDS
    mine, published = ([block["clean"][score] for score in ("NMI", "F1")] for block in (eat, theirs))
    assert all(a < b for a, b in zip(mine, published, strict=True))
    assert "stay below theirs, {:.1f} and {:.1f} for {:.1f} and {:.1f}".format(*mine, *published) in WORDS
    assert f"be AT trained likewise ({both:.1f}) or at one radius ({fixed:.1f})" in WORDS and eat["pgd10"]["R@1"] > both
    assert f"{clean:.1f} clean for {before:.1f}, {both:.1f} under PGD-10 for {fixed:.1f}" in WORDS
    assert f"{queries:.1f} with queries moved for {alone:.1f}" in WORDS
    gains = [clean - before, both - fixed, queries - alone]
    assert f"AT gains {min(gains):.0f} to {max(gains):.0f} points in each column" in " ".join(MEASURED.split())
    ends = [adversarial(read("cars", title))[-1] for title in (GROWING["AT"], "at-r8")]
    assert "Its loss ends at {:.1f}, at {:.1f} with one radius".format(*ends) in WORDS
    assert f"is of commit {row('AT')['commit'][:7]}, through the compiler" in WORDS


def test_what_the_page_says_of_three_models_and_of_what_is_left() -> None:
    rows = [read("cars", title) for title in GROWING.values()]
    at, eat = (found["clustering"] for found in rows)
    none = read("cars", "plain_proxy_anchor", 1)["clustering"]
    members = [block for name, block in eat["readings"].items() if name.startswith("member")]
    attacked, unmoved = (sorted(block[part]["R@1"] for block in members) for part in ("pgd10", "clean"))
    single, beside = at["pgd10"]["R@1"], eat["readings"]["concatenated"]["pgd10"]["R@1"]
    assert f"have {attacked[0]:.1f} to {attacked[2]:.1f} each, AT, attacked by itself, {single:.1f}" in WORDS
    passes = rows[1]["cost_fe"] / rows[0]["cost_fe"]
    assert f"by vote and {beside:.1f} side by side, for {passes:.1f} times the passes of AT" in WORDS
    assert f"On clean images members have {unmoved[0]:.1f} to {unmoved[2]:.1f}" in WORDS
    left = [block["adaptive_short"] for block in (eat, at, none)]
    assert "{:.1f} and {:.1f} with both sides moved".format(*(part["R@1"] for part in left)) in WORDS
    mixed, interpolated, diverse = (
        read("cars", title, 1)["clustering"] for title in ("mixup_proxy_anchor", "iat-r8", "adp_proxy_anchor")
    )
    assert {f"{by_side(part)[1]:.1f}" for part in left[:2]} == {"2.0"} and "2.0 each with queries alone" in WORDS
    assert max(by_side(part)[1] for part in (left[2], mixed["adaptive_short"], diverse["adaptive_short"])) < 0.25
    (both, queries, _), (moved, alone, _) = (by_side(interpolated[part]) for part in ("adaptive_short", "pgd10"))
    left_there = table(MEASURED, "| | seed | clean | queries alone moved |")
    assert left_there == {
        name: [str(seed), *(f"{value:.1f}" for value in (block["clean"]["R@1"], by_side(block["adaptive_short"])[1]))]
        for name, block, seed in (
            ("none", none, 1),
            ("Mix-Up", mixed, 1),
            ("IAT", interpolated, 1),
            ("ADP", diverse, 1),
            ("AT, a radius that grows", at, 0),
            ("EAT, attacked images alone, a radius that grows", eat, 0),
        )
    }
    assert "of 44.2 on 240 images, with all of them moved together" in " ".join(MEASURED.split())
    assert by_side(row("EAT")["clustering"]["adaptive_short"])[1] < 0.05
    assert f"{alone:.1f} with queries moved become {queries:.1f}, and {moved:.1f} with both sides {both:.1f}" in WORDS
    before, after = (diverse[part]["R@1"] for part in ("pgd10", "adaptive_short"))
    assert f"ADP's {before:.1f} with both sides moved" in WORDS and f"become {after:.1f}. TRADES" in WORDS
    assert (
        "leaves {:.1f}, {:.1f} and {:.1f} (both sides".format(*by_side(row("TRADES")["clustering"]["pgd10"])) in WORDS
    )
    others = [eat["readings"][name]["adaptive_short"]["R@1"] for name in ("mean", "concatenated")]
    assert "EAT has {:.1f} and {:.1f} there".format(*others) in WORDS
    falls = [[block["adaptive_short"]["AMI"], block["clean"]["AMI"]] for block in (eat, at, none)]
    (a, b), (c, d), (e, f) = falls
    assert f"AMI is {a:.1f} of {b:.1f} (EAT) and {c:.1f} of {d:.1f} (AT)" in WORDS and f"{e:.1f} of {f:.1f}" in WORDS
    birds = read("cub", "at_long-r8-short", 1)["clustering"]
    share = birds["adaptive_short"]["AMI"] / birds["clean"]["AMI"]
    assert share == pytest.approx(c / d, abs=0.02) == pytest.approx(a / b, abs=0.02), "as large a share"
    assert {f"{by_side(part)[2]:.0f}" for part in left[:2]} == {"28"}
    gallery = [by_side(left[2])[2], by_side(none["pgd10"])[2]]
    assert "Of none they leave {:.1f} there, and PGD-10 leaves {:.1f}".format(*gallery) in WORDS
    noisy = [by_side(block["noise"]["32"])[1] for block in (eat, none)]
    assert "({:.1f} of EAT with noisy queries); the undefended model has {:.1f} there".format(*noisy) in WORDS
    lost = [block["clean"]["R@1"] - by_side(block["noise"][at])[1] for block in (at, eat) for at in ("8", "16", "32")]
    assert max(lost) < 1
    nearness = {"plain_proxy_anchor": 0.5, "mixup_proxy_anchor": 0.5, "iat-r8": 1.8, "adp_proxy_anchor": 1.8}
    for title, within in nearness.items():
        one, other = (by_side(read("cars", title, seed)["clustering"]["pgd10"]) for seed in (0, 1))
        assert max(abs(x - y) for x, y in zip(one, other, strict=True)) < within


def test_what_the_page_says_of_the_second_seed() -> None:
    none, at, single, whole, eat = (read("cub", title, seed=1)["clustering"] for title in SECOND.values())

    def recall(block: dict[str, Any], part: str, at: str, side: int = 0) -> str:
        return f"{by_side(block[part][at])[side]:.1f}"

    assert f"takes its R@1 from {eat['clean']['R@1']:.1f} to {recall(eat, 'noise', '8', 1)}" in WORDS
    assert f"keeps {recall(none, 'noise', '8', 1)} of {none['clean']['R@1']:.1f}, and AT all of its own" in WORDS
    kept = [block["clean"]["R@1"] - by_side(block["noise"]["8"])[1] for block in (at, single)]
    assert max(map(abs, kept)) < 0.1
    wider = [recall(block, "noise", "16", 1) for block in (eat, none)]
    assert "At 16/255 EAT has {}, no defence {}".format(*wider) in WORDS
    once = [recall(block, "steps", "1", 1) for block in (eat, none)]
    assert "brings EAT to chance ({}), where no defence has {}".format(*once) in WORDS
    both, queries = ([recall(none, "steps", steps, side) for steps in ("2", "10", "200")] for side in (0, 1))
    assert "has {} after 2 steps, {} after 10 and {} after 200".format(*both) in WORDS
    assert "it has {}, then {} and {}".format(*queries) in WORDS
    ends = [recall(at, "steps", steps, side) for side in (0, 1) for steps in ("1", "200")]
    assert "from {} after one step to {} after 200, and from {} to {}".format(*ends) in WORDS
    widest = [
        recall(block, "radii", "128", side)
        for side, blocks in enumerate([(none, eat, at), (none, at, eat)])
        for block in blocks
    ]
    assert (
        "at 128/255 none keeps {}, EAT {}, AT {}. With queries alone none has {}, AT {}, EAT {}".format(*widest)
        in WORDS
    )
    left = [by_side(block["adaptive_short"]) for block in (none, at, single, whole, eat)]
    most = [max(one[side] for one in left) for side in (0, 1)]
    assert "{:.1f} at most with both sides moved and {:.1f} with queries alone".format(*most) in WORDS
    assert max(one[2] for one in left) == left[2][2]
    searched = [[f"{block['pgd10']['R@1']:.1f}", recall(block, "steps", "10")] for block in (none, at, eat)]
    exact, quick = zip(*searched, strict=True)
    assert "leaves {} (none), {} (AT) and {} (EAT) where it searched in fp32".format(*exact) in WORDS
    assert "and {}, {} and {} where it searched in bfloat16".format(*quick) in WORDS
    orders = [
        sorted(SECOND, key=lambda name, seed=seed: read("cub", SECOND[name], seed)["clustering"]["pgd10"]["R@1"])[2:]
        for seed in (0, 1)
    ]
    assert orders[0] == orders[1], "the two forms of EAT are the lowest in both"


@pytest.mark.parametrize(("data", "title"), [("cub", BIRDS["none"]), ("cars", ROWS["none"])])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_paper_s_attack_moves_the_plain_model(data: str, title: str, seed: int) -> None:
    """One that began at a gradient of zero, or did nothing, would leave the clean R@1."""
    clean, both, queries, gallery = recalls(read(data, title, seed))
    assert queries < 15 and gallery < 15 and both < clean / 2


def test_what_the_page_says_of_beta() -> None:
    at, *eats = (recalls(read("cars", title)) for title in BY_BETA.values())
    assert "Under the paper's attack EAT is above AT here, at every beta" in WORDS and all(e[1] > at[1] for e in eats)
    assert "it is so with beta 0 only, by less than half a point" in WORDS
    assert [0 < e[2] - at[2] < 0.5 for e in eats] == [True, False, False]


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
    pair = COMPILED["bf16-mixed compiled"]
    literal, shared = (pair[way]["milliseconds"] for way in ("literal", "shared"))
    expected = [f"{literal:.0f}", f"{shared:.0f}", f"{literal / shared:.2f}", f"{2 * shared - literal:.0f}"]
    assert shown["bf16, compiled (another run)"] == expected and len(shown) == 4
    update = shown["fp32, fast"][-1]
    climbs = re.search(r"from ([\d,]+) ms to (\d+) and leaves", WORDS)
    assert climbs is not None
    assert f"the ratio is (2 x {climbs[2]} + {update}) / ({climbs[2]} + {update})" in WORDS
