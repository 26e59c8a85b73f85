"""Who is diagnosed: what is climbed, what counts as right, and what is remembered of a climb."""

import pytest
import torch
from torch import Tensor, nn

from robustmetric.attacks.base import run
from robustmetric.attacks.margin import WON, Misclassify
from robustmetric.diagnose.masking import Examination, Masking
from robustmetric.diagnose.subject import (
    Decision,
    Penultimate,
    Recorder,
    Subject,
    classifier_subject,
    retrieval_subject,
)
from robustmetric.errors import InputError
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.gradient_free import Square
from robustmetric.perturb.pgd import PGD
from robustmetric.types import Batch, Gallery


class Difference(nn.Module):
    """Two pixels a, b in, logits (a, b) out: right about class 0 where a > b."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs


def subject(together: int = 128) -> Subject:
    inputs = torch.tensor([[0.9, 0.1], [0.6, 0.5], [0.2, 0.3]])
    batch = Batch(inputs, torch.tensor([0, 0, 0]), torch.full((3,), -1))
    made = classifier_subject(Difference(), batch, 2)
    return made if together == 128 else Subject(**{**vars(made), "together": together})


def test_a_classifier_is_right_where_its_label_comes_first_and_has_no_gallery() -> None:
    one = subject()
    assert one.right(one.batch.inputs, one.batch, one.gallery).tolist() == [True, True, False]
    assert one.chance == 50 and len(one.gallery) == 0 and one.score == "accuracy"
    assert not one.others, "DLR compares three classes"
    assert "DLR" in classifier_subject(nn.Identity(), one.batch, 3).others


def test_a_decision_is_no_more_than_right_or_wrong() -> None:
    one = subject()
    decision = Decision(one.right)
    targets = decision.choose(one.batch.inputs, one.batch, one.gallery, None)
    assert decision.value(one.batch.inputs, targets, one.gallery).tolist() == [-1, -1, 1]


def test_retrieval_is_right_where_the_first_neighbour_other_than_itself_is_of_the_class() -> None:
    gallery = Gallery(torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]]), torch.tensor([0, 1, 1]))
    batch = Batch(torch.zeros(2, 1), torch.tensor([0, 1]), torch.tensor([0, 1]))
    one = retrieval_subject(nn.Identity(), batch, gallery, chance=50.0)
    # Item 0 finds item 1, of another class; item 1 finds item 0, of another class.
    assert one.right(gallery.embeddings[:2], batch, gallery).tolist() == [False, False]
    # A query that is no item: (0.2, 1) finds item 2, of its class.
    apart = Batch(torch.zeros(1, 1), torch.tensor([1]), torch.tensor([-1]))
    assert one.right(torch.tensor([[0.2, 1.0]]), apart, gallery).tolist() == [True]


def test_members_that_vote_are_judged_by_their_vote() -> None:
    # Members see (1, 0) and (0, 1): the first finds class 0, the second class 1; two of three are for class 0.
    gallery = Gallery(torch.tensor([[1.0, 0.0] * 3, [0.0, 1.0] * 3]), torch.tensor([0, 1]))
    batch = Batch(torch.zeros(1, 1), torch.tensor([0]), torch.tensor([-1]))
    one = retrieval_subject(nn.Identity(), batch, gallery, chance=50.0, members=3)
    z = torch.tensor([[1.0, 0.0, 1.0, 0.0, 0.0, 1.0]])
    assert one.right(z, batch, gallery).tolist() == [True] and one.score == "V1:R"


def test_a_search_without_gallery_is_refused() -> None:
    batch = Batch(torch.zeros(1, 1), torch.tensor([0]), torch.tensor([-1]))
    with pytest.raises(InputError, match="gallery"):
        retrieval_subject(nn.Identity(), batch, Gallery(torch.zeros(0, 2), torch.zeros(0).long()), chance=50.0)


@pytest.mark.parametrize("together", [128, 2])
def test_a_recorder_remembers_every_step_of_every_image(together: int) -> None:
    one = subject(together)
    recorder = Recorder(Misclassify("cross_entropy"), Misclassify("margin"), one.right, count=4)
    engine = PGD(Ball(1.0), steps=3, step_size=0.1, random_start=False, keep="best")
    for batch in one.batches():
        run(recorder, engine, one.model, batch, one.gallery, rounded=False)
    # Each step moves b - a by 0.2: from -0.8, -0.1 and 0.1; pixels stay in [0, 1].
    expected = torch.tensor([[-0.8, -0.1, 0.1], [-0.6, 0.1, 0.3], [-0.4, 0.3, 0.5], [-0.2, 0.5, 0.6]])
    assert torch.allclose(recorder.values, expected, atol=1e-6)
    assert recorder.is_right.tolist() == [[True, True, False]] + [[True, False, False]] * 3


def test_margins_are_remembered_as_they_are_however_large() -> None:
    # Logits in the tens of thousands: margins of 6000 are no lifted ones.
    inputs = torch.tensor([[0.2, 0.8], [0.9, 0.1]])
    batch = Batch(inputs, torch.tensor([0, 0]), torch.full((2,), -1))
    one = classifier_subject(Scaled(), batch, 2)
    recorder = Recorder(one.loss, one.watched, one.right, count=1)
    targets = recorder.choose(one.model(inputs), batch, one.gallery, None)
    recorder.value(one.model(inputs), targets, one.gallery)
    # 10^4 (b - a).
    torch.testing.assert_close(recorder.values, torch.tensor([[6000.0, -8000.0]]))


class Scaled(nn.Module):
    def forward(self, inputs: Tensor) -> Tensor:
        return 1e4 * inputs


def test_a_vote_is_lost_at_a_negative_margin_and_won_at_a_positive_one() -> None:
    # Items e_0 of class 0 and e_1 of class 1 in each of three members; a member at angle t has margin sin t - cos t.
    gallery = Gallery(torch.tensor([[1.0, 0.0] * 3, [0.0, 1.0] * 3]), torch.tensor([0, 1]))
    batch = Batch(torch.zeros(2, 1), torch.tensor([0, 0]), torch.tensor([-1, -1]))
    one = retrieval_subject(nn.Identity(), batch, gallery, chance=50.0, members=3)
    angles = torch.deg2rad(torch.tensor([[0.0, 50.0, 50.0], [44.9, 44.9, 50.0]]))
    z = torch.stack([angles.cos(), angles.sin()], dim=2).flatten(1)
    targets = one.margin.choose(z, batch, gallery, None)
    # Two of three are fooled: -1 + 2 * 0.02 < 0. One of three is: 0.02 - 2 * 0.0025 > 0.
    assert one.right(z, batch, gallery).tolist() == [False, True]
    watched = one.watched.value(z, targets, gallery)
    assert watched[0] < 0 < watched[1]
    for attack in (one.loss, one.margin, *one.others.values()):
        value = attack.value(z, attack.choose(z, batch, gallery, None), gallery)
        assert value[0] >= WON > value[1]


def test_a_search_goes_on_until_the_vote_is_lost() -> None:
    # Two members are a hair from the boundary and the third is fooled: the sum of margins is above 0, the vote right.
    class Turned(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            angles = torch.deg2rad(torch.tensor([44.9, 44.9, 50.0]) + 10 * (inputs.flatten(1) - 0.5))
            return torch.stack([angles.cos(), angles.sin()], dim=2).flatten(1)

    gallery = Gallery(torch.tensor([[1.0, 0.0] * 3, [0.0, 1.0] * 3]), torch.tensor([0, 1]))
    batch = Batch(torch.full((4, 1, 1, 3), 0.5), torch.zeros(4).long(), torch.full((4,), -1))
    one = retrieval_subject(Turned(), batch, gallery, chance=50.0, members=3)
    this = Examination(one, PGD(Ball(0.1), 1, 0.1), Masking(), torch.Generator().manual_seed(0))
    assert this.clean().all()
    assert not this.survived(one.margin, Square(Ball(0.1), 50, goal=this.goal)).any()


def test_features_are_a_model_of_their_own_whose_parts_can_be_frozen() -> None:
    inner = nn.Linear(2, 3)
    made = Penultimate(inner, inner.forward)
    assert list(made.parameters()) == list(inner.parameters())
    assert torch.equal(made(torch.ones(1, 2)), inner(torch.ones(1, 2)))
