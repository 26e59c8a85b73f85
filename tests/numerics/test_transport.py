"""Transport: hand-worked plans, the exact linear program, the published recurrence, and what is refused."""

import inspect
import math
import warnings

import numpy as np
import numpy.typing as npt
import pytest
import torch
from scipy.optimize import linprog
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.numerics import transport
from robustmetric.numerics.transport import IPOT, IdentityMatching, Matching, Sinkhorn, UniformMatching, cost_matrix

SWAP = torch.tensor([[0.0, 1.0], [1.0, 0.0]])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def random_cost(n: int, m: int, seed: int = 0) -> Tensor:
    return torch.rand(n, m, generator=seeded(seed), dtype=torch.float64)


def random_weights(n: int, seed: int = 0) -> Tensor:
    weights = 0.2 + torch.rand(n, generator=seeded(seed + 100), dtype=torch.float64)
    return weights / weights.sum()


def least_cost(cost: Tensor, mu: Tensor, nu: Tensor) -> float:
    """By linear programming: the n + m marginals are equations in the n m entries of the plan."""
    n, m = cost.shape
    rows = np.kron(np.eye(n), np.ones(m))
    columns = np.kron(np.ones(n), np.eye(m))
    marginals = torch.cat([mu, nu]).numpy()
    found = linprog(cost.flatten().numpy(), A_eq=np.vstack([rows, columns]), b_eq=marginals, method="highs")
    return float(found.fun)


def published(cost: npt.NDArray[np.float64], most: int = 100) -> tuple[npt.NDArray[np.float64], int]:
    """The recurrence of the released training, one problem at a time in numpy; the plan, and the iterations made."""
    n = len(cost)
    u, v = np.zeros(n), np.zeros(n)
    for iteration in range(most):  # noqa: B007  # how far it came is asked for
        before = u.copy()
        u = u + 0.01 * (np.log(1 / n) - np.log(np.exp((u[:, None] + v - cost) / 0.01).sum(1) + 1e-6))
        v = v + 0.01 * (np.log(1 / n) - np.log(np.exp((u[:, None] + v - cost) / 0.01).sum(0) + 1e-6))
        if np.abs(u - before).sum() < 0.1:
            break
    return np.exp((u[:, None] + v - cost) / 0.01), iteration + 1


def test_sinkhorn_of_two_points_by_hand() -> None:
    # By symmetry T = [[a, b], [b, a]] with a / b = e^(1 / regularisation) and a + b = 1/2.
    for regularisation in (1.0, 0.25):
        ratio = math.exp(-1 / regularisation)
        plan = Sinkhorn(regularisation, iterations=50, stop="never", stable=True)(SWAP)
        expected = torch.tensor([[1, ratio], [ratio, 1]]) / (2 * (1 + ratio))
        torch.testing.assert_close(plan, expected)
        # The floor of 1e-6 beside sums of about 1 shifts it in the sixth digit.
        torch.testing.assert_close(Sinkhorn(regularisation)(SWAP), expected, atol=1e-5, rtol=1e-4)


def test_ipot_of_two_points_by_hand() -> None:
    # Q = A o T multiplies the ratio of the two entries by e^-1 each time: after k iterations it is e^-k.
    for k in (1, 3):
        ratio = math.exp(-k)
        expected = torch.tensor([[1, ratio], [ratio, 1]]) / (2 * (1 + ratio))
        torch.testing.assert_close(IPOT(iterations=k)(SWAP), expected)
    # beta = 1/2: e^-2 each time.
    ratio = math.exp(-4)
    expected = torch.tensor([[1, ratio], [ratio, 1]]) / (2 * (1 + ratio))
    torch.testing.assert_close(IPOT(beta=0.5, iterations=2)(SWAP), expected)


@pytest.mark.parametrize("n", range(2, 7))
def test_as_the_regularisation_falls_the_cost_falls_to_that_of_the_linear_program(n: int) -> None:
    for seed, weighted in ((0, False), (1, True)):
        cost = random_cost(n, n, seed)
        mu = random_weights(n, seed) if weighted else torch.full((n,), 1 / n, dtype=torch.float64)
        nu = random_weights(n, seed + 1) if weighted else mu
        least, gaps = least_cost(cost, mu, nu), []
        for regularisation in (0.3, 0.1, 0.03, 0.01):
            plan = Sinkhorn(regularisation, 1000, stop="never", stable=True)(cost, mu, nu)
            gaps.append(float((plan * cost).sum()) - least)
            # The entropy of a plan is between 0 and log(n n), and the regularised plan gains no more than that.
            assert -1e-3 < gaps[-1] < regularisation * math.log(n * n)
        assert gaps[0] > gaps[1] > gaps[2] > gaps[3] - 1e-4 and gaps[3] < 5e-3
        inexact = IPOT(beta=0.1, iterations=1000)(cost, mu, nu)
        assert float((inexact * cost).sum()) == pytest.approx(least, abs=2e-3)


