"""A trial on the queries: who takes turns and in which precision, images of bytes, and what NaN comes to."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from robustmetric.attacks.embedding_shift import EmbeddingShift
from robustmetric.attacks.feature_match import FeatureMatch
from robustmetric.attacks.margin import Misclassify, MisclassifyTowards, is_wrong
from robustmetric.attacks.misretrieve import Misretrieve
from robustmetric.attacks.suite import Suite, Trial
from robustmetric.data.digits import Digits
from robustmetric.data.transforms import Identity
from robustmetric.errors import InputError
from robustmetric.jobs.arena import Arena
from robustmetric.jobs.ers import APART
from robustmetric.jobs.evaluate import measure_trial, run_suite
from robustmetric.jobs.workers import Workers
from robustmetric.models.classifier import Classifier
from robustmetric.models.convnet import ConvNet
from robustmetric.models.encoder import Encoder
from robustmetric.models.input_transforms import BitDepth, Transformed
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.fab import FAB
from robustmetric.perturb.pgd import PGD

CPU = torch.device("cpu")
STEP = PGD(Ball(0.06), steps=1, step_size=0.06, random_start=False)


def prepared(model: nn.Module, workers: Workers | None = None, *, fast: bool = False, batch_size: int = 16) -> Arena:
    return Arena.prepare(
        model,
        Digits(closed=True).load(),
        Identity(),
        workers or Workers(CPU),
        limit=40,
        batch_size=batch_size,
        fast=fast,
    )


def convnet() -> ConvNet:
    return ConvNet(side=8, kernel=3, widths=(4, 8), hidden=16, dim=8)


@pytest.fixture(scope="module")
def classifier() -> Classifier:
    """Trained a little."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Classifier(convnet(), 10)
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    split = Digits(closed=True).load().train
    for _ in range(80):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(split.inputs.float() / 255), split.labels).backward()
        optimiser.step()
    return model


@pytest.fixture(scope="module")
def encoder() -> Encoder:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Encoder(convnet())


class _Broken(PGD):
    """An engine that must not be asked."""

    def __call__(self, *_: object) -> Tensor:  # type: ignore[override]
        raise AssertionError("this was to be refused before anything runs")


BROKEN = _Broken(Ball(0.06), steps=1, step_size=0.06)


def test_turns_of_an_attack_that_does_not_say_who_is_right_are_refused_before_anything_runs(encoder: Encoder) -> None:
    first = Trial("first", Misretrieve(EmbeddingShift()), BROKEN)
    suite = Suite("s", [first, Trial("ES", EmbeddingShift(), BROKEN)], survivors={"all": ["first", "ES"]})
    words = "trial 'ES' gives ES:D, ES:R and not 'R@1', the score that survivors go by"
    with pytest.raises(InputError, match=words):
        next(run_suite(prepared(encoder), suite, 0, {}))
    with pytest.raises(InputError, match="the score that repeats go by"):
        next(run_suite(prepared(encoder), Suite("s", [Trial("ES", EmbeddingShift(), BROKEN, repeats=2)]), 0, {}))


@dataclass(frozen=True)
class _Two:
    """An attack with a second score."""

    role: ClassVar[str] = "query"

    def choose(self, clean: Tensor, batch: object, gallery: object, generator: object) -> Mapping[str, Tensor]:
        return Misclassify("margin").choose(clean, batch, gallery, generator)  # type: ignore[arg-type]

    def value(self, z: Tensor, targets: Mapping[str, Tensor], gallery: object) -> Tensor:
        return Misclassify("margin").value(z, targets, gallery)  # type: ignore[arg-type]

    def score(self, z: Tensor, targets: Mapping[str, Tensor], batch: object, gallery: object) -> dict[str, Tensor]:
        return {"other": torch.ones(len(z)), **Misclassify("margin").score(z, targets, batch, gallery)}  # type: ignore[arg-type]

    def for_classes(self, classes: int) -> "_Two":
        return self


