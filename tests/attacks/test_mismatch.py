"""TMA: the cosine with a random item."""

import pytest
import torch
from circle import Circle, at, gallery, queries, seeded, slope

from robustmetric.attacks.base import run
from robustmetric.attacks.mismatch import TargetedMismatch
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD

GALLERY = gallery([0, 20, 50, 90, 180], [0, 0, 1, 1, 2])
ATTACK = TargetedMismatch()


def test_any_item_may_be_the_target() -> None:
    batch = queries([0] * 300, [0] * 300)
    targets = ATTACK.choose(batch.inputs, batch, GALLERY, seeded(0))
    assert targets["index"].shape == (300,) and set(targets["index"].tolist()) == {0, 1, 2, 3, 4}
    assert torch.equal(targets["target"], GALLERY.embeddings[targets["index"]])


def test_the_query_itself_is_no_target_but_in_compat() -> None:
    batch = queries([0] * 300, [0] * 300, [0] * 300)
    for attack, others in ((ATTACK, {1, 2, 3, 4}), (TargetedMismatch(mode="compat"), {0, 1, 2, 3, 4})):
        assert set(attack.choose(batch.inputs, batch, GALLERY, seeded(0))["index"].tolist()) == others


def test_value_and_score_are_the_cosine() -> None:
    z = at(30).requires_grad_()
    targets = {"target": at(90)}
    value = ATTACK.value(z, targets, GALLERY)
    assert value.item() == pytest.approx(0.5) and slope(value, z).item() > 0
    assert ATTACK.score(z.detach(), targets, queries([0], [0]), GALLERY)["TMA"].item() == pytest.approx(0.5)


def test_a_climb_raises_the_cosine() -> None:
    engine = PGD(Ball(0.2, bounds=(-2.0, 2.0)), steps=10, step_size=0.05, random_start=False, keep="best")
    batch = queries([0, 120, 200], [0, 1, 2])
    still = PGD(Ball(0.0, bounds=(-2.0, 2.0)), steps=0, step_size=0.0, random_start=False)
    unmoved, moved = (
        run(ATTACK, e, Circle(), batch, GALLERY, seeded(3), rounded=False).scores["TMA"] for e in (still, engine)
    )
    assert (moved >= unmoved).all() and (moved - unmoved).mean() > 0.05
