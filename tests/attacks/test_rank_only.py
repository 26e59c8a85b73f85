"""What order alone says, by hand on a circle; who may climb it; and a real search on digits."""

from dataclasses import replace

import pytest
import torch
from circle import Circle, at, gallery, queries, seeded
from torch import Tensor

from robustmetric.attacks.base import Attack, run
from robustmetric.attacks.candidate import Candidate
from robustmetric.attacks.embedding_shift import EmbeddingShift
from robustmetric.attacks.mismatch import TargetedMismatch
from robustmetric.attacks.misrank import LearnToMisrank
from robustmetric.attacks.query import Query
from robustmetric.attacks.rank_only import RankOnly
from robustmetric.attacks.top1 import TopOneMisranking, TopOneTranslocation
from robustmetric.data.digits import Digits
from robustmetric.errors import InputError
from robustmetric.losses.triplet import Triplet
from robustmetric.models.convnet import ConvNet
from robustmetric.models.encoder import Encoder
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.gradient_free import NES, Square
from robustmetric.perturb.pgd import PGD, evaluate, frozen
from robustmetric.types import Batch, Gallery

GALLERY = gallery([0, 20, 50, 90, 180], [0, 0, 1, 1, 2])
ATTACKS = [
    Query("up"),
    Query("down"),
    Candidate("up"),
    Candidate("down"),
    TargetedMismatch(),
    EmbeddingShift(),
    LearnToMisrank(),
    TopOneMisranking(),
    TopOneTranslocation(),
]
BOUNDED = Ball(0.3, bounds=(-2.0, 2.0))


def values(attack: RankOnly, degrees: float, items: Gallery = GALLERY, **targets: Tensor) -> float:
    """The value at a place on the circle, of a query that is not in the gallery unless told."""
    return attack.value(at(degrees), {"exclude": torch.tensor([-1]), **targets}, items).item()


def test_items_on_their_way_up_or_down_by_hand() -> None:
    index = torch.tensor([[2]])
    # The item at 50: from 40 it comes first; from 30 behind 20; from 0 behind 0 and 20; from 130 and 180 behind 90 and
    # 180. Of four others that is 0, 25 and 50 percent.
    ranks = {40: 0, 30: 25, 0: 50, 130: 50, 180: 50}
    for degrees, rank in ranks.items():
        assert values(RankOnly(Query("up")), degrees, index=index) == pytest.approx(-rank)
        assert values(RankOnly(Query("down")), degrees, index=index) == pytest.approx(rank - 100)
        assert values(RankOnly(TopOneTranslocation()), degrees, index=index) == pytest.approx(rank - 100)
        for attack in (TargetedMismatch(), TopOneMisranking()):
            assert values(RankOnly(attack), degrees, index=index[0]) == pytest.approx(-rank)
    # Where the query is the item at 20, this is no part of its list: 50 is first from 30 too, and second of 0, 50, 90
    # and 180 from 0 deg.
    for degrees, rank in {40: 0, 30: 0, 0: 100 / 3, 130: 200 / 3}.items():
        assert values(RankOnly(Query("up")), degrees, index=index, exclude=torch.tensor([1])) == pytest.approx(-rank)


def test_the_first_item_of_the_own_class_by_hand() -> None:
    same = torch.tensor([[True, True, False, False, False]])
    attack = RankOnly(EmbeddingShift())
    # The query is item 0 (label 0), so its class is the item at 20. From 10 it is first; from 40 behind 50; from 80
    # behind 90 and 50; from 180 behind 180, 90 and 50: all of the three others.
    for degrees, rank in {10: 0, 40: 100 / 3, 80: 200 / 3, 180: 100}.items():
        found = values(attack, degrees, same=same, exclude=torch.tensor([0]))
        assert found == pytest.approx(rank - 100)
    # Not in the gallery itself, its class begins at 0: from 10 and 5 first.
    assert values(attack, 5.0, same=same, exclude=torch.tensor([-1])) == pytest.approx(-100)


def test_a_class_of_one_has_nothing_to_climb_and_no_nan() -> None:
    same = torch.tensor([[False, False, False, False, True]])
    attack = RankOnly(LearnToMisrank())
    found = {values(attack, degrees, same=same, exclude=torch.tensor([4])) for degrees in (0.0, 70.0, 180.0)}
    assert len(found) == 1 and -100 <= found.pop() <= 0


