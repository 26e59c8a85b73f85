"""Every objective ends at the same event, the loss of R@1; by hand on a circle."""

import pytest
import torch
from circle import Circle, at, gallery, queries, seeded

from robustmetric.attacks.base import Attack, Engine, run
from robustmetric.attacks.candidate import Candidate
from robustmetric.attacks.embedding_shift import EmbeddingShift
from robustmetric.attacks.in_turn import InBytes
from robustmetric.attacks.margin import WON
from robustmetric.attacks.misretrieve import Misretrieve
from robustmetric.attacks.query import Query
from robustmetric.attacks.top1 import TopOneMisranking
from robustmetric.attacks.vote import NeighbourMargin
from robustmetric.data.digits import Digits
from robustmetric.errors import InputError
from robustmetric.models.convnet import ConvNet
from robustmetric.models.encoder import Encoder
from robustmetric.perturb.apgd import APGD
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.gradient_free import Square
from robustmetric.perturb.hard_label import RayS
from robustmetric.types import Batch, Gallery

GALLERY = gallery([0, 40, 90], [0, 1, 1])
"""Between 0 and 40 degrees the first answer turns at 20."""
OBJECTIVES = [
    EmbeddingShift(), NeighbourMargin(confidence=2.0), TopOneMisranking(), Query("up"), Query("down"),
    Candidate("up"), Candidate("down"),
]  # fmt: skip


@pytest.mark.parametrize("objective", OBJECTIVES, ids=repr)
def test_the_value_reaches_the_goal_exactly_where_the_first_answer_is_of_another_class(objective: Attack) -> None:
    attack, batch = Misretrieve(objective), queries([5, 5, 5], [0, 0, 0])
    targets = attack.choose(batch.inputs, batch, GALLERY, seeded(0))
    z = at(15, 19, 21)
    assert (attack.value(z, targets, GALLERY) >= WON).tolist() == [False, False, True]
    assert attack.score(z, targets, batch, GALLERY)["R@1"].tolist() == [100.0, 100.0, 0.0]


def test_below_the_goal_it_is_the_objective() -> None:
    batch = queries([5], [0])
    attack = Misretrieve(NeighbourMargin(confidence=2.0))
    targets = attack.choose(batch.inputs, batch, GALLERY, seeded(0))
    # At 10 degrees: cos 30 to the wrong item, cos 10 to the right one.
    margin = at(10) @ (GALLERY.embeddings[1] - GALLERY.embeddings[0])
    torch.testing.assert_close(attack.value(at(10), targets, GALLERY), margin)


def test_the_query_itself_is_no_answer() -> None:
    batch = queries([0], [0], [0])
    attack = Misretrieve(EmbeddingShift())
    targets = attack.choose(batch.inputs, batch, GALLERY, seeded(0))
    assert attack.score(batch.inputs, targets, batch, GALLERY)["R@1"].item() == 0, "no other item is of its class"


def test_apgd_wins_where_the_ball_reaches_the_boundary() -> None:
    batch = queries([12, 2], [0, 0])
    engine = APGD(Ball(0.2, bounds=(-2.0, 2.0)), steps=20, goal=WON)
    outcome = run(Misretrieve(EmbeddingShift()), engine, Circle(), batch, GALLERY, seeded(0), rounded=False)
    assert outcome.scores["R@1"].tolist() == [0.0, 100.0]


@pytest.fixture(scope="module")
def digits() -> tuple[Encoder, Batch, Gallery]:
    """An encoder that was not trained, 120 digits, and the first 30 of them as queries."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Encoder(ConvNet(side=8, kernel=3, widths=(4, 8), hidden=16, dim=8)).eval()
    split = Digits().load().queries
    inputs, labels = split.inputs[:120].float() / 255, split.labels[:120]
    with torch.no_grad():
        gallery = Gallery(model(inputs), labels)
    return model, Batch(inputs[:30], labels[:30], torch.arange(30)), gallery


SEARCHES = [Square(Ball(0.15), queries=150, goal=WON), RayS(Ball(0.15), queries=200, goal=WON)]


@pytest.mark.parametrize(
    "engine", [*SEARCHES, *map(InBytes, SEARCHES)], ids=["square", "rays", "square in bytes", "rays in bytes"]
)
@pytest.mark.parametrize("objective", OBJECTIVES, ids=repr)
def test_searches_by_values_keep_the_contract_on_every_objective(
    objective: Attack, engine: Engine, digits: tuple[Encoder, Batch, Gallery]
) -> None:
    model, batch, items = digits
    attack, rounded = Misretrieve(objective), isinstance(engine, InBytes)
    clean = items.embeddings[:30]
    # The first that a run draws are its targets.
    targets = attack.choose(clean, batch, items, seeded(0))
    outcome = run(attack, engine, model, batch, items, seeded(0), rounded=rounded)
    assert float((outcome.inputs - batch.inputs).abs().max()) <= 0.15 + 1e-6
    assert float(outcome.inputs.min()) >= 0 and float(outcome.inputs.max()) <= 1
    before, after = attack.score(clean, targets, batch, items)["R@1"], outcome.scores["R@1"]
    assert 0 < int((before == 0).sum()) < 30 and not after[before == 0].any(), "what is lost stays lost"
    assert int(((before > 0) & (after == 0)).sum()) >= 5, "and more is lost"
    with torch.no_grad():
        height = attack.value(model(outcome.inputs), targets, items)
    # To the rounding of embeddings of another batch.
    assert (height >= attack.value(clean, targets, items) - 1e-5).all()
    assert ((height >= WON) == (after == 0)).all()


@pytest.mark.parametrize("engine", [SEARCHES[1], InBytes(SEARCHES[1])], ids=["floats", "bytes"])
def test_to_rays_which_sees_decisions_alone_the_objective_does_not_matter(
    engine: Engine, digits: tuple[Encoder, Batch, Gallery]
) -> None:
    model, batch, items = digits
    found = [run(Misretrieve(one), engine, model, batch, items, seeded(0), rounded=False).inputs for one in OBJECTIVES]
    assert not torch.equal(found[0], batch.inputs) and all(torch.equal(one, found[0]) for one in found)


def test_a_compat_objective_is_refused() -> None:
    with pytest.raises(InputError, match="expected mode 'fixed'"):
        Misretrieve(EmbeddingShift(mode="compat"))
