"""Float16 for attacks: gradients keep direction and size where it has no numbers so small, and overflow is noticed."""

import warnings
from threading import Lock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from robustmetric.attacks.base import run
from robustmetric.attacks.margin import Misclassify
from robustmetric.errors import InputError
from robustmetric.models.classifier import Classifier
from robustmetric.models.wide_resnet import WideResNet
from robustmetric.perturb import cast
from robustmetric.perturb.active import Rowwise
from robustmetric.perturb.apgd import APGD
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.engine import Engine
from robustmetric.perturb.fast import FastView
from robustmetric.perturb.gradient import value_and_gradient
from robustmetric.perturb.half import HalfView
from robustmetric.perturb.pgd import PGD
from robustmetric.perturb.seeking import quick_view, seek
from robustmetric.types import Batch, Embed, Gallery

X = torch.rand(8, 3, 12, 12, generator=torch.Generator().manual_seed(1))
NOTHING = Gallery(torch.zeros(0, 4), torch.zeros(0, dtype=torch.long))


class Times(nn.Module):
    """Multiplies by a number."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


@pytest.fixture(scope="module")
def smooth() -> Classifier:
    """Without kinks: where a ReLU's input is near 0, ten bits may put it on the other side."""
    torch.manual_seed(0)
    trunk = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.Softplus(),
        nn.Conv2d(8, 16, 3, stride=2, padding=1), nn.Softplus(), nn.Flatten(), nn.Linear(576, 24),
    )  # fmt: skip
    return Classifier(trunk, 4, (0.5,) * 3, (0.25,) * 3, shape=(3, 12, 12)).eval().requires_grad_(False)


