"""The smoothed encoder: encoders whose mean under noise is known in closed form."""

import math

import pytest
import torch
from torch import Tensor, nn

from robustmetric.errors import InputError
from robustmetric.models.encoder import Encoder
from robustmetric.models.smoothed import Smoothed


class Circle(nn.Module):
    """(cos t, sin t) of t = <a, x>; under noise its mean is exp(-sigma^2 |a|^2 / 2) times itself."""

    dim = 2

    def __init__(self, *slope: float) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(slope))
        self.largest = 0

    def forward(self, x: Tensor) -> Tensor:
        self.largest = max(self.largest, len(x))
        angle = x @ self.slope
        return torch.stack([angle.cos(), angle.sin()], dim=1)


class Side(nn.Module):
    """(1, 0) right of the origin and (-1, 0) left of it; its mean is 2 Phi(x / sigma) - 1 times (1, 0)."""

    dim = 2

    def forward(self, x: Tensor) -> Tensor:
        side = torch.where(x[:, 0] >= 0, 1.0, -1.0)
        return torch.stack([side, 0 * side], dim=1)


def test_mean_of_a_circle_in_closed_form() -> None:
    x = torch.tensor([[0.0, 0.0], [0.3, -0.4], [1.0, 1.0]])
    encoder = Circle(1.0, 2.0)
    mean = Smoothed(encoder, sigma=0.5, samples=40_000, seed=1)(x)
    # exp(-0.25 * 5 / 2) = 0.535261; the standard error of 40,000 values in [-1, 1] is below 0.005.
    torch.testing.assert_close(mean, 0.535261 * encoder(x), atol=0.015, rtol=0)


def test_no_encoder_moves_faster_and_a_step_moves_as_fast() -> None:
    smoothed = Smoothed(Side(), sigma=0.5, samples=200_000)
    # sqrt(2 / pi) / 0.5 = 1.595769; over 0.02 around its edge a step rises by 2 (Phi(0.02) - Phi(-0.02)) = 0.0319.
    assert smoothed.lipschitz == pytest.approx(1.595769, abs=1e-6)
    low, high = smoothed(torch.tensor([[-0.01], [0.01]]))[:, 0]
    assert (high - low).item() == pytest.approx(0.02 * smoothed.lipschitz, abs=4e-3)


def test_batches_bound_what_is_embedded_and_change_nothing() -> None:
    x = torch.randn(7, 2, generator=torch.Generator().manual_seed(0))
    whole = Smoothed(Circle(1.0, 0.5), sigma=0.3, samples=10, batch=1000)(x)
    for batch in (1, 3, 20):
        encoder = Circle(1.0, 0.5)
        torch.testing.assert_close(Smoothed(encoder, sigma=0.3, samples=10, batch=batch)(x), whole)
        assert encoder.largest <= batch
    assert Smoothed(Circle(1.0, 0.5), sigma=0.3)(x[:0]).shape == (0, 2)


def test_a_row_is_embedded_the_same_alone_and_again_and_otherwise_with_another_seed() -> None:
    x = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    smoothed = Smoothed(Circle(1.0, 0.5), sigma=0.3, samples=10)
    torch.testing.assert_close(smoothed(x)[3:4], smoothed(x[3:4]))
    assert torch.equal(smoothed(x), smoothed(x))
    other = Smoothed(Circle(1.0, 0.5), sigma=0.3, samples=10, seed=1)
    assert not torch.allclose(smoothed(x), other(x), atol=1e-3)


def test_gradient_is_that_of_the_mean() -> None:
    x = torch.tensor([[0.2, 0.1]], dtype=torch.float64)
    smoothed = Smoothed(Circle(1.0, 2.0).double(), sigma=0.5, samples=7, batch=3)
    assert torch.autograd.gradcheck(smoothed, (x.requires_grad_(),))
    smoothed(x).sum().backward()
    assert smoothed.encoder.slope.grad is not None and smoothed.encoder.slope.grad.abs().sum() > 0


def test_dim_is_the_encoders() -> None:
    assert Smoothed(Encoder(nn.Linear(3, 5), dim=5), sigma=1.0).dim == 5
    with pytest.raises(InputError, match="Linear does not say"):
        _ = Smoothed(nn.Linear(3, 5), sigma=1.0).dim


@pytest.mark.parametrize("settings", [{"sigma": 0.0}, {"sigma": math.inf}, {"samples": 0}, {"batch": 0}])
def test_settings_that_draw_nothing_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(InputError, match="expected"):
        Smoothed(Side(), **{"sigma": 1.0, **settings})
