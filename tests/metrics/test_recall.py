"""Recall at k by hand and against a loop."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from robustmetric.errors import InputError
from robustmetric.metrics.recall import recall_at, recall_of


def test_recall_by_hand() -> None:
    # Query of class 7: neighbours 3, 7 -> miss at 1, hit at 2. Class 1: 1, 2 -> hit at both. Class 5: never.
    neighbour_labels, labels = torch.tensor([[3, 7], [1, 2], [4, 4]]), torch.tensor([7, 1, 5])
    assert recall_at(neighbour_labels, labels, 1).tolist() == [0, 1, 0]
    assert recall_at(neighbour_labels, labels, 2).tolist() == [1, 1, 0]


@given(st.integers(0, 2**31), st.integers(1, 6), st.integers(1, 5))
@settings(max_examples=30, deadline=None)
def test_recall_equals_a_loop_and_grows_with_k(seed: int, n: int, k: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    gallery_labels = torch.randint(4, (20,), generator=generator)
    neighbours, labels = torch.randint(20, (n, 6), generator=generator), torch.randint(4, (n,), generator=generator)
    expected = [float(int(labels[i]) in gallery_labels[neighbours[i, :k]].tolist()) for i in range(n)]
    assert recall_of(neighbours, labels, gallery_labels, k).tolist() == expected
    assert bool((recall_of(neighbours, labels, gallery_labels, k + 1) >= torch.tensor(expected)).all())


@pytest.mark.parametrize("k", [0, 3])
def test_recall_deeper_than_the_neighbours_is_refused(k: int) -> None:
    with pytest.raises(InputError, match=rf"R@{k} asked of 2 neighbours"):
        recall_at(torch.zeros(4, 2, dtype=torch.long), torch.zeros(4, dtype=torch.long), k)
