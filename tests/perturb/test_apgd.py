"""APGD: the schedule and the steps by hand, what it keeps, who leaves, and the authors' code point for point."""

import math
from dataclasses import replace

import pytest
import torch
from hills import bumpy, images, seeded, watched
from torch import Tensor, nn
from torch.nn import functional

from robustmetric.errors import InputError
from robustmetric.models.classifier import cnn
from robustmetric.perturb.apgd import APGD, _Climb, stretches
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD, Rowwise
from robustmetric.perturb.search import Search

BALL = Ball(0.1)
NORMS = pytest.mark.parametrize("ball", [BALL, Ball(0.5, norm="l2")], ids=["linf", "l2"])


def network(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return cnn(1, 8, 10).requires_grad_(False)


# --- the algorithm by hand ------------------------------------------------------------------------------------------


def test_checkpoints_by_hand() -> None:
    # 0.22 of 100 steps is 22, each stretch is 3 shorter than the last and at least 6.
    due = stretches(100)
    assert {step + 1: length for step, length in enumerate(due) if length} == {
        22: 22, 41: 19, 57: 16, 70: 13, 80: 10, 87: 7, 93: 6, 99: 6,
    }  # fmt: skip
    # Of ten steps 2, then always at least 1 less and at least 1.
    assert stretches(10) == [0, 2, 1, 1, 1, 1, 1, 1, 1, 1]
    assert stretches(1) == [1]


def test_steps_by_hand() -> None:
    """-(x - 0.47)^2 in [0.4, 0.6], from 0.6, with ten steps: checkpoints after the second and each later one."""
    value, points = watched(lambda x: -(x[:, 0] - 0.47).square())
    seed = next(seed for seed in range(20) if BALL.edge_point(torch.full((1, 1), 0.5), seeded(seed)) > 0.5)
    best = APGD(BALL, steps=10)(value, torch.full((1, 1), 0.5), seeded(seed))
    by_hand = [
        0.6,
        0.4,  # down by 2 * 0.1; the first step has no momentum
        0.5,  # 0.4 + 0.75 (0.6 - 0.4) + 0.25 (0.4 - 0.6); two rises of two
        0.45,  # 0.5 + 0.75 (0.4 - 0.5) + 0.25 (0.5 - 0.4); a rise
        0.55,  # 0.45 + 0.75 (0.6 - 0.45) + 0.25 (0.45 - 0.5); a fall: half the step, back to 0.45
        0.525,  # 0.45 + 0.75 * 0.1 + 0.25 (0.45 - 0.45); a rise
        0.46875,  # 0.525 - 0.75 * 0.1 + 0.25 (0.525 - 0.45)
    ]
    torch.testing.assert_close(torch.cat(points)[:7, 0], torch.tensor(by_hand))
    assert len(points) == 11
    assert abs(best.item() - 0.47) == min(abs(x.item() - 0.47) for x in points)


def test_conditions_for_halving_by_hand() -> None:
    """Of 4 steps 3 rises are too few (<= 0.75 * 4); a best value that stands still only where nothing was halved."""
    rows = 5
    clean, best = torch.full((rows, 1), 0.5), torch.full((rows, 1), 0.55)
    now = replace(
        _Climb.start(clean, clean + 0.02, torch.zeros(rows), torch.ones(rows, 1), step_size=0.2),
        best_gradient=torch.full((rows, 1), -1.0),
        rises=torch.tensor([3, 4, 4, 4, 4]),
        best_before=torch.tensor([0.0, 0.0, 1.0, 1.0, 1.1]),
        is_halved=torch.tensor([False, False, False, True, False]),
    )
    search = Search(lambda x: x[:, 0], best, torch.ones(rows), None)
    after = APGD(BALL)._check(now, search, 4)
    # Too few; risen and better; no better; no better but just halved; worse than before cannot be, and counts as still.
    halved = [True, False, True, False, True]
    assert after.is_halved.tolist() == halved
    torch.testing.assert_close(after.step_size, torch.tensor([0.1 if half else 0.2 for half in halved]))
    torch.testing.assert_close(after.x[:, 0], torch.tensor([0.55 if half else 0.52 for half in halved]))
    assert after.gradient[:, 0].tolist() == [-1 if half else 1 for half in halved]
    assert after.rises.tolist() == [0] * rows and after.best_before.tolist() == [1] * rows


@NORMS
def test_starts_at_the_edge_of_the_ball(ball: Ball) -> None:
    clean = torch.full((4, 1, 6, 6), 0.5)
    value, points = watched(bumpy)
    APGD(ball, steps=1)(value, clean, seeded())
    torch.testing.assert_close(ball.distance(points[0], clean), torch.full((4,), ball.radius))


# --- what every engine promises -------------------------------------------------------------------------------------


@NORMS
@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 6, 9), (7,), (2, 5)], ids=str)
def test_every_point_lies_in_ball_and_bounds(ball: Ball, shape: tuple[int, ...]) -> None:
    clean = images(4, *shape)
    value, points = watched(bumpy)
    moved = APGD(ball, steps=12)(value, clean, seeded())
    for x in [*points, moved]:
        assert x.shape == clean.shape and (ball.distance(x, clean) <= ball.radius + 1e-6).all()
        assert x.min() >= 0 and x.max() <= 1
    best = torch.stack([bumpy(x) for x in points]).amax(dim=0)
    torch.testing.assert_close(bumpy(moved), best)
    assert len(points) == 13 and not moved.requires_grad


