"""Engines that ask for values alone: what they ask, what they keep, and how near they come to what gradients find."""

import math
from dataclasses import replace

import pytest
import torch
from hills import bumpy, images, seeded, watched
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.gradient_free import NES, Square
from robustmetric.perturb.pgd import PGD, Rowwise, evaluate

BALL = Ball(0.1)
NES_LAST = NES(BALL, steps=6, step_size=0.03, samples=10)
NES_BEST = replace(NES_LAST, keep="best")
SQUARE = Square(BALL, queries=60)
ENGINES = pytest.mark.parametrize("engine", [NES_LAST, NES_BEST, SQUARE], ids=["nes", "nes-best", "square"])
SHAPES = pytest.mark.parametrize("shape", [(1, 8, 8), (3, 6, 9), (7,), (2, 5)], ids=str)


@ENGINES
@SHAPES
def test_every_query_lies_in_ball_and_bounds(engine: NES | Square, shape: tuple[int, ...]) -> None:
    clean = images(4, *shape)
    value, points = watched(bumpy)
    moved = engine(value, clean, seeded())
    for x in [*points, moved]:
        assert x.shape == clean.shape and (x - clean).abs().max() <= 0.1 + 1e-6
        assert x.min() >= 0 and x.max() <= 1
    assert not torch.equal(moved, clean)


def test_nes_in_l2_stays_in_its_ball_and_climbs() -> None:
    clean = images(4, 1, 8, 8)
    engine = NES(Ball(0.5, norm="l2"), steps=8, step_size=0.1, samples=20)
    value, points = watched(bumpy)
    moved = engine(value, clean, seeded())
    for x in [*points, moved]:
        assert (x - clean).flatten(1).norm(dim=1).max() <= 0.5 + 1e-5 and x.min() >= 0 and x.max() <= 1
    assert (bumpy(moved) > bumpy(clean)).all()


@ENGINES
def test_same_seed_same_result(engine: NES | Square) -> None:
    clean = images(4, 1, 8, 8)
    first, again, other = (engine(bumpy, clean, seeded(seed)) for seed in (3, 3, 4))
    assert torch.equal(first, again) and not torch.equal(first, other)


@ENGINES
def test_radius_zero_changes_nothing(engine: NES | Square) -> None:
    clean = images(4, 3, 8, 8)
    assert torch.equal(replace(engine, ball=Ball(0.0))(bumpy, clean, seeded()), clean)


@ENGINES
def test_no_gradient_is_asked_for(engine: NES | Square) -> None:
    def value(x: Tensor) -> Tensor:
        assert not torch.is_grad_enabled() and not x.requires_grad
        return bumpy(x)

    moved = engine(value, images(4, 1, 8, 8).requires_grad_(), seeded())
    assert not moved.requires_grad and torch.is_grad_enabled()


@ENGINES
@pytest.mark.parametrize("together", [1, 4, 7])
def test_it_asks_as_often_as_it_says(engine: NES | Square, together: int) -> None:
    if isinstance(engine, NES):
        engine = replace(engine, together=together)
    value, points = watched(bumpy)
    engine(Rowwise(value), images(4, 1, 8, 8), seeded())
    assert sum(map(len, points)) == 4 * engine.queries


def test_queries_of_nes_by_hand() -> None:
    # 6 steps of 10 samples; and the clean input and 6 iterates where the best is kept.
    assert (NES_LAST.queries, NES_BEST.queries) == (60, 67)
    assert replace(NES_LAST, samples=100, steps=32).queries == 3200


def test_square_gives_back_the_best_it_has_seen() -> None:
    clean = images(5, 3, 8, 8)
    value, points = watched(bumpy)
    moved = SQUARE(value, clean, seeded())
    best = torch.stack([bumpy(x) for x in points]).amax(dim=0)
    torch.testing.assert_close(bumpy(moved), best)


