"""SPQA and SPFOA: the attack's own goal, and the top of the list kept."""

import math
from dataclasses import replace

import pytest
import torch
from circle import Circle, at, chord, gallery, queries, seeded

from robustmetric.attacks.base import Attack, run
from robustmetric.attacks.order import Order
from robustmetric.attacks.query import Query
from robustmetric.attacks.semantics import SemanticsPreservingOrder, SemanticsPreservingQuery
from robustmetric.errors import InputError
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD

DEGREES = [0, 20, 50, 90, 180]
GALLERY = gallery(DEGREES, [0, 0, 1, 1, 2])


def targets(index: int, kept: int, rows: int = 1, own: int = -1) -> dict[str, torch.Tensor]:
    return {
        "index": torch.full((rows, 1), index),
        "kept": torch.full((rows, 1), kept),
        "share": torch.full((rows,), 1 / rows, dtype=torch.float64),
        "exclude": torch.full((rows,), own),
    }


def test_kept_are_the_nearest_but_the_query_and_what_is_pushed_down() -> None:
    batch = queries([0] * 50, [0] * 50, [0] * 50)
    up = SemanticsPreservingQuery("up", kept=2).choose(batch.inputs, batch, GALLERY, seeded(0))
    # Up: 20 and 50, whichever item is chosen.
    assert up["kept"].tolist() == [[1, 2]] * 50 and set(up["index"].flatten().tolist()) == {1, 2, 3, 4}
    down = SemanticsPreservingQuery("down", pool=0.4, kept=2).choose(batch.inputs, batch, GALLERY, seeded(0))
    # Down: 20 or 50 is pushed away, and the other is kept with 90.
    expected = {1: [2, 3], 2: [1, 3]}
    assert set(down["index"].flatten().tolist()) == {1, 2}
    for chosen, kept in zip(down["index"].flatten().tolist(), down["kept"].tolist(), strict=True):
        assert kept == expected[chosen]
    order = SemanticsPreservingOrder(pool=0.4, kept=2).choose(batch.inputs, batch, GALLERY, seeded(0))
    assert order["kept"].tolist() == [[3, 4]] * 50


def test_value_by_hand() -> None:
    # From 10 deg: 50 (chosen) is 40 away, behind 0 and 20 (10 away); 90 (kept) is 80 away, behind 0, 20 and 50.
    goal = -2 * (chord(40) - chord(10)) / 5
    fall = (2 * (chord(80) - chord(10)) + chord(80) - chord(40)) / 5
    value = SemanticsPreservingQuery("up", strictness=3.0).value(at(10), targets(2, 3), GALLERY)
    assert value.item() == pytest.approx(goal - math.exp(3 * fall) * fall)


def test_the_query_is_no_part_of_its_own_list() -> None:
    # As above, but the query is item 0: behind 20 alone the chosen, behind 20 and 50 the kept, of four items.
    goal = -(chord(40) - chord(10)) / 4
    fall = ((chord(80) - chord(10)) + chord(80) - chord(40)) / 4
    own, batch = targets(2, 3, own=0), queries([10], [0], [0])
    attack = SemanticsPreservingQuery("up", strictness=3.0)
    assert attack.value(at(10), own, GALLERY).item() == pytest.approx(goal - math.exp(3 * fall) * fall)
    scores = attack.score(at(10), own, batch, GALLERY)
    assert {name: row.item() for name, row in scores.items()} == pytest.approx({"SPQA+": 100 / 3, "SPQA+:G": 200 / 3})
    for made in (SemanticsPreservingQuery("up", kept=1), SemanticsPreservingOrder(kept=1)):
        for mode, place in (("fixed", 0), ("compat", -1)):
            chosen = replace(made, mode=mode).choose(at(0), queries([0], [0], [0]), GALLERY, seeded(0))
            assert chosen["exclude"].tolist() == [place]


def test_the_balance_stops_growing_and_has_no_gradient() -> None:
    fall = (2 * (chord(80) - chord(10)) + chord(80) - chord(40)) / 5
    z = at(10).requires_grad_()
    for strictness, balance in ((1e3, 1e9), (4e4, 1e9), (0.0, 1.0), (2.0, math.exp(2 * fall))):
        value = SemanticsPreservingQuery("up", strictness=strictness).value(z, targets(2, 3), GALLERY)
        plain = Query("up").value(z, targets(2, 3), GALLERY)
        (gradient,) = torch.autograd.grad((value - plain).sum(), z)
        # `fall` is what QA+ climbs down for the kept item.
        (slope,) = torch.autograd.grad(Query("up").value(z, targets(3, 3), GALLERY).sum(), z)
        torch.testing.assert_close(gradient, balance * slope, rtol=1e-5, atol=1e-9)


def test_the_balance_is_each_querys_own_and_that_of_the_batch_in_compat() -> None:
    # The second query stands at its kept item: nothing has fallen, its balance alone would be 1.
    z = at(10, 90)
    fall = (2 * (chord(80) - chord(10)) + chord(80) - chord(40)) / 5
    for mode, felt in (("fixed", fall), ("compat", fall / 2)):
        attack = SemanticsPreservingQuery("up", strictness=3.0, mode=mode)
        value = attack.value(z, targets(2, 3, rows=2), GALLERY)
        goal = Query("up").value(z, targets(2, 3, rows=2), GALLERY)
        assert (value - goal).tolist() == pytest.approx([-math.exp(3 * felt) * fall, 0])
        # When the second row has left the climb, the first one's value stays what it was.
        alone = {key: rows[:1] for key, rows in targets(2, 3, rows=2).items()}
        assert attack.value(z[:1], alone, GALLERY).item() == pytest.approx(value[0].item())


