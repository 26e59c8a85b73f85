"""Losses of logits, each worked by hand; which row is won, and what is refused."""

import math

import pytest
import torch

from robustmetric.attacks.base import run
from robustmetric.attacks.margin import (
    WON,
    Misclassify,
    MisclassifyTowards,
    accuracy,
    check_logits,
    cross_entropy,
    dlr,
    is_wrong,
    lifted,
    margin,
    rank_of_classes,
    targeted_dlr,
    targeted_margin,
)
from robustmetric.attacks.vote import climbs_of
from robustmetric.errors import InputError
from robustmetric.perturb.apgd import APGD
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD
from robustmetric.types import Batch, Gallery

LOGITS = torch.tensor([[5.0, 3.0, 1.0, 0.0], [1.0, 4.0, 2.0, -2.0]])
LABELS = torch.tensor([0, 2])
"""The first row is right by 2; in the second class 1 is ahead of the label by 2."""


def empty(classes: int = 4) -> Gallery:
    return Gallery(torch.zeros(0, classes), torch.zeros(0, dtype=torch.long))


def rows(inputs: torch.Tensor, labels: torch.Tensor) -> Batch:
    return Batch(inputs, labels, torch.full_like(labels, -1))


def test_cross_entropy_by_hand() -> None:
    # -log(e^5 / (e^5 + e^3 + e^1 + e^0)) and -log(e^2 / (e^1 + e^4 + e^2 + e^-2)).
    first = math.log(math.exp(5) + math.exp(3) + math.exp(1) + 1) - 5
    second = math.log(math.exp(1) + math.exp(4) + math.exp(2) + math.exp(-2)) - 2
    assert cross_entropy(LOGITS, LABELS).tolist() == pytest.approx([first, second])


def test_margin_by_hand_is_the_published_cw_loss_but_for_its_constant() -> None:
    assert margin(LOGITS, LABELS).tolist() == [3 - 5, 4 - 2]
    # The authors maximise -max(0, z_y - max_(j != y) z_j + 50), the label excluded by subtracting 1,000 from it.
    own = LOGITS.gather(1, LABELS[:, None])[:, 0]
    others = (LOGITS - 1000 * torch.nn.functional.one_hot(LABELS, 4)).amax(dim=1)
    torch.testing.assert_close(margin(LOGITS, LABELS) - 50, -(own - others + 50).clamp_min(0))


def test_dlr_by_hand_and_unchanged_by_scale_and_shift() -> None:
    # (3 - 5) / (5 - 1) and (4 - 2) / (4 - 1).
    assert dlr(LOGITS, LABELS).tolist() == pytest.approx([-1 / 2, 2 / 3])
    torch.testing.assert_close(dlr(7 * LOGITS + 3, LABELS), dlr(LOGITS, LABELS))


def test_targeted_losses_by_hand() -> None:
    towards = torch.tensor([2, 1])
    assert targeted_margin(LOGITS, LABELS, towards).tolist() == [1 - 5, 4 - 2]
    # -4 / (5 - (1 + 0) / 2) and 2 / (4 - (1 - 2) / 2).
    assert targeted_dlr(LOGITS, LABELS, towards).tolist() == pytest.approx([-4 / 4.5, 2 / 4.5])
    torch.testing.assert_close(targeted_dlr(7 * LOGITS + 3, LABELS, towards), targeted_dlr(LOGITS, LABELS, towards))


def test_other_classes_are_ranked_without_the_label() -> None:
    assert rank_of_classes(LOGITS, LABELS).tolist() == [[1, 2, 3], [1, 0, 3]]


def test_a_row_is_wrong_where_another_class_is_first() -> None:
    assert is_wrong(LOGITS, LABELS).tolist() == [False, True]
    assert accuracy(LOGITS, LABELS).tolist() == [100.0, 0.0]


