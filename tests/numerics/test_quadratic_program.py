"""The batched active-set solver against problems worked by hand and against clarabel."""

import math

import clarabel
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from torch import Tensor

from robustmetric.numerics.quadratic_program import Row, Smallest, smallest_points


def oracle(normal: Tensor, offset: Tensor) -> float:
    """The norm of the smallest x with normal x >= offset, infinity if there is none, by clarabel."""
    rows, dim = normal.shape
    options = clarabel.DefaultSettings()
    options.verbose = False
    options.tol_gap_abs = options.tol_gap_rel = options.tol_feas = 1e-11
    identity, zero = sparse.identity(dim, format="csc"), np.zeros(dim)
    cones = [clarabel.NonnegativeConeT(rows)]
    matrix = sparse.csc_matrix(-normal.numpy())
    solved = clarabel.DefaultSolver(identity, zero, matrix, -offset.numpy(), cones, options).solve()
    if "Infeasible" in str(solved.status):
        return math.inf
    assert "Solved" in str(solved.status)
    return float(np.linalg.norm(solved.x))


def solve(normal: Tensor, offset: Tensor, **settings: object) -> Smallest:
    """`smallest_points` of n problems given as (n, rows, dim) and (n, rows)."""

    def separate(point: Tensor, problem: Tensor) -> Row:
        missed = offset[problem] - torch.einsum("nrd,nd->nr", normal[problem], point)
        # In units of distance, as a row without a normal has none.
        length = normal[problem].norm(dim=2)
        worst = (missed / torch.where(length > 0, length, 1.0)).argmax(dim=1)
        return normal[problem, worst], offset[problem, worst]

    count = torch.arange(len(normal))
    first = separate(torch.zeros_like(normal[:, 0]), count)
    reach = torch.full_like(offset[:, 0], 1e9)  # every problem here has a shorter solution, or none
    return smallest_points(separate, first, reach=reach, **settings)  # type: ignore[arg-type]


