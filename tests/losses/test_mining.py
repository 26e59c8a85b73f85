"""The samplers against a slow loop written from their definition: same support, same distribution."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare
from torch import Tensor
from torch.nn import functional

from robustmetric.errors import InputError
from robustmetric.losses.mining import (
    Anchors,
    DistanceWeighted,
    Hardest,
    Miner,
    Random,
    SemiHard,
    SoftHard,
    anchors_of,
    draw,
)
from robustmetric.losses.triplet import hardness
from robustmetric.numerics.distances import pairwise

MINERS = [Random(), SemiHard(), SoftHard(), DistanceWeighted(), Hardest()]
DRAWS = 200
Chances = dict[int, float]


def uniform(*choices: list[int]) -> Chances:
    """Equal chances over the first list that is not empty."""
    first = next(choice for choice in choices if choice)
    return {j: 1 / len(first) for j in first}


def chances(miner: Miner, rows: list[list[float]], labels: list[int], i: int) -> tuple[Chances, Chances]:
    """Probability of each positive and each negative of anchor i, read off the specification's table."""
    d = [math.dist(rows[i], row) for row in rows]
    batch = list(range(len(rows)))
    negatives = [j for j in batch if labels[j] != labels[i]]
    positives = [j for j in batch if labels[j] == labels[i]]
    partner = {i + 1: 1.0}
    match miner:
        case Random():
            return partner, uniform(negatives, batch)
        case SemiHard(margin):
            band = [j for j in negatives if d[i + 1] < d[j] and d[i + 1] - d[j] + margin > 0]
            return partner, uniform(band, negatives, batch)
        case SoftHard():
            if not negatives:
                return partner, uniform(batch)
            far = [j for j in positives if d[j] > min(d[k] for k in negatives)]
            near = [j for j in negatives if d[j] < max(d[k] for k in positives)]
            return uniform(far, positives), uniform(near, negatives)
        case DistanceWeighted():
            n = len(rows[0])
            weight = {j: d[j] ** (2 - n) * (1 - d[j] ** 2 / 4) ** ((3 - n) / 2) for j in negatives}
            total = sum(weight.values())
            return partner, {j: w / total for j, w in weight.items()} if negatives else uniform(batch)
        case _:
            return partner, {min(negatives, key=lambda j: d[j]): 1.0} if negatives else uniform(batch)


def unit_rows(count: int, dim: int, seed: int) -> Tensor:
    return functional.normalize(torch.randn(count, dim, generator=torch.Generator().manual_seed(seed)), dim=1)


def batches() -> dict[str, tuple[Tensor, Tensor]]:
    labels = torch.tensor([0, 0, 1, 1, 0, 0, 2, 2, 3, 3])
    centres = torch.eye(4)[labels]
    return {
        "mixed": (unit_rows(10, 4, seed=1), labels),
        "close": (functional.normalize(centres + 0.9 * unit_rows(10, 4, seed=2), dim=1), labels),
        "separated": (functional.normalize(centres + 0.1 * unit_rows(10, 4, seed=3), dim=1), labels),
        "one class": (unit_rows(6, 4, seed=4), torch.zeros(6, dtype=torch.long)),
    }


def assert_follows(drawn: list[int], expected: Chances) -> None:
    counts = {j: drawn.count(j) for j in set(drawn)}
    assert set(counts) <= set(expected), "drawn outside the support"
    if len(expected) > 1:
        observed = [counts.get(j, 0) for j in expected]
        assert chisquare(observed, [p * len(drawn) for p in expected.values()]).pvalue > 1e-4


@pytest.mark.parametrize("name", list(batches()))
@pytest.mark.parametrize("miner", MINERS, ids=lambda miner: type(miner).__name__)
def test_follows_the_specification(miner: Miner, name: str) -> None:
    rows, labels = batches()[name]
    generator = torch.Generator().manual_seed(0)
    drawn = [miner(rows, labels, generator) for _ in range(DRAWS)]
    anchors = torch.stack([triplets.anchor for triplets in drawn])
    assert (anchors == torch.arange(0, len(labels), 2)).all()
    for t, i in enumerate(range(0, len(labels), 2)):
        positive, negative = chances(miner, rows.double().tolist(), labels.tolist(), i)
        assert_follows([int(triplets.positive[t]) for triplets in drawn], positive)
        assert_follows([int(triplets.negative[t]) for triplets in drawn], negative)


def support(miner: Miner, rows: list[tuple[float, float]], labels: list[int]) -> tuple[set[int], set[int]]:
    """The positives and negatives that anchor 0 is given in 60 draws."""
    generator = torch.Generator().manual_seed(0)
    drawn = [miner(torch.tensor(rows), torch.tensor(labels), generator) for _ in range(60)]
    return {int(triplets.positive[0]) for triplets in drawn}, {int(triplets.negative[0]) for triplets in drawn}


