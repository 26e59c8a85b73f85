"""Masking verdicts: the table and plots on the page, the block of a ledger row, and the flag."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from markupsafe import Markup
from matplotlib.figure import Figure
from sample_runs import CONTEXT, MakeRun, clean, shift

from robustmetric.records import Record
from robustmetric.report import masking
from robustmetric.report.masking import TITLES, checked, flags
from robustmetric.report.masking_flag import (
    MARK,
    attacked_at,
    evidence,
    faults,
    flag,
    masking_block,
    masking_record,
    note,
)
from robustmetric.report.page import write_page
from robustmetric.report.runs import read_runs
from robustmetric.report.tables import summaries
from robustmetric.report.verdict import verdict

SETTINGS = {"suite": "masking", "radius": 8 / 255, "weights": "abcd", "trial": "masking"}
PLACE = {"radius": 0.031373, "images": 200}
BARS = {"across": "", "up": "percent", "lines": {"white-box": [[0.0], [50.0]], "Square": [[1.0], [30.0]]}}
LINES = {"across": "steps", "up": "right", "lines": {"attack": [[1.0, 10.0], [90.0, 20.0]]}, "is_logarithmic": True}


def check(name: str, word: str, curve: dict[str, Any] | None = None, **settings: Any) -> Record:
    notes = {"verdict": word, "said": f"{name} is {word}"} | ({} if curve is None else {"curve": curve})
    return Record("masking", name, {"beaten": 20.0}, {**SETTINGS, **settings}, {}, 200, 1.0, 0, {**CONTEXT, **notes})


def last(word: str, checks: dict[str, str], images: int = 200, **settings: Any) -> Record:
    notes = {**CONTEXT, "verdict": word, "checks": checks}
    return Record("masking", "verdict", {"fail": 1.0}, {**SETTINGS, **settings}, {}, images, 2.0, 0, notes)


def honest(images: int = 200, **settings: Any) -> Record:
    return last("honest", {"steps": "pass"}, images, **settings)


def failing(images: int = 200, **settings: Any) -> Record:
    return last("masked", {"steps": "fail"}, images, **settings)


MASKED = (
    check("gradient_free", "fail", BARS),
    check("steps", "pass", LINES),
    check("randomness", "pass"),
    last("masked", {"gradient_free": "fail", "steps": "pass", "randomness": "pass"}),
)


def test_a_run_has_its_checks_with_words_and_plots(make_run: MakeRun) -> None:
    (found,) = checked(read_runs([make_run("fs", clean(90.0), *MASKED)]))
    assert (found.run, found.verdict, found.radius, found.images) == ("fs", "masked", "8/255", 200)
    assert [one.title for one in found.checks] == [TITLES[name] for name in ("gradient_free", "steps", "randomness")]
    first, second, third = found.checks
    assert first.sign == MARK and first.said == "gradient_free is fail"
    assert first.plot is not None and "Square" in first.plot
    assert second.plot is not None and "steps" in second.plot and third.plot is None


LOSSES = {
    "starts": 4,
    "lines": {
        "cross entropy": {"climbed": [0.0, 0.0, 0.0], "right": [100.0, 100.0, 100.0]},
        "margin": {"climbed": [-9.0, -2.0, 3.0], "right": [100.0, 60.0, 12.5]},
    },
}
STARTS = {"across": "step", "up": "mean margin", "lines": {"start 1": [[0.0, 1.0], [-9.0, -8.0]]}}


def test_losses_are_drawn_side_by_side_and_their_ends_are_told(make_run: MakeRun, tmp_path: Path) -> None:
    one = check("loss_curves", "pass", STARTS)
    with_losses = replace(one, context={**one.context, "losses": LOSSES})
    path = make_run("fs", clean(90.0), with_losses, honest())
    ((found,),) = (each.checks for each in checked(read_runs([path])))
    assert found.plot is not None and found.plot.count("<svg") == 2
    assert "still right, percent" in found.plot and "what was climbed" in found.plot
    told = "percent still right after 2 steps up each loss, mean of 4 random starts: cross entropy 100.0, margin 12.5"
    assert found.note == told
    assert (
        f"loss_curves is pass. Below, no part of the verdict: {told}" in write_page([path], tmp_path / "p").read_text()
    )


def test_a_record_of_before_these_curves_is_drawn_without_them(make_run: MakeRun, tmp_path: Path) -> None:
    path = make_run("fs", clean(90.0), check("loss_curves", "pass", STARTS), honest())
    ((found,),) = (each.checks for each in checked(read_runs([path])))
    assert found.plot is not None and found.plot.count("<svg") == 1 and found.note == ""
    assert "Below, no part of the verdict" not in write_page([path], tmp_path / "p").read_text()


def test_checks_of_other_settings_are_not_mixed(make_run: MakeRun) -> None:
    other = (check("steps", "fail", radius=4 / 255), last("masked", {"steps": "fail"}, radius=4 / 255))
    found = checked(read_runs([make_run("fs", *MASKED, *other)]))
    assert [(one.radius, len(one.checks)) for one in found] == [("8/255", 3), ("4/255", 1)]


def test_the_page_flags_a_masked_run_beside_its_numbers_and_no_other(make_run: MakeRun, tmp_path: Path) -> None:
    passed = (check("steps", "pass", LINES), honest())
    paths = [
        make_run("fs", clean(90.0), shift(60.0, 8 / 255), *MASKED),
        make_run("at", clean(85.0), shift(45.0, 8 / 255), *passed),
    ]
    assert flags(read_runs(paths)) == {"fs": "masked: fails gradient_free"}
    text = write_page(paths, tmp_path / "report").read_text()
    assert text.count(f"{MARK} masked: fails gradient_free") == 1
    assert "Is it real? fs at radius 8/255: masked" in text and "Is it real? at at radius 8/255: honest" in text
    assert "gradient_free is fail" in text
    # Under the name that the flag has, the check is found in the table.
    assert f'{TITLES["gradient_free"]}<small class="name">gradient_free</small>' in text
    said = [verdict(summaries(read_runs(some))[0], read_runs(some)) for some in (paths, paths[1:])]
    assert said[0][-1].startswith(f"{MARK} fs is masked: an attack was seen to be too weak")
    assert not any(MARK in sentence for sentence in said[1])


def doubtful(*names: str, **settings: Any) -> Record:
    return last("unclear", {"randomness": "pass", **dict.fromkeys(names, "unclear")}, **settings)


def headline(*paths: Path) -> list[str]:
    return verdict(summaries(read_runs(list(paths)))[0], read_runs(list(paths)))


def test_the_headline_says_which_checks_are_unclear_and_what_to_trust(make_run: MakeRun, tmp_path: Path) -> None:
    paths = [
        make_run("fs", clean(90.0), shift(60.0, 8 / 255), doubtful("step_size", "hard_label")),
        make_run("at", clean(85.0), shift(45.0, 8 / 255), honest()),
        make_run("trades", clean(85.0), shift(45.0, 8 / 255), doubtful("steps", radius=0.01)),
    ]
    said = headline(*paths)[-1]
    assert said == (
        "It is unclear whether the usual attack is too weak for fs (step_size, hard_label), trades (steps at radius "
        "0.01): what it leaves may be too high a number (below: Is it real?), so trust the worst case of "
        "`robustmetric evaluate RUN auto_rank` at the same radius instead."
    )
    text = write_page(paths, tmp_path / "report").read_text()
    box = text.partition('<div class="verdict">')[2].partition("</div>")[0]
    assert "for fs (step_size, hard_label)" in box and "<code>robustmetric evaluate RUN auto_rank</code>" in box
    assert not any("unclear" in sentence for sentence in headline(paths[1]))
    idle = make_run("idle", clean(90.0), shift(60.0, 8 / 255), last("unclear", {"steps": "not run"}))
    assert "for idle (no check could be run):" in headline(idle)[-1]
    # One that is masked is told of as that.
    masked = make_run("masked", clean(90.0), shift(60.0, 8 / 255), last("masked", {"a": "fail", "b": "unclear"}))
    assert not any("unclear" in sentence for sentence in headline(masked))


def test_of_classifiers_the_worst_case_is_that_of_autoattack_or_of_the_table_itself(make_run: MakeRun) -> None:
    def classifier(folder: str, *more: Record, **settings: Any) -> Path:
        bare = replace(clean(90.0, **settings), scores={"accuracy": 90.0}, intervals={})
        pgd = replace(shift(60.0, 8 / 255), name="PGD", scores={"accuracy": 60.0}, intervals={})
        return make_run(folder, bare, pgd, doubtful("steps"), *more)

    plain, draws = classifier("plain"), classifier("draws", randomised=True)
    worst = replace(shift(40.0, 8 / 255), kind="worst_case", name="worst case", scores={"accuracy": 40.0}, intervals={})
    assert "`robustmetric evaluate RUN autoattack` at" in headline(plain)[-1]
    assert "`robustmetric evaluate RUN autoattack_rand` at" in headline(plain, draws)[-1]
    assert headline(classifier("known", worst))[-1].endswith("trust the worst case of this table instead.")


def test_plots_of_checks_that_did_not_pass_stand_open(make_run: MakeRun, tmp_path: Path) -> None:
    words = {"gradient_free": "fail", "hard_label": "unclear", "steps": "pass"}
    checks = [check(name, word, BARS) for name, word in words.items()]
    text = write_page([make_run("fs", *checks, last("masked", words))], tmp_path / "mixed").read_text()
    shown, _, folded = text.partition("Is it real?")[2].partition("<details><summary>Plots of the other checks")
    folded = folded.partition("</details>")[0]
    assert shown.count("<figure>") == 2 and folded.count("<figure>") == 1
    assert "gradient_free is fail" in shown and "hard_label is unclear" in shown and "steps is pass" in folded
    passed = write_page([make_run("at", check("steps", "pass", BARS), honest())], tmp_path / "passed").read_text()
    assert "<figure>" not in passed.partition("Is it real?")[2].partition("<details><summary>Plots of the checks")[0]
    failed = write_page([make_run("ft", check("steps", "fail", BARS), failing())], tmp_path / "failed").read_text()
    assert "Plots of the" not in failed and "<figure>" in failed.partition("Is it real?")[2]


@pytest.mark.parametrize("curve", [BARS, {**LINES, "up": "right, percent"}])
def test_percent_is_drawn_on_the_whole_scale(
    curve: dict[str, Any], make_run: MakeRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(masking, "to_svg", lambda figure, *words: drawn.append(figure) or Markup(""))
    checked(read_runs([make_run("fs", clean(90.0), check("steps", "pass", curve), honest())]))
    assert drawn[0].axes[0].get_ylim() == (-2, 102)


def test_the_names_of_bars_do_not_run_into_each_other(make_run: MakeRun, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[Figure] = []
    monkeypatch.setattr(masking, "to_svg", lambda figure, *words: drawn.append(figure) or Markup(""))
    names = ["one run", "restarts", "and step sizes", "and losses", "and steps", "and transfer", "and Square"]
    bars = {**BARS, "lines": {name: [[float(place)], [50.0]] for place, name in enumerate(names)}}
    checked(read_runs([make_run("fs", clean(90.0), check("worst_case", "pass", bars), honest())]))
    figure = drawn[0]
    figure.draw_without_rendering()
    boxes = [label.get_window_extent() for label in figure.axes[0].get_xticklabels()]
    assert len(boxes) == 7 and all(one.x1 < other.x0 for one, other in pairwise(boxes))


def test_a_page_without_diagnostics_says_nothing_of_them(make_run: MakeRun, tmp_path: Path) -> None:
    text = write_page([make_run("plain", clean(90.0))], tmp_path / "report").read_text()
    assert "Is it real?" not in text and MARK not in text


def test_a_row_has_the_newest_verdict_on_its_weights() -> None:
    older = last("honest", {"steps": "pass"})
    assert masking_record([older, MASKED[-1]], "abcd" + "0" * 60) == MASKED[-1]
    assert masking_block([older, MASKED[-1]]) == {
        "verdict": "masked",
        "checks": {"gradient_free": "fail", "steps": "pass", "randomness": "pass"},
        "radius": 0.031373,
        "images": 200,
    }
    assert masking_record([MASKED[-1]], "ffff" + "0" * 60) is None
    assert masking_record([older, last("masked", {"steps": "fail"}, radius=16 / 255)], radius=8 / 255) == older
    assert masking_block([clean(90.0)]) is None


def test_a_rerun_at_another_radius_than_the_attacks_takes_no_flag_away(make_run: MakeRun) -> None:
    attack, found = shift(60.0, 0.1), [failing(radius=0.1), honest(300, radius=0.001)]
    assert masking_record(found, attacked=[0.1]) == found[0]
    block = masking_block([attack, *found])
    assert block is not None and (block["verdict"], block["radius"]) == ("masked", 0.1)
    assert flags(read_runs([make_run("fs", attack, *found)])) == {"fs": "masked: fails steps"}
    # Nor is one put on by it.
    assert flag([attack, honest(radius=0.1), failing(300, radius=0.5)]) == ""


def test_a_verdict_at_a_radius_that_no_attack_was_at_tells_it() -> None:
    assert flag([shift(60.0, 0.1), failing(radius=0.05)]) == "masked at radius 0.05: fails steps"
    assert flag([failing()]) == "masked at radius 8/255: fails steps", "of no attack"
    # A masked one stands among those of as many images, whatever came after it.
    assert flag([shift(60.0, 0.1), failing(), honest(radius=0.001)]) == "masked at radius 8/255: fails steps"


def test_the_verdict_on_most_images_counts() -> None:
    assert masking_record([failing(), honest(5, queries=5)]) == failing()
    assert masking_record([honest(), failing(5, queries=5)]) == honest()
    assert masking_record([failing(100), honest(200)]) == honest(200)


def test_of_as_many_images_a_masked_verdict_counts_and_else_the_newest() -> None:
    assert masking_record([failing(), honest(queries=300)]) == failing()
    assert masking_record([honest(queries=300), failing()]) == failing()
    doubt = last("unclear", {"steps": "unclear"})
    assert masking_record([doubt, honest()]) == honest() and masking_record([honest(), doubt]) == doubt


def test_a_flag_is_of_the_newest_weights() -> None:
    again = clean(91.0, weights="ffff")
    assert flag([failing(), again]) == "" and masking_block([failing(), again]) is None
    assert flag([failing(), again, honest(5, weights="ffff")]) == ""
    assert flag([failing(), again], "abcd") == "masked at radius 8/255: fails steps"
    assert flag([honest(weights="ffff"), failing()]) == "masked at radius 8/255: fails steps"


def test_the_radii_of_attacks_are_of_those_that_kept_to_one() -> None:
    loose = shift(10.0, 0.3, clipped=False)
    assert attacked_at([clean(90.0), shift(60.0, 0.1), shift(50.0, 0.2), loose, failing()]) == {0.1, 0.2}


@pytest.mark.parametrize(
    ("block", "words"),
    [
        ({"verdict": "masked"}, "verdict, checks"),
        ({"verdict": "honest", "checks": {}}, "verdict, checks, radius, images"),
        ({**PLACE, "verdict": "honest", "checks": {}, "images": 0}, "masking.images 0 is no number > 0"),
        ({**PLACE, "verdict": "robust", "checks": {}}, "robust"),
        ({**PLACE, "verdict": "honest", "checks": {"steps": "good"}}, "good"),
        ({**PLACE, "verdict": "honest", "checks": {"steps": "fail"}}, "only there"),
        ({**PLACE, "verdict": "masked", "checks": {"steps": "pass"}}, "only there"),
        ({**PLACE, "verdict": "honest", "checks": {}, "said": "all well"}, "masking.said 'all well' is not a sentence"),
        (
            {**PLACE, "verdict": "honest", "checks": {"steps": "pass"}, "said": {"steps": "9"}},
            "masking.said.steps is of",
        ),
    ],
)
def test_a_block_that_is_none_says_why(block: Any, words: str) -> None:
    (fault,) = faults(block)
    assert words in fault


def test_a_masked_row_is_flagged_in_tables_by_what_it_failed() -> None:
    block = masking_block([MASKED[-1]])
    assert faults(block) == []
    assert note({"masking": block}) == f" {MARK} masked (gradient_free)"
    assert note({"masking": {"verdict": "unclear", "checks": {}}}) == "" and note({}) == ""


def test_a_row_says_what_its_checks_found_the_failed_ones_first() -> None:
    told = {"step_size": "50 percent right, 44 at 0.1", "worst_case": "51 percent right, 32 under the worst of all"}
    words = {"restarts": "pass", "step_size": "unclear", "worst_case": "fail"}
    record = last("masked", words)
    block = masking_block([replace(record, context={**record.context, "said": told})])
    assert block is not None and block["said"] == told and faults(block) == []
    assert evidence({"masking": block}) == (
        "worst_case (fails): 51 percent right, 32 under the worst of all; "
        "step_size (unclear): 50 percent right, 44 at 0.1"
    )
    # Rows that were made before do not say.
    older = masking_block([record])
    assert older is not None and "said" not in older and evidence({"masking": older}) == "" and evidence({}) == ""


def test_a_check_that_was_not_run_is_neither_a_pass_nor_a_fault(make_run: MakeRun) -> None:
    words = {"steps": "pass", "black_box": "not run"}
    records = (check("steps", "pass", LINES), check("black_box", "not run"), last("honest", words))
    (found,) = checked(read_runs([make_run("at", clean(90.0), *records)]))
    assert [(one.verdict, one.sign) for one in found.checks] == [("pass", "✓"), ("not run", "-")]
    block = masking_block(records)
    assert block is not None and block["checks"] == words and faults(block) == []


@pytest.mark.parametrize("search", ["tf32", "fp16"])
def test_a_block_says_when_its_attacks_searched_in_less_than_fp32(search: str) -> None:
    sought = masking_block([last("honest", {"steps": "pass"}, search=search)])
    assert sought == {"verdict": "honest", "checks": {"steps": "pass"}, **PLACE, "search": search}
    assert not faults(sought)
    for other in ("fp32", "bf16", None):
        told = f"masking.search {other!r} is not 'tf32' or 'fp16'; it is left out for fp32"
        assert faults({**sought, "search": other}) == [told]
    usual = masking_block([last("honest", {"steps": "pass"})])
    assert usual is not None and "search" not in usual


def test_a_verdict_that_spent_less_takes_no_flag_away() -> None:
    def spending(record: Record, **effort: int) -> Record:
        return replace(record, context={**record.context, "effort": effort})

    full, short = spending(failing(), restarts=5, queries=5000), spending(honest(300), restarts=5, queries=60)
    assert masking_record([full, short]) == full and flag([full, short])
    more = spending(honest(300), restarts=10, queries=5000)
    assert masking_record([full, more]) == more, "it spent as much, on more images"
    assert masking_record([spending(failing(), restarts=1, queries=60), short]) == short
    assert masking_record([short]) == short and masking_record([failing(), short]) == short, "older ones do not say"
