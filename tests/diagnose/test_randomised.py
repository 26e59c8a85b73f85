"""Randomised models: how far answers lie apart, and one draw of them."""

import random
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from robustmetric.diagnose.randomised import FixedDraw, apart, difference, one_draw
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


@pytest.mark.parametrize("draw", [lambda: float(torch.rand(1)), lambda: np.random.rand(), random.random])
def test_one_draw_is_of_every_global_generator_which_then_goes_on(draw: Callable[[], float]) -> None:
    device, found = torch.device("cpu"), []
    with one_draw(device, 3):
        expected = [draw(), draw()]
    for _ in range(2):
        with one_draw(device, 3):
            found.append(draw())
            # What happens within is forgotten, an error too.
            with pytest.raises(KeyError), one_draw(device, 4):
                raise KeyError
            found.append(draw())
    assert found == 2 * expected


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


@pytest.mark.parametrize("left_out", [-1e6, -1e9])
def test_a_class_that_is_left_out_hides_no_chance(left_out: float) -> None:
    class Masked(Noisy):
        """A fifth class that is never the answer, and as constant as noise and float32 let it be."""

        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(nn.functional.pad(inputs, (0, 1), value=left_out))

    assert apart(classifier_subject(Masked(), BATCH, 5)) > 1e-4
    # By hand: the fifth output does not vary, and 1 of the largest other, 2, is a half.
    answer = torch.tensor([[2.0, 1.0, left_out], [1.0, 2.0, left_out]])
    assert difference(answer, answer + torch.tensor([1.0, 0.0, 0.0])) == pytest.approx(0.5)


def test_answers_that_are_alike_for_all_images_or_of_one_image_are_measured_by_their_entries() -> None:
    for count in (1, 3):
        answer = torch.tensor([[4.0, 1.0]]).repeat(count, 1)
        assert difference(answer, answer + 1) == pytest.approx(0.25)
