"""Goals of hardness manipulation, worked by hand at losses 0, 0.05, 0.1, 0.2 and 2."""

import inspect
import math
from typing import Any

import pytest
import torch
from small import seeded
from torch import Tensor, nn

from robustmetric.defences.destinations import Between, Boosted, Destination, Fixed, Gradual, Mined, Moment
from robustmetric.errors import InputError
from robustmetric.losses.mining import Hardest, Random, SemiHard
from robustmetric.losses.triplet import hardness
from robustmetric.types import Triplets

LOSSES = [0.0, 0.05, 0.1, 0.2, 2.0]
LINE = torch.tensor([[0.0], [1.0], [3.0], [3.5]])
LABELS = torch.tensor([0, 0, 1, 1])
# Anchor 0 has its positive at 1, negatives at 3 and 3.5; anchor 3 has its positive at 3.5, negatives at 0 and 1.
NEAREST = [1 - 3, 0.5 - 2]
FARTHEST = [1 - 3.5, 0.5 - 3]


def farthest(embeddings: Tensor, labels: Tensor, generator: torch.Generator | None = None) -> Triplets:
    """A miner of one's own, for `LINE` alone."""
    return Triplets(torch.tensor([0, 2]), torch.tensor([1, 3]), torch.tensor([3, 0]))


def at(*losses: float, groups: int = 1) -> Moment:
    """The clean batch on a line, after these losses."""
    return Moment(LINE, LABELS, torch.tensor(losses), groups)


def goals(destination: Destination) -> list[float]:
    """Of the first triplet, at each of the losses."""
    return [destination(at(loss, loss))[0].item() for loss in LOSSES]


def test_the_linear_gradual_adversary() -> None:
    # -0.2 * loss / 0.2, the loss cut at 0.2.
    assert goals(Gradual()) == pytest.approx([0, -0.05, -0.1, -0.2, -0.2])


def test_the_quadratic_gradual_adversary_is_more_eager() -> None:
    # -0.2 * (1/4)^2 = -0.0125, -0.2 * (1/2)^2 = -0.05.
    assert goals(Gradual(power=2.0)) == pytest.approx([0, -0.0125, -0.05, -0.2, -0.2])


def test_the_root_gradual_adversary_is_more_careful() -> None:
    # -0.2 * sqrt(1/4) = -0.1, -0.2 * sqrt(1/2) = -0.141421.
    assert goals(Gradual(power=0.5)) == pytest.approx([0, -0.1, -0.1414214, -0.2, -0.2])


def test_a_cap_of_the_largest_loss_makes_a_stronger_adversary() -> None:
    # -0.2 * loss / 2.2 = -loss / 11.
    assert goals(Gradual(cap=2.2)) == pytest.approx([0, -0.05 / 11, -0.1 / 11, -0.2 / 11, -2 / 11])


def test_margin_is_both_depth_and_default_cap() -> None:
    assert goals(Gradual(margin=0.1)) == pytest.approx([0, -0.05, -0.1, -0.1, -0.1])


def test_the_boosted_goal_rises_by_xi_as_the_loss_falls() -> None:
    # -2 + 0.1 * (1 - loss / 0.2): 0.05 -> -2 + 0.075.
    assert goals(Boosted(Hardest())) == pytest.approx([-1.9, -1.925, -1.95, -2, -2])
    assert goals(Boosted(Hardest(), boost=0.4, cap=2.0)) == pytest.approx([-1.6, -1.61, -1.62, -1.64, -2])


@pytest.mark.parametrize("value", [0.0, -0.1, -0.2, 2.0])
def test_a_fixed_goal_does_not_look_at_the_loss(value: float) -> None:
    assert goals(Fixed(value)) == pytest.approx([value] * 5)


def test_a_mined_goal_is_the_hardness_of_the_miners_triplets() -> None:
    assert Mined(Hardest())(at(0.0, 0.0)).tolist() == NEAREST
    assert Mined(farthest)(at(0.0, 0.0)).tolist() == FARTHEST


def test_a_goal_between_two_miners() -> None:
    # A quarter of the way from the farthest to the nearest: -2.5 + 0.25 * 0.5, -2.5 + 0.25 * 1.
    quarter = Between(farthest, Hardest(), share=0.25)
    assert quarter(at(0.0, 0.0)).tolist() == pytest.approx([-2.375, -2.25])
    assert Between(farthest, Hardest(), share=0.0)(at(0.0, 0.0)).tolist() == FARTHEST
    assert Between(farthest, Hardest(), share=1.0)(at(0.0, 0.0)).tolist() == NEAREST


def test_each_triplet_has_the_loss_of_its_own_group() -> None:
    assert Gradual()(at(0.05, 2.0)).tolist() == pytest.approx([-0.05, -0.2])


def test_a_miner_is_asked_group_by_group() -> None:
    # One pair a group has no negatives: the only rows there are the anchor and its positive, H = 0 or 1 (0.5).
    goal = Mined(Hardest())(at(0.0, 0.0, groups=2)).tolist()
    assert goal[0] in (0, 1) and goal[1] in (0, 0.5)


def test_a_level_is_a_share_of_its_cap() -> None:
    assert at(-0.1, 0.05, 0.2, 9.0).level(0.2).tolist() == pytest.approx([0, 0.25, 1, 1])


def test_goals_follow_the_generator() -> None:
    z = nn.functional.normalize(torch.randn(40, 8, generator=seeded()), dim=1)
    labels = torch.arange(20).repeat_interleave(2)

    def goal(seed: int) -> Tensor:
        return Mined(Random())(Moment(z, labels, torch.zeros(20), generator=seeded(seed)))

    assert torch.equal(goal(1), goal(1)) and not torch.equal(goal(1), goal(2))
    triplets = Random()(z, labels, seeded(1))
    torch.testing.assert_close(goal(1), hardness(*triplets.of(z)))


def make(kind: type[Destination], **settings: Any) -> Destination:
    """Unwrapped: the type checker that runs in tests only would refuse the value first."""
    new = kind.__new__(kind)
    inspect.unwrap(kind.__init__)(new, **settings)
    return new


@pytest.mark.parametrize("name", ["margin", "cap", "power"])
@pytest.mark.parametrize("value", [0.0, -0.2, math.nan, math.inf])
def test_a_gradual_adversary_without_a_way_to_go_is_refused(name: str, value: float) -> None:
    with pytest.raises(InputError, match="expected a finite number > 0"):
        Gradual(**{name: value})


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_goals_that_are_no_numbers_are_refused(value: float) -> None:
    for make_one in (
        lambda: Fixed(value),
        lambda: Boosted(Random(), boost=value),
        lambda: Between(Random(), Hardest(), share=value),
    ):
        with pytest.raises(InputError, match="gives no goal; expected a finite number"):
            make_one()


def test_a_cap_of_zero_is_refused_where_it_would_divide() -> None:
    with pytest.raises(InputError, match=r"cap 0.0 gives no goal; expected a finite number > 0"):
        Boosted(Random(), cap=0.0)


@pytest.mark.parametrize(
    ("kind", "settings", "role"),
    [
        (Mined, {"miner": "semihard"}, "miner"),
        (Boosted, {"miner": "semihard"}, "miner"),
        (Between, {"start": "semihard", "end": SemiHard()}, "start"),
        (Between, {"start": SemiHard(), "end": "semihard"}, "end"),
    ],
)
def test_a_word_where_a_miner_belongs_is_refused(kind: type[Destination], settings: dict[str, Any], role: str) -> None:
    with pytest.raises(InputError, match=f"{role} 'semihard' chooses no triplets; expected a miner, such as"):
        make(kind, **settings)
