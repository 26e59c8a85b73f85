"""Batches and encoders that leave the triplet defences little to go by: they give numbers, never NaN."""

from collections.abc import Callable

import pytest
import torch
from small import Watched, encoder, paired_batch, seeded
from torch import nn

from robustmetric.defences.act import AntiCollapseTriplet
from robustmetric.defences.base import Defence
from robustmetric.defences.ca_tride import CollapseAwareTriplet
from robustmetric.defences.destinations import Boosted, Fixed, Gradual, Mined
from robustmetric.defences.est import EmbeddingShiftedTriplet
from robustmetric.defences.free import FreeHardness
from robustmetric.defences.hardness import HardnessManipulation
from robustmetric.defences.madry import Madry
from robustmetric.defences.minmax import MinMax
from robustmetric.defences.rest import RevisedShiftedTriplet
from robustmetric.defences.ses import SuppressedShift
from robustmetric.defences.structure import Structure
from robustmetric.losses.mining import DistanceWeighted, Hardest, Miner, Random, SemiHard, SoftHard
from robustmetric.losses.triplet import Triplet
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD
from robustmetric.types import Batch

MINERS = [Random(), SemiHard(), SoftHard(), DistanceWeighted(), Hardest()]
GOALS = [Gradual(), Mined(Random()), Boosted(SoftHard()), Fixed(2.0)]


def climber() -> Watched:
    """From a clean start, in fine steps: an untrained encoder keeps all images within 0.1 of one another."""
    return Watched(PGD(Ball(0.008), steps=4, step_size=0.002, random_start=False))


def one_class() -> Batch:
    """No anchor has a negative."""
    batch = paired_batch()
    return Batch(batch.inputs, torch.zeros_like(batch.labels), batch.index)


def copies() -> Batch:
    """Every image the same: all distances are 0."""
    batch = paired_batch()
    return Batch(batch.inputs[:1].expand(len(batch), -1, -1, -1).clone(), batch.labels, batch.index)


def twins() -> Batch:
    """The partner is the anchor's own image: d(a,p) = 0."""
    batch = paired_batch()
    return Batch(batch.inputs[0::2].repeat_interleave(2, dim=0), batch.labels, batch.index)


def defences(miner: Miner, attack: Watched, groups: int = 1) -> list[Defence]:
    manipulations = [HardnessManipulation(miner, goal, attack, structure=Structure(), groups=groups) for goal in GOALS]
    others = [
        AntiCollapseTriplet(miner, attack, groups=groups),
        RevisedShiftedTriplet(miner, attack, groups=groups),
        MinMax(miner, attack, groups=groups),
        MinMax(miner, attack, clean_anchor=True, groups=groups),
    ]
    return [*manipulations, *others]


def other_defences(miner: Miner, groups: int = 1) -> list[Defence]:
    """Those that have no engine to watch, or more than one term."""
    engine = climber().engine
    turns = [CollapseAwareTriplet(miner, engine, half_weight=0.5, groups=groups) for _ in range(2)]
    turns[1].turns = 1
    free = FreeHardness(miner, Gradual(), engine.ball, step_size=engine.step_size, groups=groups)
    shifts = [kind(Triplet(miner), engine) for kind in (EmbeddingShiftedTriplet, SuppressedShift, Madry)]
    return [*turns, free, *shifts]


@pytest.mark.parametrize("make", [one_class, copies, twins])
@pytest.mark.parametrize("miner", MINERS)
@pytest.mark.parametrize("groups", [1, 2])
def test_a_batch_without_negatives_or_of_copies_gives_numbers(
    make: Callable[[], Batch], miner: Miner, groups: int
) -> None:
    for defence in [*defences(miner, attack := climber(), groups), *other_defences(miner, groups)]:
        model = encoder()
        terms = defence(model, make(), seeded())
        assert all(term.isfinite() for term in terms.values())
        sum(terms.values()).backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        assert all(figure.isfinite() for figure in defence.measures.values())
        assert all(buffer.isfinite().all() for buffer in defence.buffers())
    assert all(images.isfinite().all() for images in attack.moved)


def test_copies_of_one_image_have_the_margin_for_their_loss() -> None:
    for defence in defences(Random(), climber())[:-3]:
        terms = defence(encoder(), copies(), seeded())
        # All distances are 0, up to rounding: the triplet loss is its margin, and the structure term 0.
        assert [term.item() for term in terms.values()] == pytest.approx([0.2, 0.0][: len(terms)], abs=1e-2)


def test_an_encoder_without_unit_length_is_defended_in_its_own_units() -> None:
    for defence in (
        HardnessManipulation(Hardest(), Fixed(2.0), climber()),
        AntiCollapseTriplet(Hardest(), climber()),
        RevisedShiftedTriplet(Hardest(), climber()),
        MinMax(Hardest(), climber()),
        MinMax(Hardest(), climber(), clean_anchor=True),
    ):
        terms = defence(encoder().trunk, paired_batch(), seeded())
        assert terms["triplet"].isfinite()
        assert (defence.attack.after[0] > defence.attack.before[0]).all()


@pytest.mark.parametrize("miner", MINERS)
def test_an_encoder_without_unit_length_gives_numbers_everywhere(miner: Miner) -> None:
    for defence in [*defences(miner, climber()), *other_defences(miner)]:
        model = encoder().trunk
        terms = defence(model, paired_batch(), seeded())
        sum(terms.values()).backward()
        assert all(term.isfinite() for term in terms.values())
        assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
        assert set(defence.measures) >= {"before", "after"}
        assert all(figure.isfinite() for figure in defence.measures.values())


def test_an_encoder_that_gives_one_point_has_the_margin_for_its_loss_and_moves_nothing() -> None:
    collapsed = nn.Sequential(nn.Flatten(), nn.Linear(64, 6))
    for parameter in collapsed.parameters():
        nn.init.zeros_(parameter)
    batch = paired_batch()
    for defence in defences(Hardest(), attack := climber()):
        assert defence(collapsed, batch, seeded())["triplet"].item() == pytest.approx(0.2)
    assert len(attack.moved) == len(GOALS) + 4
    for images in attack.moved:
        is_clean = (images[:, None] == batch.inputs).flatten(2).all(dim=2).any(dim=1)
        assert is_clean.all()