@pytest.fixture(scope="module")
def trained() -> Classifier:
    torch.manual_seed(0)
    model = Classifier(WideResNet(depth=10, width=1), 4, (0.5,) * 3, (0.25,) * 3)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    kinds = torch.rand(4, 3, 12, 12)
    for _ in range(20):
        labels = torch.randint(4, (32,))
        loss = F.cross_entropy(model(0.5 * kinds[labels] + 0.5 * torch.rand(32, 3, 12, 12)), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model.eval().requires_grad_(False)


def gradient(embed: Embed, labels: Tensor, sureness: float = 1.0) -> Tensor:
    """Of cross entropy; in float64, since squares of the smallest ones have no place in fp32."""
    _, found = value_and_gradient(lambda x: F.cross_entropy(sureness * embed(x), labels, reduction="none"), X)
    return found.double().flatten(1)


def likeness(one: Tensor, other: Tensor) -> Tensor:
    """Cosines, also of tiny vectors, for which torch's own has a floor."""
    return (F.normalize(one, eps=1e-300) * F.normalize(other, eps=1e-300)).sum(dim=1)


def test_gradients_are_those_of_fp32_in_direction_and_size(smooth: Classifier) -> None:
    labels = smooth(X).argmax(dim=1)
    exact, half = gradient(smooth, labels), gradient(HalfView(smooth, smooth), labels)
    assert likeness(exact, half).min() > 0.9999
    assert (exact.sign() == half.sign()).double().mean() > 0.99
    torch.testing.assert_close(half.norm(dim=1), exact.norm(dim=1), rtol=0.01, atol=0)


def test_gradients_of_a_trained_network_with_kinks_are_near(trained: Classifier) -> None:
    labels = trained(X).argmax(dim=1)
    exact, half = gradient(trained, labels), gradient(HalfView(trained, trained), labels)
    cosines = likeness(exact, half)
    assert cosines.mean() > 0.998 and cosines.min() > 0.99
    assert (exact.sign() == half.sign()).double().mean() > 0.98
    assert half.norm() / exact.norm() == pytest.approx(1, abs=0.01)


@pytest.mark.parametrize("name", ["smooth", "trained"])
def test_a_model_that_is_sure_keeps_its_gradient(
    name: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    model: Classifier = request.getfixturevalue(name)
    labels, top = model(X).argmax(dim=1), model(X).topk(2).values
    # The surest row: a margin of 28, and so e^-28 = 7e-13 for the class behind.
    sureness = 28 / float((top[:, 0] - top[:, 1]).max())
    exact, half = gradient(model, labels, sureness), gradient(HalfView(model, model), labels, sureness)
    is_tiny = exact.abs().amax(dim=1) < 1e-9
    assert is_tiny.any() and exact.any(dim=1).all()
    assert likeness(exact, half)[is_tiny].min() > 0.99
    # Logits times the sureness are in the exponent, so that their last bits show.
    torch.testing.assert_close(half.norm(dim=1)[is_tiny], exact.norm(dim=1)[is_tiny], rtol=0.1, atol=0)
    monkeypatch.setattr(cast, "_Leave", Unscaled)
    monkeypatch.setattr(cast, "_Enter", Unscaled)
    assert not gradient(FastView(model, dtype=torch.float16), labels, sureness)[is_tiny].any(), "without the scale"


class Unscaled:
    @staticmethod
    def apply(x: Tensor, _: object) -> Tensor:
        return x


def test_rows_without_a_gradient_have_none(smooth: Classifier) -> None:
    weights = torch.tensor([1.0, 0.0] * 4)
    view = HalfView(smooth, smooth)
    _, found = value_and_gradient(lambda x: weights * view(x)[:, 0], X)
    assert found.flatten(1).any(dim=1).tolist() == [True, False] * 4
    assert not view.has_failed(X)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_so_and_in_its_row(smooth: Classifier, bad: float) -> None:
    weights = torch.ones(8)
    weights[3] = bad
    _, found = value_and_gradient(lambda x: weights * HalfView(smooth, smooth)(x)[:, 0], X)
    assert found.flatten(1).isfinite().all(dim=1).tolist() == [row != 3 for row in range(8)]
    assert found[3].isnan().all()


def test_passes_that_are_interleaved_are_as_if_alone(smooth: Classifier) -> None:
    view = FastView(smooth, dtype=torch.float16)
    first, second = X[:4].clone().requires_grad_(), X[4:].clone().requires_grad_()
    alone = [torch.autograd.grad(1e-9 * view(first)[:, 0].sum(), first)[0]]
    alone += [torch.autograd.grad(1e9 * view(first)[:, 1].sum(), first)[0]]
    alone += [torch.autograd.grad(view(second)[:, 2].sum(), second)[0]]
    z, other = view(first), view(second)
    found = [torch.autograd.grad(1e-9 * z[:, 0].sum(), first, retain_graph=True)[0]]
    last = torch.autograd.grad(other[:, 2].sum(), second)[0]
    found += [torch.autograd.grad(1e9 * z[:, 1].sum(), first)[0], last]
    for one, same in zip(found, alone, strict=True):
        assert torch.equal(one, same)
    # Both in one backward pass.
    a, b = view(first), view(second)
    both = torch.autograd.grad(1e-9 * a[:, 0].sum() + b[:, 2].sum(), (first, second))
    assert torch.equal(both[0], alone[0]) and torch.equal(both[1], alone[2])


def overflowing(factor: float) -> nn.Module:
    """Linear, through a hidden layer `factor` times as large."""
    torch.manual_seed(0)
    layers = (
        nn.Flatten(),
        nn.Linear(432, 8),
        Times(factor),
        nn.ReLU(),
        Times(1 / factor),
        nn.Linear(8, 4),
    )
    return nn.Sequential(*layers).eval().requires_grad_(False)


def climb(model: nn.Module, engine: Engine) -> tuple[Tensor, Tensor]:
    """By float16 with its guard, and by fp32 alone."""
    labels = model(X).argmax(dim=1)

    def value(embed: Embed) -> Rowwise:
        return Rowwise(lambda x, labels: F.cross_entropy(embed(x), labels, reduction="none"), (labels,))

    half = HalfView(model, model)
    return seek(engine, value(model), value(half), X, None, tf32=False, half=half), engine(value(model), X)


ENGINE = PGD(Ball(8 / 255), steps=3, step_size=4 / 255, random_start=False)


@pytest.mark.parametrize("engine", [ENGINE, APGD(Ball(8 / 255), 5, goal=0.0)])
def test_a_model_that_overflows_is_refused_in_one_line(engine: Engine) -> None:
    with pytest.raises(InputError, match=r"^Sequential overflows in float16; expected --search tf32 or fp32$"):
        climb(overflowing(1e6), engine)


def test_a_model_that_fails_in_float16_is_refused_in_one_line() -> None:
    model = nn.Sequential(nn.Flatten(), nn.Linear(432, 4), nn.Hardtanh(-1e9, 1e9)).eval().requires_grad_(False)
    with pytest.raises(InputError, match=r"^Sequential fails in float16 \(.*\); expected --search tf32 or fp32$"):
        climb(model, ENGINE)


def test_an_overflow_that_is_hidden_again_is_refused() -> None:
    class Normalised(nn.Module):
        """x / |x|, by a sum of squares: above 65504 it is infinite, and x / inf is 0."""

        def forward(self, x: Tensor) -> Tensor:
            return x / (10000 * x).square().mean(dim=1, keepdim=True).sqrt()

    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(432, 8), Normalised(), Times(10000)).eval().requires_grad_(False)
    assert not FastView(model, dtype=torch.float16)(X).any()
    with pytest.raises(InputError, match="Sequential overflows in float16"):
        climb(model, ENGINE)


class Steep(torch.autograd.Function):
    """x, with a gradient times `factor`."""

    @staticmethod
    def forward(ctx: object, x: Tensor, factor: float) -> Tensor:
        ctx.factor = factor  # type: ignore[attr-defined]
        return x.view_as(x)

    @staticmethod
    def backward(ctx: object, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0] * ctx.factor, None  # type: ignore[attr-defined]


class Slope(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return Steep.apply(x, self.factor)


@pytest.mark.parametrize("factor", [1e7, 1e-9])
@pytest.mark.parametrize("engine", [ENGINE, APGD(Ball(8 / 255), 5, goal=9.0)])
def test_a_gradient_that_overflows_or_vanishes_inside_makes_the_climb_one_of_fp32(
    factor: float, engine: Engine
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(432, 8), Slope(factor), nn.Linear(8, 4)).eval().requires_grad_(False)
    with pytest.warns(UserWarning, match="float16 overflowed, or lost a gradient, in a climb that is now made in fp32"):
        found, exact = climb(model, engine)
    assert torch.equal(found, exact) and not torch.equal(found, X)


def test_a_climb_that_went_well_is_left_as_it_is(smooth: Classifier) -> None:
    found, exact = climb(smooth, ENGINE)
    torch.testing.assert_close(found, exact, atol=16 / 255, rtol=0)
    assert (found == exact).float().mean() > 0.95


def test_a_model_that_draws_at_random_is_compared_by_the_same_draws(smooth: Classifier) -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = smooth

        def forward(self, x: Tensor) -> Tensor:
            return self.model(x + torch.randn_like(x))

    noisy = Noisy().eval()
    torch.manual_seed(0)
    follows = torch.rand(1)
    torch.manual_seed(0)
    assert not HalfView(noisy, noisy).has_failed(X)
    assert torch.equal(torch.rand(1), follows), "and none is used up"


def test_an_attack_sought_in_float16_is_scored_on_the_model_itself(trained: Classifier) -> None:
    batch = Batch(X, trained(X).argmax(dim=1), torch.full((8,), -1))
    attack, engine = Misclassify("margin"), PGD(Ball(2 / 255), steps=4, step_size=1 / 255)
    exact, half = (
        run(attack, engine, trained, batch, NOTHING, torch.Generator().manual_seed(2), search=search)
        for search in ("fp32", "fp16")
    )
    assert (exact.inputs == half.inputs).float().mean() > 0.9
    assert torch.equal(half.embeddings, trained(half.inputs))


def test_the_model_and_its_copies_in_other_precisions_are_left_alone(smooth: Classifier) -> None:
    before = {name: tensor.clone() for name, tensor in smooth.state_dict().items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        view = quick_view(smooth, smooth, "fp16")
    assert isinstance(view, HalfView) and view(X).dtype == torch.float32
    assert all(torch.equal(before[name], tensor) for name, tensor in smooth.state_dict().items())
    wide = FastView(smooth, dtype=torch.float32)
    x = X.clone().requires_grad_()
    (once,) = torch.autograd.grad(wide(x)[:, 0].sum(), x, create_graph=True)
    assert once.requires_grad, "of fp32 there are second derivatives, as before"


def test_a_model_that_cannot_be_copied_is_refused() -> None:
    model = nn.Linear(2, 2)
    model.lock = Lock()  # type: ignore[assignment]  # whatever is no part of a network
    with pytest.raises(InputError, match=r"Linear cannot be copied .*; expected --search fp32"):
        quick_view(model, model, "fp16")
