"""Distances and neighbours against loops, and their gradients, ties and memory."""

import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.numerics.distances import (
    GROUP,
    ROUNDING,
    are_unit,
    chunks,
    count_closer,
    nearest,
    paired,
    pairwise,
    smallest,
)

SEEDS = st.integers(min_value=0, max_value=2**31)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def integers(*shape: int, seed: int = 0, high: int = 3) -> Tensor:
    """Small whole coordinates: every distance is exact, and there are many ties."""
    return torch.randint(high, shape, generator=torch.Generator().manual_seed(seed)).float()


def loop_distances(a: Tensor, b: Tensor) -> Tensor:
    return torch.stack([torch.stack([(x - y).double().square().sum().sqrt() for y in b]) for x in a])


def loop_nearest(queries: Tensor, items: Tensor, k: int, exclude: list[list[int]]) -> list[list[int]]:
    distances = loop_distances(queries, items).tolist()
    order = [sorted(range(len(items)), key=lambda j, row=row: (row[j], j)) for row in distances]
    return [[j for j in row if j not in left_out][:k] for row, left_out in zip(order, exclude, strict=True)]


def test_pairwise_is_the_3_4_5_triangle() -> None:
    # |(0,0)-(3,4)| = sqrt(9+16) = 5; |(0,0)-(0,2)| = 2; |(3,0)-(3,4)| = 4; |(3,0)-(0,2)| = sqrt(9+4)
    a, b = torch.tensor([[0.0, 0.0], [3.0, 0.0]]), torch.tensor([[3.0, 4.0], [0.0, 2.0]])
    torch.testing.assert_close(pairwise(a, b), torch.tensor([[5.0, 2.0], [4.0, 13.0**0.5]]))


@given(SEEDS, st.integers(1, 9), st.integers(1, 9), st.integers(1, 20))
@settings(max_examples=25, deadline=None)
def test_pairwise_equals_a_loop(seed: int, n: int, m: int, dim: int) -> None:
    """Squares to within what is called rounding error: of two nearly equal rows a product loses most digits."""
    a, b = normal(n, dim, seed=seed), normal(m, dim, seed=seed + 1)
    size = (a - b[0]).square().sum(dim=1)[:, None] + (b - b[0]).square().sum(dim=1)
    error = (pairwise(a, b).double().square() - loop_distances(a, b).square()).abs()
    assert (error <= ROUNDING * torch.finfo(torch.float32).eps * size).all()


def test_pairwise_keeps_its_digits_far_from_the_origin() -> None:
    # A collapsed model: all embeddings within 1e-4 of one point of length 1; rounding there is 6e-8.
    x = 0.25 + 1e-4 * normal(20, 16)
    torch.testing.assert_close(pairwise(x, x).double(), loop_distances(x, x), rtol=2e-3, atol=0.0)


def test_points_a_hundredth_apart_are_not_taken_for_one() -> None:
    x = torch.nn.functional.normalize(normal(50, 64), dim=1)
    y = torch.nn.functional.normalize(x + 0.01 * torch.nn.functional.normalize(normal(50, 64, seed=1), dim=1), dim=1)
    torch.testing.assert_close(pairwise(x, y).diagonal(), paired(x, y), rtol=2e-2, atol=0.0)


@pytest.mark.parametrize("dim", [3, 128, 512])
def test_equal_rows_are_at_distance_exactly_zero(dim: int) -> None:
    x = torch.nn.functional.normalize(normal(300, dim), dim=1)
    distances = pairwise(x, x)
    assert torch.equal(distances.diagonal(), torch.zeros(300))
    assert (distances > 0).sum() == 300 * 299


def test_pairwise_gradient_is_the_unit_direction_and_zero_at_coincidence() -> None:
    # d|a-b|/da = (a-b)/|a-b| = (-3,-4)/5 for the far one, 0 for the coincident one.
    a = torch.tensor([[0.0, 0.0]], requires_grad=True)
    b = torch.tensor([[3.0, 4.0], [0.0, 0.0]], requires_grad=True)
    pairwise(a, b).sum().backward()
    torch.testing.assert_close(a.grad, torch.tensor([[-0.6, -0.8]]))
    torch.testing.assert_close(b.grad, torch.tensor([[0.6, 0.8], [0.0, 0.0]]))


