"""FAB: projections and steps by hand, projections against solvers, distances, and what is given back."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.optimize import LinearConstraint, linprog, minimize
from torch import Tensor, nn
from torch.nn import functional

from robustmetric.errors import InputError
from robustmetric.models.classifier import cnn
from robustmetric.perturb.active import Rowwise
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.fab import FAB

LINF, L2 = FAB(Ball(0.1)), FAB(Ball(0.5, norm="l2"))
ENGINES = pytest.mark.parametrize("engine", [LINF, L2], ids=["linf", "l2"])


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(rows: int, *shape: int, seed: int = 0) -> Tensor:
    return torch.rand(rows, *shape, generator=seeded(seed))


def arena() -> tuple[nn.Module, Rowwise, Tensor, Tensor]:
    """A network, the margin of its second class over its first, inputs, and their first classes."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = cnn(1, 8, 10).requires_grad_(False)
    clean = images(60, 1, 8, 8)
    labels, targets = model(clean).topk(2, dim=1).indices.T

    def rows(x: Tensor, label: Tensor, target: Tensor) -> Tensor:
        logits = model(x)
        return (logits.gather(1, target[:, None]) - logits.gather(1, label[:, None]))[:, 0]

    return model, Rowwise(rows, (labels, targets)), clean, labels


def projected(engine: FAB, x: list[float], normal: list[float], level: float) -> list[float]:
    d = engine.to_hyperplane(torch.tensor([x]), torch.tensor([normal]), torch.tensor([level]))
    return [round(number, 5) for number in d[0].tolist()]


# --- projections ----------------------------------------------------------------------------------------------------


def test_projections_by_hand() -> None:
    # <(1, 2), (0.2, 0.5)> = 1.2, and 0.3 are missing: 0.1 (1 + 2), or 0.06 (1^2 + 2^2).
    assert projected(LINF, [0.2, 0.5], [1.0, 2.0], 1.5) == [0.1, 0.1]
    assert projected(L2, [0.2, 0.5], [1.0, 2.0], 1.5) == [0.06, 0.12]
    # From above the same way down; a feature without weight stays.
    assert projected(LINF, [0.5, 0.5, 0.3], [1.0, -2.0, 0.0], -0.8) == [-0.1, 0.1, 0.0]
    # <(2, 1), (0.95, 0.5)> = 2.4, and 0.3 are missing: the first gives 2 * 0.05 and is at its bound, the second 0.2.
    assert projected(LINF, [0.95, 0.5], [2.0, 1.0], 2.7) == [0.05, 0.2]
    assert projected(L2, [0.95, 0.5], [2.0, 1.0], 2.7) == [0.05, 0.2]
    # Out of reach: as near as the bounds let it. Without a slope: nowhere.
    for engine in (LINF, L2):
        assert projected(engine, [0.95, 0.5], [2.0, 1.0], 9.0) == [0.05, 0.5]
        assert projected(engine, [0.95, 0.5], [0.0, 0.0], 9.0) == [0.0, 0.0]


def solved(x: np.ndarray, normal: np.ndarray, level: float, norm: str) -> float:
    """The length of the shortest way to the hyperplane inside the box, by a general solver."""
    if norm == "linf":
        # Variables d and t: least t with -t <= d_i <= t.
        sides = np.block([[np.eye(len(x)), -np.ones((len(x), 1))], [-np.eye(len(x)), -np.ones((len(x), 1))]])
        found = linprog(
            [0] * len(x) + [1], A_ub=sides, b_ub=np.zeros(2 * len(x)), A_eq=[[*normal, 0]],
            b_eq=[level - normal @ x], bounds=[*((-v, 1 - v) for v in x), (0, None)],
        )  # fmt: skip
        return float(found.x[-1])
    gap = LinearConstraint(normal, level - normal @ x, level - normal @ x)
    options = {"maxiter": 500, "ftol": 1e-14}
    found = minimize(
        lambda d: d @ d, 0 * x, jac=lambda d: 2 * d, bounds=[(-v, 1 - v) for v in x], constraints=[gap],
        method="SLSQP", options=options,
    )  # fmt: skip
    return float(np.linalg.norm(found.x))


@ENGINES
def test_projections_are_the_shortest(engine: FAB) -> None:
    x, normal = images(20, 6), torch.randn(20, 6, generator=seeded(1))
    # Any point of the box lies on a level that can be reached; those near a corner need most features at their bound.
    goal = torch.where(images(20, 6, seed=2) < 0.7, 0.01 + 0.98 * (normal > 0), images(20, 6, seed=3))
    level = (normal * goal).sum(dim=1)
    d = engine.to_hyperplane(x, normal, level)
    torch.testing.assert_close((normal * (x + d)).sum(dim=1), level, atol=1e-5, rtol=1e-5)
    assert (x + d).min() >= -1e-6 and (x + d).max() <= 1 + 1e-6
    lengths = engine.ball.distance(x + d, x)
    for row in range(20):
        best = solved(x[row].double().numpy(), normal[row].double().numpy(), float(level[row]), engine.ball.norm)
        assert lengths[row].item() == pytest.approx(best, abs=2e-4)


# --- the walk -------------------------------------------------------------------------------------------------------


