"""CROWN: a network of two neurons by hand, exact for linear ones, sound for all, and silent about no layer."""

import math
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from robustmetric.certify.crown import Crown, largest_proved, output_bounds
from robustmetric.errors import InputError
from robustmetric.models.classifier import cnn, mlp
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD
from robustmetric.types import Batch


def linear(weight: list[list[float]], bias: list[float] | None = None) -> nn.Linear:
    layer = nn.Linear(len(weight[0]), len(weight), bias=bias is not None)
    layer.weight.data = torch.tensor(weight)
    if bias is not None:
        layer.bias.data = torch.tensor(bias)
    return layer


TWO = nn.Sequential(linear([[1.0, 1.0], [1.0, -1.0]]), nn.ReLU(), linear([[1.0, 1.0], [1.0, -1.0]]))
"""ReLU(x1 + x2) + ReLU(x1 - x2) and ReLU(x1 + x2) - ReLU(x1 - x2)."""
POINT = torch.tensor([[0.5, 0.0]])


def test_two_neurons_by_hand_in_linf() -> None:
    low, high = output_bounds(TWO, POINT, torch.tensor([1.0]), "linf")
    # Both sums lie in 0.5 -+ 2 = [-1.5, 2.5]: chord 0.625 z + 0.9375; line below of slope 1, since 2.5 > 1.5.
    # First output: below z1 + z2 = 2 x1 >= -1; above 0.625 * 2 x1 + 1.875 <= 1.25 * 1.5 + 1.875 = 3.75.
    # Second: below z1 - 0.625 z2 - 0.9375 = 0.375 x1 + 1.625 x2 - 0.9375 >= -0.1875 - 1.625 - 0.9375 = -2.75.
    torch.testing.assert_close(low, torch.tensor([[-1.0, -2.75]], dtype=torch.float64), atol=1e-8, rtol=0)
    torch.testing.assert_close(high, torch.tensor([[3.75, 2.75]], dtype=torch.float64), atol=1e-8, rtol=0)


def test_two_neurons_by_hand_in_l2() -> None:
    low, high = output_bounds(TWO, POINT, torch.tensor([1.0]), "l2")
    # Both sums lie in 0.5 -+ sqrt 2: slope of the chord u / (u - l), and its height -u l / (u - l) at 0.
    upper, lower = 0.5 + math.sqrt(2), 0.5 - math.sqrt(2)
    slope = upper / (upper - lower)
    # First output: 2 x1 >= 1 - 2; slope * 2 x1 - 2 slope l <= slope * (1 + 2 - 2 l).
    expected = -((1 - slope) * 0.5 + slope * lower - math.hypot(1 - slope, 1 + slope))
    torch.testing.assert_close(low, torch.tensor([[-1.0, -expected]], dtype=torch.float64), atol=1e-8, rtol=0)
    first = slope * (3 - 2 * lower)
    torch.testing.assert_close(high, torch.tensor([[first, expected]], dtype=torch.float64), atol=1e-8, rtol=0)


def test_a_slope_of_0_where_the_negative_part_is_longer_by_hand() -> None:
    # ReLU(x) around -0.5 within 1: [-1.5, 0.5], so the line below is 0; the chord 0.25 x + 0.375 is 0.5 at 0.5.
    low, high = output_bounds(nn.Sequential(linear([[1.0]]), nn.ReLU()), torch.tensor([[-0.5]]), torch.tensor([1.0]))
    assert low.item() == pytest.approx(0, abs=1e-8) and high.item() == pytest.approx(0.5, abs=1e-8)


def test_radius_of_two_neurons_by_hand() -> None:
    # Logits ReLU(x1 + x2) + ReLU(x1 - x2) and 0.2: below, 2 x1 >= 1 - 2 r stays above 0.2 while r < 0.4.
    model = nn.Sequential(TWO[0], nn.ReLU(), linear([[1.0, 1.0], [0.0, 0.0]], [0.0, 0.2]))
    for norm in ("l2", "linf"):
        radius = Crown(norm).certify(model, POINT, torch.tensor([0])).item()
        assert radius == pytest.approx(0.4, abs=1e-5) and radius <= 0.4


@pytest.mark.parametrize(("norm", "dual"), [("l2", 2), ("linf", 1)])
def test_radius_of_a_linear_network_is_exact(norm: Any, dual: int) -> None:
    torch.manual_seed(0)
    first, second = nn.Linear(6, 9), nn.Linear(9, 4)
    model, x = nn.Sequential(first, second), torch.randn(20, 6)
    labels = model(x).argmax(dim=1)
    weight = (second.weight @ first.weight).double()
    gaps = model(x).double().gather(1, labels[:, None]) - model(x).double()
    slopes = (weight[labels][:, None] - weight).norm(dim=2, p=dual)
    exact = (gaps / slopes).nan_to_num(nan=math.inf).amin(dim=1)
    radii = Crown(norm, steps=30).certify(model, x, labels)
    torch.testing.assert_close(radii, exact, atol=1e-5, rtol=1e-5)


