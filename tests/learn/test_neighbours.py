"""Candidates of triplets: nearest on either side, drawn uniformly or where Theorem 1 binds."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.learn.margin import margins
from robustmetric.learn.neighbours import Candidates, Classes, binding, draw, near
from robustmetric.numerics.majority import majority_ranks

SEEDS = st.integers(min_value=0, max_value=2**31)
LINE = torch.tensor([[0.0], [1.0], [3.0], [4.0], [10.0]])
LABELS = torch.tensor([0, 0, 1, 0, 1])


def rows(n: int, dim: int, seed: int, classes: int = 3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    return x, torch.arange(n) % classes


def test_candidates_on_a_line_by_hand() -> None:
    # Class 0 is {0, 1, 4}, class 1 {3, 10}. Row 3 (at 4): own class 1 then 0, others 3 then 10.
    found = Classes(LABELS).candidates(LINE, 2)
    place = found.anchors.tolist().index(3)
    assert found.positives[place].tolist() == [1, 0]
    assert found.negatives[place].tolist() == [2, 4]
    # Class 1 has one positive for each row; places beyond it do not count.
    place = found.anchors.tolist().index(4)
    assert found.positive_count[place] == 1
    assert found.positives[place, 0] == 2
    assert found.negatives[place].tolist() == [3, 1]


@pytest.mark.parametrize(("n", "items"), [(40, 90), (30, 3000)])
def test_near_equals_sorted_distances(n: int, items: int) -> None:
    a, _ = rows(n, 5, seed=0)
    b, _ = rows(items, 5, seed=1)
    expected = torch.cdist(a, b).sort(dim=1).indices[:, :4]
    assert torch.equal(near(a, b, 4), expected)


@pytest.mark.parametrize("block", [2000, 2**22])
def test_near_leaves_out_the_row_itself(monkeypatch: pytest.MonkeyPatch, block: int) -> None:
    monkeypatch.setattr("robustmetric.numerics.distances.BLOCK", block)  # one row at a time, or all
    x, _ = rows(2000, 3, seed=0)
    found = near(x, x, 3, leave_out_self=True)
    assert not (found == torch.arange(2000)[:, None]).any()
    assert torch.equal(found, torch.cdist(x, x).fill_diagonal_(torch.inf).sort(dim=1).indices[:, :3])


@given(SEEDS)
@settings(max_examples=20, deadline=None)
def test_drawn_triplets_are_candidates_of_the_right_class(seed: int) -> None:
    x, labels = rows(20, 2, seed)
    labels[labels == 2] = torch.tensor([1, 1, 1, 1, 2, 2])  # a class of two: one positive each
    candidates = Classes(labels).candidates(x, 4)
    anchor, positive, negative = draw(candidates, slice(None), torch.Generator().manual_seed(seed))
    assert (labels[anchor] == labels[positive]).all()
    assert (labels[anchor] != labels[negative]).all()
    assert (anchor != positive).all()


def test_draws_are_uniform_over_the_candidates() -> None:
    x, labels = rows(30, 2, seed=0)
    candidates = Classes(labels).candidates(x, 4)
    generator = torch.Generator().manual_seed(0)
    drawn = torch.stack([draw(candidates, slice(0, 1), generator)[1] for _ in range(2000)]).flatten()
    share = torch.stack([(drawn == row).double().mean() for row in candidates.positives[0]])
    torch.testing.assert_close(share, torch.full((4,), 0.25, dtype=torch.float64), atol=0.04, rtol=0.0)


def test_binding_pair_by_hand() -> None:
    # Anchor 0; positives 1 and 4; negatives 3 and 10. On a line |m| = (p + n) / 2, negative where n is nearer:
    # n = 3: 2 (p = 1) and -3.5 (p = 4); n = 10: 5.5 and 7. The largest over positives are 2 and 7; 1-NN takes 2.
    candidates = Classes(LABELS).candidates(LINE, 2)
    place = candidates.anchors.tolist().index(0)
    factor = torch.eye(1)
    anchor, positive, negative = binding(candidates, slice(place, place + 1), LINE, factor, majority_ranks(1))
    assert margins(factor, LINE, anchor, torch.tensor([3]), torch.tensor([2])).item() == -3.5
    assert (anchor.item(), positive.item(), negative.item()) == (0, 1, 2)
    # 3 votes: second largest over positives is (-3.5, 5.5); the second smallest of these 5.5: p = 1, n = 10.
    _, positive, negative = binding(candidates, slice(place, place + 1), LINE, factor, majority_ranks(3))
    assert (positive.item(), negative.item()) == (1, 4)


@given(SEEDS, st.integers(1, 4))
@settings(max_examples=10, deadline=None)
def test_binding_equals_a_loop(seed: int, votes: int) -> None:
    x, labels = rows(24, 3, seed)
    factor = torch.randn(3, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    candidates = Classes(labels).candidates(x @ factor.T, 5)
    largest, k = majority_ranks(votes)
    chosen = margins(factor, x, *binding(candidates, slice(None), x, factor, (largest, k)))
    for place in range(0, 24, 4):
        anchor = candidates.anchors[place]
        table = [
            [margins(factor, x, anchor[None], p[None], n[None]).item() for p in candidates.positives[place]]
            for n in candidates.negatives[place]
        ]
        expected = sorted(sorted(column, reverse=True)[largest - 1] for column in table)[k - 1]
        assert chosen[place].item() == pytest.approx(expected, abs=1e-9)


def test_memory_is_bounded_by_blocks_and_these_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x, labels = rows(60, 3, seed=0)
    factor = torch.eye(3, dtype=torch.float64)

    def found() -> list[Tensor]:
        candidates = Classes(labels).candidates(x, 5)
        return [candidates.positives, candidates.negatives, *binding(candidates, slice(None), x, factor, (1, 1))]

    whole = found()
    monkeypatch.setattr("robustmetric.numerics.distances.BLOCK", 100)
    sizes = []
    product = torch.addmm

    def spy(*arguments: Tensor, **settings: float) -> Tensor:
        sizes.append(product(*arguments, **settings).numel())
        return product(*arguments, **settings)

    monkeypatch.setattr(torch, "addmm", spy)
    assert all(torch.equal(a, b) for a, b in zip(found(), whole, strict=True))
    assert max(sizes) <= 100


def test_padded_places_never_bind() -> None:
    labels = torch.tensor([0, 0, 1, 1, 1, 1])
    x = torch.tensor([[0.0], [1.0], [5.0], [6.0], [7.0], [8.0]])
    candidates = Classes(labels).candidates(x, 3)
    anchor, positive, negative = binding(candidates, slice(None), x, torch.eye(1), (1, 1))
    assert (labels[anchor] == labels[positive]).all()
    assert (anchor != positive).all()
    assert (labels[anchor] != labels[negative]).all()


def test_rows_without_enough_positives_are_no_anchors() -> None:
    labels = torch.tensor([0, 0, 0, 1, 1, 2])
    assert sorted(torch.cat(Classes(labels).members).tolist()) == [0, 1, 2, 3, 4]
    assert sorted(torch.cat(Classes(labels, positives=2).members).tolist()) == [0, 1, 2]
    assert sorted(torch.cat(Classes(labels, negatives=4).members).tolist()) == [3, 4]
    with pytest.raises(InputError, match=r"no row has 3 others of its class and 1 of other classes .* 1 to 3"):
        Classes(labels, positives=3)


def test_length_is_that_of_the_anchors() -> None:
    candidates = Classes(LABELS).candidates(LINE, 2)
    assert isinstance(candidates, Candidates)
    assert len(candidates) == 5