def test_pairwise_gradient_of_equal_random_rows_is_zero() -> None:
    x = normal(40, 32)
    a = x.clone().requires_grad_()
    pairwise(a, x).diagonal().sum().backward()
    assert torch.equal(a.grad, torch.zeros_like(x))


def test_pairwise_gradient_equals_finite_differences() -> None:
    a, b = normal(4, 3).double().requires_grad_(), normal(5, 3, seed=1).double().requires_grad_()
    assert torch.autograd.gradcheck(pairwise, (a, b))


def test_paired_is_the_diagonal_of_pairwise() -> None:
    a, b = normal(30, 8), normal(30, 8, seed=1)
    torch.testing.assert_close(paired(a, b), pairwise(a, b).diagonal())


def test_paired_adds_nothing_to_small_distances() -> None:
    # |(1e-6, 0)| = 1e-6, with nothing added under the root or to the coordinates.
    a = torch.tensor([[1e-6, 0.0], [0.0, 0.0]])
    assert paired(a, torch.zeros(2, 2)).tolist() == pytest.approx([1e-6, 0.0], rel=1e-5, abs=0)


def test_paired_gradient_is_the_unit_direction_and_zero_at_coincidence() -> None:
    a = torch.tensor([[3.0, 4.0], [1.0, 1.0]], requires_grad=True)
    paired(a, torch.tensor([[0.0, 0.0], [1.0, 1.0]])).sum().backward()
    torch.testing.assert_close(a.grad, torch.tensor([[0.6, 0.8], [0.0, 0.0]]))


def test_half_precision_is_measured_in_float32_even_under_autocast() -> None:
    a, b = normal(6, 64).bfloat16(), normal(7, 64, seed=1).bfloat16()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        distances = pairwise(a, b)
        direct = paired(a, a + 1)
    assert distances.dtype == direct.dtype == torch.float32
    torch.testing.assert_close(distances.double(), loop_distances(a.double(), b.double()), rtol=1e-5, atol=1e-5)


def test_nearest_by_hand() -> None:
    # From 0: |1| = 1 (item 1), |-2| = 2 (item 2), |5| = 5 (item 0). From 4: |5-4| = 1, |1-4| = 3, |-2-4| = 6.
    items = torch.tensor([[5.0], [1.0], [-2.0]])
    distances, indices = nearest(torch.tensor([[0.0], [4.0]]), items, k=2)
    assert indices.tolist() == [[1, 2], [0, 1]]
    assert distances.tolist() == [[1.0, 2.0], [1.0, 3.0]]


@given(SEEDS, st.integers(1, 6), st.integers(4, 40), st.integers(1, 3), st.sampled_from([None, 1, 3, 7, 100]))
@settings(max_examples=60, deadline=None)
def test_nearest_equals_a_loop_with_ties_by_index(seed: int, n: int, m: int, k: int, chunk: int | None) -> None:
    queries, items = integers(n, 2, seed=seed), integers(m, 2, seed=seed + 1)
    exclude = torch.randint(-1, m, (n,), generator=torch.Generator().manual_seed(seed))
    distances, indices = nearest(queries, items, k, exclude=exclude, chunk=chunk)
    expected = torch.tensor(loop_nearest(queries, items, k, exclude[:, None].tolist()))
    assert torch.equal(indices, expected)
    torch.testing.assert_close(distances.double(), loop_distances(queries, items).gather(1, expected))


def test_nearest_may_leave_out_several_items_per_query() -> None:
    # At 0, 1, 2, 3: without items 0 and 1 the nearest to 0 is item 2; without none, item 0.
    items = torch.arange(4.0)[:, None]
    exclude = torch.tensor([[0, 1], [-1, -1], [3, -1]])
    assert nearest(torch.zeros(3, 1), items, k=1, exclude=exclude)[1].tolist() == [[2], [0], [0]]
    assert nearest(torch.zeros(3, 1), items, k=2, exclude=exclude)[1].tolist() == [[2, 3], [0, 1], [0, 1]]


