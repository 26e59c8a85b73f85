"""Defences with the fast view of the model: the same method, computed faster."""

import inspect
from collections.abc import Callable

import pytest
import torch
from torch import nn

from robustmetric.defences.base import Defence
from robustmetric.defences.ca_tride import CollapseAwareTriplet
from robustmetric.defences.destinations import Gradual
from robustmetric.defences.est import EmbeddingShiftedTriplet
from robustmetric.defences.free import FreeHardness
from robustmetric.defences.madry import Madry
from robustmetric.defences.minmax import MinMax
from robustmetric.defences.rest import RevisedShiftedTriplet
from robustmetric.defences.ses import SuppressedShift
from robustmetric.errors import InputError
from robustmetric.losses.mining import Random
from robustmetric.losses.triplet import Triplet
from robustmetric.models.encoder import Encoder
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD, frozen
from robustmetric.types import Batch

ATTACK = PGD(Ball(0.1), steps=3, step_size=0.05)


def encoder() -> Encoder:
    torch.manual_seed(0)
    trunk = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 8))
    model = Encoder(trunk, batch_norm="statistics")
    trunk[1].running_mean.normal_()
    trunk[1].running_var.uniform_(0.5, 2)
    return model


def batch() -> Batch:
    torch.manual_seed(1)
    return Batch(torch.rand(8, 1, 8, 8), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]), torch.arange(8))


@pytest.mark.parametrize(
    "make",
    [
        lambda: EmbeddingShiftedTriplet(Triplet(), ATTACK),
        lambda: Madry(Triplet(), ATTACK),
        lambda: SuppressedShift(Triplet(), ATTACK),
        lambda: RevisedShiftedTriplet(Random(), ATTACK),
        lambda: MinMax(Random(), ATTACK),
        lambda: MinMax(Random(), ATTACK, clean_anchor=True),
        lambda: CollapseAwareTriplet(Random(), ATTACK),
        lambda: FreeHardness(Random(), Gradual(), ATTACK.ball, step_size=0.05),
    ],
)
def test_the_fast_view_gives_the_terms_of_the_exact_one(make: Callable[[], Defence]):
    terms = {}
    for view in ("exact", "fast"):
        model, defence = encoder(), make()
        defence.view = view
        found = defence(model, batch(), torch.Generator().manual_seed(0))
        terms[view] = {name: float(value.detach()) for name, value in found.items()}
        sum(found.values()).backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
    # Folding is exact up to rounding; a sign step may flip where the gradient is at rounding level.
    assert terms["fast"] == pytest.approx(terms["exact"], abs=1e-3)


def test_the_fast_view_follows_the_weights_from_step_to_step():
    model, x = encoder(), batch().inputs
    with frozen(model, "fast") as before:
        first = before(x).clone()
    with torch.no_grad():
        model.trunk[0].weight.mul_(-1)
    with frozen(model, "fast") as after:
        assert torch.allclose(after(x), model(x), atol=1e-5)
        assert not torch.allclose(after(x), first, atol=1e-2)


def test_an_unknown_view_is_refused():
    # Unwrapped: in tests, the run-time type check would speak first.
    with pytest.raises(InputError, match=r"'quick' is not known; expected 'exact'"):
        next(inspect.unwrap(frozen)(encoder(), "quick"))
