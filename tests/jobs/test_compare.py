"""Two runs compared query by query: means, intervals, and what cannot be compared."""

import json
from pathlib import Path

import pytest
import torch

from commands import Command
from robustmetric import records
from robustmetric.errors import InputError
from robustmetric.jobs.compare import ALIKE, compare, masked
from robustmetric.jobs.ers import Store
from robustmetric.metrics.robustness import SUB_SCORES, ers, ers_per_query
from robustmetric.records import Record
from robustmetric.report.turns import CAPTION

SETTINGS = {"suite": "ers224", "queries": 4, "batch": 3, "data_fingerprint": "f"}


def write(
    folder: Path, values: dict[str, list[float]], name: str = "clean", weights: str = "w", **more: object
) -> None:
    """One record of a run and its scores per query."""
    kind = "clean" if name == "clean" else "attack"
    tensors = {score: torch.tensor(row) for score, row in values.items()}
    count = len(next(iter(tensors.values())))
    scores = {score: float(row.mean()) for score, row in tensors.items()}
    record = Record(kind, name, scores, {**SETTINGS, "weights": weights, **more}, count=count)
    records.append(folder / "results.jsonl", record)
    Store(folder / "queries").keep(record, tensors)


def test_a_difference_is_second_minus_first_with_a_paired_interval(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    # Every query gains 10 whatever it is: unpaired, the spread of 0 to 60 would hide it.
    write(one, {"R@1": [0.0, 20.0, 40.0, 60.0]})
    write(other, {"R@1": [10.0, 30.0, 50.0, 70.0]}, weights="v")
    (found,) = compare(one, other)
    assert (found.name, found.mode, found.first, found.second, found.count) == ("R@1", "", 30.0, 40.0, 4)
    assert found.interval == pytest.approx((10.0, 10.0)) and found.is_clear
    (back,) = compare(other, one)
    assert back.interval == pytest.approx((-10.0, -10.0)) and back.is_clear


def test_a_difference_that_may_be_none_is_not_clear(tmp_path: Path) -> None:
    write(tmp_path / "one", {"R@1": [0.0, 0.0, 100.0, 100.0]})
    write(tmp_path / "other", {"R@1": [100.0, 0.0, 0.0, 100.0]})
    (found,) = compare(tmp_path / "one", tmp_path / "other")
    assert found.interval[0] < 0 < found.interval[1] and not found.is_clear


def test_compat_weighs_queries_as_its_means_do(tmp_path: Path) -> None:
    # Batches of 3 and 1: the last query weighs as much as the three before it.
    write(tmp_path / "one", {"TMA": [0.0] * 4}, name="TMA", mode="compat", attack="TMA()")
    write(tmp_path / "other", {"TMA": [0.0, 0.0, 0.0, 1.0]}, name="TMA", mode="compat", attack="TMA()")
    (found,) = compare(tmp_path / "one", tmp_path / "other")
    # Drawn twice of four: 2/(2 + 2/3) = 0.75; unweighted it would be 0.5.
    assert found.mode == "compat" and found.interval[1] >= 0.75


def test_ers_is_compared_through_its_ten_scores(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "other")]
    rows: list[torch.Tensor] = []
    for place, folder in enumerate(folders):
        ten = {name: torch.rand(4, generator=torch.Generator().manual_seed(place)) for name in SUB_SCORES}
        for name, row in ten.items():
            write(folder, {name: row.tolist()}, name=name, weights=str(place), attack=f"{name}()", mode="fixed")
        scores = {name: float(row.mean()) for name, row in ten.items()}
        settings = {**SETTINGS, "weights": str(place), "mode": "fixed", "attacks": [f"{name}()" for name in ten]}
        records.append(
            folder / "results.jsonl", Record("ers", "ERS", {"ERS": ers(scores), **scores}, settings, count=4)
        )
        rows.append(ers_per_query(ten))
    found = {one.name: one for one in compare(*folders)}
    assert set(found) == {*SUB_SCORES, "ERS"}
    low, high = found["ERS"].interval
    gain = float((rows[1] - rows[0]).mean())
    assert low <= gain <= high and found["ERS"].second - found["ERS"].first == pytest.approx(gain, abs=1e-4)