def test_unequal_sides_have_a_plan_too() -> None:
    cost, mu, nu = random_cost(3, 5), random_weights(3), random_weights(5)
    for matching in (Sinkhorn(0.01, 2000, "never", stable=True), IPOT(0.1, 2000)):
        plan = matching(cost, mu, nu)
        torch.testing.assert_close(plan.sum(1), mu, atol=1e-6, rtol=0)
        torch.testing.assert_close(plan.sum(0), nu, atol=1e-6, rtol=0)
        assert float((plan * cost).sum()) == pytest.approx(least_cost(cost, mu, nu), abs=3e-3)


@pytest.mark.parametrize(("n", "m"), [(4, 4), (20, 20), (7, 12)])
def test_equals_pot_on_random_costs(n: int, m: int) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its optional backends
        import ot
    for seed, regularisation in ((0, 0.5), (1, 0.05)):
        cost, mu, nu = random_cost(n, m, seed), random_weights(n, seed), random_weights(m, seed)
        theirs = ot.sinkhorn(
            mu.numpy(), nu.numpy(), cost.numpy(), regularisation, method="sinkhorn_log", numItermax=2000, stopThr=1e-12
        )
        ours = Sinkhorn(regularisation, iterations=1000, stop="never", stable=True)(cost, mu, nu)
        assert np.abs(ours.numpy() - theirs).max() < 1e-5
        exact = ot.emd2(mu.numpy(), nu.numpy(), cost.numpy())
        assert float((IPOT(0.1, 1000)(cost, mu, nu) * cost).sum()) == pytest.approx(exact, abs=2e-3)


def test_the_published_recurrence_is_followed_problem_by_problem_with_its_stop() -> None:
    # Costs as of clean and slightly, or much, perturbed logits: problems end after different numbers of iterations.
    logits = torch.randn(6, 30, 10, generator=seeded(), dtype=torch.float64)
    shift = torch.tensor([0.05, 0.2, 0.5, 1.0, 2.0, 8.0], dtype=torch.float64)[:, None, None]
    cost = cost_matrix(logits, logits + shift * torch.randn(6, 30, 10, generator=seeded(1), dtype=torch.float64))
    plans = Sinkhorn()(cost)
    made = set()
    for problem, plan in zip(cost, plans, strict=True):
        expected, iterations = published(problem.numpy())
        made.add(iterations)
        np.testing.assert_allclose(plan.numpy(), expected, atol=1e-12)
    assert len(made) > 2 and max(made) < 100, made


def test_a_fixed_count_is_the_same_recurrence_without_the_stop() -> None:
    cost = random_cost(8, 8) / 5
    expected, iterations = published(cost.numpy())
    assert iterations > 1
    np.testing.assert_allclose(Sinkhorn(iterations=iterations, stop="never")(cost).numpy(), expected, atol=1e-12)
    assert np.abs(Sinkhorn(iterations=iterations + 20, stop="never")(cost).numpy() - expected).max() > 1e-6


def test_the_floor_loses_the_mass_of_rows_that_cost_much_and_the_stable_variant_does_not() -> None:
    # 0.01 ln 1e6 = 0.138: at a cost of 0.5 everywhere the exponentials, e^-50, vanish beside the floor.
    cost = torch.full((4, 4), 0.5)
    once = Sinkhorn(iterations=1, stop="never")(cost)
    assert once.sum() < 1e-6
    assert Sinkhorn(iterations=1, stop="never", stable=True)(cost).sum() == pytest.approx(1, abs=1e-5)


def test_a_plan_that_has_lost_all_its_mass_is_refused() -> None:
    # 100 iterations raise both potentials by some 0.12 each: 24 in all.
    Sinkhorn()(torch.full((4, 4), 10.0))
    with pytest.raises(InputError, match=r"lose all mass.*stable: true"):
        Sinkhorn()(torch.full((4, 4), 100.0))
    assert Sinkhorn(stable=True)(torch.full((4, 4), 100.0)).sum() == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("axis", [0, 1])
def test_ipot_of_rows_or_columns_that_cost_much_is_that_of_the_differences(axis: int) -> None:
    # e^-200 is 0 in float32, so that a row of such costs would be 0 / 0; what all plans pay changes none of them.
    cost = random_cost(5, 5).float()
    dear = torch.tensor([0.0, 200.0, 0.0, 1000.0, 0.0])
    dear = dear[:, None] if axis == 0 else dear[None]
    for iterations in (1, 2, 50):
        plan = IPOT(iterations=iterations)(cost + dear)
        # In double precision e^-1000 is 0 too, but e^-200 and e^-300 are not.
        wide = IPOT(iterations=iterations)(cost.double() + dear.double().clamp_max(300))
        reference = ipot_by_definition(cost.double() + dear.double().clamp_max(300), iterations)
        torch.testing.assert_close(wide, reference)
        assert plan.isfinite().all()
        torch.testing.assert_close(plan.sum(dim=0), torch.full((5,), 0.2))
        if axis == 0:
            torch.testing.assert_close(plan.double(), wide, atol=2e-3, rtol=0)


