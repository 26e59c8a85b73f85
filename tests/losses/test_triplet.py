"""The triplet loss against hand-worked numbers, hand-derived gradients and torch's own."""

import inspect

import pytest
import torch
from torch.nn import functional

from robustmetric.errors import InputError
from robustmetric.losses.mining import Hardest
from robustmetric.losses.triplet import Triplet, hardness, triplet_values
from robustmetric.types import Triplets

A = torch.tensor([[0.0, 0.0], [0.0, 0.0]])
P = torch.tensor([[3.0, 4.0], [1.0, 0.0]])  # distances 5 and 1
N = torch.tensor([[0.0, 2.0], [0.0, 6.0]])  # distances 2 and 6


def unit_rows(count: int, dim: int = 5, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return functional.normalize(
        torch.randn(count, dim, generator=torch.Generator().manual_seed(seed), dtype=dtype), dim=1
    )


def test_hardness_is_positive_distance_minus_negative_distance() -> None:
    torch.testing.assert_close(hardness(A, P, N), torch.tensor([5.0 - 2.0, 1.0 - 6.0]))


def test_values_by_hand() -> None:
    # 5 - 2 + 0.5 = 3.5;  1 - 6 + 0.5 < 0
    torch.testing.assert_close(triplet_values(A, P, N, margin=0.5), torch.tensor([3.5, 0.0]))
    # 25 - 4 + 0.5 = 21.5;  1 - 36 + 0.5 < 0
    torch.testing.assert_close(triplet_values(A, P, N, margin=0.5, squared=True), torch.tensor([21.5, 0.0]))


def test_sum_form_pulls_and_pushes_separately() -> None:
    # Eq. 2 with margin 3: 5 + max(0, 3 - 2) = 6;  1 + max(0, 3 - 6) = 1
    torch.testing.assert_close(triplet_values(A, P, N, margin=3.0, form="sum"), torch.tensor([6.0, 1.0]))
    # squared, margin 5: 25 + (5 - 4) = 26;  1 + max(0, 5 - 36) = 1
    torch.testing.assert_close(triplet_values(A, P, N, margin=5.0, form="sum", squared=True), torch.tensor([26.0, 1.0]))


def test_mean_counts_triplets_at_zero_and_sum_adds() -> None:
    rows = torch.cat([A, P, N])
    triplets = Triplets(torch.tensor([0, 1]), torch.tensor([2, 3]), torch.tensor([4, 5]))
    labels = torch.tensor([0, 0, 0, 0, 1, 1])
    assert Triplet(margin=0.5)(rows, labels, triplets).item() == pytest.approx((3.5 + 0.0) / 2)
    assert Triplet(margin=0.5, reduction="sum")(rows, labels, triplets).item() == pytest.approx(3.5)
    assert Triplet(margin=3.0, form="sum")(rows, labels, triplets).item() == pytest.approx((6 + 1) / 2)
    assert Triplet(margin=0.5, squared=True)(rows, labels, triplets).item() == pytest.approx(21.5 / 2)


def test_gradient_equals_the_derivation() -> None:
    """Where active, d/da = u(a-p) - u(a-n), d/dp = -u(a-p), d/dn = u(a-n) with u(v) = v/|v|; else 0. Mean over B."""
    a, p, n = (unit_rows(8, seed=seed).requires_grad_() for seed in (1, 2, 3))
    triplet_values(a, p, n, margin=0.2).mean().backward()
    to_p, to_n = functional.normalize(a - p, dim=1), functional.normalize(a - n, dim=1)
    active = ((a - p).norm(dim=1) - (a - n).norm(dim=1) + 0.2 > 0).double()[:, None] / 8
    assert 0 < active.count_nonzero() < 8
    torch.testing.assert_close(a.grad, (active * (to_p - to_n)).detach())
    torch.testing.assert_close(p.grad, (active * -to_p).detach())
    torch.testing.assert_close(n.grad, (active * to_n).detach())


def test_equals_torch_on_unit_vectors() -> None:
    a, p, n = (unit_rows(32, seed=seed) for seed in (4, 5, 6))
    theirs = functional.triplet_margin_loss(a, p, n, margin=0.2, reduction="none")
    torch.testing.assert_close(triplet_values(a, p, n, margin=0.2), theirs, atol=1e-5, rtol=0)


def test_coinciding_rows_give_finite_gradients() -> None:
    rows = torch.ones(4, 3, requires_grad=True)
    Triplet(Hardest())(rows, torch.tensor([0, 0, 1, 1])).backward()
    assert rows.grad is not None and rows.grad.isfinite().all()


def test_mined_triplets_are_the_miners() -> None:
    rows, labels = unit_rows(8, dtype=torch.float32), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])
    loss = Triplet(Hardest())
    triplets = loss.mine(rows, labels)
    assert triplets.negative.tolist() == Hardest()(rows, labels).negative.tolist()
    assert loss(rows, labels).item() == loss(rows, labels, triplets).item()


def test_same_generator_gives_the_same_loss() -> None:
    rows, labels = unit_rows(16, dtype=torch.float32), torch.arange(8).repeat_interleave(2)
    values = [
        Triplet(margin=1.0)(rows, labels, generator=torch.Generator().manual_seed(seed)).item() for seed in (0, 0, 1)
    ]
    assert values[0] == values[1] != values[2]


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"reduction": "max"}, "max"),
        ({"form": "som"}, "sum"),
        ({"margin": -0.1}, "-0.1"),
        ({"miner": "semihard"}, "miner 'semihard' is a word; write {name: semihard}"),
        ({"miner": 3}, "miner 3 chooses no triplets"),
    ],
)
def test_wrong_settings_are_named(settings: dict, word: str) -> None:
    # Unwrapped: the type checker that runs in tests only would refuse the value first.
    with pytest.raises(InputError, match=word):
        inspect.unwrap(Triplet.__init__)(Triplet.__new__(Triplet), **settings)


def test_margin_zero_is_allowed() -> None:
    assert Triplet(margin=0.0).margin == 0
