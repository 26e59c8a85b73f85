"""The engine: iterates worked by hand, best and worst, what it leaves behind, and what it refuses."""

import math

import pytest
import torch
from torch import Tensor, nn

from robustmetric.errors import InputError
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD, evaluate, frozen, value_and_gradient
from robustmetric.types import Value


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def watched(value: Value) -> tuple[Value, list[Tensor]]:
    """The same value, and a list that fills with the points it is asked at."""
    points: list[Tensor] = []

    def watching(x: Tensor) -> Tensor:
        points.append(x.detach().clone())
        return value(x)

    return watching, points


def bumpy(x: Tensor) -> Tensor:
    """Many hills of different heights per row."""
    return (torch.sin(9 * x) + x).flatten(1).sum(dim=1)


def test_iterates_on_a_linear_value_by_hand() -> None:
    weights = torch.tensor([1.0, -2.0, 0.0])
    value, points = watched(lambda x: x @ weights)
    engine = PGD(Ball(0.3), steps=3, step_size=0.2, random_start=False)
    last = engine(value, torch.tensor([[0.5, 0.5, 0.5]]))
    # 0.5 +- 0.2, then +- 0.2 again clipped to the ball at +- 0.3; a zero gradient moves nothing.
    expected = [[0.5, 0.5, 0.5], [0.7, 0.3, 0.5], [0.8, 0.2, 0.5]]
    torch.testing.assert_close(torch.cat(points), torch.tensor(expected))
    torch.testing.assert_close(last, torch.tensor([[0.8, 0.2, 0.5]]))


def test_iterates_in_l2_by_hand() -> None:
    weights = torch.tensor([3.0, 4.0])
    value, points = watched(lambda x: x @ weights)
    last = PGD(Ball(0.8, norm="l2", bounds=(-5.0, 5.0)), steps=2, step_size=0.5, random_start=False)(
        value, torch.zeros(1, 2)
    )
    # Steps of 0.5 along (0.6, 0.8); after two the length is 1, cut to 0.8.
    torch.testing.assert_close(torch.cat(points), torch.tensor([[0.0, 0.0], [0.3, 0.4]]))
    torch.testing.assert_close(last, torch.tensor([[0.48, 0.64]]))


def test_iterates_on_a_quadratic_overshoot_and_best_remembers() -> None:
    value, points = watched(lambda x: -(x - 0.6).square().sum(dim=1))
    clean = torch.tensor([[0.5]])
    settings = {"ball": Ball(0.3), "step_size": 0.07, "random_start": False}
    last = PGD(steps=3, keep="last", **settings)(value, clean)
    # 0.5 -> 0.57 -> 0.64 (past the top at 0.6) -> back to 0.57
    torch.testing.assert_close(torch.cat(points), torch.tensor([[0.5], [0.57], [0.64]]))
    torch.testing.assert_close(last, torch.tensor([[0.57]]))
    # Two steps end at 0.64, with value -0.0016; the best seen is 0.57, with -0.0009.
    torch.testing.assert_close(PGD(steps=2, keep="last", **settings)(value, clean), torch.tensor([[0.64]]))
    torch.testing.assert_close(PGD(steps=2, keep="best", **settings)(value, clean), torch.tensor([[0.57]]))


def test_of_equal_values_the_first_seen_is_kept() -> None:
    # 0.25 -> 0.75: the same height either side of 0.5, exactly.
    engine = PGD(Ball(1.0), steps=1, step_size=0.5, random_start=False, keep="best")
    assert engine(lambda x: -(x - 0.5).square().sum(dim=1), torch.tensor([[0.25]])).item() == 0.25


def test_best_also_counts_start_and_last_point() -> None:
    clean = torch.tensor([[0.5], [0.2]])
    engine = PGD(Ball(0.1), steps=1, step_size=0.1, random_start=False, keep="best")
    # Row 0 stands on its top and would leave it; row 1 climbs, and its only step is the last point.
    best = engine(lambda x: -(x[:, 0] - torch.tensor([0.51, 0.9])).abs(), clean)
    torch.testing.assert_close(best, torch.tensor([[0.5], [0.3]]))