def test_two_steps_by_hand() -> None:
    """The boundary x_0 + x_1 = 1.2 from (0.5, 0.5) is 0.1 away."""
    clean = torch.full((1, 2), 0.5)

    def value(x: Tensor) -> Tensor:
        return x.sum(dim=1) - 1.2

    # Both projections are 0.1 long: alpha = 0.1, and 1.05 times 0.1 whichever weight.
    points, distance = replace(LINF, steps=1).closest(value, clean)
    assert distance.item() == pytest.approx(0.105, abs=1e-6)
    torch.testing.assert_close(points, torch.full((1, 2), 0.605))
    # Back to 0.9 * 0.105 = 0.0945; 0.0055 are missing, alpha = 0.0055 / 0.1055 = 0.05213:
    # 0.94787 (0.0945 + 1.05 * 0.0055) + 0.05213 * 0.105 = 0.10052.
    _, distance = replace(LINF, steps=2).closest(value, clean)
    assert distance.item() == pytest.approx(0.10052, abs=1e-5)


@ENGINES
def test_on_a_linear_value_it_finds_the_distance(engine: FAB) -> None:
    clean = 0.3 + 0.4 * images(8, 1, 4, 4)
    weights = torch.randn(8, 1, 4, 4, generator=seeded(1))

    def value(x: Tensor) -> Tensor:
        return (weights * (x - clean)).flatten(1).sum(dim=1) - 0.2

    dual = weights.flatten(1).norm(dim=1, p=1 if engine.ball.norm == "linf" else 2)
    points, distance = engine.closest(value, clean)
    assert (value(points) >= 0).all()
    assert (distance >= 0.2 / dual - 1e-6).all() and (distance <= 1.01 * 0.2 / dual).all()
    torch.testing.assert_close(engine.ball.distance(points, clean), distance)


@ENGINES
def test_it_gives_a_point_of_the_ball_or_the_clean_input(engine: FAB) -> None:
    _, value, clean, _ = arena()
    _, distance = engine.closest(value, clean)
    # Half of them are farther away than this.
    engine = replace(engine, ball=replace(engine.ball, radius=float(distance.median())))
    moved = engine(value, clean)
    near = engine.ball.distance(moved, clean) > 0
    assert torch.equal(near, distance <= engine.ball.radius) and 20 <= near.sum() <= 40
    assert (value(moved)[near] >= -1e-6).all() and torch.equal(moved[~near], clean[~near])
    assert (engine.ball.distance(moved, clean) <= engine.ball.radius).all() and 0 <= moved.min() <= moved.max() <= 1


def test_a_row_across_from_the_start_stays_and_one_without_slope_too() -> None:
    clean = images(3, 4)
    slope = torch.tensor([1.0, 1.0, 0.0])

    def value(x: Tensor) -> Tensor:
        return slope * (x - clean).sum(dim=1) + torch.tensor([0.0, -0.04, -1.0])

    points, distance = LINF.closest(value, clean)
    assert distance[0] == 0 and 0.01 <= distance[1] < 0.011 and distance[2] == math.inf
    moved = LINF(value, clean)
    assert torch.equal(moved[::2], clean[::2]) and not torch.equal(moved[1], clean[1])
    assert torch.equal(points[2], clean[2])


def test_rows_that_are_across_in_the_ball_leave() -> None:
    needed = torch.tensor([0.05] * 7 + [9.0])
    sizes: list[int] = []

    def rows(x: Tensor, need: Tensor) -> Tensor:
        sizes.append(len(x))
        return functional.softplus(x - 0.5).sum(dim=1) - functional.softplus(torch.zeros(4)).sum() - need

    value, clean = Rowwise(rows, (needed,)), torch.full((8, 4), 0.5)
    LINF(value, clean)
    assert sizes[0] == 8 and sizes[-1] == 1
    sizes.clear()
    _, distance = LINF.closest(value, clean)
    assert set(sizes) == {8}, "none leaves while a nearer point may be found"
    assert (distance[:7] < 0.03).all() and distance[7] == math.inf


def test_other_starts_find_what_the_clean_one_does_not() -> None:
    """A flat top, from which no slope leads, with a boundary nearby."""
    clean = torch.full((6, 3), 0.5)

    def value(x: Tensor) -> Tensor:
        return ((x - 0.5).abs().amax(dim=1) - 0.04).relu() - 0.04

    engine = replace(LINF, steps=20)
    assert torch.equal(engine(value, clean, seeded()), clean)
    assert (value(replace(engine, restarts=3)(value, clean, seeded())) >= 0).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(LINF, steps=0), "steps=0"),
        (lambda: replace(LINF, restarts=0), "restarts=0"),
        (lambda: replace(LINF, alpha_max=1.1), "alpha_max=1.1"),
        (lambda: replace(LINF, beta=-0.1), "beta=-0.1"),
        (lambda: replace(LINF, eta=0.9), "eta=0.9 stops before"),
        (lambda: LINF(Rowwise(lambda x: x[:1, 0], (), width=3), torch.zeros(3, 2)), "one input per row, not 3"),
    ],
)
def test_settings_that_mean_nothing_are_refused(make: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()  # type: ignore[operator]


# --- the authors' code ----------------------------------------------------------------------------------------------


@ENGINES
def test_finds_the_distances_that_the_authors_code_finds(engine: FAB) -> None:
    from pyautoattack.fab_pt import FABAttack_PT

    model, value, clean, labels = arena()
    norm = {"linf": "Linf", "l2": "L2"}[engine.ball.norm]
    theirs = FABAttack_PT(model, norm=norm, n_iter=60, eps=engine.ball.radius, device="cpu")
    theirs.target_class = 2
    their_distance = engine.ball.distance(theirs.attack_single_run(clean, labels, is_targeted=True), clean)
    _, distance = replace(engine, steps=60).closest(value, clean)
    # Theirs also counts a third class that comes first on the way.
    is_same = (distance - their_distance).abs() < 1e-3 * distance
    assert is_same.float().mean() > 0.85 and (distance / their_distance).median().item() == pytest.approx(1, abs=1e-3)
