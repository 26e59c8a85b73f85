"""Balls: projection, steps, random points and bytes, by hand and by property."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.perturb.ball import Ball

SEEDS = st.integers(min_value=0, max_value=2**31)
RADII = st.floats(min_value=0, max_value=2)
NORMS = st.sampled_from(["linf", "l2"])


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(seed: int, rows: int = 4) -> Tensor:
    """8-bit images, some pixels at the very bounds."""
    levels = torch.randint(-40, 296, (rows, 1, 3, 2), generator=seeded(seed)).clamp(0, 255)
    return levels.float() / 255


def anywhere(seed: int, rows: int = 4) -> Tensor:
    return 3 * torch.randn(rows, 1, 3, 2, generator=seeded(seed + 1))


def length(offset: Tensor, norm: str) -> Tensor:
    return offset.flatten(1).norm(dim=1, p=math.inf if norm == "linf" else 2)


def test_linf_projection_clips_each_coordinate() -> None:
    ball = Ball(0.1, bounds=(0.0, 1.0))
    clean = torch.tensor([[0.5, 0.5, 0.5, 0.95]])
    x = torch.tensor([[0.9, 0.45, 0.1, 1.3]])
    # offsets 0.4, -0.05, -0.4, 0.35 -> 0.1, -0.05, -0.1, 0.1; then 0.95 + 0.1 is clipped to 1
    torch.testing.assert_close(ball.project(x, clean), torch.tensor([[0.6, 0.45, 0.4, 1.0]]))


def test_l2_projection_scales_each_row_by_its_own_length() -> None:
    ball = Ball(1.0, norm="l2", bounds=(-10.0, 10.0))
    clean = torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    x = clean + torch.tensor([[3.0, 4.0], [0.3, 0.4]])
    # length 5 is cut to 1: (3, 4) / 5; length 0.5 is inside and stays
    torch.testing.assert_close(ball.project(x, clean), torch.tensor([[1.6, 1.8], [0.3, 0.4]]))


def test_projection_of_the_centre_is_the_centre_at_radius_zero() -> None:
    clean = images(0)
    for norm in ("linf", "l2"):
        ball = Ball(0.0, norm=norm)
        assert torch.equal(ball.project(clean, clean), clean)
        assert torch.equal(ball.project(anywhere(0), clean), clean)
        assert torch.equal(ball.random_point(clean, seeded(0)), clean)


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, radius=RADII, norm=NORMS)
def test_projection_stays_inside_ball_and_bounds_and_is_idempotent(seed: int, radius: float, norm: str) -> None:
    ball = Ball(radius, norm=norm)
    clean = images(seed)
    once = ball.project(anywhere(seed), clean)
    assert (length(once - clean, norm) <= radius + 1e-5).all()
    assert once.min() >= 0 and once.max() <= 1
    torch.testing.assert_close(ball.project(once, clean), once)


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, radius=RADII, norm=NORMS)
def test_projection_leaves_points_of_the_ball_alone(seed: int, radius: float, norm: str) -> None:
    ball = Ball(radius, norm=norm)
    clean = images(seed)
    inside = ball.random_point(clean, seeded(seed))
    assert (length(inside - clean, norm) <= radius + 1e-5).all()
    assert inside.min() >= 0 and inside.max() <= 1
    torch.testing.assert_close(ball.project(inside, clean), inside)


@settings(max_examples=40, deadline=None)
@given(seed=SEEDS, norm=NORMS)
def test_projection_is_the_nearest_point_of_the_ball(seed: int, norm: str) -> None:
    ball = Ball(0.7, norm=norm, bounds=(-100.0, 100.0))
    clean, x = images(seed), anywhere(seed)
    others = ball.random_point(clean, seeded(seed + 2))
    assert (length(x - ball.project(x, clean), "l2") <= length(x - others, "l2") + 1e-5).all()


def test_linf_random_points_fill_the_cube_evenly() -> None:
    offset = Ball(0.25, bounds=(-1.0, 1.0)).random_point(torch.zeros(20_000, 2), seeded(0))
    assert offset.mean().abs() < 0.005
    quartiles = torch.quantile(offset, torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]))
    torch.testing.assert_close(quartiles, torch.tensor([-0.25, -0.125, 0.0, 0.125, 0.25]), atol=0.005, rtol=0)


@pytest.mark.parametrize("dim", [1, 3])
def test_l2_random_points_have_radius_u_to_the_one_over_d_and_any_direction(dim: int) -> None:
    offset = Ball(0.5, norm="l2", bounds=(-1.0, 1.0)).random_point(torch.zeros(20_000, dim), seeded(0))
    # (|offset| / radius)^d is uniform on [0, 1].
    share = (offset.norm(dim=1) / 0.5) ** dim
    quartiles = torch.quantile(share, torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]))
    torch.testing.assert_close(quartiles, torch.tensor([0.0, 0.25, 0.5, 0.75, 1.0]), atol=0.015, rtol=0)
    assert offset.mean(dim=0).abs().max() < 0.01


def test_random_points_follow_the_generator() -> None:
    clean = images(3)
    for norm in ("linf", "l2"):
        ball = Ball(0.3, norm=norm)
        assert torch.equal(ball.random_point(clean, seeded(5)), ball.random_point(clean, seeded(5)))
        assert not torch.equal(ball.random_point(clean, seeded(5)), ball.random_point(clean, seeded(6)))


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_edge_points_lie_on_the_edge_in_any_direction_or_on_the_bounds(norm: str) -> None:
    ball = Ball(0.2, norm=norm)
    centre = torch.full((500, 3), 0.5)
    drawn = ball.edge_point(centre, torch.Generator().manual_seed(0))
    torch.testing.assert_close(ball.distance(drawn, centre), torch.full((500,), 0.2))
    assert (drawn - centre).mean(dim=0).abs().max() < 0.03 and (drawn - centre).std(dim=0).min() > 0.1
    corner = ball.edge_point(torch.zeros(500, 3), torch.Generator().manual_seed(0))
    torch.testing.assert_close(corner, (drawn - centre).clamp_min(0))
    assert torch.equal(Ball(0.0, norm=norm).edge_point(centre), centre)


def test_distances_by_hand() -> None:
    clean, x = torch.zeros(2, 1, 2), torch.tensor([[[3.0, -4.0]], [[0.0, 0.0]]])
    assert Ball(1.0).distance(x, clean).tolist() == [4, 0]
    assert Ball(1.0, norm="l2").distance(x, clean).tolist() == [5, 0]


def test_steepest_is_the_sign_or_the_unit_gradient_and_zero_stays_zero() -> None:
    gradient = torch.tensor([[3.0, -4.0, 0.0], [0.0, 0.0, 0.0]])
    torch.testing.assert_close(Ball(1.0).steepest(gradient), torch.tensor([[1.0, -1.0, 0.0], [0.0, 0.0, 0.0]]))
    torch.testing.assert_close(
        Ball(1.0, norm="l2").steepest(gradient), torch.tensor([[0.6, -0.8, 0.0], [0.0, 0.0, 0.0]])
    )


def test_bytes_round_towards_clean() -> None:
    clean = torch.tensor([[100.0, 100.0, 100.0, 254.0]]) / 255
    x = clean + torch.tensor([[2.7, -2.7, 2.9995, 1.0]]) / 255
    # 2.7 -> 2, -2.7 -> -2, 2.9995 is 3 up to rounding error, 254 + 1 = 255
    expected = torch.tensor([[102.0, 98.0, 103.0, 255.0]])
    torch.testing.assert_close(Ball(3 / 255).to_bytes(x, clean) * 255, expected)


def test_bytes_of_other_bounds_are_255_levels_between_them() -> None:
    clean, level = torch.tensor([[-1.0, 1.0]]), 2 / 255
    x = clean + torch.tensor([[1.5, -3.2]]) * level
    torch.testing.assert_close(
        Ball(4 * level, bounds=(-1.0, 1.0)).to_bytes(x, clean), clean + torch.tensor([[1.0, -3.0]]) * level
    )
    # Where the low bound is not minus the high one, its sign counts too: 255 levels of 1/255 between 1 and 2.
    torch.testing.assert_close(
        Ball(0.5, bounds=(1.0, 2.0)).to_bytes(torch.tensor([[1.0 + 2.6 / 255]]), torch.tensor([[1.0]])),
        torch.tensor([[1.0 + 2 / 255]]),
    )


@settings(max_examples=60, deadline=None)
@given(seed=SEEDS, radius=RADII, norm=NORMS)
def test_bytes_are_whole_and_stay_inside_ball_and_bounds(seed: int, radius: float, norm: str) -> None:
    ball = Ball(radius, norm=norm)
    clean = images(seed)
    x = ball.random_point(clean, seeded(seed))
    rounded = ball.to_bytes(x, clean)
    torch.testing.assert_close(rounded * 255, (rounded * 255).round(), atol=1e-3, rtol=0)
    assert (length(rounded - clean, norm) <= radius + 1e-4).all()
    assert rounded.min() >= 0 and rounded.max() <= 1
    assert ((rounded - clean).abs() <= (x - clean).abs() + 1e-5).all()
    assert ((rounded - x).abs() < 1 / 255 + 1e-5).all()
    torch.testing.assert_close(ball.to_bytes(rounded, clean), rounded)


@pytest.mark.parametrize("radius", [-0.1, math.nan, math.inf])
def test_what_is_no_radius_is_refused(radius: float) -> None:
    with pytest.raises(InputError, match="radius"):
        Ball(radius)


def test_unknown_norms_and_empty_bounds_are_refused() -> None:
    for bounds in ((1.0, 0.0), (0.5, 0.5), (0.0,), (0.0, 0.5, 1.0)):
        with pytest.raises(InputError, match="bounds"):
            Ball(0.1, bounds=bounds)
