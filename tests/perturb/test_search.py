"""What engines keep while they look: the best of each row, who leaves, and who climbs again."""

import dataclasses

import pytest
import torch
from torch import Tensor

from robustmetric.perturb.active import FINER, Rowwise, size_for
from robustmetric.perturb.apgd import APGD
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.engine import Engine
from robustmetric.perturb.gradient_free import Square
from robustmetric.perturb.hard_label import RayS
from robustmetric.perturb.search import Search, best_of, kept, per_input


@dataclasses.dataclass(frozen=True)
class Place:
    x: Tensor
    name: Tensor


def rows_of(width: int) -> Rowwise:
    return Rowwise(lambda x, goal: x.view(width, len(goal), -1).sum(dim=(0, 2)) - goal, (torch.arange(8.0),), width)


def test_the_higher_point_is_kept_and_nan_never_wins() -> None:
    x, other = torch.tensor([[1.0], [1.0], [1.0], [1.0]]), torch.tensor([[2.0], [2.0], [2.0], [2.0]])
    height, other_height = torch.tensor([0.0, 5.0, torch.nan, 3.0]), torch.tensor([1.0, 4.0, -9.0, torch.nan])
    best, best_height = kept(x, height, other, other_height)
    assert best[:, 0].tolist() == [2, 1, 2, 1] and best_height.tolist() == [1, 5, -9, 3]
    assert kept(x, height, other, height)[0][0].item() == 1, "of a tie the first"
    assert kept(x, height, other, height, ties=True)[0][0].item() == 2


def test_a_number_per_row_reaches_all_inputs_of_the_row() -> None:
    # Rows a, b of three inputs each lie as a b a b a b.
    assert per_input(torch.tensor([1.0, 2.0]), torch.zeros(6, 4, 5)).flatten().tolist() == [1, 2, 1, 2, 1, 2]


def test_rows_at_their_goal_leave_in_shares_and_keep_what_they_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("robustmetric.perturb.search.FINER", (0.25, 0.5, 0.75, 1.0))
    for width in (1, 3):
        value = rows_of(width)
        x = torch.zeros(8 * width, 2)
        search = Search(value, x, value(x), goal=-2.5)
        state = Place(x=x + torch.arange(8.0).repeat(width)[:, None], name=torch.arange(8))
        # Heights are 0, -1, ..., -7: rows 0, 1 and 2 are at the goal, five are left, of which six (0.75 of 8) stay.
        state = search.narrowed(state)
        assert state.name.tolist() == [3, 4, 5, 6, 7, 0]
        assert state.x[:, 0].tolist() == [3, 4, 5, 6, 7, 0] * width
        assert search.height.tolist() == [-3, -4, -5, -6, -7, 0] and not search.over
        higher = search.best + 1.0
        won = search.offer(higher, search.value(higher))
        assert won.tolist() == [True] * 5 + [False], "a row at its goal keeps the point at which it got there"
        best, height = search.result()
        assert best[:, 0].tolist() == [0, 0, 0, 1, 1, 1, 1, 1] * width
        assert height.tolist() == [0, -1, -2, *(2 * width - row for row in range(3, 8))]
        state = search.narrowed(state)
        # With 2 more, 3 and 4 are there (-1, -2), and three are left: half of eight stay. With 6 more, all are there.
        assert search.over == (width == 3)
        assert width == 3 or state.name.tolist() == [5, 6, 7, 3]


def test_a_search_is_over_when_every_row_is_at_its_goal() -> None:
    value = rows_of(1)
    x = torch.zeros(8, 1)
    search = Search(value, x, value(x), goal=-6.5)
    search.narrowed(Place(x, torch.arange(8)))
    assert not search.over
    search.offer(search.best + 1, torch.zeros(len(search.height)))
    search.narrowed(Place(search.best, torch.arange(len(search.height))))
    assert search.over


def test_without_a_goal_or_rows_of_their_own_nobody_leaves() -> None:
    value, x = rows_of(1), torch.zeros(8, 1)
    place = Place(x, torch.arange(8))
    assert Search(value, x, value(x), goal=None).narrowed(place) is place
    assert Search(lambda y: value(y), x, value(x), goal=-6.5).narrowed(place) is place


def test_only_rows_without_their_goal_climb_again() -> None:
    value = rows_of(1)
    sizes = []

    def climb(value: Rowwise, clean: Tensor, before: int) -> tuple[Tensor, Tensor]:
        sizes.append(len(clean))
        x = clean + 2.0 * before
        return x, value(x)

    best, height = best_of(climb, value, torch.zeros(8, 1), times=9, goal=0.0)
    # Row i needs i: 1 is there after the first, 3 after the second (2), 5 after the third (4), 7 after the fourth.
    assert sizes == [8, 7, 5, 3, 1]
    assert best[:, 0].tolist() == [0, 2, 2, 4, 4, 6, 6, 8] and (height >= 0).all()
    sizes.clear()
    best, _ = best_of(climb, value, torch.zeros(8, 1), times=3, goal=None)
    assert sizes == [8, 8, 8] and (best == 4).all()


@pytest.mark.parametrize(
    "engine", [Square(Ball(0.2), 60, goal=0.0), RayS(Ball(0.2), 60), APGD(Ball(0.2), 30, goal=0.0)]
)
def test_the_last_row_of_many_is_not_asked_about_in_company(engine: Engine) -> None:
    sizes: list[int] = []

    def value(x: Tensor, needed: Tensor) -> Tensor:
        sizes.append(len(x))
        return x.flatten(1).mean(dim=1) - needed

    # All but one of 32 rows are won wherever they are.
    needed = torch.full((32,), -1.0).index_fill(0, torch.tensor([7]), 2.0)
    engine(Rowwise(value, (needed,)), torch.full((32, 1, 4, 4), 0.5), torch.Generator().manual_seed(0))
    assert sorted(set(sizes[6:-1])) == [2], "a sixteenth of the batch"


@pytest.mark.parametrize("count", [200, 1000])
def test_a_long_search_is_asked_about_few_rows_that_are_done(count: int) -> None:
    sizes = [size_for(left, count, FINER) for left in range(1, count + 1)]
    # Of 30 in 100 rows, at most 38 are asked about.
    assert all(left <= size < left + count / 8 for left, size in enumerate(sizes, 1))
    assert len(set(sizes)) <= 9, "each new size costs a recording"
