"""k-means against scikit-learn's inertia, and its corner cases."""

import sys
import warnings

import pytest
import torch
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.numerics import kmeans as module
from robustmetric.numerics.distances import pairwise, squared_within
from robustmetric.numerics.kmeans import inertia, kmeans


def blobs(clusters: int, size: int, spread: float, seed: int = 0, dim: int = 8) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    centres = torch.randn(clusters, dim, generator=generator)
    labels = torch.arange(clusters).repeat_interleave(size)
    return centres[labels] + spread * torch.randn(clusters * size, dim, generator=generator), labels


def test_inertia_by_hand() -> None:
    # Cluster 0 = {0, 2}: mean 1, 1 + 1 = 2. Cluster 1 = {10, 13, 16}: mean 13, 9 + 0 + 9 = 18. Together 20.
    x = torch.tensor([[0.0], [2.0], [10.0], [13.0], [16.0]])
    assert inertia(x, torch.tensor([0, 0, 1, 1, 1])) == pytest.approx(20)


def test_the_gaps_of_the_start_are_squared_distances() -> None:
    # All in a ball of radius 1e-3 far from the origin, as a collapsed model has them; row 3 twice.
    x = 10 + 1e-3 * torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    x[7] = x[3]
    chosen = torch.tensor([3, 11, 3])
    found = squared_within(x)(chosen)
    assert found[0, 3] == found[0, 7] == found[2, 7] == 0
    torch.testing.assert_close(found, pairwise(x[chosen], x).square(), rtol=1e-3, atol=1e-12)


def test_two_far_pairs_are_two_clusters() -> None:
    x = torch.tensor([[0.0, 0.0], [10.0, 0.0], [0.0, 1.0], [10.0, 1.0]])
    for seed in range(8):
        labels = kmeans(x, 2, seed=seed)
        assert labels[0] == labels[2] and labels[1] == labels[3] and labels[0] != labels[1]


def test_separate_blobs_are_found_for_every_seed() -> None:
    x, truth = blobs(clusters=6, size=30, spread=0.05)
    for seed in range(10):
        assert adjusted_rand_score(truth, kmeans(x, 6, seed=seed)) == 1


@pytest.mark.parametrize("spread", [0.3, 1.0])
def test_inertia_is_within_three_percent_of_scikit_learn(spread: float) -> None:
    x, _ = blobs(clusters=12, size=40, spread=spread)
    ours = torch.tensor([inertia(x, kmeans(x, 12, seed=seed)) for seed in range(8)]).mean()
    theirs = torch.tensor([KMeans(12, n_init=1, random_state=seed).fit(x.numpy()).inertia_ for seed in range(8)]).mean()
    assert float(ours / theirs) == pytest.approx(1, abs=0.03)


def test_the_start_is_already_spread_out() -> None:
    # One iteration from a k-means++ start beats the same from points drawn uniformly, on blobs of unequal size.
    x, _ = blobs(clusters=10, size=20, spread=0.02)
    x = torch.cat([x, x[:20].repeat(20, 1)])
    for seed in range(5):
        assert inertia(x, kmeans(x, 10, seed=seed, iterations=1)) < 1.2 * inertia(
            x, kmeans(x, 10, seed=seed, iterations=50)
        )


def test_the_answer_is_a_fixed_point() -> None:
    x, _ = blobs(clusters=5, size=40, spread=1.0)
    labels = kmeans(x, 5, iterations=200)
    means = torch.stack([x[labels == c].mean(dim=0) for c in range(5)])
    assert torch.equal(torch.cdist(x, means).argmin(dim=1), labels)


def test_more_iterations_never_raise_the_inertia() -> None:
    x, _ = blobs(clusters=8, size=40, spread=1.5)
    values = [inertia(x, kmeans(x, 8, seed=3, iterations=i)) for i in (1, 2, 4, 8, 16, 32)]
    assert values == sorted(values, reverse=True) and values[-1] < values[0]


def test_restarts_keep_the_smallest_inertia() -> None:
    x, _ = blobs(clusters=10, size=15, spread=0.7)
    values = [inertia(x, kmeans(x, 10, seed=5, restarts=restarts)) for restarts in (1, 2, 4, 8, 16)]
    assert values == sorted(values, reverse=True) and values[-1] < values[0]