@pytest.mark.parametrize("attack", [Misclassify("margin"), MisclassifyTowards("margin")], ids=["away", "towards"])
@pytest.mark.parametrize("label", [0, 1])
def test_a_margin_reaches_0_exactly_where_the_answer_is_wrong(
    attack: Misclassify | MisclassifyTowards, label: int
) -> None:
    # Of a tie the first class is the answer: right with label 0, wrong with label 1.
    z = torch.tensor([[3.0, 3.0, 1.0], [3.0, 2.0, 1.0], [2.0, 3.0, 1.0]])
    labels = torch.full((3,), label)
    height = attack.value(z, {"label": labels, "class": 1 - labels}, empty(3))
    assert (height >= 0).tolist() == is_wrong(z, labels).tolist() == (accuracy(z, labels) == 0).tolist()
    plain = margin(z, labels)
    torch.testing.assert_close(height, plain, atol=2e-6, rtol=0)
    leaf = z.clone().requires_grad_()
    attack.value(leaf, {"label": labels, "class": 1 - labels}, empty(3)).sum().backward()
    assert leaf.grad is not None and leaf.grad[1].tolist() == [2 * label - 1, 1 - 2 * label, 0]


@pytest.mark.parametrize("label", [0, 1, 2])
@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_an_answer_that_holds_nan_or_infinity_is_wrong_whatever_the_label(label: int, number: float) -> None:
    z = torch.tensor([[number, number, number], [1.0, number, 0.0], [number, 1.0, 0.0]])
    assert is_wrong(z, torch.full((3,), label)).all() and not accuracy(z, torch.full((3,), label)).any()


def test_a_won_row_reaches_the_goal_whatever_its_loss_and_keeps_its_slope() -> None:
    loss = torch.tensor([0.5, 0.5, -3.0], requires_grad=True)
    value = lifted(loss, torch.tensor([False, True, True]))
    assert value.tolist() == [0.5, WON + 0.5, WON]
    value[:2].sum().backward()
    assert loss.grad is not None and loss.grad[:2].tolist() == [1.0, 1.0]


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "attack",
    [Misclassify("cross_entropy"), Misclassify("dlr"), MisclassifyTowards("dlr"), MisclassifyTowards("margin")],
)
def test_logits_of_half_precision_are_climbed_in_full(
    attack: Misclassify | MisclassifyTowards, precision: torch.dtype
) -> None:
    # The second row is won; in the third all are alike, where DLR is 0 over its floor. In bfloat16 1e4 would be 9,984.
    z, labels = torch.cat([LOGITS, torch.ones(1, 4)]), torch.tensor([0, 2, 0])
    targets = attack.choose(z, rows(z, labels), empty(), None)
    value = attack.value(z.to(precision), targets, empty())
    torch.testing.assert_close(value, attack.value(z, targets, empty()))
    assert value.isfinite().all() and (attack.loss == "margin" or value[1] >= WON)


@pytest.mark.parametrize(
    ("attack", "expected"),
    [
        (Misclassify("cross_entropy"), [cross_entropy(LOGITS, LABELS)[0].item(), WON + 2.172]),
        (Misclassify("margin"), [-2.0, 2.0]),
        (Misclassify("dlr"), [-0.5, WON + 2 / 3]),
        (MisclassifyTowards("margin", rank=2), [-4.0, -1.0]),
        (MisclassifyTowards("dlr", rank=2), [-4 / 4.5, WON]),
    ],
)
def test_what_is_climbed(attack: Misclassify | MisclassifyTowards, expected: list[float]) -> None:
    # Second in rank are class 2 and class 0: z_t - z_y is 1 - 5 and 1 - 2. DLR of the second row, -1 / 4.5, is won.
    targets = attack.choose(LOGITS, rows(LOGITS, LABELS), empty(), None)
    assert attack.value(LOGITS, targets, empty()).tolist() == pytest.approx(expected, abs=1e-2)
    assert attack.score(LOGITS, targets, rows(LOGITS, LABELS), empty()) == {"accuracy": pytest.approx([100.0, 0.0])}


def test_targets_are_those_of_the_clean_logits_one_climb_each() -> None:
    attack = MisclassifyTowards("margin").for_classes(4)
    assert attack.targets == 3, "nine asked for, three others there"
    chosen = [c.choose(LOGITS, rows(LOGITS, LABELS), empty(), None)["class"].tolist() for c in climbs_of(attack)]
    assert chosen == [[1, 1], [2, 0], [3, 3]]