def test_nearest_of_each_point_without_itself_is_another_even_among_duplicates() -> None:
    x = normal(10, 4).repeat(2, 1)
    indices = nearest(x, x, k=1, exclude=torch.arange(20))[1][:, 0]
    assert torch.equal(indices, (torch.arange(20) + 10) % 20)


def test_nearest_of_many_items_does_not_depend_on_the_chunk() -> None:
    queries, items = normal(30, 8), normal(40_000, 8, seed=1)
    expected = torch.cdist(queries.double(), items.double()).topk(5, largest=False)
    for chunk in (None, 999, 16_384, 50_000):
        distances, indices = nearest(queries, items, k=5, chunk=chunk)
        assert torch.equal(indices, expected.indices)
        torch.testing.assert_close(distances.double(), expected.values, rtol=1e-4, atol=1e-5)


def test_nearest_takes_no_more_queries_at_a_time_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def watched(a: Tensor, b: Tensor) -> Tensor:
        seen.append(len(a) * len(b))
        return pairwise(a, b)

    monkeypatch.setattr("robustmetric.numerics.distances.pairwise", watched)
    monkeypatch.setattr("robustmetric.numerics.distances.BLOCK", 60)
    queries, items = normal(17, 3), normal(50, 3, seed=1)
    assert torch.equal(nearest(queries, items, 4, chunk=20)[1], loop_indices(queries, items, 4))
    count_closer(queries, items, torch.ones(17), chunk=20)
    assert max(seen) == 60
    assert len(seen) == 2 * 6 * 3