def test_best_of_nes_is_never_below_its_start_nor_its_last_point() -> None:
    clean = images(5, 1, 8, 8)
    # So coarse a step that the climb falls as often as it rises.
    engine = NES(BALL, steps=9, step_size=0.15, samples=4, keep="best")
    values = [bumpy(replace(engine, steps=steps)(bumpy, clean, seeded())) for steps in range(10)]
    assert (torch.stack(values).diff(dim=0) >= 0).all()
    assert torch.equal(values[0], bumpy(clean))
    assert (values[-1] >= bumpy(replace(engine, keep="last")(bumpy, clean, seeded()))).all()


def test_square_gives_back_the_clean_input_where_nothing_is_better() -> None:
    clean = images(3, 1, 8, 8)
    assert torch.equal(SQUARE(lambda x: -(x - clean).abs().flatten(1).sum(dim=1), clean, seeded()), clean)
    assert torch.equal(SQUARE(lambda x: torch.zeros(len(x)), clean, seeded()), clean)


def test_of_equal_iterates_nes_keeps_the_first() -> None:
    clean = torch.full((2, 1), 0.55)
    engine = NES(BALL, steps=1, step_size=0.02, samples=10, keep="best")
    # Samples reach the stairs at 0.5 and 0.6, the step to 0.57 does not.
    assert torch.equal(engine(lambda x: (10 * x[:, 0]).floor(), clean, seeded()), clean)
    assert (replace(engine, keep="last")(lambda x: (10 * x[:, 0]).floor(), clean, seeded()) > 0.56).all()


@pytest.mark.parametrize(
    ("engine", "share"),
    [
        # The sign of an estimate is often wrong where the slope is small: 0.90 to 0.94 of the best.
        (NES(BALL, steps=20, step_size=0.02, samples=100), 0.85),
        (Square(BALL, queries=800), 0.99),
        (Square(BALL, queries=800, p=0.05), 0.99),
    ],
)
def test_on_a_linear_value_they_find_what_the_gradient_finds(engine: NES | Square, share: float) -> None:
    clean = images(6, 1, 8, 8)
    weights = torch.randn(6, 1, 8, 8, generator=seeded(1))

    def value(x: Tensor) -> Tensor:
        return (weights * (x - clean)).flatten(1).sum(dim=1)

    best = value(PGD(BALL, steps=20, step_size=0.05, random_start=False)(value, clean))
    assert (value(engine(value, clean, seeded())) >= share * best).all()


def test_on_a_hill_they_come_near_its_top() -> None:
    clean, top = torch.full((4, 1, 8, 8), 0.5), 0.5 + 0.08 * torch.randn(4, 1, 8, 8, generator=seeded(2)).sign()

    def value(x: Tensor) -> Tensor:
        return -(x - top).square().flatten(1).mean(dim=1)

    start = value(clean)
    for engine in (NES(BALL, steps=12, step_size=0.02, samples=60), Square(BALL, queries=500)):
        # Square stands at the ends, 0.02 past the top of 0.08: it cannot do better than (0.02 / 0.08)^2 of the start.
        assert (value(engine(value, clean, seeded())) >= 0.08 * start).all()


# --- NES --------------------------------------------------------------------------------------------------------------


def test_nes_by_hand_climbs_a_slope_by_its_sign() -> None:
    engine = NES(Ball(0.3), steps=2, step_size=0.2, samples=2)
    # One pair of samples tells the sign of the slope of a single number, and a step is 0.2, cut at 0.3.
    clean = torch.full((2, 1), 0.5)
    moved = engine(lambda x: x[:, 0] * torch.tensor([2.0, -1.0]), clean, seeded())
    torch.testing.assert_close(moved, torch.tensor([[0.8], [0.2]]))


