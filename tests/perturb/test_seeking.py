"""Sought in TF32, judged in fp32: what is won by rounding alone is sought again, and flags are as they were."""

import itertools
from threading import Lock

import pytest
import torch
from torch import Tensor, nn

from robustmetric.attacks.base import run
from robustmetric.attacks.margin import Misclassify
from robustmetric.errors import InputError
from robustmetric.models.classifier import Classifier
from robustmetric.models.wide_resnet import WideResNet
from robustmetric.numerics.precision import products
from robustmetric.perturb import seeking
from robustmetric.perturb.active import Rowwise
from robustmetric.perturb.apgd import APGD
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.engine import Engine
from robustmetric.perturb.expectation import Expectation
from robustmetric.perturb.gradient_free import Square
from robustmetric.perturb.hard_label import RayS
from robustmetric.perturb.pgd import PGD
from robustmetric.perturb.seeking import quick_view, seek
from robustmetric.types import Batch, Gallery

BALL = Ball(0.25)
CLEAN = torch.full((4, 1, 2, 2), 0.5)
NEEDED = torch.tensor([0.1, 0.1, 0.2, 0.9])
"""How far each row's mean must rise; the last one's cannot."""


def rise(x: Tensor, needed: Tensor) -> Tensor:
    return x.flatten(1).mean(dim=1) - 0.5 - needed


EXACT = Rowwise(rise, (NEEDED,))


def states() -> tuple[bool, str]:
    return torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()


@pytest.mark.parametrize("engine", [Square(BALL, 200, goal=0.0), RayS(BALL, 200), APGD(BALL, 20, goal=0.0)])
def test_a_row_that_only_rounding_won_is_sought_again(engine: Engine) -> None:
    # To the second row the quick value is too kind: wherever a search begins it has won, and it sees one pixel only.
    def one_pixel(x: Tensor, needed: Tensor, row: Tensor) -> Tensor:
        return torch.where(row == 1, x[:, 0, 0, 0] + 1, rise(x, needed))

    quick = Rowwise(one_pixel, (NEEDED, torch.arange(4)))
    alone = engine(quick, CLEAN, torch.Generator().manual_seed(0))
    assert EXACT(alone)[1] < 0 <= quick(alone)[1]
    found = seek(engine, EXACT, quick, CLEAN, torch.Generator().manual_seed(0))
    assert (EXACT(found) >= 0).tolist() == [True, True, True, False]
    others = torch.tensor([0, 2, 3])
    assert torch.equal(found[others], alone[others]), "those that are won, or lost by both, are not sought again"


@pytest.mark.parametrize("inner", [Square(BALL, 200, goal=0.0), APGD(BALL, 20, goal=0.0)])
def test_an_engine_that_climbs_a_mean_is_judged_by_it(inner: Engine) -> None:
    """Draws 2 above and 2 below the value, in turn: their mean is the value, and no single one tells who has won."""
    signs = itertools.cycle((2.0, -2.0))

    def one_pixel(x: Tensor, needed: Tensor, row: Tensor) -> Tensor:
        return torch.where(row == 1, x[:, 0, 0, 0] + 1, rise(x, needed)) + next(signs)

    quick = Rowwise(one_pixel, (NEEDED, torch.arange(4)))
    exact = Rowwise(lambda x, needed: rise(x, needed) + next(signs), (NEEDED,))
    engine = Expectation(BALL, inner, draws=2)
    alone = engine(quick, CLEAN, torch.Generator().manual_seed(0))
    assert (EXACT(alone) >= 0).tolist() == [True, False, True, False]
    found = seek(engine, exact, quick, CLEAN, torch.Generator().manual_seed(0))
    assert (EXACT(found) >= 0).tolist() == [True, True, True, False]
    others = torch.tensor([0, 2, 3])
    assert torch.equal(found[others], alone[others]), "those that are won, or lost by both, are not sought again"


def test_without_a_quick_value_or_a_goal_the_engine_runs_once() -> None:
    asked: list[int] = []

    def counted(x: Tensor, needed: Tensor) -> Tensor:
        asked.append(len(x))
        return rise(x, needed)

    engine = PGD(BALL, steps=3, step_size=0.1)
    seek(engine, Rowwise(counted, (NEEDED,)), None, CLEAN, None)
    assert len(asked) == 3
    seek(engine, EXACT, Rowwise(counted, (NEEDED,)), CLEAN, None)
    assert len(asked) == 6


def test_tf32_is_on_while_the_quick_value_is_climbed_and_there_alone() -> None:
    seen: dict[str, set[tuple[bool, str]]] = {"quick": set(), "exact": set()}

    def noted(name: str, too_kind: float) -> Rowwise:
        def value(x: Tensor, needed: Tensor) -> Tensor:
            seen[name].add(states())
            return rise(x, needed - too_kind)

        return Rowwise(value, (NEEDED,))

    with products(tf32=False):
        before = states()
        seek(Square(BALL, 50, goal=0.0), noted("exact", 0.0), noted("quick", 0.5), CLEAN, None)
        assert states() == before == (False, "highest")
    assert seen == {"quick": {(True, "high")}, "exact": {before}}


def test_flags_are_restored_when_a_climb_fails() -> None:
    before = states()
    with pytest.raises(ZeroDivisionError), products(tf32=not before[0]):
        raise ZeroDivisionError
    assert states() == before


@pytest.fixture
def classifier() -> Classifier:
    torch.manual_seed(0)
    model = Classifier(WideResNet(depth=10, width=1), 4, (0.5,) * 3, (0.5,) * 3)
    for layer in model.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.running_mean.normal_(std=0.1)  # type: ignore[union-attr]
    return model.eval()


def test_an_attack_sought_so_is_scored_on_the_model_itself(classifier: Classifier) -> None:
    inputs = torch.rand(6, 3, 16, 16, generator=torch.Generator().manual_seed(1))
    batch = Batch(inputs, classifier(inputs).argmax(dim=1), torch.full((6,), -1))
    nothing = Gallery(torch.zeros(0, 4), batch.labels[:0])
    engine = PGD(Ball(2 / 255), steps=4, step_size=1 / 255)
    found = [
        run(Misclassify("margin"), engine, classifier, batch, nothing, torch.Generator().manual_seed(2), search=search)
        for search in ("fp32", "tf32")
    ]
    torch.testing.assert_close(found[0].inputs, found[1].inputs, atol=1 / 255, rtol=0)
    assert torch.equal(found[1].embeddings, classifier(found[1].inputs))


def test_the_quick_view_is_another_than_the_one_that_scores(classifier: Classifier) -> None:
    assert quick_view(classifier, classifier, "fp32") is None
    quick, x = quick_view(classifier, classifier, "tf32"), torch.rand(2, 3, 16, 16)
    assert quick is not None and quick is not classifier
    torch.testing.assert_close(quick(x), classifier(x), atol=1e-4, rtol=1e-4)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(12, 3))
    assert quick_view(plain, plain, "tf32") is plain, "nothing to fold: climbed on as it is"


def test_a_model_that_cannot_be_copied_is_refused_a_search_in_bfloat16() -> None:
    model = nn.Linear(2, 2)
    model.lock = Lock()  # type: ignore[assignment]  # whatever is no part of a network
    with pytest.raises(InputError, match=r"Linear cannot be copied .*; expected --search fp32"):
        quick_view(model, model, "bf16")


def test_a_full_memory_is_not_taken_for_the_fault_of_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: nn.Module) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(seeking, "fast_view", full)
    with pytest.raises(torch.OutOfMemoryError):
        quick_view(nn.Linear(2, 2), nn.Identity(), "bf16")
