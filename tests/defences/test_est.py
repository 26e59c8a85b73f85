"""EST: the batch that is trained on lies as far from its own embedding as the ball allows."""

import pytest
import torch
from small import CLASSES, DIM, Watched, encoder, paired_batch, pgd, seeded

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
