"""pytorch-metric-learning's losses behind our interface give the library's own numbers."""

import sys

import pytest
import torch
from pytorch_metric_learning import losses, miners
from torch.nn import functional

from robustmetric.errors import InputError
from robustmetric.losses.adapter import PytorchMetricLearning
from robustmetric.losses.mining import Random

LABELS = torch.arange(4).repeat_interleave(2)


def embeddings() -> torch.Tensor:
    rows = torch.randn(8, 6, generator=torch.Generator().manual_seed(0))
    return functional.normalize(rows, dim=1).requires_grad_()


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("MultiSimilarityLoss", {"alpha": 2, "beta": 50, "base": 0.5}),
        ("ContrastiveLoss", {"pos_margin": 0.0, "neg_margin": 1.5}),
        ("MarginLoss", {"margin": 0.3, "beta": 1.0}),
    ],
)
def test_gives_the_librarys_value_and_a_gradient(name: str, arguments: dict) -> None:
    z = embeddings()
    value = PytorchMetricLearning(name, **arguments)(z, LABELS)
    torch.testing.assert_close(value, getattr(losses, name)(**arguments)(z, LABELS))
    value.backward()
    assert z.grad is not None and z.grad.isfinite().all() and z.grad.count_nonzero() > 0


def test_proxies_are_parameters_of_the_loss() -> None:
    loss = PytorchMetricLearning("ProxyAnchorLoss", num_classes=4, embedding_size=6)
    loss(embeddings(), LABELS).backward()
    (proxies,) = loss.parameters()
    assert proxies.shape == (4, 6) and proxies.grad.count_nonzero() > 0


def test_miner_chooses_the_pairs() -> None:
    z = embeddings()
    mined = PytorchMetricLearning(
        "TripletMarginLoss", miner="TripletMarginMiner", miner_arguments={"type_of_triplets": "hard"}
    )
    expected = losses.TripletMarginLoss()(z, LABELS, miners.TripletMarginMiner(type_of_triplets="hard")(z, LABELS))
    torch.testing.assert_close(mined(z, LABELS), expected)
    assert mined(z, LABELS).item() != PytorchMetricLearning("TripletMarginLoss")(z, LABELS).item()


def test_given_triplets_replace_the_miner() -> None:
    z = embeddings()
    triplets = Random()(z, LABELS, torch.Generator().manual_seed(0))
    adapted = PytorchMetricLearning("TripletMarginLoss", miner="TripletMarginMiner", margin=1.0)
    expected = losses.TripletMarginLoss(margin=1.0)(z, LABELS, (triplets.anchor, triplets.positive, triplets.negative))
    torch.testing.assert_close(adapted(z, LABELS, triplets), expected)


def test_mines_nothing_for_a_defence() -> None:
    assert PytorchMetricLearning("ContrastiveLoss").mine(embeddings(), LABELS) is None


def test_half_precision_is_computed_in_fp32() -> None:
    assert PytorchMetricLearning("MultiSimilarityLoss")(embeddings().bfloat16(), LABELS).dtype == torch.float32


def test_unknown_names_say_the_nearest() -> None:
    with pytest.raises(InputError, match="did you mean 'MultiSimilarityLoss'"):
        PytorchMetricLearning("MultiSimilarityLos")
    with pytest.raises(InputError, match="did you mean 'TripletMarginMiner'"):
        PytorchMetricLearning("ContrastiveLoss", miner="TripletMarginMine")


def test_refused_settings_are_named() -> None:
    with pytest.raises(InputError, match=r"ContrastiveLoss refused its settings.*neg_marginn"):
        PytorchMetricLearning("ContrastiveLoss", neg_marginn=1.0)


def test_a_missing_extra_says_how_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pytorch_metric_learning", None)
    with pytest.raises(InputError, match=r"pip install 'robustmetric\[losses\]'"):
        PytorchMetricLearning("ContrastiveLoss")