def ipot_by_definition(cost: Tensor, iterations: int) -> Tensor:
    """Xie et al., algorithm 1, with beta = 1 and uniform weights."""
    n = len(cost)
    plan, sigma = torch.ones_like(cost), torch.full((n,), 1 / n, dtype=cost.dtype)
    for _ in range(iterations):
        q = (-cost).exp() * plan
        delta = 1 / (n * (q @ sigma))
        sigma = 1 / (n * (q.T @ delta))
        plan = delta[:, None] * q * sigma
    return plan


@pytest.mark.parametrize("matching", [Sinkhorn(), Sinkhorn(stable=True), IPOT(), UniformMatching()])
def test_the_order_of_rows_and_columns_does_not_matter(matching: Matching) -> None:
    cost = torch.rand(5, 4, generator=seeded())
    mu, nu = torch.tensor([0.1, 0.3, 0.2, 0.25, 0.15]), torch.tensor([0.4, 0.1, 0.3, 0.2])
    rows, columns = torch.tensor([3, 0, 4, 1, 2]), torch.tensor([2, 3, 0, 1])
    expected = matching(cost, mu, nu)[rows][:, columns]
    torch.testing.assert_close(matching(cost[rows][:, columns], mu[rows], nu[columns]), expected)


def test_well_separated_rows_are_matched_with_their_own() -> None:
    logits = 5 * torch.eye(6)
    for matching in (Sinkhorn(), Sinkhorn(stable=True), IPOT(beta=0.1)):
        torch.testing.assert_close(matching(cost_matrix(logits, logits)), torch.eye(6) / 6, atol=1e-4, rtol=0)


def test_marginals_hold_after_enough_iterations() -> None:
    cost = cost_matrix(*torch.randn(2, 60, 10, generator=seeded(), dtype=torch.float64))
    for matching, tolerance in ((Sinkhorn(0.05, 2000, "never", stable=True), 1e-6), (IPOT(), 1e-3)):
        plan = matching(cost)
        assert (plan.sum(0) - 1 / 60).abs().sum() < tolerance and (plan.sum(1) - 1 / 60).abs().sum() < tolerance


@pytest.mark.parametrize("matching", [Sinkhorn(0.1, 12), Sinkhorn(0.1, 7, "never", stable=True), IPOT(iterations=6)])
def test_the_gradient_goes_through_the_iterations(matching: Sinkhorn | IPOT) -> None:
    def transported(cost: Tensor) -> Tensor:
        return (matching(cost) * cost).sum()

    assert torch.autograd.gradcheck(transported, (random_cost(4, 4).requires_grad_(),))
    cost = random_cost(4, 4).requires_grad_()
    (through,) = torch.autograd.grad(transported(cost), cost)
    plan = matching(cost).detach()
    # With the plan held fixed the gradient of <T, C> is T; through the plan it is not.
    assert (through - plan).abs().max() > 1e-3


def test_several_problems_at_once_are_each_alone_and_half_precision_is_solved_in_full() -> None:
    cost = torch.rand(3, 5, 5, generator=seeded())
    for matching in (Sinkhorn(), IPOT()):
        torch.testing.assert_close(matching(cost), torch.stack([matching(one) for one in cost]))
        low = matching(cost.bfloat16())
        assert low.dtype == torch.float32
        torch.testing.assert_close(low, matching(cost.bfloat16().float()))
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(matching(cost), matching(cost.clone()), atol=0, rtol=0)
            assert matching(cost).dtype == torch.float32


def test_identity_and_uniform_matching_ignore_the_cost() -> None:
    cost = torch.rand(2, 3, 3, generator=seeded())
    torch.testing.assert_close(IdentityMatching()(cost), (torch.eye(3) / 3).expand(2, 3, 3))
    torch.testing.assert_close(UniformMatching()(cost), torch.full((2, 3, 3), 1 / 9))
    mu, nu = torch.tensor([0.25, 0.75]), torch.tensor([0.5, 0.25, 0.25])
    expected = torch.tensor([[0.125, 0.0625, 0.0625], [0.375, 0.1875, 0.1875]])
    torch.testing.assert_close(UniformMatching()(torch.rand(2, 3), mu, nu), expected)
    torch.testing.assert_close(IdentityMatching()(torch.rand(2, 2), mu, mu), torch.diag(mu))
    with pytest.raises(InputError, match="same number and weights"):
        IdentityMatching()(torch.rand(2, 3))
    with pytest.raises(InputError, match="same number and weights"):
        IdentityMatching()(torch.rand(2, 2), mu, mu.flip(0))


