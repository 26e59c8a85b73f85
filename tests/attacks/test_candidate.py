"""CA+ and CA-: where an item stands in the lists of queries it does not choose, or of its neighbours."""

from math import inf as INFINITY

import pytest
import torch
from circle import at, chord, gallery, queries, seeded, slope

from robustmetric.attacks.base import Targets
from robustmetric.attacks.candidate import Candidate
from robustmetric.errors import InputError
from robustmetric.types import Batch

DEGREES = [0, 20, 50, 90, 180]
GALLERY = gallery(DEGREES, [0, 0, 1, 1, 2])


def targets_for(query: int) -> dict[str, torch.Tensor]:
    """One candidate, one query: the item `query` of the gallery, with its list."""
    lists = torch.tensor([[[chord(DEGREES[query] - t) for t in DEGREES]]], dtype=torch.float64)
    return {
        "index": torch.tensor([[query]]),
        "queries": GALLERY.embeddings[query].view(1, 1, 2),
        "lists": lists,
    }


def test_up_draws_any_items_as_queries() -> None:
    batch = queries([0] * 500, [0] * 500, [0] * 500)
    targets = Candidate("up", queries=2).choose(batch.inputs, batch, GALLERY, seeded(0))
    assert targets["index"].shape == (500, 2)
    assert set(targets["index"].flatten().tolist()) == {1, 2, 3, 4}, "but the candidate itself"
    compat = Candidate("up", mode="compat").choose(batch.inputs, batch, GALLERY, seeded(0))
    assert set(compat["index"].flatten().tolist()) == {0, 1, 2, 3, 4}
    strangers = queries([0] * 500, [0] * 500)
    targets = Candidate("up").choose(strangers.inputs, strangers, GALLERY, seeded(0))
    assert set(targets["index"].flatten().tolist()) == {0, 1, 2, 3, 4}


def test_down_draws_near_neighbours_but_never_the_candidate_itself() -> None:
    batch = queries([0, 90, 10], [0, 1, 0], [0, 3, -1])
    targets = Candidate("down", queries=2, pool=0.4).choose(batch.inputs, batch, GALLERY, seeded(0))
    # Two nearest: of 0 deg 20 and 50, of 90 deg 50 and 20; of 10 deg, which is in no gallery, 0 and 20.
    assert targets["index"].sort(dim=1).values.tolist() == [[1, 2], [1, 2], [0, 1]]


def test_targets_hold_the_queries_and_their_lists() -> None:
    batch = queries([0, 90, 10], [0, 1, 0], [0, 3, -1])
    for mode in ("fixed", "compat"):
        attack = Candidate("down", queries=2, pool=0.4, mode=mode)
        targets = attack.choose(batch.inputs, batch, GALLERY, seeded(0))
        torch.testing.assert_close(targets["queries"], GALLERY.embeddings[targets["index"]])
        for row in range(3):
            for query, found in zip(targets["index"][row].tolist(), targets["lists"][row].tolist(), strict=True):
                # In fixed the query itself is no part of its list, nor is the candidate's clean copy.
                left_out = (query, batch.index[row].item()) if mode == "fixed" else ()
                away = [chord(DEGREES[query] - t) if j not in left_out else INFINITY for j, t in enumerate(DEGREES)]
                assert found == pytest.approx(away)


def test_a_candidate_on_its_query_is_first_of_three() -> None:
    # Candidate 4 (180 deg) in the list of the query at 20: the others are 0, 50 and 90.
    batch, z = queries([180], [2], [4]), at(20).requires_grad_()
    found = {}
    for mode in ("fixed", "compat"):
        attack = Candidate("up", mode=mode)
        targets = aimed(attack, 1, batch)
        found[mode] = attack.score(z.detach(), targets, batch, GALLERY)["CA+"].item()
        assert attack.value(z, targets, GALLERY).item() == 0
        # One degree off it is first all the same, and in fixed there is nothing left to gain.
        off = at(21).requires_grad_()
        moves = slope(attack.value(off, targets, GALLERY), off).item()
        assert moves == 0 if mode == "fixed" else moves < 0
    assert found == {"fixed": 0, "compat": 0}


