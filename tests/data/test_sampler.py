import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from robustmetric.data.protocols import Sampler
from robustmetric.data.sampler import Balanced, Pairs, Shuffled
from robustmetric.errors import InputError

LABELS = torch.arange(60) % 7


@pytest.mark.parametrize(
    ("n", "ranks", "steps"),
    [(5864, 2, 53), (8054, 2, 72), (59551, 2, 532), (5864, 1, 105), (8054, 1, 144), (59551, 1, 1064)],
)
def test_pairs_take_the_published_number_of_steps(n: int, ranks: int, steps: int) -> None:
    # Hardness Manipulation: ceil(ceil(n / ranks) / 56) for CUB, CARS and SOP on one and two GPUs.
    labels = torch.zeros(n, dtype=torch.long)
    assert Pairs(batch=112).steps(labels, ranks) == steps
    assert len(Pairs(batch=112).batches(labels, 0, 0, ranks - 1, ranks)) == steps


def test_every_sample_is_an_anchor_once_and_its_partner_is_of_its_class() -> None:
    batches = Pairs(batch=16).batches(LABELS, epoch=0, seed=0)
    assert [len(b) for b in batches] == [16] * 7 + [8]  # 60 pairs: 7 batches of 8 pairs, one of 4
    rows = torch.cat(batches)
    assert sorted(rows[::2].tolist()) == list(range(60))
    assert torch.equal(LABELS[rows[::2]], LABELS[rows[1::2]])


def test_partners_are_uniform_over_the_class_the_anchor_included() -> None:
    labels = torch.tensor([0, 1, 0, 0, 1])
    counts = torch.zeros(5, 5)
    for epoch in range(600):
        rows = torch.cat(Pairs(batch=4).batches(labels, epoch, seed=3))
        counts[rows[::2], rows[1::2]] += 1
    shares = counts / 600
    assert torch.allclose(shares[0], torch.tensor([1 / 3, 0, 1 / 3, 1 / 3, 0]), atol=0.08)  # 4 standard deviations
    assert torch.allclose(shares[4], torch.tensor([0, 1 / 2, 0, 0, 1 / 2]), atol=0.08)


@pytest.mark.parametrize(("batch", "advice"), [(111, "use 110 or 112"), (1, "use 2 or 2")])
def test_an_odd_batch_of_pairs_is_refused(batch: int, advice: str) -> None:
    with pytest.raises(InputError, match=f"an odd batch of {batch} images cannot hold pairs; {advice}"):
        Pairs(batch=batch)


@given(sizes=st.lists(st.integers(1, 6), min_size=3, max_size=8), per_class=st.integers(1, 4), seed=st.integers(0, 9))
def test_balanced_batches_hold_distinct_classes_and_distinct_samples(
    sizes: list[int], per_class: int, seed: int
) -> None:
    labels = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    labels = labels[torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))]
    sampler = Balanced(batch=3 * per_class, per_class=per_class)
    batches = sampler.batches(labels, epoch=1, seed=seed)
    assert len(batches) == sampler.steps(labels) == max(1, len(labels) // (3 * per_class))
    for batch in batches:
        groups = batch.view(3, per_class)
        classes = labels[groups]
        assert (classes == classes[:, :1]).all()
        assert len(classes[:, 0].unique()) == 3
        for group, label in zip(groups, classes[:, 0], strict=True):
            if sizes[label] >= per_class:
                assert len(group.unique()) == per_class


def test_balanced_draws_every_sample_of_a_class_alike() -> None:
    labels = torch.tensor([0] * 4 + [1] * 2)
    seen = torch.zeros(6)
    for epoch in range(500):
        for batch in Balanced(batch=4, per_class=2).batches(labels, epoch, 0):
            seen += torch.bincount(batch, minlength=6)
    assert torch.allclose(seen / 500, torch.tensor([0.5] * 4 + [1.0] * 2), atol=0.1)


def test_classes_without_samples_are_never_drawn() -> None:
    labels = torch.tensor([0, 0, 3, 3])
    (batch,) = Balanced(batch=4, per_class=2).batches(labels, 0, 0)
    assert sorted(batch.tolist()) == [0, 1, 2, 3]


def test_balanced_refuses_more_classes_than_there_are() -> None:
    with pytest.raises(InputError, match="needs 8 classes of 2, there are 7; use batch: 14 or less"):
        Balanced(batch=16, per_class=2).batches(LABELS, 0, 0)
    with pytest.raises(InputError, match="a batch of 10 is not a multiple of per_class 4; use 8 or 12"):
        Balanced(batch=10, per_class=4)


def test_shuffled_visits_every_sample_once() -> None:
    whole = Shuffled(batch=16, drop_last=False).batches(LABELS, 0, 0)
    assert [len(b) for b in whole] == [16, 16, 16, 12]
    assert sorted(torch.cat(whole).tolist()) == list(range(60))
    assert [len(b) for b in Shuffled(batch=16).batches(LABELS, 0, 0)] == [16, 16, 16]


def test_a_batch_larger_than_the_data_is_refused() -> None:
    with pytest.raises(InputError, match="a batch of 61 is larger than the 60 samples"):
        Shuffled(batch=61).batches(LABELS, 0, 0)
    with pytest.raises(InputError, match="batch 0"):
        Shuffled(batch=0)


SAMPLERS: list[Sampler] = [Shuffled(batch=8), Shuffled(batch=8, drop_last=False), Pairs(batch=8), Balanced(batch=8)]


@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
def test_an_epoch_repeats_exactly_and_differs_from_others(sampler: Sampler) -> None:
    def order(epoch: int, seed: int) -> list[int]:
        return torch.cat(sampler.batches(LABELS, epoch, seed)).tolist()

    assert order(3, 5) == order(3, 5)
    # Neighbours in epoch and seed, and the two that share a sum, are all different.
    assert len({tuple(order(e, s)) for e, s in [(3, 5), (4, 5), (3, 6), (5, 3), (4, 4)]}) == 5


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("sampler", SAMPLERS, ids=str)
def test_all_ranks_take_as_many_steps(sampler: Sampler, ranks: int) -> None:
    lengths = [[len(b) for b in sampler.batches(LABELS, 0, 0, rank, ranks)] for rank in range(ranks)]
    assert all(one == lengths[0] for one in lengths)
    assert len(lengths[0]) == sampler.steps(LABELS, ranks)


@pytest.mark.parametrize("ranks", [2, 7])
def test_ranks_share_an_epoch_out_among_them(ranks: int) -> None:
    anchors = [torch.cat(Pairs(batch=8).batches(LABELS, 2, 1, rank, ranks))[::2] for rank in range(ranks)]
    everything = torch.cat(anchors)
    assert set(everything.tolist()) == set(range(60))
    assert len(everything) == math.ceil(60 / ranks) * ranks
    shuffled = [torch.cat(Shuffled(8, drop_last=False).batches(LABELS, 2, 1, rank, ranks)) for rank in range(ranks)]
    assert set(torch.cat(shuffled).tolist()) == set(range(60))
    balanced = [torch.cat(Balanced(8).batches(LABELS, 2, 1, rank, ranks)) for rank in range(ranks)]
    assert not torch.equal(balanced[0], balanced[1])


def test_more_ranks_than_samples_still_share_out() -> None:
    labels = torch.zeros(2, dtype=torch.long)
    rows = [Shuffled(1, drop_last=False).batches(labels, 0, 0, rank, 5) for rank in range(5)]
    assert all(len(one) == 1 for one in rows)


def test_a_rank_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InputError, match="rank 2 of 2 processes"):
        Pairs(batch=8).batches(LABELS, 0, 0, rank=2, ranks=2)
