"""ES: away from where the query was, also from a clean start."""

import pytest
import torch
from circle import Circle, at, chord, gallery, queries, seeded, slope

from robustmetric.attacks.base import run
from robustmetric.attacks.embedding_shift import EmbeddingShift
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD, value_and_gradient

GALLERY = gallery([0, 20, 50, 90, 180], [0, 0, 1, 1, 2])
ATTACK = EmbeddingShift()


def test_first_gradient_from_a_clean_start_is_not_zero() -> None:
    batch = queries([0, 20, 50], [0, 0, 1], [0, 1, 2])
    model = Circle()
    targets = ATTACK.choose(model(batch.inputs).detach(), batch, GALLERY, seeded(0))
    _, gradient = value_and_gradient(lambda x: ATTACK.value(model(x), targets, GALLERY), batch.inputs)
    assert (gradient.norm(dim=1) > 0.01).all()


def test_targets_are_the_clean_place_and_a_point_beside_it() -> None:
    clean = at(0, 20)
    targets = ATTACK.choose(clean, queries([0, 20], [0, 0]), GALLERY, seeded(0))
    assert torch.equal(targets["clean"], clean)
    torch.testing.assert_close((targets["origin"] - clean).norm(dim=1), torch.full((2,), 1e-5, dtype=torch.float64))


def test_value_rises_away_from_the_origin() -> None:
    z = at(30, -30).requires_grad_()
    targets = {"origin": at(0, 0), "clean": at(0, 0)}
    value = ATTACK.value(z, targets, GALLERY)
    assert value.tolist() == pytest.approx([chord(30), chord(30)])
    assert slope(value, z).sign().tolist() == [1, -1]


def test_scores_are_the_distance_from_the_clean_place_and_recall_in_percent() -> None:
    batch = queries([0, 20], [0, 0], [0, 1])
    targets = {"origin": at(5, 5), "clean": at(0, 20)}
    # Moved to 40 deg both: item 2 (50 deg, label 1) is nearest, then 20 (label 0).
    scores = ATTACK.score(at(40, 40), targets, batch, GALLERY)
    assert scores["ES:D"].tolist() == pytest.approx([chord(40), chord(20)])
    assert scores["ES:R"].tolist() == [0, 0]
    # Back at 5 deg the first finds 20 (itself left out), the second 0: both of label 0.
    assert ATTACK.score(at(5, 5), targets, batch, GALLERY)["ES:R"].tolist() == [100, 100]


def test_a_climb_turns_the_query() -> None:
    engine = PGD(Ball(0.3, bounds=(-2.0, 2.0)), steps=10, step_size=0.05, random_start=False)
    outcome = run(ATTACK, engine, Circle(), queries([45], [0]), GALLERY, seeded(0), rounded=False)
    # From (0.707, 0.707) to (1.007, 0.407) or its mirror image: atan(0.407 / 1.007) = 22.0 deg, 23 deg away.
    assert outcome.scores["ES:D"].item() == pytest.approx(chord(23.0), abs=0.002)