@pytest.mark.parametrize(("items", "mode"), [(2, "compat"), (2, "fixed"), (3, "compat")])
def test_the_balance_of_two_items_is_that_of_the_clean_images_in_compat(items: int, mode: str) -> None:
    # 0 deg: 20 and 50 change places and 90 is kept; 180: 90 and 50, and 20.
    batch, z = queries([0, 180], [0, 2], [0, 4]), at(10, 175)
    attack = SemanticsPreservingOrder(items=items, pool=0.4, kept=1, strictness=3.0, mode=mode)
    chosen = attack.choose(batch.inputs, batch, GALLERY, seeded(0))
    assert ("balance" in chosen) == (items == 2 and mode == "compat")
    kept = Query("up", mode=mode)
    seen = {"index": chosen["kept"], "exclude": chosen["exclude"]}
    before, now = (-kept.value(at_, seen, GALLERY) for at_ in (batch.inputs, z))
    if items == 2 and mode == "compat":
        assert chosen["kept"].tolist() == [[3], [1]]
        # Before 90, seen from 0: itself, 20 and 50; before 20, seen from 180: itself, 90 and 50.
        first = (3 * chord(90) - chord(20) - chord(50)) / 5
        second = (3 * chord(160) - chord(90) - chord(130)) / 5
        assert before.tolist() == pytest.approx([first, second])
        felt = torch.full((2,), (first + second) / 2, dtype=torch.float64)
    else:
        felt = now if mode == "fixed" else now.mean().expand(2)
    goal = Order(items=items).value(z, chosen, GALLERY)
    expected = goal - (3 * felt).exp() * now
    torch.testing.assert_close(attack.value(z, chosen, GALLERY), expected)
    assert not torch.allclose(before, now, atol=0.01), "or there is nothing to tell apart"
    # A row alone climbs what it climbed among others, once all are taken from one batch.
    alone = {key: rows[:1] for key, rows in chosen.items()}
    if "balance" in chosen:
        assert attack.value(z[:1], alone, GALLERY).item() == pytest.approx(expected[0].item())


def test_a_held_balance_stops_growing_too() -> None:
    batch = queries([0, 180], [0, 2], [0, 4])
    attack = SemanticsPreservingOrder(pool=0.4, kept=1, mode="compat")
    assert attack.choose(batch.inputs, batch, GALLERY, seeded(0))["balance"].tolist() == [1e9, 1e9]


def test_scores_are_those_of_the_attack_and_the_rank_of_the_kept() -> None:
    batch = queries([10], [0])
    scores = SemanticsPreservingQuery("up").score(at(10), targets(2, 3), batch, GALLERY)
    # 50: two of four others nearer; 90: three.
    assert {name: values.item() for name, values in scores.items()} == pytest.approx({"SPQA+": 50, "SPQA+:G": 75})
    compat = SemanticsPreservingQuery("down", mode="compat").score(at(10), targets(2, 3), batch, GALLERY)
    assert {name: values.item() for name, values in compat.items()} == pytest.approx({"SPQA-": 40, "SPQA-:G": 60})
    for items, name in ((2, "SPFOA"), (3, "SPFOA:tau")):
        attack = SemanticsPreservingOrder(items=items, kept=1)
        assert isinstance(attack, Attack) and attack.attack == Order(items=items)
        chosen = attack.choose(batch.inputs, batch, GALLERY, seeded(0))
        assert list(attack.score(at(10), chosen, batch, GALLERY)) == [name, "SPFOA:G"]


def test_the_top_of_the_list_stays_nearer_than_without() -> None:
    degrees = [float(t) for t in range(0, 360, 9)]
    items = gallery(degrees, [i % 4 for i in range(40)])
    batch = queries(degrees, [i % 4 for i in range(40)], list(range(40)))
    engine = PGD(Ball(0.5, bounds=(-2.0, 2.0)), steps=20, step_size=0.05, random_start=False)
    kept = {}
    for strictness in (0.0, 400.0):
        attack = SemanticsPreservingQuery("up", strictness=strictness)
        kept[strictness] = (
            run(attack, engine, Circle(), batch, items, seeded(0), rounded=False).scores["SPQA+:G"].mean()
        )
    assert kept[400.0] < kept[0.0] - 1


def test_settings_without_meaning_are_refused() -> None:
    with pytest.raises(InputError, match="kept=0"):
        SemanticsPreservingQuery("up", kept=0)
    with pytest.raises(InputError, match="strictness=nan"):
        SemanticsPreservingOrder(strictness=math.nan)
    with pytest.raises(InputError, match="candidates=0"):
        SemanticsPreservingQuery("up", candidates=0)
    with pytest.raises(InputError, match="items=1"):
        SemanticsPreservingOrder(items=1)
    batch = queries([0], [0], [0])
    with pytest.raises(InputError, match="5 items cannot be kept near in a gallery of 5; expected at least 6 items"):
        SemanticsPreservingQuery("up").choose(batch.inputs, batch, GALLERY, seeded(0))
