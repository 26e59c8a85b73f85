"""Models that no attack is to blame for: drawn from any generator, asked in a tiny ball, of two classes."""

import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from robustmetric.diagnose.examine import OF_A_FUNCTION, examine
from robustmetric.diagnose.masking import Masking
from robustmetric.diagnose.randomised import one_draw
from robustmetric.diagnose.subject import classifier_subject
from robustmetric.diagnose.thresholds import STRANGE
from robustmetric.diagnose.verdict import Verdict, overall
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD
from robustmetric.types import Batch

EFFORT = Masking(
    images=100, restarts=3, starts=3, start_steps=10, counts=(1, 5, 20, 40), sizes=(0.5, 1.0, 2.0), apgd_steps=10,
    queries=60, draws=5,
)  # fmt: skip


class Drawn(nn.Module):
    """Logits of one point per class, of inputs with noise from a generator by name; `levels`: and seen in steps."""

    def __init__(self, source: str = "", sigma: float = 0.1, levels: int = 0, classes: int = 4) -> None:
        super().__init__()
        self.points = nn.Parameter(torch.rand(classes, 16, generator=torch.Generator().manual_seed(1)))
        self.source, self.sigma, self.levels = source, sigma, levels
        self.own, self.theirs = torch.Generator().manual_seed(5), np.random.default_rng(5)

    def noise(self, x: Tensor) -> Tensor:
        drawn = {
            "torch": lambda: torch.randn_like(x),
            "numpy": lambda: torch.tensor(np.random.randn(*x.shape)).to(x),
            "python": lambda: torch.tensor([random.gauss(0, 1) for _ in range(x.numel())]).view_as(x),
            "own": lambda: torch.randn(x.shape, generator=self.own),
            "own of numpy": lambda: torch.tensor(self.theirs.standard_normal(x.shape)).to(x),
        }
        return drawn[self.source]() if self.source else torch.zeros_like(x)

    def forward(self, inputs: Tensor) -> Tensor:
        x = inputs.flatten(1)
        x = x + self.sigma * self.noise(x)
        x = (x * self.levels).round() / self.levels if self.levels else x
        return -20 * torch.cdist(x, self.points).square()


def found_of(model: Drawn, radius: float = 0.1) -> dict[str, Verdict]:
    source, classes = torch.Generator().manual_seed(2), len(model.points)
    labels = torch.arange(100) % classes
    points = model.points.detach()[labels]
    inputs = (points + 0.25 * torch.randn(points.shape, generator=source)).clamp(0, 1)
    batch = Batch(inputs.view(-1, 1, 4, 4), labels, torch.full((100,), -1))
    engine = PGD(Ball(radius), steps=20, step_size=radius / 4)
    subject = classifier_subject(model, batch, classes)
    with one_draw(torch.device("cpu"), 0):
        return {one.name: one for one in examine(subject, engine, EFFORT, torch.Generator().manual_seed(0))}


@pytest.mark.parametrize("source", ["torch", "numpy", "python"])
def test_noise_of_any_global_generator_is_fixed_and_flags_nobody(source: str) -> None:
    found = found_of(Drawn(source))
    assert overall(list(found.values())) == "unclear"
    assert {name for name, one in found.items() if one.verdict == "not run"} <= {
        "black_box", "hard_label", "binarisation",
    }  # fmt: skip


@pytest.mark.parametrize("source", ["own", "own of numpy"])
def test_where_no_draw_can_be_fixed_no_check_judges_chance(source: str) -> None:
    found = found_of(Drawn(source))
    assert list(found) == ["randomness", *OF_A_FUNCTION] and overall(list(found.values())) == "unclear"
    assert "mean of draws" in found["randomness"].numbers and found["zero_gradients"].verdict == "pass"
    others = [one for name, one in found.items() if name not in ("randomness", "zero_gradients")]
    assert all(one.verdict == "not run" and "no draw can be fixed" in one.said for one in others)


@pytest.mark.parametrize("source", ["torch", "numpy", "own"])
def test_a_model_that_hides_behind_noise_is_found_out_wherever_it_draws(source: str) -> None:
    found = found_of(Drawn(source, levels=8))
    assert found["zero_gradients"].verdict == "fail" and overall(list(found.values())) == "masked"


def test_noise_too_little_to_decide_anything_switches_no_check_off() -> None:
    found = found_of(Drawn("own", sigma=1e-6))
    assert found["randomness"].numbers["apart"] > STRANGE and found["restarts"].verdict == "pass"
    assert overall(list(found.values())) == "unclear"


@pytest.mark.parametrize("radius", [1e-9, 1e-8, 1e-7, 1e-6])
def test_an_honest_model_is_not_flagged_in_a_ball_that_float32_cannot_see(radius: float) -> None:
    assert overall(list(found_of(Drawn(), radius).values())) != "masked"


def test_a_model_without_gradient_is_flagged_in_a_tiny_ball_too() -> None:
    assert overall(list(found_of(Drawn(levels=8), 1e-9).values())) == "masked"


def test_two_logits_that_random_points_find_leave_the_verdict_to_the_other_checks() -> None:
    found = found_of(Drawn(classes=2))
    one = found["binarisation"]
    assert one.verdict == "not run" and one.said.startswith("not run: ") and one.numbers["found by chance"] >= 50
    assert overall(list(found.values())) == "honest"