def test_best_costs_one_more_forward_than_last() -> None:
    clean = torch.rand(3, 4, generator=seeded(0))
    for keep, calls in (("last", 5), ("best", 6)):
        value, points = watched(bumpy)
        PGD(Ball(0.2), steps=5, step_size=0.05, keep=keep)(value, clean, seeded(0))
        assert len(points) == calls


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_best_value_never_falls_with_steps(norm: str) -> None:
    clean = torch.rand(32, 1, 2, 2, generator=seeded(0))
    heights = torch.stack(
        [
            bumpy(PGD(Ball(0.4, norm=norm), steps=steps, step_size=0.15, keep="best")(bumpy, clean, seeded(1)))
            for steps in range(8)
        ]
    )
    assert (heights.diff(dim=0) >= 0).all()
    assert heights[-1].mean() > heights[0].mean() + 0.5
    last = bumpy(PGD(Ball(0.4, norm=norm), steps=7, step_size=0.15)(bumpy, clean, seeded(1)))
    assert (heights[-1] >= last).all() and (heights[-1] > last).any()


@pytest.mark.parametrize("keep", ["last", "best"])
def test_restarts_keep_the_worst_of_their_climbs_per_row(keep: str) -> None:
    clean = torch.rand(16, 3, generator=seeded(0))
    settings = {"ball": Ball(0.5), "steps": 4, "step_size": 0.1, "keep": keep}
    generator = seeded(7)
    climbs = torch.stack([PGD(**settings)(bumpy, clean, generator) for _ in range(3)])
    heights = torch.stack([bumpy(climb) for climb in climbs])
    assert len(heights.argmax(dim=0).unique()) == 3, "each climb should be the worst of some row"
    expected = climbs[heights.argmax(dim=0), torch.arange(16)]
    assert torch.equal(PGD(restarts=3, **settings)(bumpy, clean, seeded(7)), expected)


def test_nan_never_wins_over_a_number() -> None:
    # Left of 0.5 the value is NaN; the climb (slope 1) leads from there to the right.
    def value(x: Tensor) -> Tensor:
        return torch.where(x > 0.5, x, x + math.nan).sum(dim=1)

    starts_at_nan = PGD(Ball(1.0), steps=1, step_size=0.2, random_start=False, keep="best")
    assert starts_at_nan(value, torch.tensor([[0.4]])).item() == pytest.approx(0.6)
    falls_into_nan = PGD(Ball(1.0), steps=1, step_size=0.2, random_start=False, keep="best")
    assert falls_into_nan(lambda x: value(1 - x), torch.tensor([[0.4]])).item() == pytest.approx(0.2)
    assert falls_into_nan(lambda x: torch.where(x < 0.5, x, x + math.nan)[:, 0], torch.tensor([[0.4]])).item() == (
        pytest.approx(0.4)
    )


def test_radius_zero_and_zero_steps_change_nothing() -> None:
    clean = torch.rand(5, 3, generator=seeded(0))
    for norm in ("linf", "l2"):
        assert torch.equal(PGD(Ball(0.0, norm=norm), steps=3, step_size=0.1)(bumpy, clean, seeded(0)), clean)
    assert torch.equal(PGD(Ball(0.3), steps=0, step_size=0.1, random_start=False)(bumpy, clean), clean)


def test_zero_steps_from_a_random_start_is_the_random_point() -> None:
    clean = torch.rand(5, 3, generator=seeded(0))
    ball = Ball(0.3)
    assert torch.equal(PGD(ball, steps=0, step_size=0.1)(bumpy, clean, seeded(4)), ball.random_point(clean, seeded(4)))


def test_same_seed_same_result() -> None:
    clean = torch.rand(5, 3, generator=seeded(0))
    engine = PGD(Ball(0.3), steps=3, step_size=0.1, restarts=2)
    assert torch.equal(engine(bumpy, clean, seeded(1)), engine(bumpy, clean, seeded(1)))
    assert not torch.equal(engine(bumpy, clean, seeded(1)), engine(bumpy, clean, seeded(2)))


