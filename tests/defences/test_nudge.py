"""How EST, REST and SES leave a clean start: in a direction of each image's own, or along one that all share."""

import inspect

import pytest
import torch
from small import Watched, encoder, paired_batch, seeded
from torch import Tensor, nn

from robustmetric.defences.base import Defence
from robustmetric.defences.est import EmbeddingShiftedTriplet, Nudge
from robustmetric.defences.rest import RevisedShiftedTriplet
from robustmetric.defences.ses import SuppressedShift
from robustmetric.errors import InputError
from robustmetric.losses.mining import Hardest
from robustmetric.losses.triplet import Triplet
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD
from robustmetric.types import Batch

LOSS = Triplet(Hardest())


def watched(steps: int) -> Watched:
    return Watched(PGD(Ball(0.2), steps=steps, step_size=0.05, random_start=False))


def est(nudge: Nudge, steps: int) -> tuple[nn.Module, Batch, Tensor]:
    """Model, batch and the images moved, in doubles."""
    small, attack, model = paired_batch(), watched(steps), encoder().double()
    batch = Batch(small.inputs.double(), small.labels, small.index)
    EmbeddingShiftedTriplet(LOSS, attack, nudge)(model, batch, seeded())
    return model, batch, attack.moved[0]


def reference_loop(model: nn.Module, clean: Tensor, steps: int) -> Tensor:
    """Torch's distance, which adds 1e-6 to every difference; the 1e-7 of noise in its first step is left out."""
    origin, x = model(clean).detach(), clean
    for _ in range(steps):
        x = x.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(-nn.functional.pairwise_distance(model(x), origin).sum(), x)
        x = (x - 0.05 * gradient.sign()).clamp(clean - 0.2, clean + 0.2).clamp(0, 1)
    return x.detach()


def test_the_diagonal_start_gives_the_images_of_the_distance_in_the_reference_code() -> None:
    model, batch, moved = est("diagonal", steps=6)
    assert torch.equal(moved, reference_loop(model, batch.inputs, steps=6))
    _, _, at_random = est("random", steps=6)
    assert not torch.equal(at_random, moved)


def test_the_first_step_is_up_the_sum_of_the_coordinates_for_every_image() -> None:
    model, batch, moved = est("diagonal", steps=1)
    x = batch.inputs.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(model(x).sum(), x)
    assert torch.equal(moved, (batch.inputs + 0.05 * gradient.sign()).clamp(0, 1))


@pytest.mark.parametrize("kind", ["rest", "ses"])
def test_the_others_that_shift_begin_as_they_are_told(kind: str) -> None:
    def moved(nudge: Nudge) -> Tensor:
        attack = watched(1)
        defence: Defence = RevisedShiftedTriplet(Hardest(), attack, nudge=nudge)
        if kind == "ses":
            defence = SuppressedShift(LOSS, attack, nudge=nudge)
        defence(encoder(), paired_batch(), seeded())
        return attack.moved[0]

    assert torch.equal(moved("diagonal"), moved("diagonal"))
    assert not torch.equal(moved("diagonal"), moved("random"))


@pytest.mark.parametrize("kind", [EmbeddingShiftedTriplet, SuppressedShift, RevisedShiftedTriplet])
def test_a_word_that_is_no_start_is_refused(kind: type[Defence]) -> None:
    first = Hardest() if kind is RevisedShiftedTriplet else LOSS
    build = inspect.unwrap(kind.__init__)
    with pytest.raises(InputError, match="nudge 'diagonl' is not known; did you mean 'diagonal'"):
        build(kind.__new__(kind), first, watched(1), nudge="diagonl")
