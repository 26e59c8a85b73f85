"""The margin of a triplet, by hand, by autograd, and as the length of the smallest move."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from robustmetric.learn.margin import LOSSES, loss_of, margins, margins_with_pullback, value_and_slope

SEEDS = st.integers(min_value=0, max_value=2**31)
ROW = (torch.tensor([0]), torch.tensor([1]), torch.tensor([2]))


def problem(seed: int, rank: int = 3, dim: int = 4, rows: int = 12, n: int = 20) -> tuple[Tensor, Tensor, list[Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    factor = torch.randn(rank, dim, generator=generator, dtype=torch.float64)
    x = torch.randn(rows, dim, generator=generator, dtype=torch.float64)
    return factor, x, [torch.randint(rows, (n,), generator=generator) for _ in range(3)]


def test_margin_on_a_line_is_the_way_to_the_middle() -> None:
    # z = 0, p = 1, n = 3: equally far at 2. With M = 4: (36 - 4) / (2 * |4 * (1 - 3)|) = 32 / 16.
    x = torch.tensor([[0.0], [1.0], [3.0]])
    factor = torch.tensor([[2.0]])
    assert margins(factor, x, *ROW).tolist() == [2.0]
    assert margins_with_pullback(factor, x, *ROW)[0].tolist() == [2.0]


def test_margin_in_the_plane_by_hand() -> None:
    # M = diag(1, 4): d(z, n) = 4, d(z, p) = 1, M (p - n) = (1, -4): m = 3 / (2 sqrt(17)); p and n swapped: negative.
    x = torch.tensor([[0.0, 0.0], [1.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    factor = torch.diag(torch.tensor([1.0, 2.0], dtype=torch.float64))
    expected = 3 / (2 * math.sqrt(17))
    assert margins(factor, x, *ROW).item() == pytest.approx(expected, abs=1e-12)
    swapped = margins_with_pullback(factor, x, ROW[0], ROW[2], ROW[1])[0]
    assert swapped.item() == pytest.approx(-expected, abs=1e-12)


def test_moving_by_the_margin_along_the_normal_makes_both_equally_far() -> None:
    factor, x, triplets = problem(seed=0, rank=4)
    m = margins(factor, x, *triplets)
    z, p, n = (x[index] for index in triplets)
    normal = (p - n) @ factor.T @ factor
    keep = normal.norm(dim=1) > 1e-3
    moved = z - m[:, None] * normal / normal.norm(dim=1).clamp_min(1e-3)[:, None]
    to_p, to_n = (((moved - other) @ factor.T).square().sum(dim=1) for other in (p, n))
    torch.testing.assert_close(to_p[keep], to_n[keep], rtol=1e-9, atol=1e-9)


@given(SEEDS, st.integers(1, 5))
@settings(max_examples=25, deadline=None)
def test_the_analytic_gradient_is_that_of_autograd(seed: int, rank: int) -> None:
    factor, x, triplets = problem(seed, rank=rank, dim=5)
    weights = torch.randn(len(triplets[0]), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    factor.requires_grad_()
    slow = margins(factor, x, *triplets)
    (expected,) = torch.autograd.grad((weights * slow).sum(), factor)
    fast, pullback = margins_with_pullback(factor.detach(), x, *triplets)
    torch.testing.assert_close(fast, slow.detach(), rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(pullback(weights), expected, rtol=1e-7, atol=1e-7)


def test_nearly_equal_positive_and_negative_stay_finite_and_agree_with_autograd() -> None:
    # |M (p - n)| = 1e-5 is below the floor 1e-3: m = (d(z, n) - d(z, p)) / (2e-3) = 2e-5 / 2e-3 to first order.
    x = torch.tensor([[0.0], [1.0], [1.0 + 1e-5]], dtype=torch.float64)
    factor = torch.ones(1, 1, dtype=torch.float64, requires_grad=True)
    slow = margins(factor, x, *ROW)
    (expected,) = torch.autograd.grad(slow.sum(), factor)
    fast, pullback = margins_with_pullback(factor.detach(), x, *ROW)
    assert fast.item() == pytest.approx(0.01, rel=1e-4)
    torch.testing.assert_close(pullback(torch.ones(1, dtype=torch.float64)), expected)
    same = margins_with_pullback(factor.detach(), x, ROW[0], ROW[1], ROW[1])
    assert same[0].item() == 0.0
    assert same[1](torch.ones(1, dtype=torch.float64)).item() == 0.0


@given(SEEDS, st.floats(1e-4, 1e4))
@settings(max_examples=25, deadline=None)
def test_the_length_of_g_does_not_matter(seed: int, length: float) -> None:
    factor, x, triplets = problem(seed)
    torch.testing.assert_close(margins(length * factor, x, *triplets), margins(factor, x, *triplets))


def test_losses_by_hand() -> None:
    m = torch.tensor([0.5, -1.0], dtype=torch.float64)
    by_hand = {
        "neg": [-0.5, 1.0],
        "hinge": [1.5, 3.0],  # 2 - m
        "logistic": [math.log(1 + math.exp(-0.5)), math.log(1 + math.e)],
        "exp": [math.exp(-0.5), math.e],
    }
    assert set(by_hand) == set(LOSSES)
    for name, expected in by_hand.items():
        assert loss_of(name, radius=2.0)(m).tolist() == pytest.approx(expected), name
    assert loss_of("hinge", radius=0.5)(m).tolist() == pytest.approx([0.0, 1.5])


def test_the_slope_is_the_derivative_of_the_mean() -> None:
    value, slope = value_and_slope(loss_of("exp", 1.0), torch.tensor([0.0, math.log(2.0)]))
    assert value.item() == pytest.approx((1 + 0.5) / 2)
    assert slope.tolist() == pytest.approx([-0.5, -0.25])
