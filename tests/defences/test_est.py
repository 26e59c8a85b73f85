"""EST: the batch that is trained on lies as far from its own embedding as the ball allows."""

import pytest
import torch
from small import CLASSES, DIM, LINE, Watched, encoder, figures, paired_batch, pgd, quarters, seeded
from torch import nn

from robustmetric.defences.est import EmbeddingShiftedTriplet
from robustmetric.defences.plain import Plain
from robustmetric.losses.base import MetricLoss
from robustmetric.losses.mining import Hardest
from robustmetric.losses.proxy_anchor import ProxyAnchor
from robustmetric.losses.triplet import Triplet
from robustmetric.numerics.distances import paired
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD


@pytest.mark.parametrize("loss", [Triplet(Hardest()), ProxyAnchor(CLASSES, DIM)])
def test_radius_zero_is_plain_training_also_in_its_gradient(loss: MetricLoss) -> None:
    terms, gradients = [], []
    for defence in (Plain(loss), EmbeddingShiftedTriplet(loss, pgd(0.0))):
        model = encoder()
        terms.append(defence(model, paired_batch(), seeded()))
        sum(terms[-1].values()).backward()
        gradients.append([p.grad for p in model.parameters()])
    assert list(terms[1]) == ["metric"]
    torch.testing.assert_close(terms[0], terms[1])
    torch.testing.assert_close(gradients[0], gradients[1])


def test_climb_is_the_shift_of_each_row_and_the_moved_batch_is_trained_on() -> None:
    attack = Watched(pgd(0.2))
    model, batch, loss = encoder(), paired_batch(), Triplet(Hardest())
    terms = EmbeddingShiftedTriplet(loss, attack)(model, batch, seeded())
    with torch.no_grad():
        shifted = paired(model(attack.moved[0]), model(batch.inputs))
        at_random = paired(model(attack.ball.random_point(batch.inputs, seeded(1))), model(batch.inputs))
    # The origin lies 1e-5 beside the clean embedding.
    torch.testing.assert_close(attack.before[0], torch.full((len(batch),), 1e-5), atol=2e-6, rtol=0)
    torch.testing.assert_close(attack.after[0], shifted, atol=2e-5, rtol=0)
    assert (shifted > at_random).all() and shifted.mean() > 1.5 * at_random.mean()
    assert (attack.moved[0] - batch.inputs).abs().max() <= 0.2 + 1e-6
    torch.testing.assert_close(terms["metric"], loss(model(attack.moved[0]), batch.labels))


def test_climb_also_leaves_a_clean_start() -> None:
    attack = Watched(PGD(Ball(0.2), steps=4, step_size=0.05, random_start=False))
    EmbeddingShiftedTriplet(Triplet(), attack)(encoder(), paired_batch(), seeded())
    assert (attack.after[0] > 1000 * attack.before[0]).all()


def test_gradients_reach_every_parameter_and_the_proxies_after_the_climb_only() -> None:
    model, defence = encoder(), EmbeddingShiftedTriplet(ProxyAnchor(CLASSES, DIM), pgd(0.1))
    terms = defence(model, paired_batch(), seeded())
    assert all(p.grad is None and p.requires_grad for p in (*model.parameters(), *defence.parameters()))
    assert model.training
    sum(terms.values()).backward()
    for parameter in (*model.parameters(), *defence.parameters()):
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0


@pytest.mark.parametrize("seed", range(4))
def test_two_triplets_on_a_line_are_mined_after_the_move_and_noted_before_and_after(seed: int) -> None:
    attack = quarters(steps=1)
    defence = EmbeddingShiftedTriplet(Triplet(Hardest(), margin=3.0), attack)
    terms = defence(nn.Identity(), LINE, seeded(seed))
    # All go 0.25 one way or the other, which leaves 1 (p) and 3 (the other anchor) the nearest negatives.
    a, p, b, q = attack.moved[0].flatten().tolist()
    assert [abs(a), abs(p - 1), abs(b - 3), abs(q - 3.5)] == [0.25] * 4
    first, second = abs(a - p) - abs(a - min(b, q)), abs(b - q) - abs(b - p)
    assert terms["metric"].item() == pytest.approx((first + second) / 2 + 3)
    # 0.5 apart, they may have changed places: then the first anchor's negative was at 3.5.
    before = ((1 - 3 if b <= q else 1 - 3.5) - 1.5) / 2
    assert figures(defence) == pytest.approx({"before": before, "after": (first + second) / 2})


def test_a_loss_without_triplets_notes_no_hardness() -> None:
    defence = EmbeddingShiftedTriplet(ProxyAnchor(CLASSES, DIM), pgd(0.1))
    defence(encoder(), paired_batch(), seeded())
    assert defence.measures == {}