def test_nes_samples_come_in_pairs_of_noise_of_two_radii_clipped_to_one() -> None:
    clean = torch.full((1, 1, 40, 40), 0.5)
    value, points = watched(lambda x: x.flatten(1).sum(dim=1))
    NES(BALL, steps=1, step_size=0.0, samples=2)(value, clean, seeded())
    up, down = points[0] - clean, points[1] - clean
    torch.testing.assert_close(up, -down)
    # P(|2 N| > 1) = P(|N| > 0.5) = 0.617 lie at the ends.
    assert (up.abs() > 0.1 - 1e-6).float().mean().item() == pytest.approx(0.617, abs=0.04)
    assert up.abs().max() <= 0.1 + 1e-6 and up.std() > 0.07


@pytest.mark.parametrize(("side", "block"), [(64, 1), (224, 7)])
def test_nes_draws_coarse_noise_for_large_images(side: int, block: int) -> None:
    clean = torch.full((2, 3, side, side), 0.5)
    value, points = watched(lambda x: x.flatten(1).sum(dim=1))
    NES(BALL, steps=1, step_size=0.01, samples=2)(value, clean, seeded())
    noise = points[0].unfold(2, block, block).unfold(3, block, block)
    assert torch.equal(noise.amin(dim=(4, 5)), noise.amax(dim=(4, 5)))
    # And no coarser than that: neighbouring blocks differ (unless both are clipped to the same end).
    assert (noise[:, :, 1:, :, 0, 0] != noise[:, :, :-1, :, 0, 0]).float().mean() > 0.7
    assert not torch.equal(points[0][0], points[0][1]) and not torch.equal(points[0][:, 0], points[0][:, 1])


@pytest.mark.parametrize("width", [1, 3])
def test_samples_asked_together_give_the_same_result(width: int) -> None:
    goal = images(4, 1, 5, 5, seed=9)

    def rows(x: Tensor, wanted: Tensor) -> Tensor:
        a, *others = x.chunk(width)
        return -(a - wanted).square().flatten(1).sum(dim=1) + sum(bumpy(a * other) for other in others)

    clean = images(4 * width, 1, 5, 5)
    value = Rowwise(rows, (goal,), width)
    alone, together = (replace(NES_BEST, together=n)(value, clean, seeded()) for n in (1, 4))
    torch.testing.assert_close(together, alone)
    assert (evaluate(value, alone) > evaluate(value, clean)).all()


def test_more_than_asked_are_never_together() -> None:
    value, points = watched(bumpy)
    replace(NES_LAST, together=4)(Rowwise(value), images(3, 1, 5, 5), seeded())
    assert max(map(len, points)) == 12
    value, points = watched(bumpy)
    replace(NES_LAST, together=4)(value, images(3, 1, 5, 5), seeded())
    assert max(map(len, points)) == 3, "a value of the whole batch is asked about the whole batch"


# --- Square -----------------------------------------------------------------------------------------------------------


def test_square_sides_follow_the_published_schedule() -> None:
    engine = Square(BALL, queries=10_000, p=0.8)
    x = torch.zeros(1, 3, 20, 20)
    # 0.8 x 400 = 320: 17.9. Halved after 10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000 of 10,000 queries.
    sides = {0: 18, 10: 18, 11: 13, 50: 13, 51: 9, 201: 6, 501: 4, 1001: 3, 2001: 2, 4001: 2, 6001: 1, 8001: 1}
    assert {query: engine._window(query, x)[0] for query in sides} == sides
    assert engine._window(501, x) == (4, 4)
    # With 1,000 queries, after 1, 5, 20, ...
    assert [replace(engine, queries=1000)._window(query, x)[0] for query in (1, 2, 6, 21)] == [18, 13, 9, 6]
    # Not rescaled, the marks are queries whatever their number: of 1,000 the last is at 500.
    fixed = replace(engine, queries=1000, rescaled=False)
    assert [fixed._window(query, x)[0] for query in (10, 11, 50, 51, 201, 501, 999)] == [18, 13, 13, 9, 6, 4, 4]
    # 5,000, as AutoAttack has it: rescaled, the side is 1 from query 3,001 on; as it is, still 2 at the last.
    usual = replace(engine, queries=5000)
    assert [usual._window(query, x)[0] for query in (5, 6, 3000, 3001, 4999)] == [18, 13, 2, 1, 1]
    assert [replace(usual, rescaled=False)._window(query, x)[0] for query in (10, 11, 3001, 4999)] == [18, 13, 2, 2]
    # At most one less than the side; of 100 flat features 80, then 40, and never none.
    assert replace(engine, p=1.0)._window(0, x) == (19, 19)
    assert [engine._window(query, torch.zeros(1, 100)) for query in (0, 11, 9999)] == [(1, 80), (1, 40), (1, 1)]


