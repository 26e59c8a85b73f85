"""Attacks on k-NN change the vote, stay in the box, and come near the radius."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from knn_problems import problem

from robustmetric.certify.boundary import Boundary
from robustmetric.certify.geometry import Sites
from robustmetric.certify.knn import RobustKNN
from robustmetric.certify.substitute import margin_gradient
from robustmetric.certify.voting import Voter, foreign_starts, shorten
from robustmetric.errors import InputError

METHODS: list[tuple[str, dict[str, Any]]] = [
    ("greedy", {}),
    ("substitute", {"steps": 60}),
    ("boundary", {"steps": 200}),
]


@pytest.mark.parametrize(("method", "options"), METHODS)
@pytest.mark.parametrize("k", [1, 3, 4])
def test_a_perturbation_changes_the_prediction_and_is_as_long_as_it_says(
    method: Any, options: dict[str, Any], k: int
) -> None:
    given = problem(1, n=60, queries=12)
    knn = RobustKNN(given.matrix, k).fit(given.x, given.y)
    lengths, delta = knn.attack(given.queries, given.labels, method=method, return_perturbation=True, **options)
    found = lengths < math.inf
    wrong = knn.predict(given.queries) != given.labels
    assert found.all() and (lengths[wrong] == 0).all() and (lengths[~wrong] > 0).all() and wrong.any()
    assert (knn.predict(given.queries + delta) != given.labels).all()
    assert np.linalg.norm(delta, axis=1) == pytest.approx(lengths)


@pytest.mark.parametrize(("method", "options"), METHODS)
def test_attacks_on_1nn_come_near_the_exact_radius(method: Any, options: dict[str, Any]) -> None:
    given = problem(2, n=60, dim=3, queries=20)
    knn = RobustKNN(given.matrix).fit(given.x, given.y)
    radii = knn.certify(given.queries)
    lengths = knn.attack(given.queries, method=method, **options)
    assert (lengths >= radii).all()
    # Worst first: greedy is exact, the others search.
    assert np.median(lengths / radii) < {"greedy": 1 + 2e-6, "substitute": 1.1, "boundary": 1.2}[method]


@pytest.mark.parametrize(("method", "options"), METHODS)
@pytest.mark.parametrize("k", [1, 3])
def test_attacks_stay_in_the_box(method: Any, options: dict[str, Any], k: int) -> None:
    random = np.random.default_rng(0)
    x, y, queries = random.random((80, 4)), random.integers(3, size=80), random.random((15, 4))
    knn = RobustKNN(n_neighbors=k).fit(x, y)
    lengths, delta = knn.attack(queries, method=method, bounds=(0, 1), return_perturbation=True, **options)
    moved = queries + delta
    assert (moved > -1e-9).all() and (moved < 1 + 1e-9).all() and (lengths < math.inf).all()
    assert (knn.predict(moved) != knn.predict(queries)).all()


def test_the_greedy_attack_on_3nn_by_hand() -> None:
    # Own 0, 1, 2, foreign 10, 11, 12, from 1. Two foreign of three votes: nearer to 11 than to 1, or (10, 2, 1 ...):
    # the three nearest at z are {1, 2, 10} until 10 and 11 are both nearer than 1: z > 6. Length 5.
    knn = RobustKNN(n_neighbors=3).fit([[0.0], [1.0], [2.0], [10.0], [11.0], [12.0]], [0, 0, 0, 1, 1, 1])
    assert knn.attack([[1.0]], [0]) == pytest.approx([5], rel=1e-5)
    assert knn.certify([[1.0]], [0], method="bound") == pytest.approx([5])


def test_the_greedy_attack_passes_by_a_cell_that_is_only_a_tie() -> None:
    # The copy of 1 in class 1 never wins its ties: the first foreign vote is at 5, and the border of 1 and 5 is 3.
    knn = RobustKNN().fit([[0.0], [1.0], [1.0], [5.0]], [0, 0, 1, 1])
    assert knn.certify([[0.0]], [0]) == pytest.approx([0.5])
    assert knn.attack([[0.0]], [0]) == pytest.approx([3], rel=1e-5)


def test_one_class_cannot_be_attacked() -> None:
    knn = RobustKNN().fit([[0.0], [1.0], [2.0]], [7, 7, 7])
    for method, options in METHODS:
        assert knn.attack([[0.5]], method=method, **options).tolist() == [math.inf]


def test_a_class_too_small_for_a_majority_is_reached_by_its_vote_if_at_all() -> None:
    # One foreign point and K = 3: no vote goes to it.
    knn = RobustKNN(n_neighbors=3).fit([[0.0], [1.0], [2.0], [9.0]], [0, 0, 0, 1])
    assert knn.attack([[0.5]], [0]).tolist() == [math.inf]


def test_the_gradient_is_that_of_the_soft_margin() -> None:
    given = problem(0, n=20)
    sites = Sites.of(torch.tensor(given.x), torch.tensor(given.y), torch.tensor(given.matrix))
    z = sites.coordinates.enter(torch.tensor(given.queries)).requires_grad_()
    labels, softness = torch.tensor(given.labels), torch.tensor([0.5, 1.0, 2.0, 4.0], dtype=torch.float64)
    away = z[:, None] - sites.w
    logits = -torch.einsum("nmi,ij,nmj->nm", away, torch.tensor(given.matrix), away) / softness[:, None]
    shares = torch.stack([logits[:, sites.labels == c].logsumexp(dim=1) for c in range(3)], dim=1)
    own = shares.gather(1, labels[:, None])[:, 0]
    margin = own - shares.scatter(1, labels[:, None], -math.inf).amax(dim=1)
    (expected,) = torch.autograd.grad(margin.sum(), z)
    assert torch.allclose(margin_gradient(sites, z.detach(), labels, softness), expected, atol=1e-10)


def voter(k: int = 1) -> Voter:
    x = torch.tensor([[0.0], [1.0], [4.0], [5.0]], dtype=torch.float64)
    return Voter(x, torch.tensor([0, 0, 1, 1]), k)


def test_ties_go_to_the_smaller_label() -> None:
    # 2.5 is as far from 1 as from 4; with K = 2 and 4 the votes are tied too.
    for k in (1, 2, 4):
        assert voter(k)(torch.tensor([[2.5]], dtype=torch.float64)).tolist() == [0]
    # With K = 4 everything is tied; with K = 3 the third vote decides.
    assert voter(4)(torch.tensor([[5.0]], dtype=torch.float64)).tolist() == [0]
    assert voter(3)(torch.tensor([[0.0], [5.0]], dtype=torch.float64)).tolist() == [0, 1]


def test_shortening_stops_at_the_border_and_leaves_alone_what_does_not_work() -> None:
    x, labels = torch.zeros((3, 1), dtype=torch.float64), torch.zeros(3, dtype=torch.long)
    delta = torch.tensor([[5.0], [2.0], [math.nan]], dtype=torch.float64)
    found = shorten(voter(), x, labels, delta)
    assert found[0].item() == pytest.approx(2.5, abs=1e-6) and found[0].item() > 2.5
    assert found[1].item() == 2 and found[2].isnan().item()


@pytest.mark.parametrize("method", ["greedy", "substitute", "boundary"])
@pytest.mark.parametrize("k", [1, 3])
def test_attacks_on_a_row_outside_the_box_end_inside(method: str, k: int) -> None:
    # From (0.45, 1.3) the border x = 1/2 is 0.05 away; inside [0, 1]^2 the way is to (1/2, 1): sqrt(0.05^2 + 0.3^2).
    sites = np.repeat([[0.2, 0.5], [0.8, 0.5]], k, axis=0)
    knn = RobustKNN(n_neighbors=k).fit(sites, np.repeat([0, 1], k))
    row = np.array([[0.45, 1.3]])
    length, delta = knn.attack(row, [0], method=method, bounds=(0, 1), return_perturbation=True)
    moved = row + delta
    assert (moved > -1e-12).all() and (moved < 1 + 1e-12).all() and knn.predict(moved).tolist() == [1]
    assert np.hypot(0.05, 0.3) * (1 - 1e-9) <= length.item() < 0.32


def test_a_start_is_the_nearest_foreign_vote() -> None:
    # 1 of class 1 is outvoted by its neighbours with K = 3, so the start is beyond it.
    x = torch.tensor([[0.0], [0.5], [1.0], [1.2], [8.0], [9.0], [9.5]], dtype=torch.float64)
    labels = torch.tensor([0, 0, 1, 0, 1, 1, 1])
    start = foreign_starts(Voter(x, labels, 3), x[:1], labels[:1], None)
    assert start.item() == 8.0
    many = torch.cat([torch.linspace(0, 1, 60, dtype=torch.float64), torch.linspace(0, 1, 30).double() + 0.001])[
        :, None
    ]
    crowd = Voter(torch.cat([many, x[4:]]), torch.tensor([0] * 60 + [1] * 30 + [1] * 3), 3)
    # Thirty outvoted points are nearer than the first with a foreign vote.
    assert foreign_starts(crowd, x[:1], labels[:1], None).item() >= 0
    assert crowd.differs(x[:1] + foreign_starts(crowd, x[:1], labels[:1], None), labels[:1]).all()


def test_the_boundary_attack_improves_with_steps_and_is_repeatable() -> None:
    given = problem(5, n=60, dim=5, queries=10)
    knn = RobustKNN(given.matrix).fit(given.x, given.y)
    short, long, again = (knn.attack(given.queries, method="boundary", steps=s) for s in (0, 300, 300))
    assert (long <= short).all() and long.mean() < 0.9 * short.mean()
    assert (long == again).all()
    assert (knn.attack(given.queries, method="boundary", steps=300, seed=1) != long).any()
    assert Boundary().steps == 1000


@pytest.mark.parametrize(
    ("method", "name", "value", "expected"),
    [
        ("boundary", "steps", -1, "a whole number >= 0"),
        ("boundary", "steps", True, "a whole number >= 0"),
        ("boundary", "spherical_step", 0.0, "a number > 0"),
        ("boundary", "source_step", 1.0, "a number > 0 and < 1"),
        ("boundary", "adaptation", 0.5, "a number >= 1"),
        ("boundary", "seed", -1, "a whole number from 0 to 4294967295"),
        ("substitute", "steps", -1, "a whole number >= 0"),
        ("substitute", "temperature", -1.0, "a number > 0"),
        ("substitute", "temperature", math.nan, "a number > 0"),
        ("substitute", "norm_step", 2.0, "a number > 0 and < 1"),
        ("greedy", "pivots", 0, "a whole number >= 1"),
        ("greedy", "rounds", -1, "a whole number >= 0"),
        ("greedy", "spread", 0.9, "a number >= 1"),
    ],
)
def test_settings_that_attack_nothing_are_refused(method: str, name: str, value: Any, expected: str) -> None:
    knn = RobustKNN().fit([[0.0], [1.0]], [0, 1])
    with pytest.raises(InputError) as refused:
        knn.attack([[0.0]], method=method, **{name: value})
    assert str(refused.value) == f"{name} = {value!r}; expected {expected}"


@pytest.mark.parametrize("method", [None, ["greedy"]])
def test_what_is_no_word_is_no_attack(method: Any) -> None:
    with pytest.raises(InputError, match=r"is not an attack on k-NN; .*boundary, greedy, substitute"):
        RobustKNN().fit([[0.0], [1.0]], [0, 1]).attack([[0.0]], method=method)


def test_unknown_methods_and_settings_are_named() -> None:
    knn = RobustKNN().fit([[0.0], [1.0]], [0, 1])
    with pytest.raises(InputError, match="'greed' is not an attack on k-NN; did you mean 'greedy'"):
        knn.attack([[0.0]], method="greed")
    with pytest.raises(InputError, match="'step' is not a setting of the attack 'boundary'; did you mean 'steps'"):
        knn.attack([[0.0]], method="boundary", step=3)