def test_same_seed_same_result_and_radius_zero_changes_nothing() -> None:
    clean = images(4, 1, 8, 8)
    engine = APGD(BALL, steps=8, restarts=2)
    first, again, other = (engine(bumpy, clean, seeded(seed)) for seed in (3, 3, 4))
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert torch.equal(replace(engine, ball=Ball(0.0))(bumpy, clean, seeded()), clean)


def test_restarts_keep_the_best_and_parameters_get_no_gradient() -> None:
    clean, model = images(6, 1, 8, 8), network().requires_grad_(True)
    labels = torch.arange(6)

    def value(x: Tensor) -> Tensor:
        return functional.cross_entropy(model(x), labels, reduction="none")

    generator = seeded()
    runs = torch.stack([value(APGD(BALL, steps=6)(value, clean, generator)) for _ in range(3)])
    torch.testing.assert_close(value(APGD(BALL, steps=6, restarts=3)(value, clean, seeded())), runs.amax(dim=0))
    assert runs.std(dim=0).max() > 0, "starts that lead to one place would show nothing"
    assert all(parameter.grad is None for parameter in model.parameters())


def test_climbs_at_least_as_high_as_pgd_without_being_told_a_step() -> None:
    clean, model = images(40, 1, 8, 8), network(1)
    labels = model(clean).argmax(dim=1)

    def value(x: Tensor) -> Tensor:
        return functional.cross_entropy(model(x), labels, reduction="none")

    reached = value(APGD(BALL, steps=60)(value, clean, seeded())).mean()
    for step_size in (0.002, 0.02, 0.2):
        assert reached >= 0.999 * value(PGD(BALL, 60, step_size, keep="best")(value, clean, seeded())).mean()


def test_nan_never_wins() -> None:
    def value(x: Tensor) -> Tensor:
        height = (x - 0.5).sum(dim=1)
        return torch.where(height > 0.25, torch.nan, height)

    found = value(APGD(BALL, steps=20)(value, torch.full((3, 4), 0.5), seeded()))
    assert not found.isnan().any() and (found > 0).all()


# --- goals ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1, 3])
def test_rows_at_their_goal_leave_and_the_others_go_on(width: int) -> None:
    needed = torch.tensor([-9.0, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 9.0])
    sizes: list[int] = []

    def rows(x: Tensor, need: Tensor) -> Tensor:
        sizes.append(len(x))
        return (x - 0.5).view(width, len(need), -1).sum(dim=(0, 2)) - need

    clean = torch.full((8 * width, 1, 4, 4), 0.5)
    value = Rowwise(rows, (needed,), width)
    moved = APGD(BALL, steps=30, goal=0.0)(value, clean, seeded())
    assert sizes[0] == 8 * width and sizes[-1] == 1 * width, "an eighth of the rows at the end"
    assert torch.equal(moved.view(width, 8, -1)[:, 0], clean.view(width, 8, -1)[:, 0]), "won before it began"
    assert (value(moved)[:7] >= 0).all()
    # The last never gets there, and ends at the top: 16 pixels of 0.1 for each of its inputs.
    assert (value(moved)[7] + 9).item() == pytest.approx(1.6 * width, abs=1e-4)
    sizes.clear()
    APGD(BALL, steps=30, restarts=2, goal=0.0)(value, clean, seeded())
    assert sizes[-1] == 1 * width, "one row alone starts again"


def test_it_ends_when_all_are_at_their_goal() -> None:
    value, points = watched(lambda x: (x - 0.5).flatten(1).sum(dim=1))
    clean = torch.full((4, 1, 4, 4), 0.5)
    moved = APGD(BALL, steps=50, goal=0.5)(value, clean, seeded())
    assert len(points) < 10 and (value(moved) >= 0.5).all()
    assert torch.equal(points[1], clean), "the clean input is asked too"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: APGD(BALL, steps=0), "steps=0"),
        (lambda: APGD(BALL, restarts=0), "restarts=0"),
        (lambda: APGD(BALL, rho=1.5), "rho=1.5 is no share"),
        (lambda: APGD(BALL, momentum=math.nan), "momentum=nan"),
    ],
)
def test_settings_that_mean_nothing_are_refused(make: object, message: str) -> None:
    with pytest.raises(InputError, match=message):
        make()  # type: ignore[operator]


# --- the authors' code ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("norm", "radius"), [("linf", 0.15), ("l2", 0.8)])
def test_follows_the_authors_code_point_for_point(norm: str, radius: float) -> None:
    from pyautoattack.autopgd_base import APGDAttack

    clean, model = images(64, 1, 8, 8), network()
    labels = model(clean).argmax(dim=1)
    names = {"linf": "Linf", "l2": "L2"}
    theirs = APGDAttack(model, n_iter=50, norm=names[norm], eps=radius, loss="ce", device="cpu")
    theirs.init_hyperparam(clean)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        points, _, heights, _ = theirs.attack_single_run(clean, labels)

    def value(x: Tensor) -> Tensor:
        return functional.cross_entropy(model(x), labels, reduction="none")

    ours = APGD(Ball(radius, norm=norm), steps=50)(value, clean, seeded())  # type: ignore[arg-type]
    # A sign that rounding decides sends a row another way: few do.
    is_same = (ours - points).abs().flatten(1).amax(dim=1) < 1e-4
    assert is_same.float().mean() > 0.85
    torch.testing.assert_close(value(ours), heights, atol=2e-3, rtol=0)