def test_clean_input_is_not_written_to_and_result_is_detached() -> None:
    clean = torch.rand(5, 3, generator=seeded(0)).requires_grad_()
    before = clean.detach().clone()
    result = PGD(Ball(0.3), steps=3, step_size=0.1, keep="best", restarts=2)(bumpy, clean, seeded(1))
    assert torch.equal(clean.detach(), before) and clean.grad is None
    assert not result.requires_grad


def test_parameters_receive_no_gradient() -> None:
    layer = nn.Linear(3, 1)
    PGD(Ball(0.3), steps=2, step_size=0.1)(lambda x: layer(x)[:, 0], torch.rand(4, 3), seeded(0))
    assert layer.weight.grad is None and layer.bias.grad is None
    assert layer.weight.requires_grad


def test_value_and_gradient_by_hand_also_where_gradients_are_off() -> None:
    layer = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor([[2.0, -1.0]]))
        x = torch.tensor([[1.0, 1.0], [3.0, 0.0]])
        # v = (2a - b)^2: 1 and 36; gradient 2 (2a - b) (2, -1): (4, -2) and (24, -12)
        height, gradient = value_and_gradient(lambda x: layer(x)[:, 0].square(), x)
        assert torch.equal(height, torch.tensor([1.0, 36.0]))
        assert torch.equal(gradient, torch.tensor([[4.0, -2.0], [24.0, -12.0]]))
    assert layer.weight.grad is None
    assert not height.requires_grad and not gradient.requires_grad and not x.requires_grad


def test_evaluate_keeps_no_graph() -> None:
    layer = nn.Linear(2, 1)
    assert not evaluate(lambda x: layer(x)[:, 0], torch.rand(3, 2)).requires_grad


@pytest.mark.parametrize("norm", ["linf", "l2"])
def test_loop_never_waits_for_the_device(norm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever moves a number from device to host stalls a GPU: none may happen during a climb."""
    layer = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 4))
    clean = torch.rand(3, 1, 4, 4, generator=seeded(0))
    engine = PGD(Ball(0.3, norm=norm), steps=3, step_size=0.1, restarts=2, keep="best")

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a tensor was read on the host inside the loop")

    with monkeypatch.context() as patch:
        for name in ("item", "tolist", "numpy", "cpu", "__bool__", "__float__", "__int__", "__index__", "nonzero"):
            patch.setattr(Tensor, name, refuse)
        result = engine(lambda x: layer(x).square().sum(dim=1), clean, seeded(0))
    assert torch.isfinite(result).all()


@pytest.mark.parametrize(
    "wrong",
    [
        {"steps": -1},
        {"restarts": 0},
        {"step_size": -0.1},
        {"step_size": math.nan},
        {"step_size": math.inf},
        {"restarts": 2, "random_start": False},
    ],
)
def test_settings_that_make_no_climb_are_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(wrong)).split("_")[0]):
        PGD(**{"ball": Ball(0.1), "steps": 1, "step_size": 0.1, **wrong})


def mixed_model() -> nn.Sequential:
    """Some parts in eval mode and some parameters fixed, as fine-tuning leaves them."""
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Dropout(0.5))
    model[1].eval()
    model[0].bias.requires_grad_(False)
    return model


def state_of(model: nn.Module) -> tuple[list[bool], list[bool]]:
    return [m.training for m in model.modules()], [p.requires_grad for p in model.parameters()]


def test_frozen_is_eval_without_parameter_gradients_and_restores_both() -> None:
    model = mixed_model()
    before = state_of(model)
    assert any(before[0]) and not all(before[0]) and any(before[1]) and not all(before[1])
    with frozen(model) as seen:
        assert seen is model
        assert not any(state_of(model)[0]) and not any(state_of(model)[1])
    assert state_of(model) == before


def test_frozen_restores_after_an_exception() -> None:
    model = mixed_model()
    before = state_of(model)
    with pytest.raises(ZeroDivisionError), frozen(model):
        raise ZeroDivisionError
    assert state_of(model) == before


def test_frozen_leaves_running_statistics_alone() -> None:
    model = nn.BatchNorm1d(2)
    with frozen(model):
        model(torch.rand(4, 2) + 5)
    assert torch.equal(model.running_mean, torch.zeros(2))