@pytest.mark.parametrize("rescaled", [True, False])
@pytest.mark.parametrize("queries", [300, 5000, 10_000])
def test_square_shrinks_as_the_authors_code_does(rescaled: bool, queries: int) -> None:
    square = pytest.importorskip("pyautoattack.square")
    theirs = square.SquareAttack(None, n_queries=queries, p_init=0.8, resc_schedule=rescaled, device="cpu")
    ours, x = Square(BALL, queries, rescaled=rescaled), torch.zeros(1, 3, 32, 32)
    for query in range(queries - 2):
        side = max(round(math.sqrt(theirs.p_selection(query) * 32 * 32)), 1)
        assert ours._window(query, x) == (side, side)


@pytest.mark.parametrize("channels", [1, 3])
def test_square_repaints_one_square_per_query_and_never_in_vain(channels: int) -> None:
    clean = images(2, channels, 9, 9)
    value, points = watched(bumpy)
    engine = Square(BALL, queries=80)
    engine(value, clean, seeded())
    stripes, *squares, last = points
    assert torch.equal(last, clean)
    ends = torch.stack([(clean - 0.1).clamp_min(0), (clean + 0.1).clamp_max(1)])
    is_high = (stripes - ends[1]).abs() < 1e-7
    assert torch.equal(is_high.all(dim=2), is_high.any(dim=2)), "each column of each channel at one end"
    best = stripes
    for query, x in enumerate(squares):
        assert ((x - ends).abs() < 1e-7).any(dim=0).all(), "every pixel at an end of the ball"
        side = engine._window(query, x)[0]
        for row in range(2):
            changed = (x[row] != best[row]).any(dim=0).nonzero()
            assert len(changed), "no query on what was known"
            assert (changed.amax(dim=0) - changed.amin(dim=0)).max() < side
        better = bumpy(x) > bumpy(best)
        best = torch.where(better[:, None, None, None], x, best)


def test_square_reaches_every_pixel() -> None:
    value, points = watched(lambda x: torch.zeros(len(x)))
    clean = torch.full((1, 1, 6, 6), 0.5)
    Square(BALL, queries=400)(value, clean, seeded())
    touched = torch.stack([x != points[0] for x in points[1:-1]]).any(dim=0)
    assert touched.all()


def test_ties_are_crossed_only_where_asked() -> None:
    # A plateau, and a step that takes seven of eight pixels to climb: one query sees it only from a lucky start.
    clean = torch.full((4, 8), 0.5)

    def value(x: Tensor) -> Tensor:
        return ((x > 0.5).sum(dim=1) >= 7).float()

    engine = Square(BALL, queries=600, p=0.1)
    assert value(engine(value, clean, seeded(1))).sum() <= 1
    assert value(replace(engine, ties=True)(value, clean, seeded(1))).sum() == 4