def test_costs_by_hand() -> None:
    a, b = torch.tensor([[3.0, 4.0], [0.0, 0.0]]), torch.tensor([[4.0, 3.0], [6.0, 8.0]])
    # Cosines 24/25 and 1; the zero vector has cosine 0 with everything.
    torch.testing.assert_close(cost_matrix(a, b), torch.tensor([[0.04, 0.0], [1.0, 1.0]]), atol=1e-6, rtol=0)
    torch.testing.assert_close(cost_matrix(a, b, "euclidean"), torch.tensor([[2**0.5, 5.0], [5.0, 10.0]]))
    torch.testing.assert_close(cost_matrix(a, b, "squared"), torch.tensor([[2.0, 25.0], [25.0, 100.0]]))
    for cost in ("cosine", "euclidean", "squared"):
        torch.testing.assert_close(cost_matrix(a[None], b[None], cost), cost_matrix(a, b, cost)[None])


def test_a_cosine_cost_is_never_negative_and_of_full_precision() -> None:
    rows = torch.randn(50, 10, generator=seeded())
    assert (cost_matrix(rows, rows) >= 0).all()
    with torch.autocast("cpu", torch.bfloat16):
        assert cost_matrix(rows, rows).diagonal().max() < 1e-5


def test_one_row_or_column_leaves_no_choice() -> None:
    for matching in (Sinkhorn(), Sinkhorn(stable=True), IPOT(), UniformMatching(), IdentityMatching()):
        cost = torch.tensor([[0.9]], requires_grad=True)
        torch.testing.assert_close(matching(cost), torch.ones(1, 1))
    torch.testing.assert_close(Sinkhorn()(torch.rand(1, 4)), torch.full((1, 4), 0.25))


def test_problems_that_are_none_are_refused() -> None:
    cost = torch.rand(3, 3)
    with pytest.raises(InputError, match="hold no problem"):
        Sinkhorn()(torch.rand(0, 3))
    with pytest.raises(InputError, match=r"2 weights, the least 0\.5, do not fit 3 rows"):
        Sinkhorn()(cost, torch.tensor([0.5, 0.5]))
    with pytest.raises(InputError, match="expected one number > 0"):
        IPOT()(cost, torch.tensor([0.5, 0.5, 0.0]))
    with pytest.raises(InputError, match="same sum"):
        IPOT()(cost, torch.tensor([0.5, 0.5, 0.5]))
    with pytest.raises(InputError, match="cost 'cosin' is not known; did you mean 'cosine'"):
        # Unwrapped: the type checker that runs in tests only would refuse an unknown word first.
        inspect.unwrap(cost_matrix)(cost, cost, "cosin")


@pytest.mark.parametrize(
    "matching", [Sinkhorn(), Sinkhorn(stop="never"), IPOT(), IdentityMatching(), UniformMatching()]
)
def test_costs_that_hold_nan_are_refused_and_not_passed_on(matching: Matching) -> None:
    cost = torch.rand(2, 3, 3)
    cost[1, 0, 2] = math.nan
    with pytest.raises(InputError, match=r"^the costs of a transport hold NaN; expected finite outputs .*[^\n]$"):
        matching(cost)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("matching", [Sinkhorn(stable=True), IPOT()])
def test_mass_that_has_nowhere_to_go_is_refused_and_one_barred_way_is_not(matching: Matching, axis: int) -> None:
    cost = torch.rand(3, 3, generator=torch.Generator().manual_seed(0))
    cost[1, 2] = math.inf
    plan = matching(cost)
    assert plan[1, 2] == 0 and plan.sum() == pytest.approx(1, abs=0.05)
    cost.select(axis, 1).fill_(math.inf)
    with pytest.raises(InputError, match="infinite in all of a row or column, whose mass has nowhere to go"):
        matching(cost)


def test_where_costs_are_not_looked_at_first_sinkhorn_s_last_look_finds_nan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transport, "_problem", lambda cost, mu, nu: (cost, *2 * (torch.full((3,), 1 / 3),)))
    with pytest.raises(InputError, match="hold NaN"):  # as on a device
        Sinkhorn()(torch.full((3, 3), math.nan))


def test_settings_that_solve_nothing_are_refused() -> None:
    for make in (lambda: Sinkhorn(regularisation=0.0), lambda: Sinkhorn(iterations=0), lambda: IPOT(beta=-1.0)):
        with pytest.raises(InputError, match="solves nothing"):
            make()
    unknown = Sinkhorn()
    object.__setattr__(unknown, "stop", "abs-sum")
    with pytest.raises(InputError, match="stop 'abs-sum' is not known"):
        unknown.__post_init__()
