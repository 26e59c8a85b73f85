"""The tables of docs/papers/hardness_manipulation.md are the rows of the ledger, figure by figure."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from robustmetric.report.curves import read_curve
from robustmetric.report.ledger import TEN

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "papers" / "hardness_manipulation.md").read_text()
BIRDS = ROOT / "results" / "cub"
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
    shown = table("Measured: CUB-200-2011, short", "| | published")
    assert shown.keys() == SHORT.keys()
    found = row(f"{SHORT[name]}-short-seed0")
    compat, fixed, clean = found["attacks"]["compat"], found["attacks"]["fixed"], found["clean"]
    recall = figures(clean, "R@1")[0] + (" (collapsed)" if found["collapsed"] else "")
    ours = [recall, *figures(compat, "ERS"), *figures(fixed, "ERS"), pair(compat, "CA+", "CA-")]
    ours += [pair(compat, "QA+", "QA-"), *figures(compat, "TMA"), f"{fixed['ES:D']:.2f}, {fixed['ES:R']:.1f}"]
    assert shown[name] == [theirs(found), *ours, *figures(fixed, "GTM"), *figures(clean, "probe")]


@pytest.mark.parametrize("seed", ["0", "1", "2"])
def test_seeds_of_short(seed: str) -> None:
    recall, _, score, _, shifted, _ = table("Measured: CUB-200-2011, short", "| seed |")[seed]
    both = [row(f"{name}-eta8-short-seed{seed}") for name in ("act", "hm_lga_ics")]
    assert recall == ", ".join(f"{found['clean']['R@1']:.1f}" for found in both)
    assert score == ", ".join(f"{found['attacks']['compat']['ERS']:.1f}" for found in both)
    assert shifted == ", ".join(f"{found['attacks']['fixed']['ES:R']:.1f}" for found in both)


def test_full() -> None:
    section, scores = "Measured: CUB-200-2011, full", (*TEN, "ERS")
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
    cells = table("Measured: CUB-200-2011, sketch", "| | R |")[source]
    for destination, cell in zip("RMSDH", cells, strict=True):
        found = row(f"hm_{source}_{destination}-eta8-sketch-seed0".lower())
        collapsed, recall, published = re.fullmatch(r"(c )?([\d.]+)(?:, [\d.]+)? \((.+)\)", cell).groups()
        assert (bool(collapsed), recall) == (found["collapsed"], f"{found['clean']['R@1']:.1f}"), destination
        block = found["published"]
        assert published == ("c" if block.get("collapsed") else f"{block['R@1']:.1f}"), destination


@pytest.mark.parametrize("term", TERMS)
def test_terms_of_sketch(term: str) -> None:
    shown = table("Measured: CUB-200-2011, sketch", "| term |")
    assert shown.keys() == TERMS.keys()
    recall, shift, shifted, _, values, _ = shown[term]
    stem = f"{TERMS[term]}-eta8-sketch-seed0"
    found, curve = row(stem), read_curve(BIRDS / f"cub-mobilenet_v2-{stem}.csv")["structure"]
    fixed = found["attacks"]["fixed"]
    ours = [f"{found['clean']['R@1']:.1f}", f"{fixed['ES:D']:.2f}", f"{fixed['ES:R']:.1f}"]
    assert [recall, shift, shifted] == ours
    assert values == f"{curve[0]:.3f}, {curve[3]:.3f}"


def test_steps_of_sketch() -> None:
    def listed(name: str, score: str) -> str:
        found = [row(f"{name}-eta{steps}-sketch-seed0") for steps in (2, 4, 8, 16)]
        return ", ".join(f"{(each['clean'] | each['attacks']['fixed'])[score]:.1f}" for each in found)

    assert f"({listed('act', 'R@1')} for 2, 4, 8, 16) and gains under ES ({listed('act', 'ES:R')})" in PAGE
    assert f"HM&ICS has R@1 {listed('hm_lga_ics', 'R@1')} " in PAGE
    eight, sixteen = (row(f"hm_lga_ics-eta{steps}-sketch-seed0")["weights_sha256"] for steps in (8, 16))
    assert "the same model, bit for bit" in PAGE and eight == sixteen


WORST = "Measured: CUB-200-2011, the worst case"
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
    words = " ".join(PAGE.partition(f"\n## {WORST}\n")[2].partition("\n## ")[0].split())
    assert f"right answers of HM {hm[0]:.0f} stand, of ACT {act[0]:.0f};" in words
    assert f"GTM, leaves {hm[2]:.0f} and {act[2]:.0f}." in words
    assert f"leaves HM and ACT {hm[1]:.0f} and {act[1]:.0f} of a hundred right answers" in words
    assert f"ES's 32 steps leave {hm[3]:.0f} and {act[3]:.0f} (all queries" in words
    standing = {first: round(queries * found["rows"][f"cub-mobilenet_v2-{stem}-seed0"]["AutoRank"]["R@1"] / 100)
                for first, stem in COPIES.items()}  # fmt: skip
    _, of_act, of_hm, *others = standing.values()
    assert f"told apart: {of_hm} and {of_act} of {queries} queries" in words and not any(others)
    assert f"had {of_hm + of_act} queries left to try, {of_hm} of HM and {of_act} of ACT at `full_3e-5`" in words
    later = [one["AutoRank"]["lost_first_to"] for one in found["rows"].values()]
    assert all(not lost[name] for lost in later for name in lost if name not in ("APGD-ES", "APGD-margin"))
    assert f"none left of {queries} is compatible with up to {100 * (1 - 0.025 ** (1 / queries)):.1f} %" in words
    (commit,) = {one["commit"][:7] for one in found["rows"].values()}
    assert f"commit {commit}" in words and f"{queries} queries against all 5,924 images" in words
