"""The tables of docs/papers/hardness_manipulation.md are the rows of the ledger, figure by figure."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from robustmetric.metrics.robustness import SUB_SCORES
from robustmetric.report.curves import read_curve
from robustmetric.report.ledger import TEN

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "papers" / "hardness_manipulation.md").read_text()
BIRDS = ROOT / "results" / "cub"
SHORTLY, FULL, SKETCH, WORST = (
    f"Measured: CUB-200-2011, {part}" for part in ("short", "full", "sketch", "the worst case")
)
DIGITS = {"TMA": 3, "ES:D": 3}
FASHION = {
    "plain": "plain", "ACT[R]": "act-eta32", "EST[R]": "est-eta32", "HM[S,g_LGA]": "hm_lga-eta32",
    "HM[S,g_LGA]&ICS": "hm_lga_ics-eta32", "CA-TRIDE": "ca_tride-eta32",
}  # fmt: skip
SHORT = {
    "plain": "plain", "ACT[R]": "act-eta8", "ACT[S]": "act_s-eta8", "EST[R]": "est-eta8", "min-max": "minmax-eta8",
    "HM[R,M]": "hm_r_m-eta8", "HM[S,M]": "hm_s_m-eta8", "HM[S,g_LGA], u = gamma": "hm_lga-eta8",
    "HM[S,g_LGA], u = 2.2": "hm_lga_u2_2-eta8", "HM[S,g_B(M)]": "hm_gb-eta8", "HM[S,g_2]": "hm_g2-eta8",
    "HM[S,g_1/2]": "hm_g_half-eta8", "HM[S,g_LGA]&ICS": "hm_lga_ics-eta8",
    "the same, margin of ICS 0.2": "hm_lga_ics_margin0_2-eta8",
    "the same, `offset: 1e-6`": "hm_lga_ics_offset1em06-eta8",
    "free HM[S,g_LGA], 4 epochs of 4 replays": "free_hm_lga",
    "feature scattering of embeddings, FS[R], 1 step": "scattering-eta1", "CA-TRIDE, 16 steps": "ca_tride-eta16",
}  # fmt: skip
TERMS = {
    "ICS: (a, a~, p)": "hm_lga_ics", "(a, a~, p~)": "hm_lga_ics_a_at_pt", "(p, p~, a)": "hm_lga_ics_p_pt_a",
    "(a, a~, n~)": "hm_lga_ics_a_at_nt", "(a, p, n~), margin 0.2": "hm_lga_ics_a_p_nt_margin0_2",
    "(a, p, n), margin 0.2": "hm_lga_ics_a_p_n_margin0_2",
}  # fmt: skip


def row(stem: str, data: str = "cub-mobilenet_v2") -> dict[str, Any]:
    return json.loads((ROOT / "results" / data.partition("-")[0] / f"{data}-{stem}.json").read_text())


def table(section: str, head: str) -> dict[str, list[str]]:
    """The cells of each line of a table, by the first."""
    text = PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    lines = f"{head}{text.partition(f'{chr(10)}{head}')[2]}".partition("\n\n")[0].splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {first: rest for first, *rest in cells}


def words(section: str) -> str:
    """What a section says, lines joined."""
    return " ".join(PAGE.partition(f"\n## {section}\n")[2].partition("\n## ")[0].split())


def figures(scores: Mapping[str, float], *names: str) -> list[str]:
    return [f"{scores[name]:.{DIGITS.get(name, 1)}f}" if name in scores else "-" for name in names]


def pair(scores: Mapping[str, float], *names: str) -> str:
    return ", ".join(figures(scores, *names))


def theirs(found: Mapping[str, Any]) -> str:
    return pair(found["published"], "R@1", "ERS") if "published" in found else "none"


def test_fashion() -> None:
    shown = table("Measured: Fashion-MNIST", "| | published")
    assert shown.keys() == FASHION.keys()
    for name, cells in shown.items():
        found = row(f"{FASHION[name]}-seed0", "fashion-convnet")
        compat, fixed, clean = found["attacks"]["compat"], found["attacks"]["fixed"], found["clean"]
        ours = [*figures(clean, "R@1"), *figures(compat, "ERS"), *figures(fixed, "ERS"), pair(fixed, "ES:R", "GTM")]
        assert cells == [theirs(found), *ours, *figures(clean, "probe")], name


@pytest.mark.parametrize("name", SHORT)
def test_short(name: str) -> None:
    shown = table(SHORTLY, "| | published")
    assert shown.keys() == SHORT.keys()
    found = row(f"{SHORT[name]}-short-seed0")
    compat, fixed, clean = found["attacks"]["compat"], found["attacks"]["fixed"], found["clean"]
    recall = figures(clean, "R@1")[0] + (" (collapsed)" if found["collapsed"] else "")
    ours = [recall, *figures(compat, "ERS"), *figures(fixed, "ERS"), pair(compat, "CA+", "CA-")]
    ours += [pair(compat, "QA+", "QA-"), *figures(compat, "TMA"), f"{fixed['ES:D']:.2f}, {fixed['ES:R']:.1f}"]
    assert shown[name] == [theirs(found), *ours, *figures(fixed, "GTM"), *figures(clean, "probe")]


@pytest.mark.parametrize("seed", ["0", "1", "2"])
def test_seeds_of_short(seed: str) -> None:
    recall, _, score, _, shifted, _ = table(SHORTLY, "| seed |")[seed]
    both = [row(f"{name}-eta8-short-seed{seed}") for name in ("act", "hm_lga_ics")]
    assert recall == ", ".join(f"{found['clean']['R@1']:.1f}" for found in both)
    assert score == ", ".join(f"{found['attacks']['compat']['ERS']:.1f}" for found in both)
    assert shifted == ", ".join(f"{found['attacks']['fixed']['ES:R']:.1f}" for found in both)


def test_full() -> None:
    section, scores = FULL, (*TEN, "ERS")
    plain = row("plain-seed0")
    ours = figures(plain["clean"], "R@1", "R@2", "mAP", "NMI") + figures(plain["attacks"]["compat"], *scores)
    assert table(section, "| | R@1")["ours, MobileNetV2"] == ours
    # Of two lines with one name, at 1e-5 and at 3e-5, the later is kept: that with a row.
    shown = table(section, "| | rate |")
    for name, stem in (("ACT[R]", "act"), ("HM[S,g_LGA]&ICS", "hm_lga_ics")):
        found = row(f"{stem}-eta8-full_3e-5-seed0")
        ours = figures(found["clean"], "R@1", "R@2", "mAP", "NMI") + figures(found["attacks"]["compat"], *scores)
        assert shown[f"{name}, ours, MobileNetV2"] == ["3e-5", *ours, *figures(found["attacks"]["fixed"], "ERS")]
        numbers = figures(found["published"], "R@1", "R@2", "mAP", "NMI", *scores)
        assert shown[f"{name}, published, ResNet-18"] == ["1e-5", *numbers, "-"]


@pytest.mark.parametrize("source", "RMSDH")
def test_pairs_of_sketch(source: str) -> None:
    cells = table(SKETCH, "| | R |")[source]
    for destination, cell in zip("RMSDH", cells, strict=True):
        found = row(f"hm_{source}_{destination}-eta8-sketch-seed0".lower())
        collapsed, recall, published = re.fullmatch(r"(c )?([\d.]+)(?:, [\d.]+)? \((.+)\)", cell).groups()
        assert (bool(collapsed), recall) == (found["collapsed"], f"{found['clean']['R@1']:.1f}"), destination
        block = found["published"]
        assert published == ("c" if block.get("collapsed") else f"{block['R@1']:.1f}"), destination


@pytest.mark.parametrize("term", TERMS)
def test_terms_of_sketch(term: str) -> None:
    shown = table(SKETCH, "| term |")
    assert shown.keys() == TERMS.keys()
    recall, shift, shifted, _, values, _ = shown[term]
    stem = f"{TERMS[term]}-eta8-sketch-seed0"
    found, curve = row(stem), read_curve(BIRDS / f"cub-mobilenet_v2-{stem}.csv")["structure"]
    fixed = found["attacks"]["fixed"]
    ours = [f"{found['clean']['R@1']:.1f}", f"{fixed['ES:D']:.2f}", f"{fixed['ES:R']:.1f}"]
    assert [recall, shift, shifted] == ours
    assert values == f"{curve[0]:.3f}, {curve[3]:.3f}"


def test_steps_of_sketch() -> None:
    def listed(name: str, score: str) -> list[str]:
        found = [row(f"{name}-eta{steps}-sketch-seed0") for steps in (2, 4, 8, 16)]
        return [f"{(each['clean'] | each['attacks']['fixed'])[score]:.1f}" for each in found]

    assert table(SKETCH, "| | 2 steps | 4 | 8 | 16 |") == {
        f"{name}, {said}": listed(stem, score)
        for name, stem in (("ACT[R]", "act"), ("HM[S,g_LGA]&ICS", "hm_lga_ics"))
        for said, score in (("clean", "R@1"), ("under ES", "ES:R"))
    }
    eight, sixteen = (row(f"hm_lga_ics-eta{steps}-sketch-seed0") for steps in (8, 16))
    assert "the same model, bit for bit" in words(SKETCH) and eight["weights_sha256"] == sixteen["weights_sha256"]
    (one, other) = [pair(found["published"], "R@1", "ERS") for found in (eight, sixteen)]
    assert f"the published rows (R@1, ERS) differ: {one} and {other}." in words(SKETCH)


def test_the_pair_that_keeps_most_under_a_shift() -> None:
    pairs = {f"[{s},{d}]": row(f"hm_{s}_{d}-eta8-sketch-seed0".lower()) for s in "RMSDH" for d in "RMSDH"}
    kept = {name: found["attacks"]["fixed"]["ES:R"] for name, found in pairs.items() if not found["collapsed"]}
    first, second, *_ = sorted(kept, key=lambda name: -kept[name])
    said = f"(R@1 {kept[first]:.1f}; next is the contracted {second} with {kept[second]:.1f})"
    assert f"HM{first} keeps most under ES of the pairs that did not collapse {said}" in words(SKETCH)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_where_hardness_manipulation_is_ahead_in_short(seed: int) -> None:
    """In the shift, and in mode compat in three of the shares of right answers, though not in the score of all ten."""
    act, hm = (row(f"{name}-eta8-short-seed{seed}")["attacks"] for name in ("act", "hm_lga_ics"))
    assert "HM is ahead, and in mode compat in ES:R, LTM and GTM too, with each of the three seeds" in words(SHORTLY)
    assert all(hm[mode]["ES:D"] < act[mode]["ES:D"] for mode in ("compat", "fixed"))
    assert all(hm["compat"][name] > act["compat"][name] for name in ("ES:R", "LTM", "GTM"))
    assert hm["compat"]["ERS"] < act["compat"]["ERS"]


def test_the_highest_and_the_lowest_of_table_7() -> None:
    found = {name: row(f"{stem}-short-seed0") for name, stem in SHORT.items()}
    of, published = found["HM[S,g_LGA], u = 2.2"], [one for one in found.values() if "published" in one]
    assert of["published"]["ERS"] == max(one["published"]["ERS"] for one in published)
    ours = {name: one["attacks"]["compat"]["ERS"] for name, one in found.items() if "published" in one}
    assert min((name for name in ours if name.startswith(("HM[S", "the same"))), key=ours.__getitem__).endswith("2.2")
    high, low = of["published"]["ERS"], of["attacks"]["compat"]["ERS"]
    said = f"has the highest published ERS of these rows, {high:.1f}, and the lowest here of the HM[S, .]"
    assert f"{said} that are published, {low:.1f}." in words(SHORTLY)


def test_what_the_offset_is_worth() -> None:
    without, with_it = (row(f"hm_lga_ics{which}-eta8-short-seed0") for which in ("", "_offset1em06"))
    seeds = [row(f"hm_lga_ics-eta8-short-seed{seed}") for seed in (0, 1, 2)]
    scores = [[found["clean"]["R@1"], found["attacks"]["compat"]["ERS"]] for found in (without, with_it, *seeds)]
    (recall, score), (later, higher), *others = scores
    apart = [max(values) - min(values) for values in zip(*others, strict=True)]
    said = f"R@1 is {recall - later:.1f} points lower and ERS {higher - score:.1f} higher than without (one seed each)."
    assert f"{said} Three seeds without it lie within {apart[0]:.1f} of R@1 and {apart[1]:.1f} of ERS" in words(SHORTLY)
    assert recall - later > apart[0] and higher - score < apart[1]


def test_how_far_ahead_hardness_manipulation_is() -> None:
    act, hm = (row(f"{name}-eta8-full_3e-5-seed0") for name in ("act", "hm_lga_ics"))
    shown = table(FULL, "| | difference |")
    for name, pick in (
        ("R@1", lambda found: found["clean"]["R@1"]),
        ("ERS, compat", lambda found: found["attacks"]["compat"]["ERS"]),
        ("ERS, fixed", lambda found: found["attacks"]["fixed"]["ERS"]),
    ):
        assert shown[name][0] == f"{pick(hm) - pick(act):.1f}"
    theirs = [hm["published"][name] - act["published"][name] for name in ("R@1", "ERS")]
    assert [shown[name][2] for name in shown] == [*(f"{value:.1f}" for value in theirs), "-"]
    better = [
        name
        for name in TEN
        if SUB_SCORES[name][1] * (hm["attacks"]["compat"][name] - act["attacks"]["compat"][name]) > 0
    ]
    assert "HM is better in each of the ten numbers but TMA" in words(FULL) and {*TEN} - {*better} == {"TMA"}
    fixed = [found["attacks"]["fixed"] for found in (hm, act)]
    left = [f"{one['LTM']:.1f} and {one['GTM']:.1f}" for one in fixed]
    before = [f"{one['attacks']['compat']['LTM']:.1f} and {one['attacks']['compat']['GTM']:.1f}" for one in (hm, act)]
    said = f"to {left[0]} for HM in place of {before[0]}, to {left[1]} for ACT in place of {before[1]}."
    kept = [100 * one["GTM"] / found["clean"]["R@1"] for one, found in zip(fixed, (hm, act), strict=True)]
    assert f"{said} Of a hundred right answers HM keeps {kept[0]:.0f} under GTM" in words(FULL)
    assert f"ACT {kept[1]:.0f}." in words(FULL)
    assert all(one["GTM"] == min(one[name] for name in ("ES:R", "LTM", "GTM")) for one in fixed)


def test_how_far_it_was_trained() -> None:
    def ahead(of: Mapping[str, float], over: Mapping[str, float]) -> str:
        return f"{sum(SUB_SCORES[name][1] * (of[name] - over[name]) for name in TEN[:7]) / 10:+.1f}"

    shown = table(FULL, "| HM&ICS | HM less ACT |")
    for first, protocol in (("`full_3e-5`", "full_3e-5"), ("`short`, seed 0", "short")):
        act, hm = (row(f"{name}-eta8-{protocol}-seed0") for name in ("act", "hm_lga_ics"))
        assert shown[first][0] == ahead(hm["attacks"]["compat"], act["attacks"]["compat"])
        assert shown["published"][0] == ahead(hm["published"], act["published"])
    curve = read_curve(BIRDS / "cub-mobilenet_v2-hm_lga_ics-eta8-full_3e-5-seed0.csv")
    assert shown["`full_3e-5`"][1:] == [f"{curve['goal'][-1]:.3f}", f"{100 * curve['attacked'][-1]:.0f} %"]
    assert f"the share attacked begins at {100 * curve['attacked'][0]:.0f} %" in words(FULL)
    # At 1e-5 there is no row: its seven numbers are the two lines of the table that are not in the ledger.
    lines = [line for line in PAGE.splitlines() if "ours, MobileNetV2 | 1e-5 |" in line]
    act, hm = (
        {name: float(cell.split()[0]) for name, cell in zip(TEN[:7], line.strip("|").split("|")[6:13], strict=True)}
        for line in lines
    )
    assert shown["`full`, 1e-5 (HM's ES of mode fixed, the rest compat)"][0] == ahead(hm, act)


def test_what_was_found_comes_first() -> None:
    section = "What was found"
    shown = table(section, "| | published, ResNet-18")
    worst = json.loads((ROOT / "benchmarks" / "results" / "copies-auto_rank-cpu.json").read_text())["rows"]
    rows = {
        "plain, no defence (rate 1e-5)": "plain",
        "ACT[R] (rate 3e-5)": "act-eta8-full_3e-5",
        "HM[S,g_LGA]&ICS (rate 3e-5)": "hm_lga_ics-eta8-full_3e-5",
    }
    assert list(shown) == list(rows)
    for first, cells in shown.items():
        found, one = row(f"{rows[first]}-seed0"), worst[f"cub-mobilenet_v2-{rows[first]}-seed0"]
        scores = [found["clean"]["R@1"], *(found["attacks"][mode]["ERS"] for mode in ("compat", "fixed"))]
        left = f"{one['clean']['R@1']:.1f} to **{one['AutoRank']['R@1']:.1f}**"
        assert cells == [theirs(found), *(f"{score:.1f}" for score in scores), left]
    ahead = [table(FULL, "| | difference |")[name][0] for name in ("R@1", "ERS, compat")]
    said = words(section)
    assert "HM is above ACT by {} points of R@1 and {} of ERS.".format(*ahead) in said
    assert "the worst case leaves 3 and 1 of 200 queries" in said and "told apart**: 3 and 1 of 200" in words(WORST)
    pairs = [row(f"hm_{s}_{d}-eta8-sketch-seed0".lower()) for s in "RMSDH" for d in "RMSDH"]
    collapsed = [found["collapsed"] for found in pairs]
    assert collapsed == [found["published"].get("collapsed", False) for found in pairs]
    assert (len(pairs), sum(collapsed)) == (25, 10) and "of 25 pairs of source and goal the ten published" in said
    est = row("est-eta32-seed0", "fashion-convnet")
    assert f"EST has {est['attacks']['compat']['ERS'] - est['published']['ERS']:.0f} points more ERS" in said


COPIES = {
    "plain, `full`": "plain", "ACT[R], `full_3e-5`": "act-eta8-full_3e-5",
    "HM[S,g_LGA]&ICS, `full_3e-5`": "hm_lga_ics-eta8-full_3e-5", "plain, `short`": "plain-short",
    "ACT[R], `short`": "act-eta8-short", "HM[S,g_LGA]&ICS, `short`": "hm_lga_ics-eta8-short",
}  # fmt: skip


def test_the_worst_case_of_the_copies() -> None:
    found = json.loads((ROOT / "benchmarks" / "results" / "copies-auto_rank-cpu.json").read_text())
    queries, left = found["settings"]["queries"], {}
    shown = table(WORST, "| | ERS, fixed |")
    assert list(shown) == list(COPIES)
    for first, cells in shown.items():
        one, kept = found["rows"][f"cub-mobilenet_v2-{COPIES[first]}-seed0"], row(f"{COPIES[first]}-seed0")
        fixed, scores = kept["attacks"]["fixed"], {name: one["left"][name]["R@1"] for name in one["left"]}
        low, high = one["AutoRank"]["interval"]
        numbers = [one["clean"]["R@1"], scores["APGD-ES"], scores["APGD-margin"]]
        assert cells == [
            f"{fixed['ERS']:.1f}", f"{fixed['ES:R']:.1f}, {fixed['GTM']:.1f}", *(f"{number:.1f}" for number in numbers),
            f"**{one['AutoRank']['R@1']:.1f}**", f"{low:.1f} to {high:.1f}",
        ]  # fmt: skip
        left[first] = [
            *(100 * number / one["clean"]["R@1"] for number in (one["AutoRank"]["R@1"], scores["APGD-ES"])),
            *(100 * fixed[name] / kept["clean"]["R@1"] for name in ("GTM", "ES:R")),
        ]
    _, act, hm = list(left.values())[:3]
    said = words(WORST)
    assert f"right answers of HM {hm[0]:.0f} stand, of ACT {act[0]:.0f}** (`full_3e-5`);" in said
    assert f"that count R@1, leaves {hm[2]:.0f} and {act[2]:.0f}." in said
    assert f"leaves HM and ACT {hm[1]:.0f} and {act[1]:.0f} of a hundred right answers" in said
    assert f"ES's 32 steps leave {hm[3]:.0f} and {act[3]:.0f} (all queries" in said
    standing = {first: round(queries * found["rows"][f"cub-mobilenet_v2-{stem}-seed0"]["AutoRank"]["R@1"] / 100)
                for first, stem in COPIES.items()}  # fmt: skip
    _, of_act, of_hm, *others = standing.values()
    assert f"told apart**: {of_hm} and {of_act} of {queries} queries" in said and not any(others)
    assert f"had {of_hm + of_act} queries left to try, {of_hm} of HM and {of_act} of ACT at `full_3e-5`" in said
    later = [one["AutoRank"]["lost_first_to"] for one in found["rows"].values()]
    assert all(not lost[name] for lost in later for name in lost if name not in ("APGD-ES", "APGD-margin"))
    assert f"None left of {queries} is compatible with up to {100 * (1 - 0.025 ** (1 / queries)):.1f} %" in said
    (commit,) = {one["commit"][:7] for one in found["rows"].values()}
    assert f"commit {commit}" in said and f"{queries} queries against all 5,924 images" in said
