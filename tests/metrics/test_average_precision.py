"""Average precision by hand, against loops and against scikit-learn."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.metrics.average_precision import (
    average_precision,
    average_precision_at,
    average_precision_at_r,
    rank_metrics,
    without_positives,
)
from robustmetric.numerics.distances import pairwise

SEEDS = st.integers(0, 2**31)


def scene(seed: int, n: int, classes: int = 4, whole: bool = False) -> tuple[Tensor, Tensor]:
    """Embeddings and labels; `whole` coordinates give exact distances with many ties."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(3, (n, 2), generator=generator).float() if whole else torch.randn(n, 5, generator=generator)
    return x, torch.randint(classes, (n,), generator=generator)


def loop_ranking(query: Tensor, gallery: Tensor, left_out: int) -> list[int]:
    distances = [float((query - item).double().norm()) for item in gallery]
    return [j for j in sorted(range(len(gallery)), key=lambda j: (distances[j], j)) if j != left_out]


def loop_metrics(relevant: list[bool]) -> dict[str, float]:
    """One query's numbers, written from the definitions."""
    total = sum(relevant)
    precision = [sum(relevant[: k + 1]) / (k + 1) for k in range(len(relevant))]

    def area(depth: int) -> float:
        return sum(precision[k] for k in range(min(depth, len(relevant))) if relevant[k])

    return {
        **{f"R@{k}": float(any(relevant[:k])) for k in (1, 2, 4)},
        "mAP": area(len(relevant)) / total if total else 0.0,
        "mAP@R": area(total) / total if total else 0.0,
        "mAP@10": area(10) / 10,
    }


def test_average_precision_by_hand() -> None:
    # Relevant at ranks 1, 3, 6: precisions 1/1, 2/3, 3/6.
    relevant = torch.tensor([[True, False, True, False, False, True]])
    assert float(average_precision(relevant)) == pytest.approx((1 + 2 / 3 + 1 / 2) / 3)
    # R = 3: only ranks 1 to 3 count, divided by 3.
    assert float(average_precision_at_r(relevant)) == pytest.approx((1 + 2 / 3) / 3)
    # At 10: all of the six count, divided by 10 although only 3 are relevant. At 2: rank 1 alone, divided by 2.
    assert float(average_precision_at(relevant, depth=10)) == pytest.approx((1 + 2 / 3 + 1 / 2) / 10)
    assert float(average_precision_at(relevant, depth=2)) == pytest.approx(1 / 2)
    assert float(average_precision_at(relevant, depth=1)) == pytest.approx(1)


def test_depth_ten_is_the_default() -> None:
    relevant = torch.zeros(1, 12, dtype=torch.bool)
    relevant[0, 9:] = True
    assert float(average_precision_at(relevant)) == pytest.approx((1 / 10) / 10)


def test_nothing_relevant_scores_zero() -> None:
    relevant = torch.zeros(2, 12, dtype=torch.bool)
    for score in (average_precision, average_precision_at_r, average_precision_at):
        assert score(relevant).tolist() == [0, 0]


