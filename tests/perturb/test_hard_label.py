"""RayS: blocks and halving by hand, what it asks, the distances it finds, and who leaves."""

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.perturb.active import Rowwise
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.hard_label import RayS
from robustmetric.types import Value

ENGINE = RayS(Ball(0.1), queries=300)


def images(rows: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.rand(rows, *shape, generator=torch.Generator().manual_seed(seed))


def weights(rows: int, *shape: int) -> Tensor:
    return torch.randn(rows, *shape, generator=torch.Generator().manual_seed(5))


def watched(value: Value) -> tuple[Value, list[Tensor]]:
    """The same value, and a list that fills with the points it is asked at."""
    points: list[Tensor] = []

    def watching(x: Tensor) -> Tensor:
        points.append(x.clone())
        return value(x)

    return watching, points


def linear(clean: Tensor, slopes: Tensor, needed: float) -> Rowwise:
    """<slopes, x - clean> - needed: the boundary is needed / |slopes|_1 away."""

    def rows(x: Tensor, start: Tensor, slope: Tensor) -> Tensor:
        return (slope * (x - start)).flatten(1).sum(dim=1) - needed

    return Rowwise(rows, (clean, slopes))


# --- by hand --------------------------------------------------------------------------------------------------------


def test_a_search_by_hand() -> None:
    """x_0 >= 0.6 from (0.5, 0.5): it loses at (0, 0) and (0, 1), wins at (1, 0), and halves 1 down to 0.1."""
    value, points = watched(lambda x: x[:, 0] - 0.6)
    _, distance = replace(ENGINE, queries=9).closest(value, torch.full((1, 2), 0.5))
    by_hand = [
        (0.5, 0.5),  # the clean input
        (0.0, 0.0),  # all signs turned over, as far as the bounds let it
        (0.0, 1.0),  # of two blocks the first
        (1.0, 0.0),  # and the second: wins at 1 (which is 0.5 within the bounds)
        (1.0, 0.0),  # half of 1
        (0.75, 0.25),  # a quarter
        (0.625, 0.375),  # an eighth
        (0.5625, 0.4375),  # a sixteenth loses
        (0.59375, 0.40625),  # between: loses
    ]
    torch.testing.assert_close(torch.cat(points), torch.tensor(by_hand))
    assert distance.item() == 0.125
    _, distance = replace(ENGINE, queries=40).closest(value, torch.full((1, 2), 0.5))
    # Down to 1e-3 / sqrt(2).
    assert 0.1 <= distance.item() <= 0.1 + 1e-3 / math.sqrt(2) + 1e-6


def test_blocks_are_halves_of_those_before() -> None:
    value, points = watched(lambda x: torch.full((len(x),), -1.0))
    moved = replace(ENGINE, queries=1 + 1 + 2 + 3 + 6)(value, torch.full((2, 6), 0.5))
    assert torch.equal(moved, torch.full((2, 6), 0.5))
    turned = [(x[0] < 0.5).int().tolist() for x in points[1:]]
    # Of 6: all, two of 3, three of 2 (6 / 4, rounded up), six of 1.
    assert turned == [
        [1, 1, 1, 1, 1, 1],
        [1, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1],
        [1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0], [0, 0, 0, 0, 1, 1],
        *torch.eye(6).int().tolist(),
    ]  # fmt: skip
    assert all(torch.equal(x[0], x[1]) for x in points)


# --- distances ------------------------------------------------------------------------------------------------------


def test_of_few_features_it_finds_the_best_of_all_directions() -> None:
    clean, slopes = 0.4 + 0.2 * images(6, 4), weights(6, 4)
    value = linear(clean, slopes, needed=0.1)
    _, distance = replace(ENGINE, queries=600).closest(value, clean)
    signs = torch.tensor(list(itertools.product((-1.0, 1.0), repeat=4)))
    best = 0.1 / (signs @ slopes.T).amax(dim=0)
    assert (distance >= best - 1e-6).all() and (distance <= best + 1e-3).all()


def test_more_queries_never_find_a_farther_boundary() -> None:
    clean, slopes = 0.4 + 0.2 * images(4, 1, 8, 8), weights(4, 1, 8, 8)
    value = linear(clean, slopes, needed=0.5)
    found = torch.stack([replace(ENGINE, queries=q).closest(value, clean)[1] for q in (5, 50, 500, 2000)])
    assert (found.diff(dim=0) <= 0).all() and (found[-1] <= 1.1 * 0.5 / slopes.flatten(1).abs().sum(dim=1)).all()


def test_only_whether_the_goal_is_reached_counts() -> None:
    clean, slopes = images(5, 3, 4, 4), weights(5, 3, 4, 4)
    value = linear(clean, slopes, needed=0.3)

    def label(x: Tensor, *constants: Tensor) -> Tensor:
        assert not torch.is_grad_enabled()
        return torch.where(value.value(x, *constants) >= 0, 1.0, -1e6)

    expected, distance = ENGINE.closest(value, clean)
    points, same = ENGINE.closest(Rowwise(label, value.constants), clean)
    assert torch.equal(points, expected) and torch.equal(same, distance)
    shifted, same = replace(ENGINE, goal=7.0).closest(
        Rowwise(lambda x, *c: value.value(x, *c) + 7, value.constants), clean
    )
    assert torch.equal(same, distance) and torch.equal(shifted, expected)


def test_every_row_is_searched_as_if_alone() -> None:
    clean, slopes = images(5, 1, 4, 4), weights(5, 1, 4, 4) * torch.tensor([1.0, 2, 4, 8, 0.001]).view(-1, 1, 1, 1)
    value = linear(clean, slopes, needed=0.3)
    points, distance = ENGINE.closest(value, clean)
    assert distance[:4].isfinite().all() and distance[4] == math.inf and torch.equal(points[4], clean[4])
    for row in range(5):
        alone, own = ENGINE.closest(value.some(torch.tensor([row])), clean[row : row + 1])
        assert torch.equal(alone[0], points[row]) and torch.equal(own[0], distance[row])


# --- as an engine ---------------------------------------------------------------------------------------------------


def test_it_gives_a_point_of_the_ball_or_the_clean_input_and_rows_leave() -> None:
    clean, slopes = images(8, 1, 4, 4), weights(8, 1, 4, 4) * torch.linspace(0.4, 4, 8).view(-1, 1, 1, 1)
    value = linear(clean, slopes, needed=1.5)
    sizes: list[int] = []

    def counting(x: Tensor, *constants: Tensor) -> Tensor:
        sizes.append(len(x))
        return value.value(x, *constants)

    _, distance = ENGINE.closest(value, clean)
    moved = ENGINE(Rowwise(counting, value.constants), clean)
    won = distance <= 0.1
    assert 2 <= won.sum() <= 6
    assert (value(moved)[won] >= -1e-5).all() and torch.equal(moved[~won], clean[~won])
    assert (moved - clean).abs().max() <= 0.1 and moved.min() >= 0 and moved.max() <= 1
    assert sizes[0] == 8 and 1 <= sizes[-1] < 8 and len(sizes) == 300


def test_it_ends_when_all_rows_have_won() -> None:
    clean = torch.full((4, 1, 4, 4), 0.5)
    value, points = watched(lambda x: 0.4 - x[:, 0, 0, 0])
    moved = replace(ENGINE, ball=Ball(0.2))(value, clean)
    # The clean input, all signs turned over at 1, then 1/2, 1/4 and 1/8.
    assert len(points) == 5 and (value(moved) >= 0).all()


def test_a_row_that_has_won_from_the_start_is_left_alone() -> None:
    clean = torch.full((2, 4), 0.5)
    value = Rowwise(lambda x, start: x.sum(dim=1) + start, (torch.tensor([0.0, -2.2]),))
    points, distance = ENGINE.closest(value, clean)
    assert distance[0] == 0 and torch.equal(points[0], clean[0]) and 0.05 <= distance[1] <= 0.051


def test_nan_has_not_won() -> None:
    def value(x: Tensor) -> Tensor:
        return torch.where(x[:, 0] > 0.9, torch.nan, x[:, 0] - 0.6)

    # Along every direction the first answer, at the bounds, is NaN or a loss.
    clean = torch.full((2, 2), 0.5)
    points, distance = ENGINE.closest(value, clean)
    assert (distance == math.inf).all() and torch.equal(points, clean)


def test_radius_zero_changes_nothing_and_a_row_may_be_three_inputs() -> None:
    clean = 0.4 + 0.2 * images(6, 5)
    value = Rowwise(
        lambda x, need: x.view(3, 2, -1).sum(dim=(0, 2)) - need, (clean.view(3, 2, -1).sum(dim=(0, 2)) + 0.3,), 3
    )
    assert torch.equal(replace(ENGINE, ball=Ball(0.0))(value, clean), clean)
    moved = ENGINE(value, clean)
    # 15 features of 0.02 are enough.
    assert (value(moved) >= 0).all() and (moved - clean).abs().max() <= 0.1
    assert (ENGINE.closest(value, clean)[1] < 0.021).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RayS(Ball(0.1, norm="l2")), "l-inf balls, not 'l2'.*fab"),
        (lambda: RayS(Ball(0.1), queries=1), "1 queries leave nothing"),
    ],
)
def test_settings_that_mean_nothing_are_refused(make: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()  # type: ignore[operator]