def random_problems(seed: int, n: int, rows: int, dim: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    normal = torch.randn(n, rows, dim, generator=generator, dtype=torch.float64)
    return normal, torch.randn(n, rows, generator=generator, dtype=torch.float64)


def rows(*values: list[float]) -> Tensor:
    return torch.tensor([values], dtype=torch.float64)


def test_one_half_space_by_hand() -> None:
    # 3 x + 4 y >= 10: the nearest point of the line is 10 / 25 * (3, 4), at distance 10 / 5 = 2.
    found = solve(rows([3, 4]), torch.tensor([[10.0]], dtype=torch.float64))
    assert torch.allclose(found.point, torch.tensor([[1.2, 1.6]], dtype=torch.float64))
    assert found.bound.item() == pytest.approx(2) and found.solved.item()


def test_a_corner_by_hand() -> None:
    # x >= 1 and y >= 2: the corner (1, 2), at sqrt 5.
    found = solve(rows([1, 0], [0, 1]), torch.tensor([[1.0, 2.0]], dtype=torch.float64))
    assert torch.allclose(found.point, torch.tensor([[1.0, 2.0]], dtype=torch.float64))
    assert found.bound.item() == pytest.approx(5**0.5)


def test_a_row_that_came_in_is_dropped_again_by_hand() -> None:
    # x + y >= 2 alone leads to (1, 1); then x >= 3 is violated, and (3, 0) satisfies both: the first row's multiplier
    # falls to 0 at (2.5, ...) on the way and the row goes. A third, y >= -5, never matters.
    normal, offset = rows([1, 1], [1, 0], [0, 1]), torch.tensor([[2.0, 3.0, -5.0]], dtype=torch.float64)
    first = (normal[:, 0], offset[:, 0])

    def separate(point: Tensor, problem: Tensor) -> Row:
        worst = (offset - normal[0] @ point[0]).argmax()
        return normal[:, worst], offset[:, worst]

    found = smallest_points(separate, first)
    assert torch.allclose(found.point, torch.tensor([[3.0, 0.0]], dtype=torch.float64))
    assert found.bound.item() == pytest.approx(3) and found.solved.item()


def test_the_origin_is_the_answer_where_no_row_is_violated() -> None:
    found = solve(rows([1, 0], [0, 1]), torch.tensor([[-1.0, 0.0]], dtype=torch.float64))
    assert found.solved.item() and found.bound.item() == 0 and not found.point.any()


def test_rows_that_contradict_one_another_have_no_point() -> None:
    # x >= 1 and -x >= 1; and a row 0 >= 1.
    contradiction = solve(rows([1, 0], [-1, 0]), torch.tensor([[1.0, 1.0]], dtype=torch.float64))
    assert contradiction.bound.item() == math.inf and not contradiction.solved.item()
    empty = solve(rows([0, 0]), torch.tensor([[1.0]], dtype=torch.float64))
    assert empty.bound.item() == math.inf and not empty.solved.item()


@pytest.mark.parametrize("angle", [1e-6, 5e-7, 1e-7, 1e-8, 1e-10])
def test_rows_that_nearly_contradict_one_another_prove_no_more_than_is_true(angle: float) -> None:
    # -x >= -1/2 and x + angle y >= 1/2 + angle / 5: y >= 1/5 where x = 1/2, so the corner (1/2, 1/5) at sqrt 0.29.
    normal = rows([1, angle], [-1, 0])
    offset = torch.tensor([[0.5 + angle / 5, -0.5]], dtype=torch.float64)
    found = solve(normal, offset)
    assert found.bound.item() <= 0.29**0.5 * (1 + 1e-15)
    assert found.bound.item() == pytest.approx(0.29**0.5, rel=1e-14 / angle**2 + 1e-9) or angle < 1e-6
    assert found.bound.item() >= 0.5 - 1e-9


def test_a_contradiction_is_one_only_within_reach() -> None:
    # x >= 1 and -x + y / 1000 >= 1: the corner (1, 2000). Were no point longer than 100, there would be none.
    normal, offset = rows([1, 0], [-1, 1e-3]), torch.tensor([[1.0, 1.0]], dtype=torch.float64)
    assert solve(normal, offset).bound.item() == pytest.approx(4000001**0.5)

    def separate(point: Tensor, problem: Tensor) -> Row:
        worst = (offset - normal[0] @ point[0]).argmax()
        return normal[:, worst], offset[:, worst]

    first, limit = (normal[:, 0], offset[:, 0]), torch.tensor([1000.0], dtype=torch.float64)
    ended = smallest_points(separate, first, limit=limit, reach=torch.tensor([100.0], dtype=torch.float64))
    assert ended.bound.item() == math.inf and not ended.solved.item()


def test_repeated_and_parallel_rows_do_no_harm() -> None:
    # The same half-space three times, once scaled: x >= 2.
    found = solve(rows([1, 0], [1, 0], [2, 0], [1, 1e-9]), torch.tensor([[2.0, 2.0, 4.0, 2.0]], dtype=torch.float64))
    assert found.solved.item() and found.bound.item() == pytest.approx(2, abs=1e-8)


@pytest.mark.parametrize(("count", "dim"), [(3, 2), (8, 3), (30, 5), (12, 12), (60, 20)])
def test_random_problems_agree_with_clarabel(count: int, dim: int) -> None:
    normal, offset = random_problems(seed=count, n=12, rows=count, dim=dim)
    expected = [oracle(a, b) for a, b in zip(normal, offset, strict=True)]
    found = solve(normal, offset)
    assert found.bound.tolist() == pytest.approx(expected, abs=1e-6)
    assert found.solved.tolist() == [value < math.inf for value in expected]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10**6), steps=st.integers(1, 12))
def test_the_bound_holds_wherever_the_search_is_ended_and_rises(seed: int, steps: int) -> None:
    normal, offset = random_problems(seed, n=8, rows=15, dim=4)
    normal[:, :, 0] += 2  # there is a point: far along the first axis every row holds
    whole = solve(normal, offset)
    early, later = (solve(normal, offset, steps=count) for count in (steps, steps + 1))
    assert (early.bound <= whole.bound + 1e-12).all() and (early.bound <= later.bound + 1e-12).all()
    inside = torch.einsum("nrd,nd->nr", normal, whole.point) >= offset - 1e-8
    assert inside[whole.solved].all()


def test_a_problem_is_given_up_at_its_limit() -> None:
    normal, offset = random_problems(seed=1, n=20, rows=15, dim=6)
    normal[:, :, 0] += 2
    whole = solve(normal, offset)
    limit = whole.bound * 0.9
    found = solve(normal, offset, limit=limit)
    given_up = ~found.solved
    assert given_up.any()
    assert (found.bound[given_up] >= limit[given_up]).all() and (found.bound <= whole.bound + 1e-12).all()


def test_many_problems_give_what_each_gives_alone() -> None:
    normal, offset = random_problems(seed=5, n=30, rows=10, dim=4)
    together = solve(normal, offset)
    for i in range(30):
        alone = solve(normal[i : i + 1], offset[i : i + 1])
        assert torch.allclose(together.bound[i], alone.bound[0], atol=1e-12)


def test_no_problems_need_no_solution() -> None:
    found = solve(torch.zeros(0, 3, 2, dtype=torch.float64), torch.zeros(0, 3, dtype=torch.float64))
    assert len(found.bound) == 0
