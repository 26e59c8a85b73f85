"""SES: the loss of the clean batch, and the shift that the ball allows, suppressed."""

import inspect
import math

import pytest
import torch
from small import CLASSES, DIM, LINE, Watched, encoder, figures, paired_batch, pgd, quarters, seeded
from torch import nn

from robustmetric.defences.plain import Plain
from robustmetric.defences.ses import SuppressedShift
from robustmetric.errors import InputError
from robustmetric.losses.base import MetricLoss
from robustmetric.losses.mining import Hardest, Random
from robustmetric.losses.proxy_anchor import ProxyAnchor
from robustmetric.losses.triplet import Triplet
from robustmetric.numerics.distances import paired


def test_two_triplets_on_a_line() -> None:
    attack = quarters(steps=2)
    defence = SuppressedShift(Triplet(Hardest(), margin=3.0), attack, weight=3.0)
    terms = defence(nn.Identity(), LINE, seeded())
    # Clean: 3 - 2 and 3 - 1.5. Every point goes 0.5 away from itself.
    assert {name: term.item() for name, term in terms.items()} == {"metric": 1.25, "shift": 1.5}
    a, p, b, q = attack.moved[0].flatten().tolist()
    after = (abs(a - p) - abs(a - b) + abs(b - q) - abs(b - p)) / 2
    assert figures(defence) == pytest.approx({"before": -1.75, "after": after})


def test_gradient_flows_through_both_ends_of_the_shift() -> None:
    attack, model, batch = Watched(pgd(0.2)), encoder(), paired_batch()
    terms = SuppressedShift(Triplet(Hardest()), attack, weight=0.5)(model, batch, seeded())
    expected = 0.5 * paired(model(attack.moved[0]), model(batch.inputs)).mean()
    torch.testing.assert_close(terms["shift"], expected)
    parameters = list(model.parameters())
    torch.testing.assert_close(
        torch.autograd.grad(terms["shift"], parameters, retain_graph=True), torch.autograd.grad(expected, parameters)
    )
    torch.testing.assert_close(terms["metric"], Triplet(Hardest())(model(batch.inputs), batch.labels))


@pytest.mark.parametrize("loss", [Triplet(Random()), Triplet(Hardest()), ProxyAnchor(CLASSES, DIM)])
@pytest.mark.parametrize(("radius", "weight"), [(0.0, 1.0), (0.2, 0.0)])
def test_radius_zero_and_weight_zero_are_plain_training_also_in_its_gradient(
    loss: MetricLoss, radius: float, weight: float
) -> None:
    gradients = []
    for defence in (Plain(loss), SuppressedShift(loss, pgd(radius), weight=weight)):
        model = encoder()
        sum(defence(model, paired_batch(), seeded(3)).values()).backward()
        gradients.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(gradients[0], gradients[1])


def test_a_loss_without_triplets_notes_no_hardness() -> None:
    defence = SuppressedShift(ProxyAnchor(CLASSES, DIM), pgd(0.1))
    defence(encoder(), paired_batch(), seeded())
    assert defence.measures == {}


def test_training_suppresses_the_shift() -> None:
    shifts = {}
    for weight in (0.0, 1.0):
        model, batch, attack = encoder(), paired_batch(4), Watched(pgd(0.1, steps=3))
        defence = SuppressedShift(Triplet(Hardest()), attack, weight=weight)
        optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
        for step in range(40):
            optimiser.zero_grad()
            sum(defence(model, batch, seeded(step)).values()).backward()
            optimiser.step()
        shifts[weight] = attack.after[-1].mean().item()
    assert shifts[1.0] < 0.7 * shifts[0.0], shifts


@pytest.mark.parametrize("weight", [-1.0, math.nan, math.inf])
def test_what_is_no_weight_is_refused(weight: float) -> None:
    with pytest.raises(InputError, match=r"weight .* suppresses no shift; expected a finite number >= 0"):
        SuppressedShift(Triplet(), pgd(0.1), weight=weight)


def test_parts_of_another_kind_are_refused() -> None:
    with pytest.raises(InputError, match=r"loss 'triplet' is a word"):
        inspect.unwrap(SuppressedShift.__init__)(SuppressedShift.__new__(SuppressedShift), "triplet", pgd(0.1))