def test_an_attack_moves_a_linear_classifier_across_its_boundary_and_no_further_than_its_ball() -> None:
    # z = (x, 1 - x): the boundary is x = 0.5. From 0.6 a radius of 0.15 reaches it, from 0.9 it does not.
    class Line(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([x, 1 - x], dim=1) * 10

    batch = rows(torch.tensor([[0.6], [0.9]]), torch.tensor([0, 0]))
    for loss in ("cross_entropy", "margin"):
        for engine in (PGD(Ball(0.15), steps=5, step_size=0.05), APGD(Ball(0.15), steps=5, goal=WON)):
            outcome = run(Misclassify(loss), engine, Line(), batch, empty(2), torch.Generator().manual_seed(0))
            assert outcome.scores["accuracy"].tolist() == [0.0, 100.0]
            assert ((outcome.inputs - batch.inputs).abs() <= 0.15 + 1e-6).all()


@pytest.mark.parametrize(
    ("attack", "classes", "words"),
    [
        (Misclassify("dlr"), 2, "3 classes, but the model tells 2 apart; use loss: margin"),
        (MisclassifyTowards("dlr"), 3, "targeted dlr compares the logits of 4 classes, but the model tells 3 apart"),
        (MisclassifyTowards("margin", rank=3), 3, "rank 3 among 2 other classes"),
    ],
)
def test_too_few_classes_are_refused(attack: Misclassify | MisclassifyTowards, classes: int, words: str) -> None:
    batch = rows(torch.randn(2, classes), torch.tensor([0, 1]))
    with pytest.raises(InputError, match=words):
        attack.choose(batch.inputs, batch, empty(classes), None)


def test_two_classes_suffice_for_the_margin() -> None:
    logits, labels = torch.tensor([[2.0, -1.0]]), torch.tensor([0])
    assert Misclassify("margin").for_classes(2).choose(logits, rows(logits, labels), empty(2), None)
    assert margin(logits, labels).tolist() == [-3.0]


@pytest.mark.parametrize(
    ("logits", "label", "words"),
    [
        ([[1.0, math.nan]], 0, "NaN or infinity"),
        ([[1.0, math.inf]], 0, "NaN or infinity"),
        ([[0.75, 0.25], [0.0, 1.0]] * 5, 0, "returns probabilities"),
        ([[0.75, 0.2461], [0.002, 1.0]] * 5, 0, "returns probabilities"),  # as a softmax in bfloat16 rounds them
        ([[3.0, 1.0]], 2, "label 2 has no logit: the model tells 2 classes apart"),
        ([[3.0, 1.0]], -1, "label -1 has no logit: the model tells 2 classes apart"),
    ],
)
def test_what_are_no_logits_is_refused_at_the_clean_pass(logits: list[list[float]], label: int, words: str) -> None:
    z = torch.tensor(logits)
    for attack in (Misclassify("cross_entropy"), MisclassifyTowards("margin")):
        with pytest.raises(InputError, match=words):
            attack.choose(z, rows(z, torch.full((len(z),), label)), empty(2), None)


def test_logits_that_happen_to_lie_between_0_and_1_are_none_the_less_logits() -> None:
    z = torch.tensor([[0.75, 0.25], [0.9, 0.3]])
    assert Misclassify("margin").choose(z, rows(z, torch.tensor([0, 0])), empty(2), None)


def test_a_few_rows_that_look_like_probabilities_are_refused_in_the_first_batch_alone() -> None:
    z, labels = torch.tensor([[0.75, 0.25], [0.0, 1.0]]), torch.tensor([0, 1])
    with pytest.raises(InputError, match="returns probabilities"):
        check_logits(z, labels, first=True)
    # The last survivors of a least-squares fit may well look so, whose other rows do not.
    assert Misclassify("margin").choose(z, rows(z, labels), empty(2), None)


def test_a_rank_beyond_the_targets_is_refused() -> None:
    with pytest.raises(InputError, match="rank=10 of targets=9"):
        MisclassifyTowards("dlr", rank=10)
