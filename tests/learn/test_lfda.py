"""LFDA's affinities and scatters by hand and by loops, and what singular scatters give."""

import math

import numpy as np
import pytest
import torch

from robustmetric.errors import InputError
from robustmetric.learn import LFDA
from robustmetric.learn.lfda import affinity, discriminants, scatters


def test_affinity_by_hand() -> None:
    # 0, 1, 3 with k = 1: scales 1, 1, 2. A(0, 1) = e^-1, A(0, 3) = e^(-9 / 2), A(1, 3) = e^(-4 / 2).
    a = affinity(torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64), k=1)
    assert a[0].tolist() == pytest.approx([1, math.exp(-1), math.exp(-4.5)])
    assert a[1, 2].item() == pytest.approx(math.exp(-2))
    # Equal rows have scale 0 and no affinity (not NaN).
    assert affinity(torch.zeros(3, 2, dtype=torch.float64), k=1).tolist() == [[0.0] * 3] * 3


def test_scatters_equal_their_definition() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(15, 3, generator=generator, dtype=torch.float64)
    x -= x.mean(dim=0)
    labels = torch.tensor([0] * 4 + [1] * 5 + [2] * 6)
    sizes = torch.bincount(labels)
    between, within = torch.zeros(3, 3, dtype=torch.float64), torch.zeros(3, 3, dtype=torch.float64)
    for i in range(15):
        for j in range(15):
            outer = torch.outer(x[i] - x[j], x[i] - x[j]) / 2
            if labels[i] != labels[j]:
                between += outer / 15
                continue
            members = torch.nonzero(labels == labels[i]).flatten().tolist()
            a = affinity(x[members], 2)[members.index(i), members.index(j)]
            between += a * (1 / 15 - 1 / sizes[labels[i]]) * outer
            within += a / sizes[labels[i]] * outer
    found = scatters(x, labels, 2)
    torch.testing.assert_close(found[0], between)
    torch.testing.assert_close(found[1], within)


def test_discriminants_by_hand() -> None:
    # S_b = diag(8, 3), S_w = diag(4, 1): ratios 2 and 3; the second direction comes first, scaled to t^T S_w t = 1.
    between, within = (torch.diag(torch.tensor(d, dtype=torch.float64)) for d in ([8.0, 3.0], [4.0, 1.0]))
    ratios, directions = discriminants(between, within)
    assert ratios.tolist() == pytest.approx([3, 2])
    assert directions.abs().flatten().tolist() == pytest.approx([0, 1, 0.5, 0], abs=1e-12)


def blobs() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.RandomState(0)
    x = np.concatenate([rng.normal(size=(20, 3)) @ rng.normal(size=(3, 3)) + shift for shift in (0, 1, 2.0)])
    return x, np.repeat([0, 1, 2], 20)


def test_embeddings_differ_by_their_scaling() -> None:
    x, y = blobs()
    plain = LFDA(embedding="plain").fit(x, y).components_
    weighted = LFDA().fit(x, y).components_
    orthonormal = LFDA(embedding="orthonormalized").fit(x, y).components_
    centred = torch.from_numpy(x - x.mean(axis=0))
    between, within = (scatter.numpy() for scatter in scatters(centred, torch.from_numpy(y), 2))
    np.testing.assert_allclose(plain @ within @ plain.T, np.eye(3), atol=1e-9)
    ratios = np.diag(plain @ between @ plain.T)
    assert (np.diff(ratios) < 0).all()
    np.testing.assert_allclose(weighted, plain * np.sqrt(ratios)[:, None], atol=1e-9)
    np.testing.assert_allclose(orthonormal @ orthonormal.T, np.eye(3), atol=1e-9)
    np.testing.assert_allclose(LFDA(2).fit(x, y).components_, weighted[:2], atol=1e-9)


def test_it_agrees_with_metric_learn_after_two_corrections() -> None:
    # metric-learn 0.7.0 takes the k-th neighbour's distance along the wrong axis, and adds the within-class scatter to
    # the between-class one where the paper subtracts it, which makes the ratios 2 larger. The numbers are its output
    # with the first mended.
    x, y = blobs()
    weighted, plain = (LFDA(embedding=name).fit(x, y).get_mahalanobis_matrix() for name in ("weighted", "plain"))
    np.testing.assert_allclose(weighted + 2 * plain, METRIC_LEARN, rtol=1e-9)


METRIC_LEARN = [
    [48.80086102238663, 19.478242244663445, 28.27993272329018],
    [19.478242244663445, 45.346721120266594, 16.99199864265807],
    [28.27993272329018, 16.99199864265807, 60.055103845561256],
]


def test_constant_features_stay_out_of_the_metric() -> None:
    x, y = blobs()
    wide = np.concatenate([x, np.full((60, 1), 7.0)], axis=1)
    learner = LFDA(k=2).fit(wide, y)
    assert learner.components_.shape == (4, 4)
    np.testing.assert_allclose(learner.get_mahalanobis_matrix()[:3, :3], LFDA(k=2).fit(x, y).get_mahalanobis_matrix())
    np.testing.assert_allclose(learner.components_[:, 3], 0, atol=1e-12)


@pytest.mark.parametrize(
    ("x", "labels"),
    [
        (np.arange(9.0).reshape(3, 3) ** 2, [0, 1, 2]),  # one row per class
        (np.full((12, 3), 0.1), [0, 1, 2] * 4),  # all rows equal
        (np.repeat(np.arange(8.0).reshape(4, 2) ** 2, 10, axis=0), [0] * 20 + [1] * 20),  # neighbours are copies
    ],
)
def test_rows_that_vary_in_no_class_are_refused(x: np.ndarray, labels: list[int]) -> None:
    with pytest.raises(InputError, match="no direction that tells classes apart"):
        LFDA().fit(x, labels)
