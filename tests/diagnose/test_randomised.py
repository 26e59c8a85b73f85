"""Randomised models: how far answers lie apart, and one draw of them."""

import pytest
import torch
from torch import Tensor, nn

from robustmetric.diagnose.randomised import FixedDraw, apart
from robustmetric.diagnose.subject import classifier_subject
from robustmetric.types import Batch

BATCH = Batch(torch.rand(6, 4, generator=torch.Generator().manual_seed(0)), torch.zeros(6).long(), torch.full((6,), -1))


class Noisy(nn.Module):
    """Noise on every pixel."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + 0.5 * torch.randn_like(inputs)


def test_a_fixed_draw_repeats_itself_and_leaves_torchs_randomness_alone() -> None:
    model = FixedDraw(Noisy())
    before = torch.get_rng_state()
    assert torch.equal(model(BATCH.inputs), model(BATCH.inputs))
    assert torch.equal(torch.get_rng_state(), before)


def test_answers_lie_apart_by_their_largest_difference_over_the_largest_entry() -> None:
    class Alternating(nn.Module):
        """(4, 1, 0, 0) and (4, 3, 0, 0) in turn."""

        calls = 0

        def forward(self, inputs: Tensor) -> Tensor:
            self.calls += 1
            return torch.tensor([4.0, 1.0 + 2 * (self.calls % 2), 0.0, 0.0]).expand(len(inputs), 4)

    # |3 - 1| / 4.
    assert apart(classifier_subject(Alternating(), BATCH, 4)) == pytest.approx(0.5)
    assert apart(classifier_subject(nn.Identity(), BATCH, 4)) == 0
    assert apart(classifier_subject(FixedDraw(Noisy()), BATCH, 4)) == 0
