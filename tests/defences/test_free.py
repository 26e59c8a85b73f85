"""Free adversarial training with HM: one backward pass moves weights and images, and what moved is remembered."""

import inspect
import io
import math
from typing import Any

import pytest
import torch
from small import LINE, encoder, figures, paired_batch, seeded
from torch import Tensor, nn

from robustmetric.defences.destinations import Fixed, Gradual
from robustmetric.defences.free import FreeHardness
from robustmetric.errors import InputError
from robustmetric.losses.mining import Hardest, Random, SoftHard
from robustmetric.losses.triplet import triplet_values
from robustmetric.perturb.ball import Ball
from robustmetric.types import Batch

WIDE = Ball(9.0, bounds=(-9.0, 9.0))


def step(defence: FreeHardness, model: nn.Module, batch: Batch, seed: int = 0) -> float:
    loss = defence(model, batch, seeded(seed))["triplet"]
    loss.backward()
    return loss.item()


def images_of(defence: FreeHardness, model: nn.Module, batch: Batch, seeds: range) -> list[Tensor]:
    """What the model was trained on, step by step."""
    seen: list[Tensor] = []
    hook = model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach().clone()))
    for seed in seeds:
        step(defence, model, batch, seed)
    hook.remove()
    # The first pass over a new batch is the one that mines.
    return [images for images in seen if len(images) != len(batch)]


def test_two_triplets_on_a_line_climb_from_replay_to_replay_and_batch_to_batch() -> None:
    defence = FreeHardness(Hardest(), Fixed(-1.0), WIDE, step_size=0.25, replays=3, margin=3.0)
    losses, after = [], []
    for _ in range(4):
        losses.append(step(defence, nn.Identity(), LINE))
        after.append(figures(defence)["after"])
    # Hardness -2, -1.5: p goes away, n comes nearer, and so does the anchor that lies between them: -1.5, -0.5. Then
    # only the first is short of -1: -1, -0.5. Now none is, in the next batch either.
    assert after == [-1.75, -1, -0.75, -0.75]
    assert losses == [3 + hardness for hardness in after]
    assert figures(defence) == {"before": -1.75, "goal": -1, "after": -0.75}
    assert defence.last_loss.tolist() == [2.25]


def test_a_triplet_without_loss_has_nothing_to_climb() -> None:
    defence = FreeHardness(Hardest(), Fixed(2.0), WIDE, step_size=0.25, margin=0.2)
    for _ in range(3):
        assert step(defence, nn.Identity(), LINE) == 0
    assert figures(defence)["after"] == -1.75


def test_the_perturbation_stays_in_ball_and_bounds() -> None:
    model, batch = encoder(), paired_batch()
    ball = Ball(0.1)
    defence = FreeHardness(Hardest(), Fixed(2.0), ball, step_size=0.04, replays=6, margin=1.0)
    images = images_of(defence, model, batch, range(6))
    reached = [(later - images[0]).abs().max().item() for later in images]
    assert reached == pytest.approx([0, 0.04, 0.08, 0.1, 0.1, 0.1], abs=1e-6)
    assert all(later.min() >= 0 and later.max() <= 1 for later in images)


def test_a_step_costs_one_forward_and_one_backward_pass_and_a_batch_one_more_forward() -> None:
    model, batch = encoder(), paired_batch()
    forwards, backwards = [], []
    model.register_forward_hook(lambda *_: forwards.append(1))
    model.trunk.register_full_backward_hook(lambda *_: backwards.append(1))
    defence = FreeHardness(Hardest(), Fixed(2.0), Ball(0.1), step_size=0.05, replays=4)
    for _ in range(4):
        step(defence, model, batch)
    assert (len(forwards), len(backwards)) == (4 + 1, 4)
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_the_images_climb_the_loss_that_the_weights_come_down() -> None:
    model, batch = encoder(), paired_batch()
    defence = FreeHardness(Hardest(), Fixed(2.0), Ball(0.1), step_size=0.05, replays=2, margin=1.0)
    first, second = images_of(defence, model, batch, range(2))
    x = first.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(triplet_values(*encoder()(x).chunk(3), margin=1.0).mean(), x)
    torch.testing.assert_close(second, (first + 0.05 * gradient.sign()).clamp(0, 1))