@given(SEEDS, st.integers(2, 40))
@settings(max_examples=40, deadline=None)
def test_average_precision_equals_scikit_learn(seed: int, items: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    relevant = torch.rand(3, items, generator=generator) < 0.4
    relevant[:, int(torch.randint(items, (), generator=generator))] = True
    falling = -torch.arange(items)
    expected = [average_precision_score(row.numpy(), falling.numpy()) for row in relevant]
    assert average_precision(relevant).tolist() == pytest.approx(expected)


@given(SEEDS, st.integers(6, 30), st.booleans())
@settings(max_examples=40, deadline=None)
def test_rank_metrics_equal_a_loop(seed: int, n: int, whole: bool) -> None:
    x, labels = scene(seed, n, whole=whole)
    found = rank_metrics(x, x, labels, labels, exclude=torch.arange(n), ks=(1, 2, 4))
    expected = [loop_metrics([bool(labels[j] == labels[i]) for j in loop_ranking(x[i], x, i)]) for i in range(n)]
    assert list(found) == ["R@1", "R@2", "R@4", "mAP", "mAP@R", "mAP@10"]
    for name, values in found.items():
        assert values.tolist() == pytest.approx([row[name] for row in expected])


@given(SEEDS)
@settings(max_examples=15, deadline=None)
def test_queries_apart_from_the_gallery_exclude_nothing(seed: int) -> None:
    (queries, query_labels), (gallery, gallery_labels) = scene(seed, 5), scene(seed + 1, 12)
    found = rank_metrics(queries, gallery, query_labels, gallery_labels, ks=(1, 2, 4))
    same = rank_metrics(queries, gallery, query_labels, gallery_labels, exclude=torch.full((5,), -1), ks=(1, 2, 4))
    for i in range(5):
        order = loop_ranking(queries[i], gallery, left_out=-1)
        expected = loop_metrics([bool(gallery_labels[j] == query_labels[i]) for j in order])
        assert {name: float(values[i]) for name, values in found.items()} == pytest.approx(expected)
        assert {name: float(values[i]) for name, values in same.items()} == pytest.approx(expected)


def test_no_more_queries_are_ranked_at_a_time_than_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []

    def watched(a: Tensor, b: Tensor) -> Tensor:
        seen.append(len(a))
        return pairwise(a, b)

    monkeypatch.setattr("robustmetric.metrics.average_precision.pairwise", watched)
    monkeypatch.setattr("robustmetric.metrics.average_precision.BLOCK", 3 * 40)
    x, labels = scene(0, 40)
    rank_metrics(x[:7], x, labels[:7], labels)
    # 120 distances: three queries beside 40 items.
    assert seen == [3, 3, 1]


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x, labels = scene(0, 40)
    whole = rank_metrics(x, x, labels, labels, exclude=torch.arange(40))
    monkeypatch.setattr("robustmetric.metrics.average_precision.BLOCK", 3 * 40)
    parts = rank_metrics(x, x, labels, labels, exclude=torch.arange(40))
    assert list(whole) == ["R@1", "R@2", "R@4", "R@8", "mAP", "mAP@R", "mAP@10"]
    for name in whole:
        torch.testing.assert_close(whole[name], parts[name])


def test_a_perfect_embedding_scores_one() -> None:
    labels = torch.arange(5).repeat(11)  # ten others of each class, so that mAP@10 can reach 1
    x = 10 * torch.nn.functional.one_hot(labels).float() + scene(0, 55)[0]
    for name, values in rank_metrics(x, x, labels, labels, exclude=torch.arange(55)).items():
        assert values.tolist() == pytest.approx([1.0] * 55), name


@given(SEEDS)
@settings(max_examples=15, deadline=None)
def test_order_does_not_matter(seed: int) -> None:
    x, labels = scene(seed, 25)
    x = x.double()  # in float32 two items 1e-7 apart may change places as rounding changes
    order = torch.randperm(25, generator=torch.Generator().manual_seed(seed))
    straight = rank_metrics(x, x, labels, labels, exclude=torch.arange(25))
    shuffled = rank_metrics(x[order], x[order], labels[order], labels[order], exclude=torch.arange(25))
    for name in straight:
        torch.testing.assert_close(straight[name][order], shuffled[name])


def test_a_query_is_left_out_by_index_not_by_distance() -> None:
    # Items 0 and 1 coincide with different labels: query 0 must meet item 1 (a miss), never itself.
    x, labels = torch.tensor([[0.0], [0.0], [1.0]]), torch.tensor([0, 1, 0])
    found = rank_metrics(x, x, labels, labels, exclude=torch.arange(3), ks=(1, 2))
    assert found["R@1"].tolist() == [0, 0, 1]
    assert found["R@2"].tolist() == [1, 0, 1]


def test_without_positives_by_hand() -> None:
    # Gallery labels 0 0 1 2. Query 0 (item 0) still has item 1; query 1 (item 2) has only itself; 2 is not excluded;
    # label 9 is not in the gallery; a query of label 0 that excludes an item of label 2 keeps both.
    gallery_labels, query_labels = torch.tensor([2, 0, 1, 0]), torch.tensor([0, 1, 2, 9, 0])
    exclude = torch.tensor([1, 2, -1, -1, 0])
    assert without_positives(query_labels, gallery_labels, exclude).tolist() == [False, True, False, True, False]
    assert without_positives(query_labels, gallery_labels).tolist() == [False, False, False, True, False]


@given(SEEDS, st.integers(3, 30))
@settings(max_examples=25, deadline=None)
def test_without_positives_equals_a_loop(seed: int, n: int) -> None:
    _, labels = scene(seed, n, classes=n)
    expected = [sum(int(labels[i]) == int(other) for other in labels) == 1 for i in range(n)]
    assert without_positives(labels, labels, torch.arange(n)).tolist() == expected


def test_recall_deeper_than_the_gallery_is_refused() -> None:
    x, labels = scene(0, 5)
    assert "R@4" in rank_metrics(x, x, labels, labels, exclude=torch.arange(5), ks=(4,))
    assert "R@5" in rank_metrics(x, x, labels, labels, ks=(5,))
    with pytest.raises(InputError, match="R@5 asked of 4 items"):
        rank_metrics(x, x, labels, labels, exclude=torch.arange(5), ks=(5,))
    with pytest.raises(InputError, match="R@5 asked of 4 items"):
        rank_metrics(x, x, labels, labels, exclude=torch.tensor([0, -1, -1, -1, -1]), ks=(5,))
    with pytest.raises(InputError, match="R@6 asked of 5 items"):
        rank_metrics(x, x, labels, labels, ks=(6,))
    with pytest.raises(InputError, match="R@0"):
        rank_metrics(x, x, labels, labels, ks=(0,))


def test_embeddings_that_cannot_be_ranked_are_refused() -> None:
    x, labels = scene(0, 20)
    broken = x.clone()
    broken[3, 0] = float("nan")
    with pytest.raises(InputError, match="NaN"):
        rank_metrics(x, broken, labels, labels)
    with pytest.raises(InputError, match="no queries"):
        rank_metrics(x[:0], x, labels[:0], labels)
    with pytest.raises(InputError, match="depth 0"):
        average_precision_at(torch.ones(1, 3, dtype=torch.bool), depth=0)
