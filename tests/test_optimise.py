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
    # Two epochs of linear rise before; a drop that falls into it is one all the same.
    warm = Milestones((0.125, 0.5), warmup=2.0)
    assert [warm(p, 8) for p in (0.0, 0.5, 1.0, 2.0, 4.0)] == pytest.approx([0.0, 0.25, 0.05, 0.1, 0.01])


def test_cosine_by_hand() -> None:
    # Without warm-up: cos(0) = 1, cos(pi/2) = 0, cos(pi) = -1, so 1, 1/2, 0.
    assert [Cosine()(p, 10) for p in (0.0, 5.0, 10.0)] == pytest.approx([1.0, 0.5, 0.0])
    # Two epochs of linear rise, then half a cosine over the other eight.
    assert [Cosine(2.0)(p, 10) for p in (0.0, 1.0, 2.0, 6.0, 10.0)] == pytest.approx([0.0, 0.5, 1.0, 0.5, 0.0])
    assert Cosine(2.0)(4.0, 10) == pytest.approx(0.5 * (1 + math.cos(math.pi / 4)))


@given(st.floats(0, 20), st.floats(0, 5))
def test_schedules_stay_between_0_and_1(progress: float, warmup: float) -> None:
    for schedule in (Constant(), Milestones((0.3, 0.6), warmup=warmup), Cosine(warmup)):
        assert -1e-9 <= schedule(progress, 20) <= 1 + 1e-9


def test_the_parameters_of_a_defence_have_a_rate_of_their_own() -> None:
    model, defence = nn.Linear(2, 2), nn.Linear(2, 1)
    built = adam(rate=0.1, loss_rate_factor=10.0, weight_decay=0.5).build(model, defence)
    assert [(group["lr"], group["base_rate"]) for group in built.param_groups] == [(0.1, 0.1), (1.0, 1.0)]
    assert built.param_groups[0]["params"] == list(model.parameters())
    assert built.param_groups[1]["params"] == list(defence.parameters())
    assert all(group["weight_decay"] == 0.5 for group in built.param_groups)


def test_networks_of_a_defence_move_as_the_model_does_and_wait_with_it() -> None:
    def network() -> nn.Module:
        return nn.ModuleDict({"body": nn.Linear(2, 2, bias=False), "head": nn.Linear(2, 2, bias=False)})

    model, other, loss = network(), network(), nn.Linear(2, 1, bias=False)
    defence = nn.ModuleList([other, loss])
    rates = adam(rate=0.1, loss_rate_factor=10.0).build(model, defence, [other])
    assert [group["lr"] for group in rates.param_groups] == [0.1, 1.0]
    assert rates.param_groups[0]["params"] == [*model.parameters(), *other.parameters()]
    assert rates.param_groups[1]["params"] == [loss.weight]
    heads, bodies, proxies = adam(rate=0.1, warmup=1.0).build(model, defence, [other]).param_groups
    assert heads["params"] == [model["head"].weight, other["head"].weight] and "waits" not in heads
    assert bodies["params"] == [model["body"].weight, other["body"].weight] and bodies["waits"]
    assert proxies["params"] == [loss.weight]


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


class Headed(nn.Module):
    """A trunk and a head of one weight each."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk, self.head = nn.Linear(1, 1, bias=False), nn.Linear(1, 1, bias=False)


def test_a_warm_up_moves_heads_and_proxies_alone_and_leaves_no_trace_in_the_rest() -> None:
    model, proxies = Headed(), nn.Linear(1, 1, bias=False)
    settings = adamw(rate=0.1, warmup=1.0, weight_decay=0.5, loss_rate_factor=100.0)
    built = settings.build(model, proxies)
    assert [group["lr"] for group in built.param_groups] == [0.1, 0.1, 10.0]
    start = [float(part.weight.detach()) for part in (model.trunk, model.head, proxies)]
    for progress in (0.0, 0.5, 1.0):
        for part in (model.trunk, model.head, proxies):
            part.weight.grad = torch.ones(1, 1)
        settings.hold_back(built, progress)
        assert (model.trunk.weight.grad is None) == (progress < 1)
        built.step()
        if progress < 1:
            # Neither the rate, nor the decay of weights, nor the averages of gradients have touched it.
            assert float(model.trunk.weight.detach()) == start[0] and model.trunk.weight not in built.state
    assert built.state[model.trunk.weight]["step"] == 1 and built.state[model.head.weight]["step"] == 3
    # The first step of AdamW: decay by 0.1 * 0.5, then the whole rate against the gradient.
    assert float(model.trunk.weight.detach()) == pytest.approx(start[0] * 0.95 - 0.1, abs=1e-5)
    assert float(model.head.weight.detach()) != start[1] and float(proxies.weight.detach()) != start[2]


def test_without_a_warm_up_nothing_waits() -> None:
    model, settings = Headed(), adamw(rate=0.1)
    built = settings.build(model, nn.Identity())
    model.trunk.weight.grad = torch.ones(1, 1)
    settings.hold_back(built, 0.0)
    assert len(built.param_groups) == 1 and model.trunk.weight.grad is not None


def test_a_head_may_have_another_name_and_must_exist() -> None:
    groups = adam(rate=0.1, warmup=2.0, head="trunk").build(Headed(), nn.Identity()).param_groups
    assert ["waits" in group for group in groups] == [False, True]
    with pytest.raises(InputError, match="no parameter of the model belongs to a 'tail'"):
        adam(rate=0.1, warmup=2.0, head="tail").build(Headed(), nn.Identity())
    with pytest.raises(InputError, match="no number of epochs"):
        adam(rate=0.1, warmup=-1.0)