@pytest.mark.parametrize("change", [{"queries": 5}, {"data_fingerprint": "g"}, {"suite": "demo"}])
def test_other_questions_are_not_compared(tmp_path: Path, change: dict[str, object]) -> None:
    write(tmp_path / "one", {"R@1": [0.0] * 4})
    write(tmp_path / "other", {"R@1": [0.0] * 4}, **change)
    with pytest.raises(InputError, match="have no measurement in common; evaluate both with the same suite"):
        compare(tmp_path / "one", tmp_path / "other")


@pytest.mark.parametrize(
    ("score", "after", "verdict"),
    [
        ("GTM", 90.0, "better"),
        ("GTM", 10.0, "worse"),
        ("CA-", 90.0, "worse"),  # a top image is pushed further down
        ("ES:D", 0.1, "better"),  # the embedding is moved less far
        ("GTM", 50.0, "not clear"),
        ("mystery", 90.0, ""),
    ],
)
def test_whether_the_second_is_better_depends_on_the_score(
    score: str, after: float, verdict: str, tmp_path: Path
) -> None:
    write(tmp_path / "one", {score: [50.0] * 4}, name="attack")
    write(tmp_path / "other", {score: [after] * 4}, name="attack", weights="v")
    (found,) = compare(tmp_path / "one", tmp_path / "other")
    assert found.verdict == verdict


def test_an_attack_that_leaves_r1_is_judged_by_r1(tmp_path: Path) -> None:
    write(tmp_path / "one", {"R@1": [50.0] * 4}, name="LTM 2")
    write(tmp_path / "other", {"R@1": [10.0] * 4}, name="LTM 2", weights="v")
    (found,) = compare(tmp_path / "one", tmp_path / "other")
    assert (found.name, found.verdict) == ("LTM 2 R@1", "worse")


def test_without_scores_per_query_there_is_no_interval(tmp_path: Path) -> None:
    for name in ("one", "other"):
        write(tmp_path / name, {"R@1": [0.0] * 4})
    next((tmp_path / "one" / "queries").iterdir()).unlink()
    with pytest.raises(InputError, match="lack scores per query"):
        compare(tmp_path / "one", tmp_path / "other")


def test_the_newest_record_of_a_work_counts(tmp_path: Path) -> None:
    write(tmp_path / "one", {"R@1": [0.0] * 4})
    write(tmp_path / "one", {"R@1": [50.0] * 4})
    write(tmp_path / "other", {"R@1": [50.0] * 4}, weights="v")
    (found,) = compare(tmp_path / "one", tmp_path / "other")
    assert found.first == found.second == 50.0 and found.interval == (0.0, 0.0)


def test_only_the_newest_weights_of_a_run_are_compared(tmp_path: Path) -> None:
    write(tmp_path / "one", {"R@1": [0.0] * 4}, weights="old")
    write(tmp_path / "one", {"R@1": [50.0] * 4}, weights="new")
    write(tmp_path / "other", {"R@1": [60.0] * 4}, weights="else")
    (found,) = compare(tmp_path / "one", tmp_path / "other")
    assert (found.first, found.second) == (50.0, 60.0)


def test_one_attack_at_two_radii_is_told_apart(tmp_path: Path) -> None:
    for name in ("one", "other"):
        for radius in (4 / 255, 8 / 255):
            write(tmp_path / name, {"ES:R": [radius] * 4}, name="ES", radius=radius, mode="fixed")
    assert [one.title for one in compare(tmp_path / "one", tmp_path / "other")] == ["ES:R at 4/255", "ES:R at 8/255"]


