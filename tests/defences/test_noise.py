"""Training under noise: the loss of noisy inputs, from the step's own randomness."""

import math

import pytest
import torch
from small import CLASSES, DIM, encoder, paired_batch, seeded

from robustmetric.defences.noise import Noise
from robustmetric.defences.plain import Plain
from robustmetric.errors import InputError
from robustmetric.losses.proxy_anchor import ProxyAnchor
from robustmetric.losses.triplet import Triplet


def test_the_model_sees_the_batch_with_unclipped_noise_of_that_deviation() -> None:
    model, batch, seen = encoder(), paired_batch(pairs_per_class=8), []
    model.register_forward_pre_hook(lambda layer, inputs: seen.append(inputs[0]))
    Noise(Triplet(), sigma=0.5)(model, batch, seeded(1))
    (noisy,) = seen
    noise = noisy - batch.inputs
    assert noise.std().item() == pytest.approx(0.5, rel=0.05) and abs(noise.mean().item()) < 0.05
    assert noisy.min() < -0.5 and noisy.max() > 1.5


def test_term_is_the_loss_of_what_the_model_saw() -> None:
    model, batch, seen = encoder(), paired_batch(), []
    loss = ProxyAnchor(CLASSES, DIM)
    model.register_forward_pre_hook(lambda layer, inputs: seen.append(inputs[0]))
    terms = Noise(loss, sigma=0.2)(model, batch, seeded(1))
    assert list(terms) == ["metric"]
    torch.testing.assert_close(terms["metric"], loss(model(seen[0]), batch.labels))


def test_sigma_0_is_plain_training() -> None:
    model, batch, loss = encoder(), paired_batch(), ProxyAnchor(CLASSES, DIM)
    torch.testing.assert_close(Noise(loss, sigma=0.0)(model, batch)["metric"], Plain(loss)(model, batch)["metric"])


def test_generator_decides_the_noise() -> None:
    model, batch, defence = encoder(), paired_batch(), Noise(ProxyAnchor(CLASSES, DIM), sigma=0.3)
    first, again, other = (defence(model, batch, seeded(seed))["metric"].item() for seed in (1, 1, 2))
    assert first == again != other


def test_gradients_reach_every_parameter_and_the_proxies() -> None:
    model, defence = encoder(), Noise(ProxyAnchor(CLASSES, DIM), sigma=0.1)
    sum(defence(model, paired_batch(), seeded()).values()).backward()
    for parameter in (*model.parameters(), *defence.parameters()):
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0


@pytest.mark.parametrize("sigma", [-0.1, math.inf, math.nan])
def test_a_deviation_that_is_none_is_refused(sigma: float) -> None:
    with pytest.raises(InputError, match="expected a finite number >= 0"):
        Noise(Triplet(), sigma=sigma)