def test_triplets_stay_the_same_over_the_replays_of_a_batch() -> None:
    model, batch = encoder(), paired_batch()
    defence = FreeHardness(Random(), Gradual(), Ball(0.0), step_size=0.05, replays=3)
    images = images_of(defence, model, batch, range(6))
    assert torch.equal(images[0], images[1]) and torch.equal(images[0], images[2])
    assert torch.equal(images[3], images[5]) and not torch.equal(images[0], images[3])


def test_each_place_keeps_its_perturbation_also_over_a_smaller_batch() -> None:
    large, small = paired_batch(2), paired_batch(1)
    model = encoder()
    defence = FreeHardness(Hardest(), Fixed(2.0), Ball(0.1), step_size=0.05, replays=1, margin=1.0)
    delta = {}
    for name, batch in (("small", small), ("large", large), ("again", small)):
        step(defence, model, batch)
        delta[name] = defence.get_extra_state()["delta"]
    few, many = len(small) // 2, len(large) // 2
    assert [len(d[0]) for d in delta.values()] == [few, many, many]
    assert not torch.equal(delta["large"][:, :few], delta["small"])
    assert torch.equal(delta["again"][:, few:], delta["large"][:, few:])
    assert not torch.equal(delta["again"][:, :few], delta["large"][:, :few])


@pytest.mark.parametrize("steps", [1, 3, 4])
def test_a_training_goes_on_after_save_and_load_as_if_nothing_had_happened(steps: int) -> None:
    def defence() -> FreeHardness:
        return FreeHardness(Random(), Gradual(), Ball(0.1), step_size=0.03, replays=4, groups=2)

    model, batch, first = encoder(), paired_batch(), defence()
    for seed in range(steps):
        step(first, model, batch, seed)
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    other = defence()
    other.load_state_dict(torch.load(file, weights_only=True))
    for seed in range(10, 16):
        assert step(first, model, batch, seed) == step(other, model, batch, seed)
    assert torch.equal(first.get_extra_state()["delta"], other.get_extra_state()["delta"])


def test_a_fresh_state_survives_too() -> None:
    fresh = FreeHardness(Random(), Gradual(), Ball(0.1), step_size=0.03)
    fresh.load_state_dict(FreeHardness(Random(), Gradual(), Ball(0.1), step_size=0.03).state_dict())
    assert math.isfinite(step(fresh, encoder(), paired_batch()))


def test_training_raises_the_goal_and_holds_against_the_perturbation() -> None:
    model, batch = encoder(), paired_batch(4)
    defence = FreeHardness(SoftHard(), Gradual(), Ball(0.05), step_size=0.02, replays=4)
    optimiser, losses, goals = torch.optim.Adam(model.parameters(), lr=5e-3), [], []
    for index in range(80):
        optimiser.zero_grad()
        losses.append(step(defence, model, batch, index))
        optimiser.step()
        goals.append(figures(defence)["goal"])
    assert losses[-1] < 0.5 * losses[0]
    assert goals[0] == pytest.approx(-0.2) and goals[-1] > -0.1


def build(**changes: Any) -> None:
    """Unwrapped: the type checker that runs in tests only would refuse the value first."""
    parts = {"source": Random(), "destination": Gradual(), "ball": Ball(0.1), "step_size": 0.1, **changes}
    inspect.unwrap(FreeHardness.__init__)(FreeHardness.__new__(FreeHardness), **parts)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": "softhard"}, "source 'softhard' chooses no triplets"),
        ({"destination": "gradual"}, r"destination 'gradual' is a word; write \{name: gradual\}"),
        ({"ball": 0.1}, "ball: float is not of the kind Ball"),
        ({"replays": 0}, "replays 0, step_size 0.1; expected replays >= 1"),
        ({"step_size": math.nan}, "replays 4, step_size nan; expected replays >= 1 and step_size >= 0"),
        ({"groups": 0}, "groups 0, margin 0.2; expected groups >= 1"),
    ],
)
def test_parts_of_another_kind_are_refused_when_it_is_built(changes: dict[str, Any], message: str) -> None:
    build()
    with pytest.raises(InputError, match=message):
        build(**changes)
