"""Soft-hard's positive may be the anchor itself: at distance 0, where an offset alone gives the attack a direction."""

from dataclasses import replace

import pytest
import torch
from small import Watched, encoder, paired_batch, seeded
from torch import Tensor, nn

from robustmetric.defences.destinations import Fixed
from robustmetric.defences.hardness import HardnessManipulation
from robustmetric.losses.mining import Random
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD
from robustmetric.types import Batch, Triplets


def itself(z: Tensor, labels: Tensor, generator: torch.Generator | None = None) -> Triplets:
    """Triplets whose positive is the anchor, as soft-hard's fallback may choose."""
    triplets = Random()(z, labels, generator)
    return replace(triplets, positive=triplets.anchor)


def attacked(goal: float, steps: int, offset: float) -> tuple[nn.Module, Tensor, Tensor]:
    """The model, the clean images of all triplets and the moved ones; in doubles, so that no sign is rounding."""
    small = paired_batch()
    batch = Batch(small.inputs.double(), small.labels, small.index)
    model = encoder().double()
    attack = Watched(PGD(Ball(0.2), steps=steps, step_size=0.05, random_start=False))
    HardnessManipulation(itself, Fixed(goal), attack, offset=offset)(model, batch, seeded())
    clean = torch.cat(itself(batch.inputs.flatten(1), batch.labels, seeded()).of(batch.inputs))
    return model, clean, attack.moved[0]


@pytest.mark.parametrize(("offset", "parts"), [(0.0, False), (1e-6, True)])
def test_an_anchor_and_its_copy_part_at_the_first_step_only_with_an_offset(offset: float, parts: bool) -> None:
    _, clean, moved = attacked(goal=0.0, steps=1, offset=offset)
    anchor, copy, negative = (moved != clean).flatten(1).any(dim=1).chunk(3)
    assert anchor.all() and negative.all(), "they approach each other"
    assert copy.all() if parts else not copy.any()


def test_with_an_offset_images_are_those_of_the_distance_in_the_reference_code() -> None:
    """torch's pairwise_distance adds 1e-6 to each coordinate: the published rows were trained with it."""
    model, clean, moved = attacked(goal=0.3, steps=6, offset=1e-6)
    distance, x = nn.functional.pairwise_distance, clean
    for _ in range(6):
        x = x.detach().requires_grad_()
        a, p, n = model(x).chunk(3)
        objective = (distance(a, p) - distance(a, n) - 0.3).clamp(max=0).square().mean()
        (gradient,) = torch.autograd.grad(objective, x)
        x = (x - 0.05 * gradient.sign()).clamp(clean - 0.2, clean + 0.2).clamp(0, 1)
    assert torch.equal(moved, x.detach())
    _, _, without = attacked(goal=0.3, steps=6, offset=0.0)
    assert not torch.equal(without, moved)
