"""Cluster agreement by hand and against scikit-learn."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score
from sklearn.metrics.cluster import pair_confusion_matrix
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.metrics.clustering import ami, cluster_metrics, nmi, pairwise_f1

SEEDS = st.integers(0, 2**31)


def partitions(seed: int, n: int, classes: int = 4) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(classes, (n,), generator=generator), torch.randint(classes, (n,), generator=generator)


def test_pairwise_f1_by_hand() -> None:
    # Classes {0,1,2} {3,4}: 3 + 1 = 4 pairs. Clusters {0,1} {2,3,4}: 1 + 3 = 4 pairs. In both: (0,1) and (3,4) = 2.
    assert pairwise_f1(torch.tensor([0, 0, 0, 1, 1]), torch.tensor([5, 5, 2, 2, 2])) == pytest.approx(2 * 2 / (4 + 4))
    # Classes {0,1,2,3}: 6 pairs. Clusters {0,1} {2} {3}: 1 pair, in both. 2 / (6 + 1).
    assert pairwise_f1(torch.tensor([1, 1, 1, 1]), torch.tensor([0, 0, 1, 2])) == pytest.approx(2 / 7)


@given(SEEDS, st.integers(2, 60), st.integers(1, 6))
@settings(max_examples=40, deadline=None)
def test_pairwise_f1_equals_scikit_learns_pair_counts(seed: int, n: int, classes: int) -> None:
    labels, clusters = partitions(seed, n, classes)
    (_, false_positive), (false_negative, true_positive) = pair_confusion_matrix(labels.numpy(), clusters.numpy())
    pairs = 2 * true_positive + false_positive + false_negative
    assert pairwise_f1(labels, clusters) == pytest.approx(2 * true_positive / pairs if pairs else 1.0)


def test_pairwise_f1_of_a_million_points_does_not_overflow() -> None:
    # One class, two halves: 2 * 2 C(h, 2) / (C(2h, 2) + 2 C(h, 2)), far beyond 32 bits.
    half = 500_000
    labels, clusters = torch.zeros(2 * half, dtype=torch.long), torch.arange(2 * half) // half
    together, apart = 2 * half * (2 * half - 1) // 2, 2 * (half * (half - 1) // 2)
    assert pairwise_f1(labels, clusters) == pytest.approx(2 * apart / (together + apart), rel=1e-12)


def test_points_that_all_stand_alone_agree() -> None:
    assert pairwise_f1(torch.arange(4), torch.arange(4)) == 1


@given(SEEDS, st.integers(8, 60))
@settings(max_examples=25, deadline=None)
def test_mutual_information_equals_scikit_learn(seed: int, n: int) -> None:
    labels, clusters = partitions(seed, n)
    assert nmi(labels, clusters) == pytest.approx(normalized_mutual_info_score(labels.numpy(), clusters.numpy()))
    assert ami(labels, clusters) == pytest.approx(adjusted_mutual_info_score(labels.numpy(), clusters.numpy()))


def test_normalised_mutual_information_by_hand() -> None:
    # Classes {0,1} {2,3} (entropy ln 2) against one cluster per point (ln 4 = 2 ln 2); MI = ln 2: 1 / ((1 + 2) / 2).
    assert nmi(torch.tensor([0, 0, 1, 1]), torch.arange(4)) == pytest.approx(2 / 3)
    # Chance would reach as much with singletons: nothing is left after adjustment.
    assert ami(torch.tensor([0, 0, 1, 1]), torch.arange(4)) == pytest.approx(0)


@given(SEEDS)
@settings(max_examples=10, deadline=None)
def test_neither_order_nor_numbering_matters(seed: int) -> None:
    labels, clusters = partitions(seed, 40)
    generator = torch.Generator().manual_seed(seed)
    order, numbers = torch.randperm(40, generator=generator), torch.randperm(4, generator=generator)
    for score in (nmi, ami, pairwise_f1):
        assert score(labels[order], numbers[clusters][order]) == pytest.approx(score(labels, clusters))
        assert score(clusters, labels) == pytest.approx(score(labels, clusters))


def test_a_perfect_embedding_scores_one() -> None:
    labels = torch.tensor([3, 7, 9, 20]).repeat(15)
    x = 10 * torch.nn.functional.one_hot(labels).float()
    x = x + 0.1 * torch.randn(x.shape, generator=torch.Generator().manual_seed(0))
    assert cluster_metrics(x, labels) == pytest.approx({"NMI": 1, "AMI": 1, "F1": 1})


def test_an_embedding_without_classes_scores_about_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = cluster_metrics(torch.randn(400, 8, generator=generator), torch.arange(4).repeat(100))
    assert abs(scores["AMI"]) < 0.03
    assert 0.2 < scores["F1"] < 0.35  # a quarter of all pairs are of one class


def test_the_seed_reaches_the_clustering() -> None:
    x = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(10).repeat(10)
    assert cluster_metrics(x, labels, seed=1) == cluster_metrics(x, labels, seed=1)
    assert cluster_metrics(x, labels, seed=1) != cluster_metrics(x, labels, seed=2)


def test_nothing_to_cluster_is_refused() -> None:
    with pytest.raises(InputError, match="no embeddings"):
        cluster_metrics(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))