def test_an_empty_cluster_restarts_at_the_farthest_point() -> None:
    # Both centres start at 0, so all go to the first (lower index). Its mean is 3; the second moves to the farthest, 9.
    x = torch.tensor([[0.0], [0.0], [1.0], [1.0], [7.0], [9.0]])
    labels = module._lloyd(x, torch.tensor([[0.0], [0.0]]), iterations=1)
    # |7-3| = 4 > |7-9| = 2: 7 goes with 9.
    assert labels.tolist() == [0, 0, 0, 0, 1, 1]


def test_two_empty_clusters_restart_at_different_points() -> None:
    x = torch.tensor([[0.0], [0.0], [0.0], [-20.0], [30.0]])
    labels = module._lloyd(x, torch.zeros(3, 1), iterations=1)
    assert labels.tolist() == [0, 0, 0, 2, 1]


def test_of_equally_far_points_the_first_takes_an_empty_cluster() -> None:
    # 60 points at 1 and 60 at -1, in turn: all equally far from both centres at 0. The first of them is at 1.
    x = torch.tensor([1.0, -1.0]).repeat(60)[:, None]
    labels = module._lloyd(x, torch.zeros(2, 1), iterations=1)
    # Cluster 0 moves to the mean, 0; cluster 1 to 1.
    assert labels.tolist() == [1, 0] * 60


def test_as_many_clusters_as_points_leave_no_inertia() -> None:
    x, _ = blobs(clusters=4, size=5, spread=1.0)
    labels = kmeans(x, 20)
    assert sorted(labels.tolist()) == list(range(20))


def test_one_cluster_holds_everything() -> None:
    assert kmeans(blobs(clusters=3, size=4, spread=1.0)[0], 1).tolist() == [0] * 12


def test_equal_points_are_no_trouble() -> None:
    assert inertia(torch.ones(9, 3), kmeans(torch.ones(9, 3), 4)) == 0


def test_the_seed_decides_and_nothing_else() -> None:
    x, _ = blobs(clusters=10, size=20, spread=1.0)
    torch.manual_seed(1)
    first = kmeans(x, 10, seed=4)
    torch.manual_seed(2)
    assert torch.equal(first, kmeans(x, 10, seed=4))
    assert not torch.equal(first, kmeans(x, 10, seed=5))


def test_half_precision_points_are_clustered() -> None:
    x, truth = blobs(clusters=4, size=20, spread=0.05)
    assert adjusted_rand_score(truth, kmeans(x.half(), 4)) == 1


@pytest.mark.parametrize("clusters", [0, 11])
def test_an_impossible_number_of_clusters_is_refused(clusters: int) -> None:
    with pytest.raises(InputError, match=rf"{clusters} clusters asked of 10 points"):
        kmeans(torch.zeros(10, 2), clusters)


@pytest.mark.parametrize("setting", [{"iterations": 0}, {"restarts": 0}])
def test_no_iterations_or_restarts_are_refused(setting: dict[str, int]) -> None:
    with pytest.raises(InputError, match="1 or more"):
        kmeans(torch.zeros(10, 2), 2, **setting)


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises((InputError, TypeError), match="backend"):  # shape checking may refuse it first
        kmeans(torch.zeros(10, 2), 2, backend="scipy")  # type: ignore[arg-type]  # the point of the test


def test_faiss_not_installed_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with pytest.raises(InputError, match="pip install"):
        kmeans(torch.zeros(10, 2), 2, backend="faiss")


def test_faiss_finds_the_same_blobs() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its compiled types lack a module name, which Python warns of at import
        pytest.importorskip("faiss")
    x, truth = blobs(clusters=6, size=50, spread=0.05)
    labels = kmeans(x, 6, backend="faiss", restarts=5)
    assert adjusted_rand_score(truth, labels) == 1


def test_more_than_a_thousand_clusters_are_as_good_as_those_of_scikit_learn() -> None:
    # As In-Shop has them: thousands of classes of a few images. From points drawn uniformly the inertia is 3.6 times
    # that of scikit-learn: many blobs then have no centre, and Lloyd's iterations bring none from afar.
    x, truth = blobs(clusters=1300, size=4, spread=0.2, dim=32)
    labels = kmeans(x, 1300)
    theirs = KMeans(1300, n_init=1, random_state=0).fit(x.numpy())
    assert inertia(x, labels) / theirs.inertia_ == pytest.approx(1, abs=0.03)
    assert normalized_mutual_info_score(truth, labels) > 0.99