def test_rows_at_their_goal_leave_and_the_others_go_on() -> None:
    clean = images(8, 1, 8, 8)
    heights = torch.tensor([-99.0] * 6 + [0.0] * 2)
    sizes: list[int] = []

    def rows(x: Tensor, start: Tensor, capped: Tensor) -> Tensor:
        sizes.append(len(x))
        height = (x - start).flatten(1).sum(dim=1)
        return torch.where(capped < 0, height.clamp_max(0.5), height)

    value = Rowwise(rows, (clean, heights))
    engine = Square(BALL, queries=300, goal=0.5)
    moved = engine(value, clean, seeded())
    assert sizes[0] == 8 and 1 <= sizes[-2] < 8 and sizes[-1] == 8
    assert evaluate(value, moved).min() >= 0.5
    # Once all are there it ends: fewer queries than it may ask.
    assert len(sizes) < 300
    sizes.clear()
    replace(engine, goal=None)(value, clean, seeded())
    assert len(sizes) == 300 and set(sizes) == {8}
    sizes.clear()
    replace(engine, goal=100.0)(value, clean, seeded())
    assert len(sizes) == 300 and set(sizes) == {8}


def test_a_row_that_left_keeps_what_it_had() -> None:
    clean = torch.full((4, 1, 6, 6), 0.5)
    wanted = torch.tensor([0.0, 0.0, 0.0, 50.0])

    def rows(x: Tensor, goal: Tensor) -> Tensor:
        return (x - 0.5).flatten(1).sum(dim=1) - goal

    moved = Square(BALL, queries=200, goal=0.5)(Rowwise(rows, (wanted,)), clean, seeded())
    heights = (moved - 0.5).flatten(1).sum(dim=1)
    assert (heights[:3] >= 0.5 - 1e-5).all() and (heights[:3] < 3.5).all()
    assert heights[3].item() == pytest.approx(3.6, abs=1e-4), "all 36 pixels at the upper end"


def test_a_row_of_three_inputs_is_taken_whole() -> None:
    clean = images(6, 1, 6, 6)

    def rows(x: Tensor, sign: Tensor) -> Tensor:
        a, p, n = x.flatten(1).chunk(3)
        return sign * ((a - p).norm(dim=1) - (a - n).norm(dim=1))

    value = Rowwise(rows, (torch.tensor([1.0, -1.0]),), width=3)
    points: list[Tensor] = []

    def watching(x: Tensor, sign: Tensor) -> Tensor:
        points.append(x.clone())
        return rows(x, sign)

    moved = SQUARE(replace(value, value=watching), clean, seeded())
    best = torch.stack([value(x) for x in points]).amax(dim=0)
    torch.testing.assert_close(value(moved), best)
    stopped = replace(SQUARE, goal=float(best.min()), queries=600)(value, clean, seeded())
    assert (value(stopped) >= best.min()).all()


def test_nan_never_wins() -> None:
    clean = torch.full((3, 4), 0.5)

    def value(x: Tensor) -> Tensor:
        height = (x - 0.5).sum(dim=1)
        return torch.where(height > 0.25, torch.nan, height)

    for engine in (SQUARE, NES_BEST):
        found = value(engine(value, clean, seeded()))
        assert not found.isnan().any() and (found >= 0).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: NES(BALL, steps=-1, step_size=0.1), "steps=-1"),
        (lambda: NES(BALL, steps=1, step_size=0.1, samples=3), "samples=3.*even number"),
        (lambda: NES(BALL, steps=1, step_size=0.1, samples=0), "samples=0"),
        (lambda: NES(BALL, steps=1, step_size=0.1, together=0), "together=0"),
        (lambda: NES(BALL, steps=1, step_size=math.nan), "step_size nan"),
        (lambda: NES(BALL, steps=1, step_size=0.1, sigma=-1.0), "sigma -1.0"),
        (lambda: Square(Ball(0.1, norm="l2")), "l-inf balls, not 'l2'.*nes"),
        (lambda: Square(BALL, queries=1), "1 queries leave nothing"),
        (lambda: Square(BALL, p=0.0), "p=0.0 is no share"),
    ],
)
def test_settings_that_mean_nothing_are_refused(make: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()  # type: ignore[operator]