def test_of_turns_the_score_in_common_is_kept_on_every_rank(classifier: Classifier) -> None:
    standing = torch.zeros(40, dtype=torch.bool)
    standing[3] = True
    for rank in (0, 1):
        arena = prepared(classifier, replace(Workers(CPU), rank=rank, ranks=2))
        record, values, _ = measure_trial(arena, Trial("two", _Two(), STEP), {}, 0, {}, standing=standing)  # type: ignore[arg-type]
        assert set(values) == set(record.scores) == {"accuracy"}, (
            "the other would be averaged over queries not attacked"
        )
    whole = measure_trial(prepared(classifier), Trial("two", _Two(), STEP), {}, 0, {})[0]  # type: ignore[arg-type]
    assert whole.scores["other"] == 1


def test_what_one_signed_step_beats_is_lost_to_it(classifier: Classifier) -> None:
    arena = prepared(classifier)
    images = (arena.queries.inputs[arena.rows].float() / 255).requires_grad_()
    labels = arena.queries.labels[arena.rows]
    logits = classifier.eval()(images)
    (slope,) = torch.autograd.grad(nn.functional.cross_entropy(logits, labels, reduction="sum"), images)
    moved = classifier((images + 0.06 * slope.sign()).clamp(0, 1))
    beaten = ~is_wrong(logits, labels) & is_wrong(moved, labels)
    trials = [Trial("step", Misclassify("cross_entropy"), STEP, rounded=False)]
    trials += [Trial("again", Misclassify("cross_entropy"), STEP, rounded=False)]
    found = {r.name: r for r, _ in run_suite(arena, Suite("s", trials, survivors={"all": ["step", "again"]}), 0, {})}
    assert found["all"].context["lost_first_to"] == {"step": int(beaten.sum()), "again": 0} and beaten.sum() > 5


def test_an_engine_with_a_goal_searches_among_bytes_also_outside_a_group(classifier: Classifier) -> None:
    trial = Trial("FAB", MisclassifyTowards("margin", targets=3), FAB(Ball(16 / 255), steps=20))
    arena = prepared(classifier)
    record, _, _ = measure_trial(arena, trial, {}, 0, {})
    among_floats, _, _ = measure_trial(arena, replace(trial, rounded=False), {}, 0, {})
    assert record.scores["accuracy"] <= among_floats.scores["accuracy"] + 10


class _Steep(nn.Module):
    """Ten logits that are finite, with a slope that is not: d sqrt(0)."""

    classes = 10

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, :10] + (x.flatten(1)[:, :10] * 0).sqrt()


def test_images_that_an_engine_left_as_nan_are_no_success() -> None:
    round_ball = replace(STEP, ball=Ball(0.5, norm="l2"))
    trial = Trial("step", Misclassify("cross_entropy"), round_ball, rounded=False)
    with pytest.raises(InputError, match="'step' left images that hold NaN, as the model's gradients do"):
        measure_trial(prepared(_Steep()), trial, {}, 0, {})


def test_turns_are_not_taken_in_bfloat16(classifier: Classifier) -> None:
    suite = Suite("s", [Trial("step", Misclassify("cross_entropy"), BROKEN)], survivors={"all": ["step"]})
    with pytest.raises(InputError, match=r"suite 's' states a worst case, and bfloat16 .*; run it without --fast"):
        next(run_suite(prepared(classifier, fast=True), suite, 0, {}))


def test_the_fast_view_is_compared_also_where_the_first_query_is_lost(classifier: Classifier) -> None:
    standing = torch.ones(40, dtype=torch.bool)
    standing[0] = False
    trial = Trial("step", Misclassify("cross_entropy"), STEP)
    record, _, _ = measure_trial(prepared(classifier, fast=True), trial, {}, 0, {}, standing=standing)
    assert set(record.context[APART]) == {"accuracy"}


class _Plain(nn.Module):
    """A classifier that shows no features."""

    classes = 10

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x.flatten(1))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (_Plain(), "_Plain does not show its features"),
        (Transformed(_Plain(), [BitDepth()]), "_Plain has no features before a head"),
    ],
)
def test_features_that_cannot_be_matched_are_refused_before_anything_runs(model: nn.Module, words: str) -> None:
    """Where nothing else is asked for; beside other attacks the match is left out (test_own_classifier.py)."""
    with pytest.raises(InputError, match=words):
        next(run_suite(prepared(model), Suite("s", [Trial("match", FeatureMatch(), BROKEN)]), 0, {}))