# The anchor at the origin, its positive at distance 5; distances of whole numbers are exact.
PAIR = [(0.0, 0.0), (3.0, 4.0)]


def test_semi_hard_excludes_both_ends_of_its_band() -> None:
    # Negatives at 5 (hardness 0), 6 (hardness -margin), 5.5 (inside) and 20.
    rows = [*PAIR, (-3.0, -4.0), (0.0, 6.0), (0.0, 5.5), (0.0, 20.0)]
    assert support(SemiHard(margin=1.0), rows, [0, 0, 1, 1, 2, 2]) == ({1}, {4})


def test_semi_hard_falls_back_to_every_negative() -> None:
    rows = [*PAIR, (-3.0, -4.0), (0.0, 6.0), (0.0, 4.0), (0.0, 20.0)]
    assert support(SemiHard(margin=1.0), rows, [0, 0, 1, 1, 2, 2]) == ({1}, {2, 3, 4, 5})


def test_soft_hard_needs_strictly_farther_and_strictly_nearer() -> None:
    # The nearest negative is exactly as far as the farthest positive: neither is hard, so all of both classes.
    assert support(SoftHard(), [*PAIR, (-3.0, -4.0), (0.0, 6.0)], [0, 0, 1, 1]) == ({0, 1}, {2, 3})


def test_soft_hard_takes_the_hard_ones() -> None:
    # Positives at 0, 5, 3, 4.5; negatives at 4 and 6. Beyond 4: rows 1 and 3. Within 5: row 4.
    rows = [*PAIR, (0.0, 3.0), (4.5, 0.0), (0.0, 4.0), (0.0, 6.0)]
    assert support(SoftHard(), rows, [0, 0, 0, 0, 1, 1]) == ({1, 3}, {4})


def test_soft_hard_without_negatives_keeps_the_partner() -> None:
    assert support(SoftHard(), [*PAIR, (9.0, 0.0), (0.0, 9.0)], [0, 0, 0, 0]) == ({1}, {0, 1, 2, 3})


def test_hardest_passes_over_copies_of_the_anchor() -> None:
    rows = [*PAIR, (0.0, 0.0), (0.0, 2.0), (0.0, 1.0), (0.0, 3.0)]
    assert support(Hardest(), rows, [0, 0, 1, 1, 2, 2]) == ({1}, {4})


def test_hardest_takes_a_copy_when_nothing_else_is_left() -> None:
    assert support(Hardest(), [*PAIR, (0.0, 0.0), (0.0, 0.0)], [0, 0, 1, 1]) == ({1}, {2, 3})


def test_distance_weights_by_hand() -> None:
    # dim 4: w(D) = D^-2 (1 - D^2/4)^-1/2, so w(1) = (3/4)^-1/2 = 1.1547 and w(sqrt 2) = 1/2 (1/2)^-1/2 = 0.7071.
    distance = torch.tensor([[0.0, 0.5, 1.0, math.sqrt(2), 0.0, 2.0]])
    negative = torch.tensor([[False, False, True, True, True, True]])
    weights = DistanceWeighted.weights(Anchors(torch.tensor([0]), distance, negative), dim=4)
    expected = [[0.0, 0.0, 1.0, 0.7071068 / 1.1547005, 0.0, 0.0]]  # a copy and an antipode have no finite weight
    torch.testing.assert_close(weights, torch.tensor(expected))


def test_distance_weights_do_not_overflow_in_high_dimension() -> None:
    distance = torch.tensor([[0.0, 0.1, 0.01, 1.4]])
    negative = torch.tensor([[False, False, True, True]])
    weights = DistanceWeighted.weights(Anchors(torch.tensor([0]), distance, negative), dim=512)
    assert weights.tolist() == [[0, 0, 1, 0]]


@pytest.mark.parametrize("miner", MINERS, ids=lambda miner: type(miner).__name__)
def test_a_collapsed_batch_is_mined_without_nan(miner: Miner) -> None:
    rows, labels = unit_rows(1, 8, seed=0).expand(6, 8), torch.tensor([0, 0, 1, 1, 2, 2])
    triplets = miner(rows, labels, torch.Generator().manual_seed(0))
    assert ((triplets.negative >= 0) & (triplets.negative < 6)).all()
    if not isinstance(miner, DistanceWeighted):  # whose fallback is the whole batch
        assert (labels[triplets.negative] != labels[triplets.anchor]).all()


def test_distance_weighted_falls_back_to_the_whole_batch() -> None:
    assert support(DistanceWeighted(), [(1.0, 0.0)] * 4, [0, 0, 1, 1]) == ({1}, {0, 1, 2, 3})


