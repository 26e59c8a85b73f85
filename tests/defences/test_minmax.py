"""Min-max: triplets as hard as the ball allows, with and without their anchors; the same as HM with a goal of 2."""

import pytest
import torch
from small import LINE, Watched, encoder, figures, paired_batch, pgd, quarters, seeded
from torch import nn

from robustmetric.defences.destinations import Fixed
from robustmetric.defences.hardness import HardnessManipulation
from robustmetric.defences.minmax import MinMax
from robustmetric.defences.plain import Plain
from robustmetric.losses.mining import DistanceWeighted, Hardest, Miner, Random, SemiHard, SoftHard
from robustmetric.losses.triplet import Triplet, triplet_values
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD
from robustmetric.types import Batch

MINERS = [Random(), SemiHard(), SoftHard(), DistanceWeighted(), Hardest()]


def test_two_triplets_on_a_line() -> None:
    attack = quarters(steps=2)
    defence = MinMax(Hardest(), attack, margin=1.5)
    terms = defence(nn.Identity(), LINE, seeded())
    # p goes away, n comes nearer. The first anchor has both on one side, where dH/da = 0; the second goes to its n.
    assert attack.moved[0].flatten().tolist() == [0, 2.5, 1.5, 4, 2.5, 1.5]
    # 1.5 - 2.5 + 1.5 and 1.5 - 1 + 1.5.
    assert list(terms) == ["triplet"] and terms["triplet"].item() == (0.5 + 2) / 2
    assert figures(defence) == {"before": -1.75, "after": -0.25}


def test_two_triplets_with_clean_anchors() -> None:
    attack = quarters(steps=2)
    defence = MinMax(Hardest(), attack, margin=1.5, clean_anchor=True)
    terms = defence(nn.Identity(), LINE, seeded())
    assert attack.moved[0].flatten().tolist() == [1.5, 4, 2.5, 1.5]
    # 1.5 - 2.5 + 1.5 and 1 - 1.5 + 1.5.
    assert terms["triplet"].item() == (0.5 + 1) / 2
    assert figures(defence) == {"before": -1.75, "after": -0.75}


def test_it_is_hardness_manipulation_with_a_goal_of_two() -> None:
    batch = paired_batch()
    batch = Batch(batch.inputs.double(), batch.labels, batch.index)
    images = []
    for make in (lambda attack: MinMax(SoftHard(), attack), lambda a: HardnessManipulation(SoftHard(), Fixed(2.0), a)):
        attack = Watched(PGD(Ball(0.2), steps=5, step_size=0.05, random_start=False))
        # Doubles: no sign of a gradient hangs on rounding.
        make(attack)(encoder().double(), batch, seeded(1))
        images += attack.moved
    assert torch.equal(*images)


@pytest.mark.parametrize("clean_anchor", [False, True])
def test_digits_become_harder_than_at_random_and_are_trained_on(clean_anchor: bool) -> None:
    attack, model, batch = Watched(pgd(0.2)), encoder(), paired_batch()
    defence = MinMax(Hardest(), attack, clean_anchor=clean_anchor)
    terms = defence(model, batch, seeded())
    assert (attack.after[0] > attack.before[0]).all()
    a, p, n = Hardest()(model(batch.inputs), batch.labels).of(batch.inputs)
    images = torch.cat([a, attack.moved[0]]) if clean_anchor else attack.moved[0]
    assert (images - torch.cat([a, p, n])).abs().max() <= 0.2 + 1e-6
    torch.testing.assert_close(terms["triplet"], triplet_values(*model(images).chunk(3), margin=0.2).mean())


@pytest.mark.parametrize("miner", MINERS)
@pytest.mark.parametrize("clean_anchor", [False, True])
def test_radius_zero_is_plain_training_also_in_its_gradient(miner: Miner, clean_anchor: bool) -> None:
    gradients = []
    for defence in (Plain(Triplet(miner)), MinMax(miner, pgd(0.0), clean_anchor=clean_anchor)):
        model = encoder()
        sum(defence(model, paired_batch(), seeded(1)).values()).backward()
        gradients.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(gradients[0], gradients[1])
