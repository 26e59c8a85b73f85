"""Adversarial training: the same triplets climb and descend, and radius 0 is plain training."""

import pytest
import torch
from small import CLASSES, DIM, Watched, encoder, paired_batch, pgd, seeded
from torch import Tensor

from robustmetric.defences.madry import Madry
from robustmetric.defences.plain import Plain
from robustmetric.errors import InputError
from robustmetric.losses.base import MetricLoss
from robustmetric.losses.mining import Hardest
from robustmetric.losses.proxy_anchor import ProxyAnchor
from robustmetric.losses.triplet import Triplet
from robustmetric.types import Triplets


def mined(seed: int) -> tuple[Triplets, Tensor]:
    """The triplets that a defence with this generator mines, and the plain loss on them."""
    model, batch = encoder().eval(), paired_batch()
    triplets = Triplet().mine(model(batch.inputs).detach(), batch.labels, seeded(seed))
    return triplets, Triplet()(model(batch.inputs), batch.labels, triplets)


def test_radius_zero_is_the_plain_loss_of_the_same_triplets() -> None:
    terms = Madry(Triplet(), pgd(0.0))(encoder(), paired_batch(), seeded(3))
    assert list(terms) == ["adversarial"]
    torch.testing.assert_close(terms["adversarial"], mined(3)[1])


@pytest.mark.parametrize("loss", [Triplet(Hardest()), ProxyAnchor(CLASSES, DIM)])
def test_radius_zero_is_plain_training_also_in_its_gradient(loss: MetricLoss) -> None:
    gradients = []
    for defence in (Plain(loss), Madry(loss, pgd(0.0))):
        model = encoder()
        sum(defence(model, paired_batch(), seeded()).values()).backward()
        gradients.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(gradients[0], gradients[1])


def test_perturbed_batch_has_a_larger_loss_in_every_row_the_same() -> None:
    attack = Watched(pgd(0.2))
    model, batch, loss = encoder(), paired_batch(), Triplet()
    terms = Madry(loss, attack)(model, batch, seeded(3))
    assert attack.before[0].shape == (len(batch),) and len(attack.before[0].unique()) == 1
    torch.testing.assert_close(attack.before[0][0], mined(3)[1].detach())
    assert attack.after[0][0] > attack.before[0][0] + 0.05
    # What is minimised is the value that was climbed, at the point reached.
    torch.testing.assert_close(terms["adversarial"].detach(), attack.after[0][0])
    assert (attack.moved[0] - batch.inputs).abs().max() <= 0.2 + 1e-6


def test_clean_share_weighs_the_two_losses() -> None:
    batch, attack = paired_batch(), pgd(0.2)
    pure = Madry(Triplet(), attack)(encoder(), batch, seeded(3))["adversarial"]
    mixed = Madry(Triplet(), attack, clean_share=0.25)(encoder(), batch, seeded(3))
    assert list(mixed) == ["adversarial", "clean"]
    torch.testing.assert_close(mixed["adversarial"], 0.75 * pure)
    torch.testing.assert_close(mixed["clean"], 0.25 * mined(3)[1])


def test_clean_share_of_one_is_plain_training() -> None:
    terms = Madry(Triplet(), pgd(0.2), clean_share=1.0)(encoder(), paired_batch(), seeded(3))
    assert terms["adversarial"].item() == 0
    torch.testing.assert_close(terms["clean"], mined(3)[1])


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_what_is_no_share_is_refused(share: float) -> None:
    with pytest.raises(InputError, match="clean_share"):
        Madry(Triplet(), pgd(0.2), clean_share=share)


def test_gradients_reach_every_parameter_and_the_proxies_after_the_climb_only() -> None:
    model, loss = encoder(), ProxyAnchor(CLASSES, DIM)
    defence = Madry(loss, pgd(0.1))
    terms = defence(model, paired_batch(), seeded())
    assert all(p.grad is None and p.requires_grad for p in (*model.parameters(), *defence.parameters()))
    assert model.training and loss.training
    sum(terms.values()).backward()
    for parameter in (*model.parameters(), *defence.parameters()):
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0