def test_an_unattacked_nearest_neighbour_is_first() -> None:
    # Candidate 1 (20 deg) is the nearest of 0 deg; behind it 50, 90 and 180. Compat has 0 deg itself before it.
    batch = queries([20], [0], [1])
    for mode, degrees, rank in (("fixed", 20, 0), ("fixed", 19, 0), ("compat", 19, 20)):
        attack = Candidate("down", mode=mode)
        assert attack.score(at(degrees), aimed(attack, 0, batch), batch, GALLERY)["CA-"].item() == pytest.approx(rank)
    # From 60 deg it is behind 50, of three; to go are 90 and 180.
    targets = aimed(Candidate("down"), 0, batch)
    assert Candidate("down").score(at(60), targets, batch, GALLERY)["CA-"].item() == pytest.approx(100 / 3)
    expected = -((chord(90) - chord(60)) + (chord(180) - chord(60))) / 3
    assert Candidate("down").value(at(60), targets, GALLERY).item() == pytest.approx(expected)
    # A candidate that is in no gallery has the query alone left out.
    stranger = queries([60], [0])
    targets = aimed(Candidate("down", pool=1.0), 0, stranger)
    assert Candidate("down").score(at(60), targets, stranger, GALLERY)["CA-"].item() == pytest.approx(50)


def aimed(attack: Candidate, query: int, batch: Batch) -> Targets:
    """The attack's own targets of a seed that draws this query."""
    drawn = (attack.choose(batch.inputs, batch, GALLERY, seeded(seed)) for seed in range(100))
    return next(targets for targets in drawn if targets["index"].tolist() == [[query]])


def test_up_value_by_hand_and_its_direction() -> None:
    # The candidate at 60 deg in the list of the query at 20 deg: 40 deg away. Before it: itself, 0 (20 deg), 50 (30).
    z = at(60).requires_grad_()
    value = Candidate("up").value(z, targets_for(1), GALLERY)
    expected = -((chord(40) - 0) + (chord(40) - chord(20)) + (chord(40) - chord(30))) / 5
    assert value.item() == pytest.approx(expected)
    assert slope(value, z).item() < 0, "up means towards the query, clockwise"


def test_down_value_by_hand_and_its_direction() -> None:
    # After it: 90 (70 deg from the query) and 180 (160 deg).
    z = at(60).requires_grad_()
    value = Candidate("down").value(z, targets_for(1), GALLERY)
    assert value.item() == pytest.approx(-((chord(70) - chord(40)) + (chord(160) - chord(40))) / 5)
    assert slope(value, z).item() > 0, "down means away from the query"


def test_score_is_the_rank_in_percent() -> None:
    batch = queries([60], [1])
    # Three of five items are nearer to the query than 40 deg, none is level.
    assert Candidate("up").score(at(60), targets_for(1), batch, GALLERY)["CA+"].item() == pytest.approx(60)
    # At 20 + 30 deg it is level with the item at 50: two nearer and half of that one.
    assert Candidate("down").score(at(50), targets_for(1), batch, GALLERY)["CA-"].item() == pytest.approx(50)


def test_several_queries_are_averaged_per_candidate() -> None:
    batch = queries([60, 60], [1, 1])
    one, other = targets_for(1), targets_for(4)
    both = {key: torch.cat([one[key], other[key]], dim=1).repeat(2, *[1] * (one[key].dim() - 1)) for key in one}
    # In the list of 180 deg, 60 is 120 away: before it 180 itself and 90. Ranks 60 and 40.
    score = Candidate("up", queries=2).score(at(60, 20), both, batch, GALLERY)["CA+"]
    # At 20 deg: level with the query itself (10 %); 160 from 180: before it three, level one (70 %).
    assert score.tolist() == pytest.approx([50, 40])


def test_settings_without_meaning_are_refused() -> None:
    with pytest.raises(InputError, match="queries=0"):
        Candidate("up", queries=0)
    batch = queries([0], [0], [0])
    with pytest.raises(InputError, match="gallery of 5"):
        Candidate("down", queries=5).choose(batch.inputs, batch, GALLERY, seeded(0))
