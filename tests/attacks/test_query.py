"""QA+ and QA-: where chosen items stand in the query's own list."""

import pytest
import torch
from circle import at, chord, gallery, queries, seeded, slope

from robustmetric.attacks.query import Query
from robustmetric.errors import InputError

DEGREES = [0, 20, 50, 90, 180]
GALLERY = gallery(DEGREES, [0, 0, 1, 1, 2])
NOBODY = torch.tensor([-1])
ITEM_50 = {"index": torch.tensor([[2]]), "exclude": NOBODY}


def test_up_draws_any_items() -> None:
    batch = queries([0] * 500, [0] * 500, [0] * 500)
    index = Query("up", candidates=2).choose(batch.inputs, batch, GALLERY, seeded(0))["index"]
    assert index.shape == (500, 2) and set(index.flatten().tolist()) == {1, 2, 3, 4}, "but the query itself"
    compat = Query("up", mode="compat").choose(batch.inputs, batch, GALLERY, seeded(0))
    assert set(compat["index"].flatten().tolist()) == {0, 1, 2, 3, 4}


def test_down_draws_near_neighbours_but_never_the_query_itself() -> None:
    batch = queries([0, 90, 10], [0, 1, 0], [0, 3, -1])
    index = Query("down", candidates=2, pool=0.4).choose(batch.inputs, batch, GALLERY, seeded(0))["index"]
    assert index.sort(dim=1).values.tolist() == [[1, 2], [1, 2], [0, 1]]


def test_up_value_by_hand_and_its_direction() -> None:
    # From 10 deg the item at 50 is 40 away; before it 0 and 20, both 10 away.
    z = at(10).requires_grad_()
    value = Query("up").value(z, ITEM_50, GALLERY)
    assert value.item() == pytest.approx(-2 * (chord(40) - chord(10)) / 5)
    assert slope(value, z).item() > 0, "up means towards the item, counter-clockwise"


def test_down_value_by_hand_and_its_direction() -> None:
    # From 30 deg the item at 50 is 20 away. After it: 0 (30 away), 90 (60) and 180 (150).
    z = at(30).requires_grad_()
    value = Query("down").value(z, ITEM_50, GALLERY)
    assert value.item() == pytest.approx(-(chord(30) + chord(60) + chord(150) - 3 * chord(20)) / 5)
    # Turning back by t gains cos(10 deg) on the item, less what 90, 180 and 0 (now nearer) do: worth it.
    assert slope(value, z).item() < 0, "down means away from the item"


def test_score_is_the_mean_rank_in_percent() -> None:
    batch = queries([10], [0])
    # From 10 deg: 0 and 20 of the four others are nearer: 100 * 2/4 = 50. From 60 deg none is: 0.
    assert Query("up").score(at(10), ITEM_50, batch, GALLERY)["QA+"].item() == pytest.approx(50)
    assert Query("up").score(at(60), ITEM_50, batch, GALLERY)["QA+"].item() == 0
    # From 50 none of the others is nearer: 0. Together with the item at 180 (all four nearer, 100): 50.
    both = {"index": torch.tensor([[2, 4]]), "exclude": NOBODY}
    assert Query("down").score(at(50), ITEM_50, batch, GALLERY)["QA-"].item() == 0
    assert Query("down", candidates=2).score(at(50), both, batch, GALLERY)["QA-"].item() == pytest.approx(50)


def test_the_query_is_no_part_of_its_own_list() -> None:
    # The query is item 0. From 10 deg, before the item at 50: 20, and in compat 0 deg too.
    batch = queries([0], [0], [0])
    hinge = chord(40) - chord(10)
    for mode, rank, value in (("fixed", 100 / 3, -hinge / 4), ("compat", 40, -2 * hinge / 5)):
        attack = Query("up", mode=mode)
        targets = {**attack.choose(at(0), batch, GALLERY, seeded(0)), "index": torch.tensor([[2]])}
        assert attack.score(at(10), targets, batch, GALLERY)["QA+"].item() == pytest.approx(rank)
        assert attack.value(at(10), targets, GALLERY).item() == pytest.approx(value)
    # Down: from 30 deg (20 to the item), 90 and 180 are still to go, and in compat 0 deg.
    away = chord(60) + chord(150) - 2 * chord(20)
    for mode, value in (("fixed", -away / 4), ("compat", -(away + chord(30) - chord(20)) / 5)):
        attack = Query("down", mode=mode)
        targets = {**attack.choose(at(0), batch, GALLERY, seeded(0)), "index": torch.tensor([[2]])}
        assert attack.value(at(30), targets, GALLERY).item() == pytest.approx(value)


def test_settings_without_meaning_are_refused() -> None:
    with pytest.raises(InputError, match="candidates=0"):
        Query("down", candidates=0)
    batch = queries([0], [0], [0])
    with pytest.raises(InputError, match="gallery of 5"):
        Query("down", candidates=5).choose(batch.inputs, batch, GALLERY, seeded(0))
