"""FOA: near items in the attacker's order."""

import pytest
import torch
from circle import Circle, at, chord, gallery, queries, seeded, slope
from scipy.stats import kendalltau

from robustmetric.attacks.base import run
from robustmetric.attacks.objectives import ordering
from robustmetric.attacks.order import Order, kendall
from robustmetric.errors import InputError
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD

DEGREES = [0, 20, 50, 90, 180]
GALLERY = gallery(DEGREES, [0, 0, 1, 1, 2])


def wanted(*index: int) -> dict[str, torch.Tensor]:
    """One query, items in the wanted order."""
    chosen = torch.tensor([index])
    return {"index": chosen, "wanted": GALLERY.embeddings[chosen]}


def test_two_items_are_wanted_farther_first() -> None:
    # Two nearest of 0 deg: 20 and 50; of 90: 50 (40 away) and 20; of the stranger at 15: 20 (5) and 0 (15).
    batch = queries([0, 90, 15], [0, 1, 0], [0, 3, -1])
    targets = Order(pool=0.4).choose(batch.inputs, batch, GALLERY, seeded(0))
    assert targets["index"].tolist() == [[2, 1], [1, 2], [0, 1]]
    assert torch.equal(targets["wanted"], GALLERY.embeddings[targets["index"]])


def test_more_items_are_wanted_in_any_order_and_never_the_query_itself() -> None:
    batch = queries([0] * 300, [0] * 300, [0] * 300)
    index = Order(items=3).choose(batch.inputs, batch, GALLERY, seeded(0))["index"]
    orders = {tuple(row) for row in index.tolist()}
    assert len(orders) == 6 and all(set(order) == {1, 2, 3} for order in orders)


def test_value_of_two_by_hand_and_its_direction() -> None:
    # From 30 deg: 50 is 20 away, 20 is 10 away; 50 first is wanted.
    z = at(30).requires_grad_()
    value = Order().value(z, wanted(2, 1), GALLERY)
    assert value.item() == pytest.approx(-(chord(20) - chord(10)))
    assert slope(value, z).item() > 0, "towards 50"
    assert Order().value(at(40), wanted(2, 1), GALLERY).item() == 0


def test_value_of_more_by_hand() -> None:
    # Wanted 3, 1, 2: late are 3 against 1 (2) and against 2 (1): -3 / 9.
    assert ordering(torch.tensor([[3.0, 1.0, 2.0]])).item() == pytest.approx(-3 / 9)
    assert ordering(torch.tensor([[1.0, 2.0, 3.0]])).item() == 0
    assert ordering(torch.tensor([[3.0, 1.0]])).item() == pytest.approx(-2)


def test_score_of_two_is_who_comes_first_in_percent() -> None:
    batch = queries([0], [0])
    targets = wanted(2, 1)
    assert [Order().score(at(t), targets, batch, GALLERY)["FOA"].item() for t in (10, 40)] == [0, 100]
    # From two items at one place: half in fixed, whole in compat.
    level = wanted(1, 1)
    assert Order().score(at(10), level, batch, GALLERY)["FOA"].item() == 50
    assert Order(mode="compat").score(at(10), level, batch, GALLERY)["FOA"].item() == 100


def test_score_of_more_is_kendalls_tau() -> None:
    batch = queries([0], [0])
    # From 0 deg 20, 50, 90 stand in this order; one swap of three pairs: (2 - 1) / 3.
    assert Order(items=3).score(at(0), wanted(1, 2, 3), batch, GALLERY)["FOA:tau"].item() == pytest.approx(1)
    assert Order(items=3).score(at(0), wanted(3, 2, 1), batch, GALLERY)["FOA:tau"].item() == pytest.approx(-1)
    assert Order(items=3).score(at(0), wanted(2, 1, 3), batch, GALLERY)["FOA:tau"].item() == pytest.approx(1 / 3)


def test_kendall_equals_scipys_with_ties_and_is_zero_for_all_ties() -> None:
    values = torch.randint(4, (50, 6), generator=seeded(0)).double()
    expected = [kendalltau(range(6), row.tolist())[0] for row in values]
    torch.testing.assert_close(kendall(values), torch.tensor(expected, dtype=torch.float64))
    assert kendall(torch.ones(1, 4)).item() == 0
    # Within the tolerance all tie.
    assert kendall(torch.tensor([[1.0, 1.0 + 5e-7, 1.0]], dtype=torch.float64), tie=1e-6).item() == 0


def test_a_climb_swaps_two_neighbours() -> None:
    engine = PGD(Ball(0.5, bounds=(-2.0, 2.0)), steps=20, step_size=0.05, random_start=False)
    batch = queries([15], [0])
    scores = run(
        Order(pool=0.6), engine, Circle(), batch, gallery([12, 30, 200], [0, 1, 1]), seeded(0), rounded=False
    ).scores
    assert scores["FOA"].item() == 100


def test_settings_without_meaning_are_refused() -> None:
    with pytest.raises(InputError, match="items=1 have one order only"):
        Order(items=1)
    batch = queries([0], [0], [0])
    with pytest.raises(InputError, match="5 neighbours cannot be drawn from a gallery of 5"):
        Order(items=5).choose(batch.inputs, batch, GALLERY, seeded(0))