def test_where_no_class_is_the_label_nothing_is_left_to_bound() -> None:
    torch.manual_seed(0)
    for kind in ("mlp", "cnn", "norms"):
        model, shape = networks(kind)
        x = torch.randn(3, *shape)
        with torch.no_grad():
            wrong = model.eval()(x).argmin(dim=1)
        assert (Crown(steps=2).certify(model, x, wrong) == 0).all()


def networks(kind: str) -> tuple[nn.Module, tuple[int, ...]]:
    if kind == "mlp":
        return mlp(5, 3, widths=(8, 7, 6)), (5,)
    if kind == "cnn":
        return cnn(2, 8, 3, widths=(3, 4), hidden=5), (2, 8, 8)
    norm = nn.BatchNorm2d(3)
    norm.running_mean.uniform_(-1, 1)
    norm.running_var.uniform_(0.5, 2)
    norm.weight.data.uniform_(-1, 1)
    features = nn.Sequential(nn.Conv2d(1, 3, 3, stride=2, padding=1, bias=False), norm, nn.ReLU(), nn.AvgPool2d(2))
    head = nn.Sequential(nn.Flatten(), nn.Dropout(), nn.Linear(12, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU())
    return nn.Sequential(features, nn.Identity(), head, nn.ReLU(), nn.Linear(6, 3)), (1, 8, 8)


@settings(max_examples=12, deadline=None)
@given(st.sampled_from(["mlp", "cnn", "norms"]), st.integers(0, 10**6), st.floats(0.0, 2.0), st.sampled_from([2, 0]))
def test_every_output_in_the_ball_lies_between_the_bounds(kind: str, seed: int, radius: float, order: int) -> None:
    torch.manual_seed(seed)
    model, shape = networks(kind)
    model = model.double().eval()
    x = torch.randn(3, *shape, dtype=torch.float64)
    low, high = output_bounds(model, x, torch.full((3,), radius, dtype=torch.float64), "l2" if order else "linf")
    offsets = torch.randn(100, 3, x[0].numel(), dtype=torch.float64)
    offsets = offsets / offsets.norm(dim=2, keepdim=True) if order else offsets.sign()
    with torch.no_grad():
        outputs = torch.stack([model(x + radius * offset.view_as(x)) for offset in offsets])
    assert (outputs >= low).all() and (outputs <= high).all()


def test_a_layer_as_a_matrix_and_as_a_convolution_give_the_same_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, shape = networks("norms")
    x = torch.randn(3, *shape)
    dense = output_bounds(model, x, torch.full((3,), 0.3))
    monkeypatch.setattr("robustmetric.certify.crown.DENSE", 0)
    for ours, theirs in zip(output_bounds(model, x, torch.full((3,), 0.3)), dense, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_at_radius_0_the_bounds_are_the_output() -> None:
    torch.manual_seed(0)
    for kind in ("mlp", "cnn", "norms"):
        model, shape = networks(kind)
        x = torch.randn(4, *shape)
        low, high = output_bounds(model, x, torch.zeros(4))
        with torch.no_grad():
            expected = model.double().eval()(x.double())
        torch.testing.assert_close(low, expected, atol=1e-6, rtol=0)
        torch.testing.assert_close(high, expected, atol=1e-6, rtol=0)


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_no_attack_succeeds_within_the_radius(norm: Any) -> None:
    torch.manual_seed(0)
    model, x = mlp(5, 3, widths=(16, 16)), torch.randn(8, 5)
    labels = model(x).argmax(dim=1)
    radii = Crown(norm).certify(model, x, labels)
    assert (radii > 0).all()
    changed = 0
    for row in range(len(x)):
        label = int(labels[row])

        def value(z: Tensor, label: int = label) -> Tensor:
            logits = model(z)
            others = torch.arange(3) != label
            return logits[:, others].amax(dim=1) - logits[:, label]

        for reach, succeeds in ((radii[row].item(), False), (3.0, True)):
            ball = Ball(reach, norm=norm, bounds=(-50.0, 50.0))
            moved = PGD(ball, steps=30, step_size=reach / 8, restarts=3, keep="best")(value, x[row : row + 1])
            with torch.no_grad():
                success = value(moved).item() > 0
            assert not success or succeeds
            changed += success
    assert changed >= 5


def test_radius_is_0_where_the_class_is_not_the_label() -> None:
    queries = Batch(POINT.repeat(2, 1), torch.tensor([0, 1]), torch.full((2,), -1))
    right, wrong = Crown().radius(TWO, queries).tolist()
    assert right > 0 and wrong == 0


def test_batches_and_rows_in_parts_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    model, x = cnn(1, 8, 3, widths=(3, 4), hidden=5), torch.rand(5, 1, 8, 8)
    labels = model(x).argmax(dim=1)
    whole = Crown().certify(model, x, labels)
    done: list[tuple[int, int]] = []
    monkeypatch.setattr("robustmetric.certify.crown.BUDGET", 1500)
    parts = Crown(batch=2).certify(model, x, labels, progress=lambda *at: done.append(at))
    torch.testing.assert_close(parts, whole, atol=1e-6, rtol=0)
    assert done == [(2, 5), (4, 5), (5, 5)] and (whole > 0).all()


def test_the_model_is_left_as_it_was() -> None:
    model, _ = networks("norms")
    Crown(steps=2).certify(model, torch.rand(2, 1, 8, 8), torch.tensor([0, 1]))
    assert model.training and all(p.dtype == torch.float32 and p.requires_grad for p in model.parameters())


def test_what_is_returned_was_itself_proved() -> None:
    edges, seen = torch.tensor([0.003, 0.7, 40.0, 1e9]), []

    def proves(rows: Tensor, radius: Tensor) -> Tensor:
        # Not monotone: a hole from 0.6 to 0.65, which halving falls into.
        seen.append((rows, radius, accepted := (radius <= edges[rows]) & ~((radius > 0.6) & (radius < 0.65))))
        return accepted

    radii = largest_proved(proves, 4, 20, torch.device("cpu"))
    accepted = {
        (int(row), float(r)) for rows, radius, good in seen for row, r in zip(rows[good], radius[good], strict=True)
    }
    assert all((row, float(radius)) in accepted for row, radius in enumerate(radii))
    assert radii[3] >= 2.0**19
    assert radii[:3].tolist() == pytest.approx([0.003, 0.6, 40.0], rel=1e-4)


@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (nn.Sigmoid(), "Sigmoid"),
        (nn.MaxPool1d(2), "MaxPool1d"),
        (nn.BatchNorm1d(4, track_running_stats=False), "BatchNorm1d"),
        (nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)), "ParametrizedLinear"),
    ],
)
def test_a_layer_without_bounds_is_named(layer: nn.Module, name: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Sequential(layer), nn.Linear(4, 2))
    with pytest.raises(InputError, match=f"layer {name} has no linear bounds"):
        Crown().certify(model, torch.zeros(1, 4), torch.tensor([0]))


