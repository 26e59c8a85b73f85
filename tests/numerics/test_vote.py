"""Votes on neighbours and clusters, by hand, and what holds of any vote."""

import itertools

import pytest
import torch
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.spatial.distance import pdist
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.metrics.clustering import nmi
from robustmetric.numerics.vote import (
    NOTHING,
    align,
    centroid_distances,
    check_ties,
    consensus,
    majority,
    unit_members,
    vote_aligned,
    vote_by_rank,
    vote_in_pool,
    vote_on_hits,
    vote_on_names,
)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_majority_by_hand() -> None:
    far = torch.tensor([[0.1, 0.2, 0.3]])
    assert majority(torch.tensor([[1, 2, 2]]), far).tolist() == [2]
    # Three labels: the one proposed at the smallest distance, or by the first member.
    three, distances = torch.tensor([[7, 8, 9]]), torch.tensor([[0.5, 0.2, 0.9]])
    assert majority(three, distances).tolist() == [8]
    assert majority(three, distances, "first").tolist() == [7]
    # Two against two: 7's nearest is 0.1, 5's is 0.2. The far 3 has one vote, however near it is.
    two, distances = torch.tensor([[5, 7, 7, 5, 3]]), torch.tensor([[0.4, 0.3, 0.1, 0.2, 0.0]])
    assert majority(two, distances).tolist() == [7]
    assert majority(two, distances, "first").tolist() == [5]


def test_equal_distances_go_to_the_first_member() -> None:
    assert majority(torch.tensor([[9, 4, 6]]), torch.ones(1, 3)).tolist() == [9]


PROPOSED = torch.tensor([[[0, 1], [0, 2], [1, 1]]])
"""Three members, two neighbours each."""
DISTANCES = torch.tensor([[[0.1, 0.4], [0.2, 0.3], [0.3, 0.5]]])


def test_v1_votes_at_each_rank() -> None:
    # Rank 1: 0, 0, 1 -> 0. Rank 2: 1, 2, 1 -> 1.
    assert vote_by_rank(PROPOSED, DISTANCES).tolist() == [[0, 1]]


def test_v2_takes_the_labels_with_most_votes_in_the_pool() -> None:
    # 1 has three votes, 0 two, 2 one.
    assert vote_in_pool(PROPOSED, DISTANCES).tolist() == [[1, 0]]
    # One vote each: the two nearest are 0 (0.1) and 2 (0.2); by members, 0 and 1 come first.
    apart, distances = torch.tensor([[[0, 1], [2, 3]]]), torch.tensor([[[0.1, 0.4], [0.2, 0.3]]])
    assert vote_in_pool(apart, distances).tolist() == [[0, 2]]
    assert vote_in_pool(apart, distances, "first").tolist() == [[0, 1]]


def test_v2_counts_a_label_once() -> None:
    assert vote_in_pool(torch.full((1, 2, 2), 4), torch.ones(1, 2, 2)).tolist() == [[4, NOTHING]]


def test_v3_is_the_majority_of_hits() -> None:
    hits = torch.tensor([[True, False, False], [True, True, False]])
    assert vote_on_hits(hits, torch.ones(2, 3)).tolist() == [False, True]
    # One of two: the member with the nearer neighbour decides.
    assert vote_on_hits(torch.tensor([[True, False]]), torch.tensor([[0.1, 0.2]])).tolist() == [True]
    assert vote_on_hits(torch.tensor([[True, False]]), torch.tensor([[0.3, 0.2]])).tolist() == [False]


def test_alignment_by_hand() -> None:
    # Cluster 0 has one point of reference 0 and two of 1; cluster 1 two of 0: 0 -> 1 and 1 -> 0 keep four of five.
    renamed = align(torch.tensor([0, 0, 0, 1, 1]), torch.tensor([1, 1, 0, 0, 0]), count=2)
    assert renamed.tolist() == [1, 1, 1, 0, 0]


def test_alignment_undoes_a_renaming_and_keeps_clusters_apart() -> None:
    clusters = torch.randint(6, (200,), generator=seeded(0))
    names = torch.randperm(6, generator=seeded(1))
    assert torch.equal(align(names[clusters], clusters, 6), clusters)
    other = torch.randint(6, (200,), generator=seeded(2))
    assert nmi(align(other, clusters, 6), other) == pytest.approx(1)


def test_c1_by_hand() -> None:
    # The second member has the first's clusters under other names; the third moves point 2, and is outvoted.
    clusters = torch.tensor([[0, 0, 1, 1], [1, 1, 0, 0], [0, 0, 0, 1]])
    assert vote_aligned(clusters, torch.ones(3, 4), count=2).tolist() == [0, 0, 1, 1]
    # Two members that disagree on point 2: the one whose centroid is nearer.
    distances = torch.tensor([[1.0, 1, 0.5, 1], [1, 1, 0.4, 1]])
    assert vote_aligned(clusters[[0, 2]], distances, count=2).tolist() == [0, 0, 0, 1]


