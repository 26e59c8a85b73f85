"""Centroid and pair attacks on the circle, by hand."""

import math

import pytest
import torch
from circle import at, chord, gallery, queries, seeded, slope

from robustmetric.attacks.centroid import Centroid, PairSimilarity, class_centroids, derangement
from robustmetric.attacks.vote import climbs_of
from robustmetric.errors import InputError

BOOK = gallery([0, 60, 180, 180, 90], [4, 4, 7, 7, 9])
"""Centroids: of 4 at 30 degrees, cos 30 from the origin; of 7 at 180 degrees; of 9 at 90 degrees."""


def test_centroids_by_hand() -> None:
    classes, centroids = class_centroids(BOOK)
    assert classes.tolist() == [4, 7, 9]
    expected = torch.cat([at(30) * math.cos(math.radians(30)), at(180), at(90)])
    torch.testing.assert_close(centroids, expected)


def test_a_derangement_leaves_nothing_in_its_place() -> None:
    for count in (2, 3, 10):
        for seed in range(20):
            moved = derangement(count, torch.device("cpu"), seeded(seed))
            assert moved.sort().values.tolist() == list(range(count))
            assert (moved != torch.arange(count)).all()


def test_value_of_the_nearest_wrong_centroid_by_hand() -> None:
    batch = queries([60, 60], [4, 9])
    attack = Centroid("nearest")
    targets = attack.choose(batch.inputs, batch, BOOK, None)
    z = batch.inputs.clone().requires_grad_()
    # From 60 degrees to 4's centroid, sin 30 = 1/2 away; 9's at 90 is a chord of 30 degrees, nearer than 7's.
    found = attack.value(z, targets, BOOK)
    assert found.tolist() == pytest.approx([0.5 - chord(30), chord(30) - 0.5])
    assert slope(found, z)[0] > 0  # towards 90
    assert Centroid("nearest", away=False).value(z, targets, BOOK).tolist() == pytest.approx([-chord(30), -0.5])


def test_one_wrong_class_for_a_class_or_one_for_each_image() -> None:
    batch = queries([10] * 40, [4, 9] * 20)
    deranged = Centroid().choose(batch.inputs, batch, BOOK, seeded(0))["wrong"]
    assert len(deranged[0::2].unique(dim=0)) == 1 and len(deranged[1::2].unique(dim=0)) == 1
    drawn = Centroid("random").choose(batch.inputs, batch, BOOK, seeded(0))
    assert len(drawn["wrong"][0::2].unique(dim=0)) == 2
    for targets in (drawn["wrong"], deranged):
        assert not (targets == drawn["own"]).all(dim=1).any()


def test_turns_are_the_nearest_class_and_drawn_ones() -> None:
    climbs = climbs_of(Centroid(away=False, turns=4))
    assert [climb.target for climb in climbs if isinstance(climb, Centroid)] == ["nearest", *["random"] * 3]
    assert climbs_of(Centroid()) == [Centroid()]


def test_pair_similarity_by_hand() -> None:
    # Item 0 (class 4, at 0 degrees): its class without itself is the item at 60; the others are 180, 180, 90.
    batch = queries([0], [4], index=[0])
    attack = PairSimilarity()
    value = attack.value(at(0), attack.choose(at(0), batch, BOOK, None), BOOK)
    assert float(value) == pytest.approx((-1 - 1 + 0) / 3 - math.cos(math.radians(60)))
    # One that is not in the gallery has both of its class.
    batch = queries([0], [4])
    value = attack.value(at(0), attack.choose(at(0), batch, BOOK, None), BOOK)
    assert float(value) == pytest.approx(-2 / 3 - (1 + 0.5) / 2)


def test_one_class_or_a_class_without_items_is_refused() -> None:
    with pytest.raises(InputError, match="one class only"):
        Centroid().choose(at(0), queries([0], [4]), gallery([0, 60], [4, 4]), None)
    with pytest.raises(InputError, match="no item has"):
        Centroid().choose(at(0), queries([0], [5]), BOOK, None)
    with pytest.raises(InputError, match="expected 1 or more"):
        Centroid(turns=0)