def test_labels_and_outputs_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="expected 0 to 1"):
        Crown().certify(TWO, POINT, torch.tensor([2]))
    with pytest.raises(InputError, match="one logit per class"):
        Crown().certify(nn.Linear(2, 1), POINT, torch.tensor([0]))
    with pytest.raises(InputError, match="at least 1"):
        Crown(steps=0)
    with pytest.raises(InputError, match="NaN"):
        Crown().certify(TWO, POINT * math.nan, torch.tensor([0]))


def test_unknown_words_are_refused() -> None:
    # Set behind the constructor's back: in tests, the run-time type check would speak first.
    for name, word in (("norm", "l1"), ("backend", "auto")):
        certifier = Crown()
        object.__setattr__(certifier, name, word)
        with pytest.raises(InputError, match=f"{name} '{word}' is not known"):
            certifier.__post_init__()


def test_without_auto_lirpa_its_backend_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "auto_LiRPA", None)
    with pytest.raises(InputError, match="auto_LiRPA is not installed"):
        Crown(backend="auto_lirpa").certify(TWO, POINT, torch.tensor([0]))


class StandIn(nn.Module):
    """Answers as auto_LiRPA's BoundedModule does, for one linear layer: C (W x + b) -+ eps |C W| in the dual norm."""

    def __init__(self, model: nn.Linear, example: Tensor) -> None:
        super().__init__()
        self.model, self.shape = model, example.shape

    def compute_bounds(self, x: tuple[Any], C: Tensor, method: str) -> tuple[Tensor, Tensor]:
        inputs, ball = x[0]
        assert method == "CROWN" and inputs.shape == self.shape and C.shape == (1, 3, 3)
        value = (C @ self.model(inputs)[:, :, None])[:, :, 0]
        reach = ball["eps"] * (C @ self.model.weight).norm(dim=2, p={2.0: 2, math.inf: 1}[ball["norm"]])
        return value - reach, value + reach


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_auto_lirpa_is_asked_for_margins_of_each_input(norm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    package, perturbations = ModuleType("auto_LiRPA"), ModuleType("auto_LiRPA.perturbations")
    package.__dict__.update(BoundedModule=StandIn, BoundedTensor=lambda x, ball: (x, ball))
    perturbations.__dict__.update(PerturbationLpNorm=dict)
    monkeypatch.setitem(sys.modules, "auto_LiRPA", package)
    monkeypatch.setitem(sys.modules, "auto_LiRPA.perturbations", perturbations)
    torch.manual_seed(0)
    model, x = nn.Linear(4, 3), torch.randn(6, 4)
    labels = torch.tensor([0, 1, 2, 0, 1, 2])
    asked = Crown(norm, backend="auto_lirpa").certify(model, x, labels)
    torch.testing.assert_close(asked, Crown(norm).certify(model, x, labels), atol=1e-6, rtol=0)
    assert (asked == 0).any() and (asked > 0).any()


def test_auto_lirpa_itself_agrees() -> None:
    pytest.importorskip("auto_LiRPA")
    torch.manual_seed(0)
    model, x = mlp(5, 3, widths=(8, 8)), torch.randn(4, 5)
    labels = model(x).argmax(dim=1)
    asked = Crown(backend="auto_lirpa").certify(model, x, labels)
    torch.testing.assert_close(asked, Crown().certify(model, x, labels), atol=1e-3, rtol=1e-2)
