"""Every objective ends at the same event, the loss of R@1; by hand on a circle."""

import pytest
import torch
from circle import Circle, at, gallery, queries, seeded

from robustmetric.attacks.base import Attack, run
from robustmetric.attacks.candidate import Candidate
from robustmetric.attacks.embedding_shift import EmbeddingShift
from robustmetric.attacks.margin import WON
from robustmetric.attacks.misretrieve import Misretrieve
from robustmetric.attacks.query import Query
from robustmetric.attacks.top1 import TopOneMisranking
from robustmetric.attacks.vote import NeighbourMargin
from robustmetric.errors import InputError
from robustmetric.perturb.apgd import APGD
from robustmetric.perturb.ball import Ball

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


def test_a_compat_objective_is_refused() -> None:
    with pytest.raises(InputError, match="expected mode 'fixed'"):
        Misretrieve(EmbeddingShift(mode="compat"))
