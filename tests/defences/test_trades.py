"""TRADES: weight 0 is plain training; the second term is by hand, and has a gradient through both embeddings."""

import math

import pytest
import torch
from small import CLASSES, DIM, Watched, encoder, figures, paired_batch, pgd, seeded
from torch import nn

from robustmetric.defences.plain import Plain
from robustmetric.defences.trades import Trades
from robustmetric.errors import InputError
from robustmetric.losses.mining import Random
from robustmetric.losses.proxy_anchor import ProxyAnchor
from robustmetric.losses.triplet import Triplet
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD
from robustmetric.types import Batch


@pytest.mark.parametrize("make", [lambda: ProxyAnchor(CLASSES, DIM), lambda: Triplet(Random())])
def test_weight_zero_is_plain_training_bit_for_bit(make) -> None:
    gradients = []
    for kind in (Plain, lambda loss: Trades(loss, pgd(0.2), weight=0.0)):
        model, loss = encoder(), make()
        sum(kind(loss)(model, paired_batch(), seeded(1)).values()).backward()
        gradients.append([p.grad for p in (*model.parameters(), *loss.parameters())])
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))
    assert any(gradient.abs().sum() > 0 for gradient in gradients[0])


class Scale(nn.Module):
    """z = weight * x."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.weight * x


def test_the_second_term_by_hand_with_a_gradient_through_both() -> None:
    model = Scale()
    batch = Batch(torch.tensor([[0.5], [0.25]]), torch.tensor([0, 1]), torch.arange(2))
    attack = Watched(PGD(Ball(0.125), steps=1, step_size=0.125, random_start=False))
    terms = Trades(ProxyAnchor(2, 1), attack, weight=3.0)(model, batch, seeded())
    # Each input moves by 1/8, each embedding by 1/4, whichever way the nudge sends it: 3 * (1/4)^2.
    assert (attack.moved[0] - batch.inputs).abs().flatten().tolist() == [0.125, 0.125]
    assert terms["stability"].item() == 3 / 16
    terms["stability"].backward()
    # 3 (w x~ - w x)^2 = 3 w^2 / 64, so 6 w / 64 = 3/16; with F(x) held fixed, 6 (x~ - x) x~ w would depend on x.
    assert model.weight.grad is not None and model.weight.grad.item() == 3 / 16


def test_the_adversary_moves_the_embedding_which_the_log_shows() -> None:
    attack, model, batch = Watched(pgd(0.2)), encoder(), paired_batch()
    defence = Trades(ProxyAnchor(CLASSES, DIM), attack)
    terms = defence(model, batch, seeded())
    assert figures(defence)["shift"] > 0.05
    torch.testing.assert_close(terms["stability"].detach(), 6 * attack.after[0].square().mean(), rtol=1e-3, atol=1e-4)


def test_clean_embeddings_as_proxies_by_hand() -> None:
    model = nn.Identity()
    batch = Batch(torch.eye(2), torch.tensor([0, 1]), torch.arange(2))
    terms = Trades(ProxyAnchor(2, 2), pgd(0.0), weight=1.0, as_proxies=True)(model, batch, seeded())
    # Nothing moved: cosines 1 to the own proxy and 0 to the other; e^{-32 (1 - 0.1)} and e^{32 * 0.1}.
    expected = math.log(1 + math.exp(-28.8)) + math.log(1 + math.exp(3.2))
    assert terms["stability"].item() == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("weight", [-1.0, math.inf])
def test_what_is_no_weight_is_refused(weight: float) -> None:
    with pytest.raises(InputError, match="weight"):
        Trades(ProxyAnchor(CLASSES, DIM), pgd(0.1), weight=weight)
