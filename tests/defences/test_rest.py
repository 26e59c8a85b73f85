"""REST: positives and negatives of clean triplets are shifted, and the anchor stays where it is."""

import pytest
import torch
from small import LINE, encoder, figures, paired_batch, pgd, quarters, seeded
from torch import nn

from robustmetric.defences.plain import Plain
from robustmetric.defences.rest import RevisedShiftedTriplet
from robustmetric.losses.mining import DistanceWeighted, Hardest, Miner, Random, SemiHard, SoftHard
from robustmetric.losses.triplet import Triplet, triplet_values
from robustmetric.numerics.distances import paired

MINERS = [Random(), SemiHard(), SoftHard(), DistanceWeighted(), Hardest()]


@pytest.mark.parametrize("seed", range(4))
def test_two_triplets_on_a_line(seed: int) -> None:
    attack = quarters(steps=2)
    defence = RevisedShiftedTriplet(Hardest(), attack, margin=2.0)
    terms = defence(nn.Identity(), LINE, seeded(seed))
    # On a line there are two ways to go from 1, 3.5 (p) and 3, 1 (n): both steps go the same one.
    moved = attack.moved[0].flatten()
    assert (moved - torch.tensor([1, 3.5, 3, 1])).abs().tolist() == [0.5] * 4
    p, q, n, m = moved.tolist()
    first, second = abs(p - 0) - abs(n - 0), abs(q - 3) - abs(m - 3)
    assert list(terms) == ["triplet"]
    assert terms["triplet"].item() == pytest.approx((max(0, first + 2) + max(0, second + 2)) / 2)
    assert figures(defence) == pytest.approx({"before": -1.75, "after": (first + second) / 2})


def test_what_climbs_is_the_shift_of_positives_and_negatives_mined_on_the_clean_batch() -> None:
    attack, model, batch = quarters(steps=6, step_size=0.05), encoder(), paired_batch()
    terms = RevisedShiftedTriplet(SoftHard(), attack)(model, batch, seeded(2))
    with torch.no_grad():
        triplets = SoftHard()(model(batch.inputs), batch.labels, seeded(2))
    anchor, positive, negative = triplets.of(batch.inputs)
    moved = attack.moved[0]
    with torch.no_grad():
        shift = paired(model(moved), model(torch.cat([positive, negative])))
    torch.testing.assert_close(attack.after[0], shift, atol=2e-5, rtol=0)
    assert (attack.after[0] > 1000 * attack.before[0]).all()
    torch.testing.assert_close(
        terms["triplet"], triplet_values(model(anchor), *model(moved).chunk(2), margin=0.2).mean()
    )


@pytest.mark.parametrize("miner", MINERS)
def test_radius_zero_is_plain_training_also_in_its_gradient(miner: Miner) -> None:
    gradients = []
    for defence in (Plain(Triplet(miner)), RevisedShiftedTriplet(miner, pgd(0.0))):
        model = encoder()
        sum(defence(model, paired_batch(), seeded(1)).values()).backward()
        gradients.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(gradients[0], gradients[1])
