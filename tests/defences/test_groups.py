"""Groups of a batch are mined as if each were a batch of its own."""

import pytest
import torch
from small import seeded
from torch import Tensor, nn

from robustmetric.defences.groups import check_miner, check_mining, group_means, mine_in_groups, spread
from robustmetric.errors import InputError
from robustmetric.losses.mining import DistanceWeighted, Hardest, Miner, Random, SemiHard, SoftHard

MINERS = [Random(), SemiHard(), SoftHard(), DistanceWeighted(), Hardest()]
LABELS = torch.tensor([0, 0, 1, 1, 2, 2, 0, 0, 1, 1])  # five pairs: groups of three and two


def rows(count: int, seed: int = 0) -> Tensor:
    return nn.functional.normalize(torch.randn(count, 8, generator=seeded(seed)), dim=1)


@pytest.mark.parametrize("miner", MINERS)
def test_two_groups_equal_mining_each_part_and_never_cross(miner: Miner) -> None:
    z, generator = rows(10), seeded(1)
    whole = mine_in_groups(miner, z, LABELS, 2, seeded(1))
    first, second = miner(z[:6], LABELS[:6], generator), miner(z[6:], LABELS[6:], generator)
    for name in ("anchor", "positive", "negative"):
        found = getattr(whole, name)
        assert torch.equal(found, torch.cat([getattr(first, name), getattr(second, name) + 6]))
        assert (found[:3] < 6).all() and (found[3:] >= 6).all()


@pytest.mark.parametrize("miner", MINERS)
def test_one_group_is_the_miner_itself(miner: Miner) -> None:
    whole, alone = mine_in_groups(miner, rows(10), LABELS, 1, seeded(1)), miner(rows(10), LABELS, seeded(1))
    assert torch.equal(whole.positive, alone.positive) and torch.equal(whole.negative, alone.negative)


def test_a_nearer_negative_in_the_other_group_is_not_seen() -> None:
    # Anchors at 0, 5, 1 and 9. To the first, the negatives of its own group lie at 5 and 6, of the other at 1 and 1.5.
    z = torch.tensor([[0.0], [0.5], [5.0], [6.0], [1.0], [1.5], [9.0], [9.5]])
    labels = torch.tensor([0, 0, 1, 1, 1, 1, 0, 0])
    assert mine_in_groups(Hardest(), z, labels, 1, None).negative.tolist() == [4, 6, 1, 3]
    assert mine_in_groups(Hardest(), z, labels, 2, None).negative.tolist() == [2, 1, 6, 5]


def test_means_are_of_the_groups_and_spread_goes_back() -> None:
    # Five triplets, groups of three and two: (1 + 2 + 6) / 3 and (4 + 6) / 2.
    means = group_means(torch.tensor([1.0, 2.0, 6.0, 4.0, 6.0]), 2)
    assert means.tolist() == [3, 5]
    assert spread(means, 5).tolist() == [3, 3, 3, 5, 5]


@pytest.mark.parametrize("triplets", range(1, 12))
def test_mined_groups_means_and_spread_cut_alike(triplets: int) -> None:
    for groups in range(1, triplets + 1):
        labels = torch.arange(triplets).repeat_interleave(2)
        negative = mine_in_groups(Random(), rows(2 * triplets), labels, groups, seeded()).negative
        which = spread(torch.arange(groups).float(), triplets)
        assert torch.equal(which[negative // 2], which), "a negative lies in the group of its anchor"
        assert torch.equal(group_means(which, groups), torch.arange(groups).float())


@pytest.mark.parametrize("groups", [0, -1, 6])
def test_more_groups_than_pairs_are_refused(groups: int) -> None:
    with pytest.raises(InputError, match=f"5 pairs cannot be mined in {groups} groups"):
        mine_in_groups(Random(), rows(10), LABELS, groups, None)


@pytest.mark.parametrize("groups", [1, 2])
def test_an_odd_batch_is_refused_by_the_miner(groups: int) -> None:
    with pytest.raises(InputError, match="expected an even number"):
        mine_in_groups(Random(), rows(9), LABELS[:9], groups, None)


@pytest.mark.parametrize("miner", MINERS)
def test_a_group_of_one_class_has_triplets_inside_it(miner: Miner) -> None:
    found = mine_in_groups(miner, rows(8), torch.zeros(8, dtype=torch.long), 2, seeded())
    assert ((found.negative // 4) == torch.tensor([0, 0, 1, 1])).all()


def test_settings_that_mine_nothing_are_refused() -> None:
    check_mining(Random(), margin=0.0, groups=1)
    with pytest.raises(InputError, match="source 'softhard' chooses no triplets"):
        check_mining("softhard", margin=0.2, groups=1)
    with pytest.raises(InputError, match="miner 3 chooses no triplets"):
        check_miner(3, "miner")
    for margin, groups in ((-0.1, 1), (float("nan"), 1), (float("inf"), 1), (0.2, 0), (0.2, -1)):
        with pytest.raises(InputError, match="expected groups >= 1, margin >= 0"):
            check_mining(Random(), margin, groups)