def test_the_command_shows_a_line_per_score(tmp_path: Path, command: Command) -> None:
    write(tmp_path / "one", {"R@1": [0.0, 20.0, 40.0, 60.0], "mAP": [0.0, 1.0, 0.0, 1.0]})
    write(tmp_path / "other", {"R@1": [10.0, 30.0, 50.0, 70.0], "mAP": [1.0, 0.0, 0.0, 1.0]}, weights="v")
    shown = command("compare", "one", "other").out.splitlines()
    assert shown[0].startswith("first: one   second: other") and "4 queries, paired" in shown[1] and len(shown) == 4
    assert shown[2].split()[:4] == ["R@1", "30", "40", "+10"] and shown[2].endswith("better")
    assert shown[3].endswith("not clear")
    lines = [json.loads(line) for line in command("compare", "one", "other", "--json").out.splitlines()]
    assert [(line["name"], line["is_clear"]) for line in lines] == [("R@1", True), ("mAP", False)]
    assert "does not exist" in command("compare", "one", "gone").error


def test_the_command_says_how_many_queries_its_lines_are_of(tmp_path: Path, command: Command) -> None:
    for name, weights in (("one", "w"), ("other", "v")):
        write(tmp_path / name, {"R@1": [0.0, 100.0, 0.0, 0.0]}, weights=weights)
    assert command("compare", "one", "other").out.splitlines()[1].endswith("95 % of 4 queries, paired")
    for name, weights in (("one", "w"), ("other", "v")):
        write(tmp_path / name, {"R@1": [0.0, 100.0]}, weights=weights, suite="local_search", queries=2)
    assert command("compare", "one", "other").out.splitlines()[1].endswith("95 % of 2 to 4 queries, paired")


def test_runs_alike_on_every_query_claim_no_certainty(tmp_path: Path, command: Command) -> None:
    write(tmp_path / "one", {"R@1": [0.0, 100.0, 0.0, 0.0], "mAP": [1.0, 2.0, 3.0, 4.0]})
    write(tmp_path / "other", {"R@1": [0.0, 100.0, 0.0, 0.0], "mAP": [1.0, 2.0, 3.0, 4.0]}, weights="v")
    shown = command("compare", "one", "other").out.splitlines()
    # 1 - 0.025^(1/4) = 0.6024 of all queries may be won, as many lost.
    assert shown[2].endswith("-60.24 to +60.24   not clear")
    assert shown[3].endswith("+0 to +0   not clear") and shown[4:] == [ALIKE]
    write(tmp_path / "third", {"R@1": [0.0, 100.0, 0.0, 0.0]}, weights="u")
    assert ALIKE not in command("compare", "one", "third").out


def test_runs_that_differ_alike_on_every_query_claim_no_certainty(tmp_path: Path, command: Command) -> None:
    for count, shown in ((4, "-20.47 to +100   not clear"), (8, "+26.12 to +100   better")):
        write(tmp_path / f"one{count}", {"R@1": [0.0] * count})
        write(tmp_path / f"other{count}", {"R@1": [100.0] * count}, weights="v")
        assert command("compare", f"one{count}", f"other{count}").out.splitlines()[2].endswith(shown)


def judge(folder: Path, word: str, weights: str = "w", radius: float = 0.1, images: int = 200) -> None:
    """A verdict on masking among the records of a run."""
    checks = {"steps": "fail", "restarts": "pass", "hard_label": "fail"} if word == "masked" else {"steps": "pass"}
    settings = {"suite": "masking", "radius": radius, "weights": weights, "images": images}
    notes = {"verdict": word, "checks": checks}
    records.append(folder / "results.jsonl", Record("masking", "verdict", {}, settings, count=images, context=notes))


def test_a_collapsed_run_is_told_under_the_table(tmp_path: Path, command: Command) -> None:
    """Training says so once; who compares the run days later would read its scores as a model's."""
    for name, weights in (("one", "w"), ("other", "v")):
        write(tmp_path / name, {"R@1": [0.0, 100.0, 0.0, 0.0]}, weights=weights)
    assert "collapsed" not in command("compare", "one", "other").out
    facts = {"collapsed": True, "collapse": "R@1 25.0 at chance (25.3)"}
    (tmp_path / "other" / "run.json").write_text(json.dumps(facts))
    assert command("compare", "one", "other").out.splitlines()[-1] == (
        "⚑ other has collapsed (R@1 25.0 at chance (25.3)): its search is no better than chance, and none of its "
        "scores counts, however good"
    )
    line = json.loads(command("compare", "one", "other", "--json").out.splitlines()[0])
    assert list(line["collapsed"]) == ["other"] and line["collapsed"]["other"].startswith("has collapsed")


