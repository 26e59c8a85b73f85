"""Proxy-Anchor against the formula written out, and against pytorch-metric-learning."""

import math

import pytest
import torch
from pytorch_metric_learning.losses import ProxyAnchorLoss
from torch.nn import functional

from robustmetric.errors import InputError
from robustmetric.losses.proxy_anchor import ProxyAnchor, log_one_plus_sum


def rows(count: int, dim: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def direct(z: torch.Tensor, labels: torch.Tensor, proxies: torch.Tensor, margin: float, scale: float) -> float:
    """The sum as the paper writes it, with Python loops."""
    cosine = (functional.normalize(z, dim=1) @ functional.normalize(proxies, dim=1).T).tolist()
    pull, push, present = 0.0, 0.0, set(labels.tolist())
    for c in range(len(proxies)):
        own = [cosine[i][c] for i, y in enumerate(labels.tolist()) if y == c]
        other = [cosine[i][c] for i, y in enumerate(labels.tolist()) if y != c]
        pull += math.log(1 + sum(math.exp(-scale * (s - margin)) for s in own))
        push += math.log(1 + sum(math.exp(scale * (s + margin)) for s in other))
    return pull / len(present) + push / len(proxies)


def test_one_sample_and_two_proxies_by_hand() -> None:
    loss = ProxyAnchor(classes=2, dim=2, margin=0.5, scale=2.0)
    loss.proxies.data = torch.eye(2)
    # Sample (3, 4) of class 0: cosines 0.6 and 0.8. Class 1 is absent, so |P+| = 1 and |P| = 2:
    # log(1 + e^{-2 (0.6 - 0.5)}) / 1 + log(1 + e^{2 (0.8 + 0.5)}) / 2
    expected = math.log(1 + math.exp(-0.2)) + math.log(1 + math.exp(2.6)) / 2
    assert loss(torch.tensor([[3.0, 4.0]]), torch.tensor([0])).item() == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("labels", [[0, 1, 2, 0, 1, 2], [0, 0, 2, 2, 0, 2], [1, 1, 1, 1, 1, 1]])
def test_equals_the_formula_with_classes_absent(labels: list[int]) -> None:
    loss = ProxyAnchor(classes=3, dim=4).double()
    z, y = rows(6, 4), torch.tensor(labels)
    assert loss(z, y).item() == pytest.approx(direct(z, y, loss.proxies.detach(), 0.1, 32.0), rel=1e-10)


def test_equals_pytorch_metric_learning_with_its_gradient() -> None:
    ours, theirs = ProxyAnchor(classes=7, dim=8), ProxyAnchorLoss(num_classes=7, embedding_size=8, margin=0.1, alpha=32)
    theirs.proxies.data = ours.proxies.detach().clone()
    labels = torch.tensor([0, 0, 1, 1, 5, 5, 2, 2])
    z, w = (rows(8, 8, seed=3).float().requires_grad_() for _ in range(2))
    value, other = ours(z, labels), theirs(w, labels)
    torch.testing.assert_close(value, other)
    value.backward()
    other.backward()
    torch.testing.assert_close(z.grad, w.grad)
    torch.testing.assert_close(ours.proxies.grad, theirs.proxies.grad)


def test_gradient_is_that_of_the_value() -> None:
    loss = ProxyAnchor(classes=3, dim=4, scale=4.0).double()
    labels = torch.tensor([0, 0, 1, 1])

    def value(z: torch.Tensor, proxies: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(loss, {"proxies": proxies}, (z, labels))

    assert torch.autograd.gradcheck(value, (rows(4, 4).requires_grad_(), loss.proxies.detach().requires_grad_()))


def test_length_of_embeddings_plays_no_part() -> None:
    loss, z, labels = ProxyAnchor(classes=3, dim=4), rows(4, 4).float(), torch.tensor([0, 0, 1, 1])
    torch.testing.assert_close(loss(z, labels), loss(17 * z, labels))


def test_no_overflow_where_the_plain_formula_overflows() -> None:
    assert log_one_plus_sum(torch.tensor([[200.0]]), torch.tensor([[True]])).item() == pytest.approx(200)
    assert log_one_plus_sum(torch.tensor([[200.0]]), torch.tensor([[False]])).item() == 0
    # log(1 + e^0 + e^0) = log 3
    assert log_one_plus_sum(torch.zeros(2, 1), torch.ones(2, 1).bool()).item() == pytest.approx(math.log(3))


def test_half_precision_is_computed_in_fp32() -> None:
    loss, z, labels = ProxyAnchor(classes=3, dim=4), rows(4, 4).bfloat16(), torch.tensor([0, 0, 1, 1])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = loss(z, labels)
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, loss(z.float(), labels))


def test_proxies_start_kaiming_fan_out_from_the_seed() -> None:
    first, again, other = (ProxyAnchor(classes=50, dim=200, seed=seed).proxies for seed in (0, 0, 1))
    assert torch.equal(first, again) and not torch.equal(first, other)
    # fan_out of a (classes, dim) weight is classes, the gain of ReLU is sqrt 2.
    assert first.std().item() == pytest.approx(math.sqrt(2 / 50), rel=0.03)


def test_every_proxy_and_sample_receives_a_gradient() -> None:
    loss, z = ProxyAnchor(classes=4, dim=4), rows(4, 4).float().requires_grad_()
    loss(z, torch.tensor([0, 0, 1, 1])).backward()
    assert (loss.proxies.grad.norm(dim=1) > 0).all() and (z.grad.norm(dim=1) > 0).all()


@pytest.mark.parametrize("labels", [[0, 3], [-1, 0]])
def test_labels_without_a_proxy_are_refused(labels: list[int]) -> None:
    with pytest.raises(InputError, match="3 proxies; expected 0 to 2"):
        ProxyAnchor(classes=3, dim=4)(rows(2, 4).float(), torch.tensor(labels))


def test_embeddings_of_another_size_than_the_proxies_are_refused() -> None:
    loss = ProxyAnchor(classes=2, dim=3)
    with pytest.raises(InputError, match=r"embeddings of size 4 do not fit proxies of size 3; set the loss's dim: 4"):
        loss(torch.ones(2, 4), torch.tensor([0, 1]))


@pytest.mark.parametrize("sizes", [(0, 4), (3, 0)])
def test_empty_sizes_are_refused(sizes: tuple[int, int]) -> None:
    with pytest.raises(InputError, match="at least 1"):
        ProxyAnchor(*sizes)


def test_one_class_in_one_dimension_is_allowed() -> None:
    assert ProxyAnchor(classes=1, dim=1)(torch.ones(2, 1), torch.tensor([0, 0])).isfinite()


def test_proxies_start_from_seed_zero_unless_told_otherwise() -> None:
    default, zero, one = ProxyAnchor(3, 4), ProxyAnchor(3, 4, seed=0), ProxyAnchor(3, 4, seed=1)
    assert torch.equal(default.proxies, zero.proxies) and not torch.equal(default.proxies, one.proxies)


def test_proxies_that_are_not_kept_are_neither_positives_nor_negatives_by_hand() -> None:
    loss = ProxyAnchor(classes=3, dim=2, margin=0.0, scale=1.0)
    loss.proxies.data = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    z, label = torch.tensor([[1.0, 0.0]]), torch.tensor([0])
    # Cosines 1, 0, -1 of class 0: pull log(1 + e^-1); push log(1 + e^0) and log(1 + e^-1), over three proxies.
    pull = math.log(1 + math.exp(-1))
    assert loss(z, label).item() == pytest.approx(pull + (math.log(2) + pull) / 3)
    loss.keep(torch.tensor([0, 1]))
    assert loss(z, label).item() == pytest.approx(pull + math.log(2) / 2), "the third is not there, |P| = 2"
    loss(z, label).backward()
    assert (loss.proxies.grad.norm(dim=1) > 0).tolist() == [False, True, False], "the first is where it is pulled to"
    with pytest.raises(InputError, match="label 2 is of no class whose proxy is kept; expected one of 2 of 3"):
        loss(z, torch.tensor([2]))
    assert "kept" not in loss.state_dict()


@pytest.mark.parametrize("kept", [[0, 2, 5], [5, 0, 2], [2, 5]])
def test_kept_proxies_are_a_loss_of_their_own(kept: list[int]) -> None:
    loss, own = ProxyAnchor(classes=7, dim=4).double(), ProxyAnchor(classes=len(kept), dim=4).double()
    own.proxies.data = loss.proxies.data[kept]
    loss.keep(torch.tensor(kept))
    places = torch.tensor([0, 1, 1, 0])
    z = rows(4, 4)
    values = loss(z, torch.tensor(kept)[places]), own(z, places)
    torch.testing.assert_close(*values)
    for value in values:
        value.backward()
    torch.testing.assert_close(loss.proxies.grad[kept], own.proxies.grad)
    assert loss.proxies.grad.norm(dim=1).count_nonzero() == len(kept)