def test_the_candidate_in_the_lists_of_its_queries_by_hand() -> None:
    attack = RankOnly(Candidate("up"))
    clean = at(90)
    targets = attack.choose(clean, queries([90], [1], [3]), GALLERY, seeded(0))
    query = targets["index"][0, 0].item()
    angles = [0, 20, 50, 90, 180]
    for degrees in (3.0, 33.0, 101.0):
        others = [item for item in angles if item not in (90, angles[query])]
        closer = sum(abs(angles[query] - item) < abs(angles[query] - degrees) for item in others)
        assert attack.value(at(degrees), targets, GALLERY).item() == pytest.approx(-100 * closer / 3)
        down = RankOnly(Candidate("down")).value(at(degrees), targets, GALLERY).item()
        assert down == pytest.approx(100 * closer / 3 - 100)


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_values_end_at_zero_are_constant_in_pieces_and_leave_the_scores_alone(attack: Attack) -> None:
    blind = RankOnly(attack)
    batch = queries([0, 50, 90], [0, 1, 1], [0, 2, 3])
    targets = blind.choose(batch.inputs, batch, GALLERY, seeded(2))
    plain = attack.choose(batch.inputs, batch, GALLERY, seeded(2))
    assert all(torch.equal(targets[name], plain[name]) for name in plain)
    assert all(len(tensor) == 3 for tensor in targets.values())
    around = torch.stack([blind.value(at(*[t] * 3), targets, GALLERY) for t in range(0, 360, 3)])
    assert around.max() <= 0 and around.min() >= -100
    assert len(around.unique()) <= 12 and len(around.unique()) > 1
    z = at(10, 60, 100)
    expected = attack.score(z, plain, batch, GALLERY)
    torch.testing.assert_close(dict(blind.score(z, targets, batch, GALLERY)), dict(expected))
    assert isinstance(blind, Attack) and blind.role == attack.role


def test_only_the_order_matters() -> None:
    index = torch.tensor([[2]])
    # The same order from 5 degrees, other distances.
    other = gallery([1, 25, 60, 70, 150], [0, 0, 1, 1, 2])
    for attack in (RankOnly(Query("up")), RankOnly(Query("down"))):
        assert values(attack, 5.0, index=index) == values(attack, 5.0, other, index=index)


@pytest.mark.parametrize("attack", ATTACKS, ids=repr)
def test_an_engine_that_asks_for_gradients_is_refused(attack: Attack) -> None:
    batch = queries([0, 50, 90], [0, 1, 1], [0, 2, 3])
    engine = PGD(BOUNDED, steps=2, step_size=0.1)
    with pytest.raises(InputError, match=r"ranks have no gradient to climb.*nes or square"):
        run(RankOnly(attack), engine, Circle(), batch, GALLERY, seeded(0), rounded=False)


@pytest.mark.parametrize(
    "engine", [NES(BOUNDED, 8, 0.1, samples=20), Square(BOUNDED, 60, ties=True)], ids=["nes", "square"]
)
def test_engines_that_ask_for_values_climb_it(engine: NES | Square) -> None:
    batch = queries([0, 20, 180], [0, 0, 2], [0, 1, 4])
    for attack in (Query("down"), Candidate("down"), TopOneTranslocation(keep=1)):
        still = run(RankOnly(attack), replace(engine, ball=Ball(0.0)), Circle(), batch, GALLERY, seeded(1))
        moved = run(RankOnly(attack), engine, Circle(), batch, GALLERY, seeded(1), rounded=False)
        (before,), (after,) = still.scores.values(), moved.scores.values()
        change = after.mean() - before.mean()
        assert change < 0 if "GTT" in moved.scores else change > 0, attack


def test_attacks_without_a_goal_among_ranks_are_refused() -> None:
    with pytest.raises(InputError, match=r"RankOnly\(.*has no goal among ranks; expected query"):
        RankOnly(RankOnly(Query("up")))
    with pytest.raises(InputError, match="mode 'compat'; expected mode 'fixed'"):
        RankOnly(Query("up", mode="compat"))


# --- digits ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def digits() -> tuple[Encoder, Batch, Gallery]:
    """A small encoder, trained for seconds, 40 queries and their gallery of unseen classes."""
    data = Digits().load()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Encoder(ConvNet(side=8, kernel=3, widths=(8, 16), hidden=32, dim=16))
    rows = torch.cat([(data.train.labels == c).nonzero()[:32, 0] for c in range(5)])
    inputs, labels = data.train.inputs[rows].float() / 255, data.train.labels[rows]
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(60):
        optimiser.zero_grad()
        Triplet()(model(inputs), labels, generator=seeded(step)).backward()
        optimiser.step()
    items = data.queries.inputs[:300].float() / 255
    with frozen(model) as embed:
        found = Gallery(evaluate(embed, items), data.queries.labels[:300])
    return model, Batch(items[:40], found.labels[:40], torch.arange(40)), found


@pytest.mark.parametrize(
    ("attack", "engine", "score"),
    [
        (EmbeddingShift(), Square(Ball(0.15), queries=1000), "ES:R"),
        (RankOnly(EmbeddingShift()), Square(Ball(0.15), queries=300, goal=0.0, ties=True), "ES:R"),
        (RankOnly(LearnToMisrank()), NES(Ball(0.15), steps=8, step_size=0.04, samples=40), "LTM"),
    ],
    ids=["square", "square-ranks", "nes-ranks"],
)
def test_digits_lose_recall_to_an_attacker_without_gradients(
    attack: Attack, engine: Square | NES, score: str, digits: tuple[Encoder, Batch, Gallery]
) -> None:
    model, batch, items = digits
    clean = run(attack, replace(engine, ball=Ball(0.0)), model, batch, items, seeded(0)).scores[score].mean()
    attacked = run(attack, engine, model, batch, items, seeded(0))
    assert clean >= 80
    assert attacked.scores[score].mean() <= clean - 30
    assert (attacked.inputs - batch.inputs).abs().max() <= 0.15 + 1e-6
