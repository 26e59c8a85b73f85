"""Attacks through the vote on the circle, where all of them can be worked by hand."""

import math

import pytest
import torch
from circle import at, gallery, queries, seeded
from torch.nn import functional

from robustmetric.attacks.embedding_shift import EmbeddingShift
from robustmetric.attacks.objectives import shift
from robustmetric.attacks.vote import (
    LEAST,
    NeighbourMargin,
    PairShift,
    SoftVote,
    climbs_of,
    damage,
    for_members,
    hard_vote,
    log_soft_vote,
    margins,
    similarities,
)
from robustmetric.errors import InputError
from robustmetric.numerics.vote import unit_members
from robustmetric.types import Batch, Embeddings, Gallery

BOOK = gallery([0, 60, 120], [0, 1, 0])


def twofold(*pairs: tuple[float, float]) -> Embeddings:
    """Embeddings of an ensemble of two, each member a point of the circle."""
    return torch.cat([at(*side) for side in zip(*pairs, strict=True)], dim=1) / math.sqrt(2)


def test_similarities_are_the_members_cosines_without_the_query_itself() -> None:
    items = Gallery(twofold((0, 90), (60, 0)), torch.tensor([0, 1]))
    found = similarities(twofold((0, 0)), items, torch.tensor([-1]), members=2)
    torch.testing.assert_close(found, torch.tensor([[[1.0, 0.5]], [[0.0, 1.0]]], dtype=torch.float64))
    found = similarities(twofold((0, 0)), items, torch.tensor([0]), members=2)
    torch.testing.assert_close(found, torch.tensor([[[LEAST, 0.5]], [[LEAST, 1.0]]], dtype=torch.float64))


def test_a_query_of_double_precision_searches_a_gallery_that_is_not() -> None:
    items = Gallery(twofold((0, 90), (60, 0)).float(), torch.tensor([0, 1]))
    found = similarities(twofold((0, 0)), items, torch.tensor([-1]), members=2)
    torch.testing.assert_close(
        found, torch.tensor([[[1.0, 0.5]], [[0.0, 1.0]]], dtype=torch.float64), atol=1e-6, rtol=0
    )


def test_soft_vote_by_hand() -> None:
    # Query at 0 degrees: class 0 has max(cos 0, cos 120) = 1, class 1 has cos 60 = 1/2; at temperature 1/2, 2 and 1.
    similarity = similarities(at(0), BOOK, torch.tensor([-1]), members=1)
    found = log_soft_vote(similarity / 0.5, BOOK.labels, torch.tensor([0]), torch.full((1, 2), LEAST / 0.5))
    assert float(found.exp()) == pytest.approx(math.e**2 / (math.e**2 + math.e))
    # The mean of two members' shares, not of their logarithms: 3/4 and 1/4.
    share = torch.tensor([[[math.log(3), 0.0]], [[0.0, math.log(3)]]])
    floor = torch.full((1, 2), -99.0)
    assert float(log_soft_vote(share, torch.tensor([0, 1]), torch.tensor([0]), floor).exp()) == pytest.approx(0.5)


def test_a_class_without_items_is_as_far_as_can_be() -> None:
    similarity = torch.tensor([[[0.2]]])
    # Softmax of (0.2, -1): the query's own class 1 has no item.
    expected = math.exp(-1) / (math.exp(0.2) + math.exp(-1))
    floor = torch.full((1, 2), LEAST)
    found = log_soft_vote(similarity, torch.tensor([0]), torch.tensor([1]), floor)
    assert float(found.exp()) == pytest.approx(expected)
    # The same through the attack, whose gallery lacks the query's class.
    attack, book = SoftVote(temperature=1.0, straight_through=False), Gallery(at(60), torch.tensor([0]))
    query = Batch(at(0), torch.tensor([1]), torch.tensor([-1]))
    value = attack.value(at(0), attack.choose(at(0), query, book, None), book)
    assert float((-value).exp()) == pytest.approx(math.exp(-1) / (math.exp(0.5) + math.exp(-1)))


def test_bpda_has_the_hard_votes_value_and_the_soft_votes_slope() -> None:
    z = functional.normalize(torch.randn(12, 2, generator=seeded(0), dtype=torch.float64), dim=1).requires_grad_()
    batch = Batch(z.detach(), torch.tensor([0, 1]).repeat(6), torch.full((12,), -1))
    slopes = []
    for straight_through in (True, False):
        attack = SoftVote(temperature=0.1, straight_through=straight_through)
        value = attack.value(z, attack.choose(z.detach(), batch, BOOK, None), BOOK)
        slopes.append(torch.autograd.grad(value.sum(), z)[0])
        if straight_through:
            wrong = hard_vote(similarities(z, BOOK, batch.index, 1), BOOK.labels) != batch.labels
            torch.testing.assert_close(value.detach(), wrong.double())
            assert wrong.any() and not wrong.all()
    torch.testing.assert_close(*slopes)
    assert slopes[0].norm() > 0


