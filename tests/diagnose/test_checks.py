"""Masking checks as functions of what was measured: each by hand, on either side of its threshold."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import pytest
import torch
from torch import Tensor

from robustmetric.diagnose import checks, thresholds
from robustmetric.diagnose.thresholds import Limit
from robustmetric.diagnose.verdict import INFINITE, Verdict, overall
from robustmetric.errors import InputError


def survived(count: int, of: int = 100, first: int = 0) -> Tensor:
    """So many of 100 images, from the `first` on."""
    flags = torch.zeros(of, dtype=torch.bool)
    flags[first : first + count] = True
    return flags


def everything(count: int) -> Tensor:
    return survived(count, of=count)


def words(*verdicts: str) -> Sequence[Verdict]:
    return [Verdict("check", verdict, {}, "") for verdict in verdicts]  # type: ignore[arg-type]  # parametrised


def test_a_limit_is_reached_at_its_number_and_by_nothing_that_is_none() -> None:
    limit = Limit(unclear=4.0, fail=8.0)
    assert [limit.judge(number) for number in (3.9, 4.0, 7.9, 8.0, math.nan)] == [
        "pass",
        "unclear",
        "unclear",
        "fail",
        "unclear",
    ]


def test_one_failure_masks_and_one_doubt_is_a_doubt() -> None:
    assert overall(words("pass", "unclear", "fail")) == "masked"
    assert overall(words("pass", "unclear")) == "unclear"
    assert overall(words("pass", "pass")) == "honest"
    assert overall([]) == overall(words("not run")) == "unclear"
    assert overall(words("pass", "not run")) == "honest" and overall(words("not run", "fail")) == "masked"


@pytest.mark.parametrize(
    "check", [checks.black_box, checks.gradient_free, checks.hard_label], ids=lambda check: check.__name__
)
def test_an_attack_without_gradients_must_not_win_where_gradients_lose(check: Callable[..., Verdict]) -> None:
    # White-box leaves images 0-49; one search leaves 0-40 and 50-99, the other all but image 0.
    others = {"a": survived(41) | survived(50, first=50), "b": survived(99, first=1)}
    # Of the 50 that withstand, 41-49 fall to the first and 0 to the second: 10.
    verdict = check(survived(50), others)
    assert verdict.numbers == pytest.approx({"white-box": 50, "a": 91, "b": 99, "beaten": 10})
    assert verdict.verdict == "fail" and verdict.name == check.__name__
    # Those that the white-box attack has anyway do not count: images 50-99.
    assert check(survived(50), {"a": survived(50)}).verdict == "pass"
    assert check(survived(50), {"a": survived(45)}).verdict == "unclear"


def test_what_was_not_searched_is_not_passed() -> None:
    assert checks.black_box(survived(50), {}).verdict == "not run"


def test_what_does_not_transfer_from_a_model_that_knows_nothing_is_not_passed() -> None:
    stands, falls = survived(100), survived(80)
    verdict = checks.black_box(survived(50), {"noise": stands}, ["noise"])
    assert verdict.verdict == "not run" and verdict.said.startswith("not run: nothing to find on noise")
    assert verdict.numbers == pytest.approx({"white-box": 50, "noise": 100, "beaten": 0})
    # One that has learnt something speaks for itself; and what is found is found, whoever found it.
    assert checks.black_box(survived(50), {"noise": stands, "plain": falls}, ["noise"]).verdict == "pass"
    assert checks.black_box(survived(90), {"noise": falls}, ["noise"]).verdict == "fail"


@pytest.mark.parametrize(("right", "expected"), [(16, True), (17, False)])
def test_chance_reaches_two_standard_deviations(right: int, expected: bool) -> None:
    # 100 images of 10 classes: 10 + 2 sqrt(100 * 0.1 * 0.9) = 16.
    assert thresholds.is_by_chance(right, 100, 0.1) is expected


def test_restarts_by_hand() -> None:
    # 60, 50 and 58 of 100; images 0-49 withstand all: the mean is 56, the gap 6.
    verdict = checks.restarts(torch.stack([survived(60), survived(50), survived(58)]))
    assert verdict.numbers == pytest.approx({"lowest": 50, "max-min": 10, "worst case per image": 50, "gap": 6})
    assert verdict.verdict == "unclear"
    # Runs that agree in number and in nothing else: 50 each, none withstands both.
    assert checks.restarts(torch.stack([survived(50), survived(50, first=50)])).verdict == "fail"
    assert checks.restarts(torch.stack([survived(50), survived(50)])).verdict == "pass"


def test_loss_curves_by_hand() -> None:
    # Two starts, at 0 and 1, end at 3 and 5 after four steps: gains 3 and 4, mean 3.5; ends 2 apart: 2 / 3.5.
    curves = torch.tensor([[0.0, 1.0, 2.0, 3.0, 3.0], [1.0, 2.0, 3.0, 5.0, 5.0]])[:, :, None].expand(-1, -1, 12)
    verdict = checks.loss_curves(curves, everything(12), radius=0.1)
    # At three quarters of the steps (step 3) both had arrived.
    expected = {"spread": 2 / 3.5, "gain": 3.5, "percent gained in the last quarter": 0}
    assert verdict.numbers == pytest.approx(expected) and verdict.verdict == "pass"
    assert verdict.curve is not None and verdict.curve.lines["start 2"] == ([0, 1, 2, 3, 4], [1, 2, 3, 5, 5])


def test_a_climb_that_gains_nothing_ends_nowhere() -> None:
    level = torch.tensor([1.0, 2.0])[:, None, None].expand(2, 5, 12)
    verdict = checks.loss_curves(level, everything(12), radius=0.1)
    assert verdict.verdict == "fail" and verdict.numbers["spread"] == INFINITE
    assert verdict.said == "climbs from 2 random starts gain nothing on 100.0 percent of the images it is right about"
    # Nine of twelve images are level; on three both starts gain 1 and end together.
    rising = torch.linspace(0.0, 1.0, 5)[None, :, None].expand(2, 5, 3)
    verdict = checks.loss_curves(torch.cat([level[:, :, :9], rising], dim=2), everything(12), radius=0.1)
    assert verdict.said == "climbs from 2 random starts gain nothing on 75.0 percent of the images it is right about"
    assert checks.loss_curves(rising, everything(3), radius=0.1).said == "2 random starts end 0 of a climb's gain apart"


def test_loss_curves_are_judged_where_the_model_is_right_without_an_attack() -> None:
    # On 12 images both starts gain 1 and end together; 36 that are wrong lie at the loss's ceiling from the start.
    rising = torch.linspace(0.0, 1.0, 5)[None, :, None].repeat(2, 1, 12)
    values = torch.cat([rising, torch.full((2, 5, 36), 0.02)], dim=2)
    verdict = checks.loss_curves(values, survived(12, of=48), radius=0.1)
    assert verdict.verdict == "pass" and verdict.numbers["gain"] == 1
    assert verdict.curve is not None and verdict.curve.lines["start 1"][1] == pytest.approx([0, 0.25, 0.5, 0.75, 1])
    # Nine right images are too few; of none there is nothing to say; a NaN among the values enters no record.
    assert checks.loss_curves(values, survived(9, of=48), radius=0.1).verdict == "unclear"
    assert checks.loss_curves(values, survived(0, of=48), radius=0.1) == Verdict(
        "loss_curves", "unclear", {}, "the model is right about no image without an attack"
    )
    spoilt = checks.loss_curves(rising * torch.nan, everything(12), radius=0.1)
    assert spoilt.verdict != "pass" and all(map(math.isfinite, spoilt.numbers.values()))
    assert spoilt.curve is None, "there is nothing to draw"
    rising[:, 3, 0] = torch.nan
    rising[:, 4, 1] = torch.inf
    partly = checks.loss_curves(rising, everything(12), radius=0.1)
    assert partly.verdict == "pass" and partly.numbers["gain"] == 1
    assert partly.curve is not None and partly.curve.lines["start 1"][1] == pytest.approx([0, 0.25, 0.5, 0.75, 1])
    endless = checks.loss_curves(torch.full((2, 5, 12), torch.inf).index_fill(1, torch.tensor(0), 0.0), everything(12),
                                 radius=0.1)  # fmt: skip
    assert endless.verdict == "unclear" and all(map(math.isfinite, endless.numbers.values()))
    assert "spread" not in endless.numbers, "0 would say that they end together"
    # One of twelve that comes back from infinity speaks for itself alone.
    most = torch.cat([rising[:, :, 11:], torch.full((2, 5, 11), torch.inf).index_fill(1, torch.tensor(0), 0.0)], dim=2)
    assert checks.loss_curves(most, everything(12), radius=0.1).verdict == "unclear"


def test_gains_that_float32_cannot_tell_from_none_are_no_failure_in_a_tiny_ball() -> None:
    # Two starts, at margins of -4 and -4 + 2^-21, its next number: neither gains anything.
    level = torch.tensor([-4.0, -4.0 + 2.0**-21])[:, None, None].expand(2, 5, 12)
    assert checks.loss_curves(level, everything(12), radius=8 / 255).verdict == "fail", (
        "there a gradient would have led somewhere"
    )
    verdict = checks.loss_curves(level, everything(12), radius=1e-9)
    assert verdict.verdict == "unclear" and verdict.said.endswith("at radius 1e-09 that is below what float32 can tell")
    # Starts 1 apart that each gain 0.01: no rounding.
    told = torch.tensor([0.0, 1.0])[:, None, None] + torch.linspace(0, 0.01, 5)[None, :, None].expand(2, 5, 12)
    assert checks.loss_curves(told, everything(12), radius=1e-9).verdict == "fail"


def test_the_radius_sweep_must_fall_to_chance() -> None:
    radii = [0.1, 0.2, 0.5]
    assert checks.radius_sweep(radii, [60.0, 30.0, 10.0], chance=10.0, images=200).verdict == "pass"
    assert checks.radius_sweep(radii, [60.0, 30.0, 16.0], chance=10.0, images=200).verdict == "unclear"
    verdict = checks.radius_sweep(radii, [90.0, 88.0, 85.0], chance=10.0, images=200)
    assert verdict.verdict == "fail" and verdict.numbers["at the largest radius"] == 85
    # From 20 up to 30 and down to 5: a rise of 10, though the end is good.
    rising = checks.radius_sweep(radii, [20.0, 30.0, 5.0], chance=10.0, images=200)
    assert rising.verdict == "fail" and rising.numbers["largest rise"] == 10


def test_steps_are_compared_from_a_tenth_on_but_never_below_the_usual_ones() -> None:
    counts, scores = [1, 10, 20, 100, 1000], [90.0, 70.0, 60.0, 50.0, 49.0]
    # A tenth of 1000 steps left 50, all left 49.
    assert checks.steps(counts, scores, usual=20, images=200).numbers == {"after 100": 50, "after 1000": 49, "late": 1}
    # A tenth of 100 is 10, fewer than the usual 20: 60 - 50.
    verdict = checks.steps(counts[:4], scores[:4], usual=20, images=200)
    assert verdict.numbers["late"] == 10 and verdict.verdict == "fail"


def test_zero_gradients_by_hand() -> None:
    gradients = torch.zeros(20, 1, 2, 2)
    gradients[2:, 0, 0, 0] = 0.5
    verdict = checks.zero_gradients(gradients, everything(20), everything(20))
    # 2 of 20 images have none; 18 of 80 pixels have some.
    assert verdict.numbers["images without gradient"] == pytest.approx(10) and verdict.verdict == "fail"
    assert verdict.numbers["pixels without gradient"] == pytest.approx(100 * 62 / 80)
    assert checks.zero_gradients(gradients[2:], everything(18), everything(18)).verdict == "pass"


def test_images_that_fall_without_a_gradient_hide_nothing() -> None:
    gradients, stands = torch.zeros(20, 1, 2, 2), everything(20)
    gradients[4:] = 0.5
    assert checks.zero_gradients(gradients, stands, everything(20)).numbers["of them standing"] == pytest.approx(20)
    # Of the four without a gradient, three fall: 1 of 20 is 5 percent. Then all four.
    stands[:3] = False
    verdict = checks.zero_gradients(gradients, stands, everything(20))
    assert verdict.numbers["of them standing"] == pytest.approx(5) and verdict.verdict == "unclear"
    assert verdict.said == "20.0 percent of the images are right and have no gradient, 5.0 withstand the attack so"
    stands[3] = False
    verdict = checks.zero_gradients(gradients, stands, everything(20))
    assert verdict.numbers["of them standing"] == 0 and verdict.verdict == "unclear"


def test_images_that_are_wrong_anyway_need_no_gradient() -> None:
    gradients, stands = torch.zeros(40, 1, 2, 2), everything(40)
    gradients[:20] = 0.5
    verdict = checks.zero_gradients(gradients, stands, survived(20, of=40))
    assert verdict.verdict == "pass" and verdict.numbers["images without gradient"] == 0
    # Of 24 right ones 4 have none: a tenth of all 40.
    verdict = checks.zero_gradients(gradients, stands, survived(24, of=40))
    assert verdict.numbers["of them standing"] == pytest.approx(10) and verdict.verdict == "fail"
    assert checks.zero_gradients(gradients, stands, survived(0, of=40)).verdict == "unclear"


def test_one_measurement_alone_is_compared_with_nothing_and_is_no_pass() -> None:
    alone = [
        checks.restarts(survived(50)[None]),
        checks.loss_curves(torch.rand(1, 5, 12), everything(12), radius=0.1),
        checks.steps([10], [50.0], usual=10, images=200),
        checks.step_size([0.1], [50.0], usual=0, images=200),
    ]
    assert {verdict.name for verdict in alone} == {"restarts", "loss_curves", "steps", "step_size"}
    for verdict in alone:
        assert verdict.verdict == "not run" and verdict.said.endswith("a single one has nothing to be compared with")
    assert checks.step_size([0.1, 0.1], [50.0, 50.0], usual=0, images=200) == alone[-1], "twice the same"


def test_steps_that_end_at_the_usual_ones_are_compared_with_nothing() -> None:
    # A climb of the usual 20 steps, or more, is where the comparison begins: 20 with 20 would always pass.
    for usual in (20, 50):
        verdict = checks.steps([1, 5, 20], [90.0, 60.0, 20.0], usual=usual, images=200)
        assert verdict.verdict == "not run" and not verdict.numbers
        assert verdict.said == f"not run: none of 1, 5, 20 is more than the usual {usual} steps"
    assert checks.steps([1, 5, 20], [90.0, 60.0, 20.0], usual=19, images=200).verdict == "fail"


def test_of_a_model_that_is_right_by_chance_the_worst_case_says_nothing_good() -> None:
    assert checks.worst_case(survived(5)[None], {}).verdict == "pass"
    verdict = checks.worst_case(survived(5)[None], {}, is_by_chance=True)
    assert verdict.verdict == "unclear" and verdict.said.endswith("it is right no more often than by chance")
    # What falls is hidden all the same.
    assert checks.worst_case(survived(50)[None], {"a": survived(5)}, is_by_chance=True).verdict == "fail"


def test_a_gradient_that_is_not_a_number_is_none_and_enters_no_record() -> None:
    gradients = torch.full((20, 1, 2, 2), 0.5)
    gradients[:3, 0, 0, 0] = torch.nan
    gradients[3, 0, 0, 0] = -torch.inf
    verdict = checks.zero_gradients(gradients, everything(20), everything(20))
    assert verdict.numbers["images with NaN"] == pytest.approx(15)
    assert verdict.numbers["images without gradient"] == pytest.approx(15) and verdict.verdict == "fail"
    assert "15.0 a gradient that holds NaN" in verdict.said
    assert verdict.curve is not None
    _, ranked = verdict.curve.lines["images"]
    assert ranked == [0.0] * 3 + [0.5] * 16 + [INFINITE]


def test_losses_are_compared_per_image() -> None:
    # The usual one leaves 0-59; the margin leaves 10-69: both leave 50.
    verdict = checks.loss_against_margin("usual", {"usual": survived(60), "margin": survived(60, first=10)})
    assert verdict.numbers == pytest.approx({"usual": 60, "margin": 60, "all": 50, "gap": 10})
    assert verdict.verdict == "fail"


def test_step_sizes_by_hand() -> None:
    verdict = checks.step_size([0.1, 0.2, 0.4], [70.0, 60.0, 53.0], usual=1, images=200)
    assert verdict.numbers == pytest.approx({"usual": 60, "best": 53, "best size": 0.4, "gap": 7})
    assert verdict.verdict == "unclear"


@pytest.mark.parametrize(("has_features", "word"), [(True, "unclear"), (False, "not run")])
def test_planted_examples_must_be_found_where_chance_does_not(has_features: bool, word: str) -> None:
    judge = partial(checks.binarisation, has_features=has_features)
    assert judge(survived(95), survived(5)).verdict == "pass"
    assert judge(survived(59), survived(5)).verdict == "fail"
    # Chance finds most of them: finding them is nothing to be proud of ...
    easy = judge(survived(95), survived(60))
    assert easy.verdict == word and easy.numbers["found by chance"] == 60 and "random points find 60.0" in easy.said
    # ... but to find fewer than chance is telling.
    assert judge(survived(0), survived(60)).verdict == "fail"
    assert judge(survived(0, of=0), survived(0, of=0)).verdict == "unclear"


def test_a_randomised_model_is_said_to_be_one_and_never_passes() -> None:
    assert checks.randomness(0.0, images=200).verdict == "pass"
    assert checks.randomness(0.3, images=200).verdict == "unclear"
    verdict = checks.randomness(0.3, survived(60).double(), survived(58).double()[None], images=200)
    assert verdict.verdict == "unclear" and "randomised" in verdict.said
    assert checks.randomness(0.3, survived(60).double(), survived(40).double()[None], images=200).verdict == "fail"


def test_of_a_randomised_model_the_best_attack_counts_as_a_whole() -> None:
    # 60 of 100 images always right; then half of the answers right about all, and 90 percent about the first 50.
    single = survived(60).double()
    averaged = torch.stack([torch.full((100,), 0.5), torch.where(torch.arange(100) < 50, 0.9, 0.0)]).double()
    verdict = checks.randomness(0.3, single, averaged, images=200)
    assert verdict.numbers == pytest.approx({"apart": 0.3, "single draws": 60, "mean of draws": 45, "gap": 15})
    assert verdict.verdict == "fail" and "the best of 2 on their mean" in verdict.said


def test_asking_a_coin_again_wins_nothing() -> None:
    """Answers that are right by chance: the worst of many per image is far lower, the best attack is not."""
    coins = torch.rand(5, 400, 25, generator=torch.Generator().manual_seed(0)) < 0.6
    shares = coins.double().mean(dim=2)
    assert 100 * float(shares[0].mean() - shares.amin(dim=0).mean()) > 10
    assert checks.randomness(0.3, shares[0], shares[1:], images=200).verdict == "unclear"


def test_the_worst_case_adds_up_what_no_attack_wins_alone() -> None:
    runs = torch.stack([survived(60), survived(58, first=2)])
    # Runs leave 60 and 58, 59 in the mean; both leave 2-59. The search takes 2-5 (54 left), the other loss 56-59 (50).
    others = {"Square": survived(60, first=6), "losses": survived(56)}
    verdict = checks.worst_case(runs, others)
    expected = {"one run": 59, "restarts": 58, "and Square": 54, "and losses": 50, "gap": 9}
    assert verdict.numbers == expected and verdict.verdict == "unclear"
    # RayS takes 53-55 as well: 47 left.
    assert checks.worst_case(runs, {**others, "RayS": survived(53)}).numbers["gap"] == 12
    assert checks.worst_case(runs, {**others, "RayS": survived(53)}).verdict == "fail"
    assert checks.worst_case(runs, {}).verdict == "pass"


def test_the_worst_case_does_not_hang_on_the_order_of_attacks() -> None:
    runs, others = survived(60)[None], {"a": survived(60, first=3), "b": survived(50)}
    turned = checks.worst_case(runs, dict(reversed(others.items())))
    assert checks.worst_case(runs, others).numbers["gap"] == turned.numbers["gap"] == 13


@pytest.mark.parametrize("right", range(10, 101))
def test_ten_images_of_a_hundred_are_ten_points(right: int) -> None:
    by_loss = {"usual": survived(right), "margin": survived(right - 10)}
    assert checks.loss_against_margin("usual", by_loss).verdict == "fail"


@pytest.mark.parametrize("images", [60, 100, 300, 540])
def test_a_tenth_of_any_number_of_images_is_ten_points(images: int) -> None:
    tenth = images // 10
    for right in range(tenth, images - tenth + 1):
        # 0 to right - 1, and as many from `tenth` on: right - tenth withstand both runs.
        runs = torch.arange(images)[None] < torch.tensor([[right], [right + tenth]])
        runs[1, :tenth] = False
        less = torch.arange(images) < right - tenth
        assert checks.restarts(runs).verdict == "fail"
        assert checks.loss_against_margin("usual", {"usual": runs[0], "margin": less}).verdict == "fail"
        assert (
            checks.steps([20, 100, 1000], [100.0, *_percents(runs[0], less)], usual=20, images=images).verdict == "fail"
        )


def _percents(*found: Tensor) -> list[float]:
    return [100 * int(flags.sum()) / len(flags) for flags in found]


def test_scores_without_settings_are_refused() -> None:
    with pytest.raises(InputError, match="expected as many"):
        checks.step_size([0.1], [50.0, 40.0], usual=0, images=200)
    with pytest.raises(InputError, match="at least one"):
        checks.radius_sweep([], [], chance=10.0, images=200)


def test_every_limit_has_room_for_doubt() -> None:
    limits = [limit for limit in vars(thresholds).values() if isinstance(limit, Limit)]
    assert len(limits) == 12 and all(0 < limit.unclear < limit.fail for limit in limits)