@pytest.mark.parametrize(
    ("items", "k", "widths"), [(40, 1, [40]), (20_000, 1, [2**14, 3616]), (21_000, 40, [20_480, 520])]
)
def test_nearest_compares_so_many_items_at_a_time_by_default(
    items: int, k: int, widths: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    # 2^14 at most, unless the k smallest are sought among more: 8 * 40 * 64 = 20,480.
    seen: list[int] = []

    def watched(a: Tensor, b: Tensor) -> Tensor:
        seen.append(len(b))
        return pairwise(a, b)

    monkeypatch.setattr("robustmetric.numerics.distances.pairwise", watched)
    nearest(normal(1, 2), normal(items, 2, seed=1), k)
    assert seen == widths


def loop_indices(queries: Tensor, items: Tensor, k: int) -> Tensor:
    return torch.tensor(loop_nearest(queries, items, k, [[]] * len(queries)))


@pytest.mark.parametrize("width", [4 * 2 * GROUP - 1, 4 * 2 * GROUP, 4 * 2 * GROUP + 1, 3000])
def test_smallest_of_a_long_row_is_its_stable_order(width: int) -> None:
    values = integers(40, width, high=200)
    assert torch.equal(smallest(values, 2), values.sort(dim=1, stable=True).indices[:, :2])


def test_smallest_finds_the_lowest_of_equal_columns_in_any_group() -> None:
    values = torch.ones(1, 20 * GROUP)
    assert smallest(values, 3).tolist() == [[0, 1, 2]]
    values[0, 7 * GROUP + 5] = 0
    assert smallest(values, 3).tolist() == [[7 * GROUP + 5, 0, 1]]


@given(SEEDS, st.integers(1, 6), st.integers(1, 30), st.sampled_from([None, 1, 7]))
@settings(max_examples=40, deadline=None)
def test_count_closer_equals_a_loop(seed: int, n: int, m: int, chunk: int | None) -> None:
    queries, items = integers(n, 2, seed=seed), integers(m, 2, seed=seed + 1)
    exclude = torch.randint(-1, m, (n,), generator=torch.Generator().manual_seed(seed))
    limit = torch.ones(n)  # whole coordinates: many items lie exactly at 1 and must not count
    distances = loop_distances(queries, items)
    expected = [sum(float(distances[i, j]) < 1 for j in range(m) if j != int(exclude[i])) for i in range(n)]
    assert count_closer(queries, items, limit, exclude=exclude, chunk=chunk).tolist() == expected


def test_count_closer_is_the_rank_of_a_neighbour() -> None:
    queries, items = normal(20, 4), normal(50, 4, seed=1)
    distances, indices = nearest(queries, items, k=6)
    assert count_closer(queries, items, distances[:, 5], exclude=indices[:, 5]).tolist() == [5] * 20
    assert count_closer(queries, items, distances[:, 0] - 1e-3).tolist() == [0] * 20


def test_chunks_cover_the_range_in_order() -> None:
    assert list(chunks(7, 3)) == [slice(0, 3), slice(3, 6), slice(6, 7)]
    assert list(chunks(2, 0)) == [slice(0, 1), slice(1, 2)]
    assert list(chunks(0, 3)) == []


def test_no_queries_have_no_neighbours() -> None:
    distances, indices = nearest(torch.zeros(0, 3), normal(4, 3), k=2)
    assert distances.shape == indices.shape == (0, 2)


def test_more_neighbours_than_items_are_refused() -> None:
    x = normal(5, 2)
    assert nearest(x, x, k=5, exclude=torch.full((5,), -1))[1].shape == (5, 5)
    assert nearest(x, x, k=4, exclude=torch.arange(5))[1].shape == (5, 4)
    with pytest.raises(InputError, match="k = 5 neighbours asked of 4 items"):
        nearest(x, x, k=5, exclude=torch.arange(5))
    with pytest.raises(InputError, match="k = 6 neighbours asked of 5 items"):
        nearest(x, x, k=6)
    with pytest.raises(InputError, match="k = 0"):
        nearest(x, x, k=0)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_embeddings_that_are_not_finite_are_refused(bad: float) -> None:
    x = normal(5, 2)
    broken = x.clone()
    broken[3, 1] = bad
    with pytest.raises(InputError, match="queries hold NaN"):
        nearest(broken, x, k=1)
    with pytest.raises(InputError, match="items hold NaN"):
        count_closer(x, broken, torch.ones(5))


def test_excluding_an_item_that_is_not_there_is_refused() -> None:
    x = normal(5, 2)
    with pytest.raises(InputError, match="exclude names item 5"):
        nearest(x, x, k=1, exclude=torch.tensor([0, 1, 2, 3, 5]))


MILLION = """
import resource, time, torch
from robustmetric.numerics.distances import nearest
generator = torch.Generator().manual_seed(0)
items = torch.randn(1_000_000, 128, generator=generator)
queries = items[:1000] + 0.01 * torch.randn(1000, 128, generator=generator)
start = time.perf_counter()
distances, indices = nearest(queries, items, k=10)
seconds = time.perf_counter() - start
assert torch.equal(indices[:, 0], torch.arange(1000))
assert bool((distances[:, 1:] >= distances[:, :-1]).all())
expected = torch.cdist(queries[:3].double(), items[:200_000].double()).topk(10, largest=False).values
assert bool((distances[:3].double() <= expected + 1e-3).all())
print(seconds, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


def test_a_million_items_answer_a_thousand_queries_within_4_gib() -> None:
    result = subprocess.run([sys.executable, "-c", MILLION], capture_output=True, text=True, check=True)
    seconds, peak = map(float, result.stdout.split())
    print(f"{seconds:.1f} s, peak {peak / 2**30:.2f} GiB")
    assert peak < 4 * 2**30


@pytest.mark.gpu
def test_neighbours_on_the_gpu_are_those_of_the_cpu() -> None:
    queries, items = integers(200, 4, high=6), integers(20_000, 4, seed=1, high=6)
    exclude = torch.arange(200)
    here = nearest(queries, items, k=7, exclude=exclude)
    there = nearest(queries.cuda(), items.cuda(), k=7, exclude=exclude.cuda())
    assert torch.equal(here[1], there[1].cpu())
    torch.testing.assert_close(here[0], there[0].cpu())


def test_rows_are_unit_if_all_have_length_one() -> None:
    rows = torch.tensor([[0.6, 0.8], [1.0, 0.0]])
    assert are_unit(rows) and not are_unit(torch.cat([rows, torch.tensor([[0.6, 0.7]])]))
