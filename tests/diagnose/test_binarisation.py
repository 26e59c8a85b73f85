"""The binarisation test: readouts that have a planted example by construction, and who finds it."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from robustmetric.diagnose.binarisation import CrossReadout, Planted, _discriminant, find_planted, plant
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD
from robustmetric.types import Batch, Gallery

BALL = Ball(0.1)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def images(count: int = 24) -> Batch:
    inputs = torch.rand(count, 1, 4, 4, generator=seeded()) * 0.6 + 0.2
    return Batch(inputs, torch.zeros(count).long(), torch.full((count,), -1))


class Lined(nn.Module):
    """Flat pixels, seen through steps of 1/50 where `hidden`."""

    def __init__(self, hidden: bool) -> None:
        super().__init__()
        self.hidden = hidden

    def forward(self, inputs: Tensor) -> Tensor:
        flat = inputs.flatten(1)
        return (flat * 50).round() / 50 if self.hidden else flat


def test_a_readout_tells_the_corner_from_the_clean_input_and_from_every_inner_point() -> None:
    batch = images()
    planted = plant(Lined(False), batch.inputs, BALL, seeded())
    assert planted.valid.all()
    clean = (batch.inputs.flatten(1) * planted.weight).sum(dim=1)
    assert (clean < planted.threshold).all()
    # Of a linear model the best point of the ball is known: clean + 0.1 sign(w). It crosses, so the example exists.
    best = clean + 0.1 * planted.weight.abs().sum(dim=1)
    assert (best > planted.threshold).all()
    smaller = Ball(0.9 * 0.1).random_point(batch.inputs, seeded(5)).flatten(1)
    assert ((smaller * planted.weight).sum(dim=1) < planted.threshold).float().mean() > 0.9


def test_a_readout_is_the_ridge_discriminant_of_the_inner_points() -> None:
    for features in (3, 100):
        inner = torch.randn(4, 64, features, generator=seeded(), dtype=torch.float64)
        apart = torch.randn(4, features, generator=seeded(1), dtype=torch.float64)
        centred = inner - inner.mean(dim=1, keepdim=True)
        for image in range(4):
            covariance = centred[image].T @ centred[image] / 64
            ridge = 0.1 * covariance.diagonal().mean()
            expected = torch.linalg.solve(covariance + ridge * torch.eye(features), apart[image])
            found = _discriminant(centred, apart)[image]
            torch.testing.assert_close(found, expected / expected.norm())


def test_planting_needs_no_square_of_the_features() -> None:
    class Wide(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            return inputs.flatten(1).repeat(1, 32).sin()

    with Sizes() as seen:
        plant(Wide(), images(2).inputs, BALL, seeded())
    # 64 points of 2 images with 512 features each; a covariance would be 2 x 512 x 512.
    assert seen.largest <= 2 * 64 * 512


class Sizes(TorchDispatchMode):
    """The largest tensor that any operation made."""

    largest = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor):
            self.largest = max(self.largest, made.numel())
        return made


def test_the_value_of_a_readout_by_hand() -> None:
    planted = Planted(torch.tensor([[1.0, 2.0]]), torch.tensor([4.0]), torch.tensor([True]))
    attack = CrossReadout(planted)
    batch = Batch(torch.zeros(1, 1), torch.tensor([0]), torch.tensor([0]))
    nothing = Gallery(torch.zeros(0, 2), torch.zeros(0).long())
    targets = attack.choose(torch.zeros(1, 2), batch, nothing, None)
    # 1 * 1 + 2 * 1 - 4 = -1; 1 * 2 + 2 * 1.5 - 4 = 1.
    assert attack.value(torch.tensor([[1.0, 1.0]]), targets, nothing).tolist() == [-1]
    assert attack.score(torch.tensor([[2.0, 1.5]]), targets, batch, nothing)["missed"].tolist() == [0]


def test_gradients_find_what_is_planted_unless_they_are_hidden() -> None:
    engine = PGD(BALL, steps=10, step_size=0.025, keep="best")
    found, by_chance = find_planted(Lined(False), images(), engine, seeded(), tries=5)
    assert found.all() and len(found) == 24 and by_chance.float().mean() < 0.5
    found, _ = find_planted(Lined(True), images(), engine, seeded(), tries=5)
    assert found.float().mean() < 0.3, "rounding has no gradient"


@pytest.mark.parametrize("precision", [torch.float16, torch.bfloat16, torch.float64])
def test_features_may_be_of_any_precision(precision: torch.dtype) -> None:
    class Cast(Lined):
        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs).to(precision)

    engine = PGD(BALL, steps=10, step_size=0.025, keep="best")
    found, _ = find_planted(Cast(False), images(), engine, seeded(), tries=5)
    assert len(found) > 12 and found.float().mean() > 0.8


def test_nothing_is_planted_where_features_say_nothing() -> None:
    class Constant(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            return torch.ones(len(inputs), 3) + 0 * inputs.flatten(1)[:, :1]

    found, by_chance = find_planted(Constant(), images(), PGD(BALL, 2, 0.05), seeded(), tries=2)
    assert len(found) == 0 and len(by_chance) == 0
