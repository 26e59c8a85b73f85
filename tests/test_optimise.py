"""Optimisers and schedules, by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from robustmetric.errors import InputError
from robustmetric.optimise import Constant, Cosine, Milestones, Optimiser, adam, adamw, sgd


def test_constant_is_one() -> None:
    assert Constant()(3.7, 10) == 1.0


def test_milestones_multiply_at_each_share() -> None:
    schedule = Milestones((0.5, 0.75), factor=0.1)
    # Of 8 epochs: half is 4, three quarters are 6.
    assert [schedule(p, 8) for p in (0.0, 3.99)] == [1, 1]
    assert [schedule(p, 8) for p in (4.0, 5.99)] == pytest.approx([0.1, 0.1])
    assert [schedule(p, 8) for p in (6.0, 8.0)] == pytest.approx([0.01, 0.01])


def test_cosine_by_hand() -> None:
    # Without warm-up: cos(0) = 1, cos(pi/2) = 0, cos(pi) = -1, so 1, 1/2, 0.
    assert [Cosine()(p, 10) for p in (0.0, 5.0, 10.0)] == pytest.approx([1.0, 0.5, 0.0])
    # Two epochs of linear rise, then half a cosine over the other eight.
    assert [Cosine(2.0)(p, 10) for p in (0.0, 1.0, 2.0, 6.0, 10.0)] == pytest.approx([0.0, 0.5, 1.0, 0.5, 0.0])
    assert Cosine(2.0)(4.0, 10) == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))


@given(st.floats(0, 20), st.floats(0, 5))
def test_schedules_stay_between_0_and_1(progress: float, warmup: float) -> None:
    for schedule in (Constant(), Milestones((0.3, 0.6)), Cosine(warmup)):
        assert -1e-9 <= schedule(progress, 20) <= 1 + 1e-9


def test_the_parameters_of_a_defence_have_a_rate_of_their_own() -> None:
    model, defence = nn.Linear(2, 2), nn.Linear(2, 1)
    built = adam(rate=0.1, loss_rate_factor=10.0, weight_decay=0.5).build(model, defence)
    assert [(group["lr"], group["base_rate"]) for group in built.param_groups] == [(0.1, 0.1), (1.0, 1.0)]
    assert built.param_groups[0]["params"] == list(model.parameters())
    assert built.param_groups[1]["params"] == list(defence.parameters())
    assert all(group["weight_decay"] == 0.5 for group in built.param_groups)


def test_frozen_parameters_and_empty_groups_are_left_out() -> None:
    model = nn.Linear(2, 2)
    model.bias.requires_grad_(False)
    built = sgd(rate=0.1).build(model, nn.Identity())
    assert [group["params"] for group in built.param_groups] == [[model.weight]]


@pytest.mark.parametrize(
    ("optimiser", "kind"),
    [(adam, torch.optim.Adam), (adamw, torch.optim.AdamW), (sgd, torch.optim.SGD)],
)
def test_each_name_is_its_method(optimiser: type[Optimiser], kind: type[torch.optim.Optimizer]) -> None:
    assert type(optimiser(rate=0.1).build(nn.Linear(1, 1), nn.Identity())) is kind


def test_sgd_has_momentum() -> None:
    weight = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(weight.weight)
    built = sgd(rate=0.1, momentum=0.5).build(weight, nn.Identity())
    for _ in range(2):
        weight.weight.grad = torch.ones(1, 1)
        built.step()
    # Velocities 1 and 1.5: w = -0.1 * (1 + 1.5).
    assert float(weight.weight.detach()) == pytest.approx(-0.25)


@pytest.mark.parametrize("rate", [0.0, -1e-3])
def test_a_rate_that_does_not_train_is_refused(rate: float) -> None:
    with pytest.raises(InputError, match="does not train"):
        adam(rate=rate)
