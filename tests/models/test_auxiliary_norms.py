"""Auxiliary batch norms: two sets of statistics by hand, which one is in force, and what is attacked."""

import math

import pytest
import torch
from torch import nn

from robustmetric.errors import InputError
from robustmetric.models.encoder import Encoder, has_auxiliary, mixes_rows, perturbed
from robustmetric.models.ensemble import Ensemble
from robustmetric.perturb.pgd import frozen


def one_norm() -> Encoder:
    """A batch norm of one feature and nothing else, which takes over the statistics of each batch whole."""
    return Encoder(nn.BatchNorm1d(1, eps=1e-12, momentum=1.0), normalise=False, batch_norm="auxiliary", dim=1)


def column(*values: float) -> torch.Tensor:
    return torch.tensor(values)[:, None]


def test_clean_and_perturbed_batches_have_statistics_of_their_own_by_hand() -> None:
    model = one_norm()
    model(column(0.0, 2.0))  # mean 1, variance 2 (unbiased)
    with perturbed(model):
        model(column(10.0, 14.0))  # mean 12, variance 8
    assert model.trunk.running_mean.item() == 1 and model.trunk.running_var.item() == 2
    model.eval()
    assert model(column(3.0)).item() == pytest.approx((3 - 1) / math.sqrt(2)), "inference is by the clean ones"
    with perturbed(model):
        assert model(column(3.0)).item() == pytest.approx((3 - 12) / math.sqrt(8))
    assert model(column(3.0)).item() == pytest.approx((3 - 1) / math.sqrt(2))
    assert model.auxiliary[0].running_mean.item() == 12 and model.auxiliary[0].running_var.item() == 8


def test_each_pass_trains_the_affine_part_that_was_in_force() -> None:
    model = one_norm()
    still = model(column(0.0, 2.0))
    with perturbed(model):
        moved = model(column(10.0, 14.0))
    # Normalised, both batches are -1 and 1: their sums of products with (1, 4) are 3 and, weighted by 5, 15.
    ((still + 5 * moved) * column(1.0, 4.0)).sum().backward()
    own, second = model.trunk, model.auxiliary[0]
    assert (own.weight.grad.item(), second.weight.grad.item()) == (pytest.approx(3.0), pytest.approx(15.0))
    assert (own.bias.grad.item(), second.bias.grad.item()) == (pytest.approx(5.0), pytest.approx(25.0))


def test_an_error_inside_leaves_the_clean_norms_in_force() -> None:
    model = one_norm()
    weight = model.trunk.weight
    with pytest.raises(RuntimeError, match="inside"), perturbed(model):
        assert model.trunk.weight is not weight
        raise RuntimeError("inside")
    assert model.trunk.weight is weight


@pytest.mark.parametrize("view", ["exact", "folded", "fast"])
def test_a_shadow_of_the_model_has_the_norms_in_force(view: str) -> None:
    trunk = nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.Flatten(), nn.Linear(3, 2))
    model = Ensemble([Encoder(trunk, batch_norm="auxiliary", dim=2)])
    second = model.members[0].auxiliary[0]
    second.running_mean.fill_(0.7)
    second.bias.data.fill_(-0.4)
    x = torch.rand(4, 1, 3, 3, generator=torch.Generator().manual_seed(0))
    model.eval()
    with torch.no_grad():
        clean = model(x)
        with perturbed(model):
            expected = model(x)
            with frozen(model, view) as embed:  # type: ignore[arg-type]
                found = embed(x)
        with frozen(model, view) as embed:  # type: ignore[arg-type]
            again = embed(x)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(again, clean)
    assert not torch.allclose(clean, expected, atol=1e-3)


def test_what_is_saved_has_both_and_the_first_under_its_usual_name() -> None:
    usual = Encoder(nn.BatchNorm1d(1), dim=1)
    names = set(one_norm().state_dict())
    assert set(usual.state_dict()) < names and "auxiliary.0.running_mean" in names
    assert has_auxiliary(one_norm()) and not has_auxiliary(usual) and mixes_rows(one_norm())
    with perturbed(usual):
        assert usual(torch.ones(2, 1)).shape == (2, 1)


def test_a_trunk_without_batch_norm_is_refused() -> None:
    with pytest.raises(InputError, match="Linear has no batch norm to keep in two; expected batch_norm: 'live'"):
        Encoder(nn.Linear(2, 2), batch_norm="auxiliary", dim=2)