def test_c2_by_hand() -> None:
    # The first member's cluster 0 = points 0, 1, 2 has medoid 1 (0.1), a 7; cluster 1 has medoid 3, a 9.
    labels = torch.tensor([7, 7, 9, 9, 9])
    clusters = torch.tensor([[0, 0, 0, 1, 1]])
    distances = torch.tensor([[0.2, 0.1, 0.3, 0.1, 0.2]])
    assert vote_on_names(clusters, distances, labels).tolist() == [7, 7, 7, 9, 9]
    # Two more members that part them as the classes do, under other numbers.
    clusters = torch.cat([clusters, torch.tensor([[1, 1, 0, 0, 0]]).expand(2, -1)])
    assert vote_on_names(clusters, distances.expand(3, -1), labels).tolist() == labels.tolist()


def test_c3_by_hand() -> None:
    # Shares of members that part: (0,1) 0; (2,3) 1/3; (0,2), (1,2) 2/3; (0,3), (1,3) 1: two groups, {0,1} {2,3}.
    clusters = torch.tensor([[0, 0, 1, 1], [1, 1, 0, 0], [0, 0, 0, 1]])
    assert nmi(consensus(clusters, 2), torch.tensor([0, 0, 1, 1])) == pytest.approx(1)
    assert len(consensus(clusters, 3).unique()) == 3


@pytest.mark.parametrize("points", [2, 30, 200])
def test_c3_cuts_its_tree_where_scipy_does_also_among_joins_of_one_height(points: int) -> None:
    draws = torch.Generator().manual_seed(points)
    clusters = torch.randint(4, (3, points), generator=draws)
    tree = linkage(pdist(clusters.T.numpy(), metric="hamming"), method="average")
    assert points < 30 or len(set(tree[:, 2])) < len(tree)  # some are joined at one height
    for count in {1, 2, points // 3 + 1, points - 1, points}:
        theirs = torch.from_numpy(cut_tree(tree, n_clusters=count)[:, 0].astype("int64"))
        ours = consensus(clusters, count)
        assert torch.equal(ours[:, None] == ours, theirs[:, None] == theirs), count
        assert sorted(ours.unique().tolist()) == list(range(count))


def test_more_clusters_than_points_are_refused() -> None:
    with pytest.raises(InputError, match="5 clusters asked of 4 points"):
        consensus(torch.zeros(3, 4, dtype=torch.long), 5)


def votes(labels: Tensor, distances: Tensor) -> list[Tensor]:
    """All rules on neighbours, of (n, members, depth)."""
    hits = (labels == 0).any(dim=2)
    return [vote_by_rank(labels, distances), vote_in_pool(labels, distances), vote_on_hits(hits, distances[..., 0])]


def test_the_order_of_the_members_plays_no_part() -> None:
    labels = torch.randint(3, (40, 3, 4), generator=seeded(0))
    distances = torch.rand(40, 3, 4, generator=seeded(1)).sort(dim=2).values
    for order in itertools.permutations(range(3)):
        for ours, theirs in zip(votes(labels, distances), votes(labels[:, order], distances[:, order]), strict=True):
            assert torch.equal(ours, theirs)


def test_c1_of_agreeing_members_does_not_depend_on_their_order_or_names() -> None:
    clusters = torch.randint(4, (60,), generator=seeded(0))
    other = torch.cat([clusters[:50], (clusters[50:] + 1) % 4])
    rows = [clusters, torch.tensor([3, 1, 0, 2])[clusters], other]
    for order in itertools.permutations(range(3)):
        voted = vote_aligned(torch.stack([rows[i] for i in order]), torch.ones(3, 60), count=4)
        assert nmi(voted, clusters) == pytest.approx(1)


def test_centroid_distances_by_hand() -> None:
    # Cluster 0 = {0, 2}: mean 1. Cluster 1 = {10, 16}: mean 13.
    x = torch.tensor([[0.0], [10.0], [2.0], [16.0]])
    assert centroid_distances(x, torch.tensor([0, 1, 0, 1]), 2).tolist() == [1, 3, 1, 3]


def test_members_come_back_at_unit_length_and_uneven_ones_are_refused() -> None:
    parts = unit_members(torch.tensor([[3.0, 4.0, 0.0, 0.5]]), 2)
    torch.testing.assert_close(torch.cat(list(parts)), torch.tensor([[0.6, 0.8], [0.0, 1.0]]))
    with pytest.raises(InputError, match="multiple of the members"):
        unit_members(torch.ones(2, 4), 3)


def test_an_unknown_rule_for_ties_is_refused() -> None:
    with pytest.raises(InputError, match="did you mean 'first'"):
        check_ties("frist")
