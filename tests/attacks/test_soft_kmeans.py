"""Soft k-means on the circle, by hand."""

import math

import pytest
import torch
from circle import at, chord, gallery, queries, slope

from robustmetric.attacks.soft_kmeans import SoftKMeans, shares_of_class, together
from robustmetric.errors import InputError
from robustmetric.numerics.kmeans import soft_assignments, soft_kmeans
from robustmetric.types import Gallery

BOOK = gallery([0, 0, 180], [4, 4, 7])
"""Centroids at 0 and at 180 degrees."""


def test_shares_by_hand() -> None:
    # From 90 degrees both centres are as far; from 0, squared distances 0 and 4: 1 / (1 + e^-4) at temperature 1.
    shares = soft_assignments(at(90, 0), at(0, 180), temperature=1.0).exp()
    near = 1 / (1 + math.exp(-4))
    torch.testing.assert_close(shares, torch.tensor([[0.5, 0.5], [near, 1 - near]], dtype=torch.float64))


def test_a_soft_mean_by_hand() -> None:
    # Two points, -1 and 1, two centres at 0: all shares are 1/2, so both centres are the mean, 0, and stay.
    x = torch.tensor([[-1.0], [1.0]], dtype=torch.float64)
    assert soft_kmeans(x, torch.zeros(2, 1, dtype=torch.float64), 1.0, iterations=3).tolist() == [[0.0], [0.0]]
    # Centres at the points, temperature 1: share e^0 / (e^0 + e^-4) = s in the own one, so the mean is 2s - 1.
    s = 1 / (1 + math.exp(-4))
    found = soft_kmeans(x, x, 1.0, iterations=1)
    assert found.flatten().tolist() == pytest.approx([-(2 * s - 1), 2 * s - 1])


def test_cold_soft_k_means_is_k_means() -> None:
    x = at(0, 10, 20, 170, 180)
    found = soft_kmeans(x, x[[0, 4]], temperature=1e-3, iterations=5)
    torch.testing.assert_close(found, torch.stack([x[:3].mean(dim=0), x[3:].mean(dim=0)]))


def test_a_centre_without_points_stays() -> None:
    x = torch.tensor([[0.0], [0.1]], dtype=torch.float64)
    far = torch.tensor([[0.0], [1e4]], dtype=torch.float64)
    assert soft_kmeans(x, far, temperature=1e-2, iterations=2)[1].item() == 1e4


def test_the_row_itself_is_left_out_of_its_class() -> None:
    shares = torch.tensor([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]], dtype=torch.float64)
    places, classes = torch.tensor([0, 0, 1]), torch.tensor([4, 7])
    found = shares_of_class(shares, places, queries([0, 0, 0], [4, 4, 7], index=[0, -1, 2]), classes)
    # Item 0 has item 1 left; a query that is no item has both; item 2 is alone and has itself.
    assert found.tolist() == [[0.5, 0.5], [0.75, 0.25], [0.0, 1.0]]


def test_value_by_hand() -> None:
    attack = SoftKMeans(temperature=1.0, iterations=0)
    batch = queries([60], [4], index=[0])
    targets = attack.choose(batch.inputs, batch, BOOK, None)
    z = batch.inputs.clone().requires_grad_()
    # Class 4 without item 0 is item 1, at 0 degrees: shares e^0 and e^-4. From 60 degrees: chords of 60 and 120.
    a, q = (torch.tensor(gaps).neg().softmax(dim=0) for gaps in ([chord(60) ** 2, chord(120) ** 2], [0.0, 4.0]))
    found = attack.value(z, targets, BOOK)
    assert found.item() == pytest.approx(-math.log(float((a * q).sum())), rel=1e-5)
    assert slope(found, z)[0] > 0, "away from the own class"
    assert together(torch.tensor([[0.25, 0.75]]).log(), torch.tensor([[1.0, 0.0]])).exp().item() == pytest.approx(0.25)


def test_members_are_summed() -> None:
    attack, both = SoftKMeans(temperature=0.5), SoftKMeans(members=2, temperature=0.5)
    batch = queries([60, 170], [4, 7], index=[0, 2])
    once = attack.value(batch.inputs, attack.choose(batch.inputs, batch, BOOK, None), BOOK)
    twice = Gallery(torch.cat([BOOK.embeddings] * 2, dim=1) / math.sqrt(2), BOOK.labels)
    z = torch.cat([batch.inputs] * 2, dim=1) / math.sqrt(2)
    torch.testing.assert_close(both.value(z, both.choose(z, batch, twice, None), twice), 2 * once)


def test_settings_without_a_meaning_are_refused() -> None:
    with pytest.raises(InputError, match="temperature 0"):
        SoftKMeans(temperature=0.0)
    with pytest.raises(InputError, match="iterations=-1"):
        SoftKMeans(iterations=-1)
    with pytest.raises(InputError, match="no item has"):
        SoftKMeans().choose(at(0), queries([0], [5]), BOOK, None)