def test_a_masked_run_is_told_under_the_table(tmp_path: Path, command: Command) -> None:
    for name, value, weights in (("one", 0.0, "w"), ("other", 50.0, "v")):
        write(tmp_path / name, {"R@1": [value] * 4}, weights=weights)
        write(tmp_path / name, {"ES:R": [value] * 4}, name="ES", radius=0.1, weights=weights)
    judge(tmp_path / "one", "honest")
    judge(tmp_path / "other", "masked", "v")
    judge(tmp_path / "other", "honest", "v", images=5)
    shown = command("compare", "one", "other").out.splitlines()
    assert shown[-2].endswith("better") and shown[-1] == "⚑ other is masked: fails steps, hard_label"
    assert len(shown) == 5, "an honest run needs no line"
    lines = [json.loads(line) for line in command("compare", "one", "other", "--json").out.splitlines()]
    assert [line["masked"] for line in lines] == [{"other": "masked: fails steps, hard_label"}] * 2
    judge(tmp_path / "one", "masked", radius=0.2, images=300)
    assert masked(tmp_path / "one") == {}, "at another radius than the attacks"


def test_a_verdict_on_older_weights_than_those_compared_is_not_told(tmp_path: Path) -> None:
    write(tmp_path / "one", {"R@1": [0.0] * 4}, weights="old")
    judge(tmp_path / "one", "masked", "old")
    assert masked(tmp_path / "one") == {tmp_path / "one": "masked at radius 0.1: fails steps, hard_label"}
    write(tmp_path / "one", {"R@1": [50.0] * 4}, weights="new")
    assert masked(tmp_path / "one") == {}


def test_an_attack_without_a_bound_is_compared_at_no_radius(tmp_path: Path) -> None:
    for folder in ("one", "other"):
        write(tmp_path / folder, {"R@1": [0.0, 100.0]}, name="LS", radius=8 / 255, clipped=False)
        write(tmp_path / folder, {"R@1": [0.0, 100.0]}, name="LS", radius=8 / 255, clipped=True)
    found = compare(tmp_path / "one", tmp_path / "other")
    assert [difference.title for difference in found] == ["LS without a bound R@1", "LS R@1 at 8/255"]


def test_attacks_in_turn_are_told_from_independent_ones(tmp_path: Path, command: Command) -> None:
    for folder, weights in (("one", "w"), ("other", "v")):
        for name, standing in {"APGD": 4, "FAB": 2, "Square": None}.items():
            turn = {} if standing is None else {"standing": standing, "standing_rows": weights}
            write(tmp_path / folder, {"accuracy": [0.0, 100.0]}, name=name, weights=weights, radius=0.1, **turn)
    found = compare(tmp_path / "one", tmp_path / "other")
    assert [one.title for one in found] == [
        "APGD accuracy at 0.1",
        "then FAB accuracy at 0.1",
        "Square accuracy at 0.1",
    ]
    assert [(one.name, one.is_after) for one in found][1] == ("FAB accuracy", True)
    assert command("compare", "one", "other").out.splitlines()[-1] == CAPTION
    lines = [json.loads(line) for line in command("compare", "one", "other", "--json").out.splitlines()]
    assert [line["is_after"] for line in lines] == [False, True, False]


def test_what_is_left_in_turn_is_not_compared_with_what_is_left_of_all(tmp_path: Path) -> None:
    for folder, turn in (("one", {"standing": 1}), ("other", {})):
        write(tmp_path / folder, {"accuracy": [0.0, 100.0]}, name="FAB", radius=0.1, **turn)
    with pytest.raises(InputError, match="no measurement in common"):
        compare(tmp_path / "one", tmp_path / "other")
