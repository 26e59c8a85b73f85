"""Plain training is the loss and nothing else."""

import torch
from small import CLASSES, DIM, encoder, paired_batch, seeded

from robustmetric.defences.plain import Plain
from robustmetric.losses.proxy_anchor import ProxyAnchor
from robustmetric.losses.triplet import Triplet


def test_term_is_the_loss_of_the_clean_batch() -> None:
    model, batch, loss = encoder(), paired_batch(), Triplet()
    terms = Plain(loss)(model, batch, seeded(1))
    assert list(terms) == ["metric"]
    torch.testing.assert_close(terms["metric"], loss(model(batch.inputs), batch.labels, generator=seeded(1)))


def test_generator_decides_the_triplets() -> None:
    model, batch, defence = encoder(), paired_batch(), Plain(Triplet())
    first, again, other = (defence(model, batch, seeded(seed))["metric"].item() for seed in (1, 1, 2))
    assert first == again != other


def test_gradients_reach_every_parameter_and_the_proxies() -> None:
    model, defence = encoder(), Plain(ProxyAnchor(CLASSES, DIM))
    sum(defence(model, paired_batch()).values()).backward()
    for parameter in (*model.parameters(), *defence.parameters()):
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0
    assert model.training
