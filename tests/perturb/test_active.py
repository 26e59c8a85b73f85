"""Active-set climbing: the same as climbing with every row, and fewer rows computed."""

import pytest
import torch
from torch import Tensor

from robustmetric.perturb import active
from robustmetric.perturb.active import Rowwise, Tally, climb_active
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD

WEIGHTS = torch.tensor([1.0, -2.0])


def capped(x: Tensor, goal: Tensor) -> Tensor:
    """Climbs until x @ weights reaches the goal."""
    return -(goal - x @ WEIGHTS).relu()


def counted(value: Rowwise) -> tuple[Rowwise, list[int]]:
    """The same value, and a list that fills with the number of inputs of each call."""
    sizes: list[int] = []

    def counting(x: Tensor, *constants: Tensor) -> Tensor:
        sizes.append(len(x))
        return value.value(x, *constants)

    return Rowwise(counting, value.constants, value.width), sizes


def test_rows_at_their_goal_leave_and_the_others_climb_on_by_hand() -> None:
    # Each step of 0.1 raises x @ weights by 0.3. Rows need 0, 1, 2 and 5 steps; four are taken.
    clean = torch.full((4, 2), 0.5)
    start = float(clean[0] @ WEIGHTS)
    value, sizes = counted(Rowwise(capped, (start + torch.tensor([0.0, 0.2, 0.5, 1.4]),)))
    engine = PGD(Ball(0.45), steps=4, step_size=0.1, random_start=False)
    moved = (engine(value, clean) - clean) * torch.tensor([1.0, -1.0])
    torch.testing.assert_close(moved, torch.tensor([[0.0], [0.1], [0.2], [0.4]]).expand(4, 2))
    # All four at the first step; three still moved in it; then two; then the last one.
    assert sizes == [4, 3, 2, 1]


def test_the_climb_ends_when_no_row_moves() -> None:
    value, sizes = counted(Rowwise(capped, (torch.tensor([-0.6, -0.25]),)))
    engine = PGD(Ball(1.0, bounds=(-9.0, 9.0)), steps=50, step_size=0.1, random_start=False)
    reached = engine(value, torch.full((2, 2), 0.5))
    # From -0.5: row 0 is past its goal, row 1 takes one step of 0.3; the second call sees it at rest.
    assert sizes == [2, 1]
    torch.testing.assert_close(reached, torch.tensor([[0.5, 0.5], [0.6, 0.4]]))


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("rows", [1, 2, 7, 33])
def test_equals_the_plain_climb_of_triplets(rows: int, norm: str) -> None:
    """Rows of three inputs in blocks: whatever is left out, the result is that of all rows."""
    generator = torch.Generator().manual_seed(rows)
    clean = torch.rand(3 * rows, 4, generator=generator)
    goal = torch.randn(rows, generator=generator) / 2

    def shortfall(x: Tensor, goal: Tensor) -> Tensor:
        a, p, n = x.chunk(3)
        return -(goal - ((a - p).square().sum(dim=1) - (a - n).square().sum(dim=1))).relu().square()

    engine = PGD(Ball(0.3, norm=norm), steps=12, step_size=0.05, random_start=False)
    value, sizes = counted(Rowwise(shortfall, (goal,), width=3))
    plain = engine(lambda x: shortfall(x, goal), clean)
    torch.testing.assert_close(engine(value, clean), plain, atol=1e-6, rtol=0)
    assert all(size % 3 == 0 for size in sizes)
    if rows > 2:
        assert sum(sizes) < 12 * 3 * rows, "or nothing was left out"


def test_a_random_start_and_restarts_work_too() -> None:
    clean = torch.full((5, 2), 0.5)
    value = Rowwise(capped, (torch.tensor([-0.6, -0.4, -0.2, 0.0, 0.2]),))
    engine = PGD(Ball(0.2), steps=5, step_size=0.05, restarts=3)
    x = engine(value, clean, torch.Generator().manual_seed(0))
    plain = engine(lambda x: capped(x, *value.constants), clean, torch.Generator().manual_seed(0))
    torch.testing.assert_close(x, plain)


def test_best_of_triplets_keeps_whole_triplets() -> None:
    """With keep="best" the three inputs of a row are kept from one and the same step."""
    clean = torch.full((6, 1), 0.5)

    def peak(x: Tensor) -> Tensor:
        a, p, n = x.squeeze(1).chunk(3)
        return -(a + p + n - torch.tensor([1.62, 1.5])).abs()

    engine = PGD(Ball(0.3), steps=3, step_size=0.05, random_start=False, keep="best")
    best = engine(Rowwise(lambda x: peak(x), width=3), clean)
    # Row 0: 1.5, 1.65 (0.03 past the peak), 1.5, ...: the second point; row 1 starts at its peak.
    torch.testing.assert_close(best.squeeze(1), torch.tensor([0.55, 0.5] * 3))


def test_sizes_come_from_a_short_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(active, "SHARES", (0.5, 1.0))
    goals = -0.5 + 0.3 * torch.arange(8.0)
    value, sizes = counted(Rowwise(capped, (goals,)))
    ball = Ball(5.0, bounds=(-9.0, 9.0))
    climb_active(value, torch.full((8, 2), 0.5), torch.full((8, 2), 0.5), 9, lambda clean: ball.ascent(clean, 0.1))
    assert set(sizes) == {8, 4} and sizes == sorted(sizes, reverse=True)


def test_a_tally_on_the_host_is_of_the_step_itself() -> None:
    tally = Tally(torch.device("cpu"))
    assert [tally.left(torch.tensor(row)) for row in ([True, True], [True, False], [False, False])] == [2, 1, 0]


@pytest.mark.gpu
def test_a_tally_on_a_gpu_is_of_the_step_before_and_never_too_small() -> None:
    tally = Tally(torch.device("cuda"))
    rows = [[True] * 4, [True, True, True, False], [True, False, False, False], [False] * 4]
    assert [tally.left(torch.tensor(row, device="cuda")) for row in rows] == [4, 4, 3, 1]


@pytest.mark.gpu
def test_on_a_gpu_the_result_is_that_of_the_plain_climb() -> None:
    generator = torch.Generator().manual_seed(0)
    clean = torch.rand(32, 2, generator=generator).cuda()
    goal = torch.randn(32, generator=generator).cuda()

    def value(x: Tensor, goal: Tensor) -> Tensor:
        return -(goal - x @ WEIGHTS.cuda()).relu()

    engine = PGD(Ball(0.4), steps=20, step_size=0.02, random_start=False)
    torch.testing.assert_close(engine(Rowwise(value, (goal,)), clean), engine(lambda x: value(x, goal), clean))