@settings(max_examples=25, deadline=None)
@given(
    pairs=st.lists(st.integers(0, 4), min_size=2, max_size=8).filter(lambda c: len(set(c)) > 1), seed=st.integers(0, 99)
)
@pytest.mark.parametrize("miner", MINERS, ids=lambda miner: type(miner).__name__)
def test_labels_agree_and_differ_as_promised(miner: Miner, pairs: list[int], seed: int) -> None:
    labels = torch.tensor(pairs).repeat_interleave(2)
    triplets = miner(unit_rows(len(labels), 6, seed), labels, torch.Generator().manual_seed(seed))
    assert triplets.anchor.tolist() == list(range(0, len(labels), 2))
    assert (labels[triplets.positive] == labels[triplets.anchor]).all()
    assert (labels[triplets.negative] != labels[triplets.anchor]).all()


def test_samplers_are_ordered_by_hardness() -> None:
    """As published for CUB: random < semi-hard < soft-hard < distance-weighted, which equals hardest.

    Like image features, the rows have 512 numbers but vary in ten directions around a common mean.
    """
    labels = torch.arange(28).repeat_interleave(2)
    varying = unit_rows(28, 10, seed=0)[labels] + 1.2 * unit_rows(56, 10, seed=1)
    rows = functional.normalize(functional.pad(0.5 * varying, (1, 501)) + torch.eye(512)[0], dim=1)
    generator = torch.Generator().manual_seed(0)

    def mean_hardness(miner: Miner) -> float:
        return sum(hardness(*miner(rows, labels, generator).of(rows)).mean().item() for _ in range(20)) / 20

    random, semi_hard, soft_hard, weighted, hardest = (mean_hardness(miner) for miner in MINERS)
    assert random < semi_hard < soft_hard < weighted
    assert weighted == pytest.approx(hardest, abs=0.005)


@pytest.mark.parametrize("miner", MINERS, ids=lambda miner: type(miner).__name__)
def test_same_seed_gives_the_same_triplets(miner: Miner) -> None:
    rows, labels = unit_rows(40, 8, 0).requires_grad_(), torch.arange(20).repeat_interleave(2)
    first, again = (miner(rows, labels, torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(first.negative, again.negative) and torch.equal(first.positive, again.positive)


@pytest.mark.parametrize("count", [0, 1, 5])
def test_an_odd_or_empty_batch_is_refused(count: int) -> None:
    with pytest.raises(InputError, match=f"batch of {count} cannot be mined in pairs.*`pairs`"):
        anchors_of(torch.zeros(count, 3), torch.zeros(count, dtype=torch.long))


@pytest.mark.parametrize("spread", [1.0, 1e-3])
def test_distances_are_those_of_pairwise(spread: float) -> None:
    """Of embeddings of any length, far from the origin, some of them copies; in full precision under autocast too."""
    rows = 30 + spread * torch.randn(12, 16, generator=torch.Generator().manual_seed(0))
    rows[5] = rows[2]
    labels = torch.arange(6).repeat_interleave(2)
    expected = pairwise(rows[0::2].double(), rows.double())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = anchors_of(rows.requires_grad_(), labels).distance
    torch.testing.assert_close(found, expected.float(), atol=1e-5 * spread, rtol=1e-4)
    assert not found.requires_grad
    assert (found == 0).nonzero().tolist() == [[0, 0], [1, 2], [1, 5], [2, 4], [3, 6], [4, 8], [5, 10]]


def test_half_precision_embeddings_are_compared_in_single_precision() -> None:
    rows = torch.tensor([[256.0, 0.0], [257.0, 3.0], [256.0, 4.0], [259.0, 4.0]], dtype=torch.float16)
    distance = anchors_of(rows, torch.tensor([0, 0, 1, 1])).distance
    torch.testing.assert_close(distance, pairwise(rows.float()[0::2], rows.float()))


def test_random_needs_no_distances() -> None:
    labels = torch.tensor([0, 0, 1, 1])
    assert (Random()(torch.full((4, 3), math.nan), labels).negative // 2).tolist() == [1, 0]


def test_a_single_pair_is_enough() -> None:
    assert anchors_of(torch.eye(2), torch.tensor([0, 0])).index.tolist() == [0]


def test_pairs_of_two_classes_are_refused() -> None:
    with pytest.raises(InputError, match="sampler `pairs`"):
        anchors_of(torch.zeros(4, 3), torch.tensor([0, 0, 1, 2]))


def test_draw_takes_the_first_mask_with_anything_in_the_row() -> None:
    first = torch.tensor([[True, False, False], [False, False, False]])
    second = torch.tensor([[False, True, True], [False, False, True]])
    assert draw(first, second, generator=None).tolist() == [0, 2]
