"""LTM: the farthest other class before the nearest own item."""

import pytest
from circle import at, chord, gallery, queries, slope

from robustmetric.attacks.misrank import LearnToMisrank

GALLERY = gallery([0, 20, 50, 90, 180], [0, 0, 1, 1, 2])
ATTACK = LearnToMisrank()


def test_value_leaves_the_query_itself_out() -> None:
    z = at(0, 0, 0).requires_grad_()
    # In the gallery: nearest own is 20 deg. A stranger at the same place: the item at 0, distance 0.
    # Label 2 has one item, the query's own index: no own class left, nothing to gain.
    batch = queries([0, 0, 0], [0, 0, 2], [0, -1, 4])
    value = ATTACK.value(z, ATTACK.choose(z.detach(), batch, GALLERY, None), GALLERY)
    assert value.tolist() == pytest.approx([-(chord(180) - chord(20)), -chord(180), 0])


def test_value_climbs_away_from_the_own_class_and_towards_the_farthest_other() -> None:
    z = at(-5).requires_grad_()
    batch = queries([-5], [0])
    value = ATTACK.value(z, ATTACK.choose(z.detach(), batch, GALLERY, None), GALLERY)
    assert value.item() == pytest.approx(-(chord(175) - chord(5)))
    assert slope(value, z).item() < 0, "clockwise: away from 0 deg, and towards 180 the short way round"


def test_value_is_zero_once_every_other_class_is_nearer() -> None:
    z = at(120)
    # Nearest own (20 deg) is 100 away, farthest other (50 deg) 70.
    batch = queries([0], [0], [0])
    assert ATTACK.value(z, ATTACK.choose(at(0), batch, GALLERY, None), GALLERY).item() == 0


def test_score_is_recall_in_percent() -> None:
    batch = queries([20, 20], [0, 0], [1, 1])
    assert ATTACK.score(at(24, 26), {}, batch, GALLERY)["LTM"].tolist() == [100, 0]