def test_margins_and_damage_by_hand() -> None:
    # At 0 degrees, own item left out: own class cos 120 = -1/2, other cos 60 = 1/2; the margin is 1 and the vote wrong.
    batch = queries([0, 60], [0, 1], index=[0, -1])
    similarity = similarities(batch.inputs, BOOK, batch.index, 1)
    # At 60 degrees, nothing left out: own class 1, other cos 60 = 1/2.
    expected = torch.tensor([[1.0, -0.5]], dtype=torch.float64)
    torch.testing.assert_close(margins(similarity, BOOK.labels, batch.labels), expected)
    harm = damage(batch.inputs, batch, BOOK, members=1)
    torch.testing.assert_close(harm, torch.tensor([1 + 1 / 4, -0.5 / 4], dtype=torch.float64))


def test_a_fooled_member_pulls_no_more() -> None:
    # Member 1 is at the wrong item (margin 1 - 1/2, capped at 0), member 2 near the right one: cos 50 - cos 10.
    items = Gallery(twofold((0, 0), (60, 60)), torch.tensor([0, 1]))
    z = twofold((60, 10)).requires_grad_()
    attack = NeighbourMargin(members=2, confidence=0.0)
    batch = Batch(z.detach(), torch.tensor([0]), torch.tensor([-1]))
    value = attack.value(z, attack.choose(z.detach(), batch, items, None), items)
    cosine = math.cos(math.radians(50)) - math.cos(math.radians(10))
    assert float(value.detach()) == pytest.approx(cosine)
    (slope,) = torch.autograd.grad(value.sum(), z)
    first, second = slope.chunk(2, dim=1)
    assert first.norm() == 0 and second.norm() > 0


def test_pair_shift_moves_its_pair_alone_and_has_all_pairs() -> None:
    attack = for_members(PairShift(), 3)
    assert isinstance(attack, PairShift) and attack.pairs == [(0, 1), (0, 2), (1, 2)]
    climbs = climbs_of(attack)
    z = functional.normalize(torch.randn(4, 6, generator=seeded(0)), dim=1).requires_grad_()
    batch = Batch(z.detach(), torch.zeros(4, dtype=torch.long), torch.full((4,), -1))
    for climb, still in zip(climbs, (2, 1, 0), strict=True):
        targets = climb.choose(z.detach(), batch, BOOK, seeded(1))
        (slope,) = torch.autograd.grad(climb.value(z, targets, BOOK).sum(), z)
        lengths = [part.norm() for part in slope.chunk(3, dim=1)]
        assert lengths.pop(still) == 0 and all(length > 0 for length in lengths)
    assert len(climbs_of(PairShift(1))) == 1 and len(climbs_of(EmbeddingShift())) == 1


def test_embedding_shift_on_the_ensemble_climbs_the_sum_of_its_members() -> None:
    x = torch.randn(5, 4, generator=seeded(0)).requires_grad_()
    weights, origin = torch.randn(3, 4, 2, generator=seeded(1)), torch.randn(5, 4, generator=seeded(2))
    moved, still = (
        torch.cat([functional.normalize(rows @ w, dim=1) for w in weights], dim=1) / math.sqrt(3)
        for rows in (x, origin)
    )
    pairs = zip(unit_members(moved, 3), unit_members(still, 3), strict=True)
    summed = torch.stack([(a - b).square().sum(dim=1) for a, b in pairs]).sum()
    slopes = [torch.autograd.grad(v, x, retain_graph=True)[0] for v in (summed, shift(moved, still).sum())]
    assert torch.equal(slopes[0].sign(), slopes[1].sign())


def test_a_vote_of_three_falls_with_two() -> None:
    # Nearest labels 1, 1, 0: the vote is 1 although member 3 is certain.
    similarity = torch.tensor([[[0.4, 0.5]], [[0.4, 0.5]], [[1.0, 0.0]]])
    assert hard_vote(similarity, torch.tensor([0, 1])).tolist() == [1]
    # Of two members that differ, the more similar neighbour counts.
    assert hard_vote(similarity[1:], torch.tensor([0, 1])).tolist() == [0]


@pytest.mark.parametrize(
    "wrong",
    [lambda: PairShift(0), lambda: PairShift(3, pair=3), lambda: SoftVote(temperature=0.0), lambda: SoftVote(-1)],
)
def test_settings_that_mean_nothing_are_refused(wrong: object) -> None:
    with pytest.raises(InputError, match="expected"):
        wrong()  # type: ignore[operator]  # each makes an attack
