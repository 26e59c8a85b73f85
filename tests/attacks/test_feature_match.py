"""Feature matching: what is drawn, what is climbed, and that one target that works is enough."""

import pytest
import torch
from torch import Tensor, nn

from robustmetric.attacks.base import run
from robustmetric.attacks.feature_match import Exposed, FeatureMatch
from robustmetric.attacks.in_turn import run_in_turn
from robustmetric.attacks.margin import WON
from robustmetric.errors import InputError
from robustmetric.models.classifier import Classifier
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD, evaluate, frozen
from robustmetric.types import Batch, Gallery


class Flat(nn.Module):
    """Features are the inputs."""

    dim = 2

    def forward(self, x: Tensor) -> Tensor:
        return x.clone()


def classifier() -> Classifier:
    """z = (x_0, x_1, -100)."""
    model = Classifier(Flat(), 3)
    with torch.no_grad():
        model.head.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]))
        model.head.bias.copy_(torch.tensor([0.0, 0.0, -100.0]))
    return model


def gallery(inputs: Tensor, labels: list[int]) -> Gallery:
    with frozen(Exposed(classifier())) as seen:
        return Gallery(evaluate(seen, inputs), torch.tensor(labels))


def batch(inputs: Tensor, labels: list[int]) -> Batch:
    return Batch(inputs, torch.tensor(labels), torch.full((len(labels),), -1))


POOL = torch.tensor([[0.9, 0.1], [0.8, 0.2], [0.1, 0.9], [0.2, 0.6]])


def test_an_exposed_classifier_says_its_logits_and_then_its_features() -> None:
    x = torch.tensor([[0.3, 0.4]])
    torch.testing.assert_close(Exposed(classifier())(x), torch.tensor([[0.3, 0.4, -100.0, 0.3, 0.4]]))


def test_targets_are_drawn_from_all_images_of_other_classes() -> None:
    images = batch(torch.tensor([[0.7, 0.1], [0.1, 0.7]]).repeat(50, 1), [0, 1] * 50)
    found = FeatureMatch(3).choose(
        Exposed(classifier())(images.inputs), images, gallery(POOL, [0, 0, 1, 1]), torch.Generator().manual_seed(0)
    )["index"]
    assert set(found[::2].tolist()) == {2, 3} and set(found[1::2].tolist()) == {0, 1}


def test_what_is_climbed_is_the_cosine_of_features_by_hand() -> None:
    # (0.6, 0.8) and (1, 0) have cosine 0.6, and the label 1 is first; named 0, the row is won.
    z = torch.tensor([[0.6, 0.8, -100.0, 0.6, 0.8]]).repeat(2, 1)
    targets = {"label": torch.tensor([1, 0]), "target": torch.tensor([[9.0, 9.0, 9.0, 1.0, 0.0]]).repeat(2, 1)}
    assert FeatureMatch(3).value(z, targets, gallery(POOL, [0, 0, 1, 1])).tolist() == pytest.approx([0.6, WON + 0.6])


def test_the_climb_turns_features_towards_the_target_until_the_label_is_lost() -> None:
    images = batch(torch.tensor([[0.6, 0.5], [1.0, 0.0]]), [0, 0])
    engine = PGD(Ball(0.1), steps=20, step_size=0.02, keep="best")
    outcome = run(
        FeatureMatch(3), engine, Exposed(classifier()), images, gallery(POOL, [0, 0, 1, 1]),
        torch.Generator().manual_seed(0), rounded=False,
    )  # fmt: skip
    # 0.6 - 0.1 < 0.5 + 0.1 is within the ball; 1.0 - 0.1 > 0.0 + 0.1 is not.
    assert outcome.scores["accuracy"].tolist() == [0.0, 100.0]


def test_one_target_of_many_is_enough() -> None:
    # Of ten targets nine lie in the image's own direction; only one in ten leads anywhere.
    pool = torch.cat([torch.tensor([[0.6, 0.5]]).repeat(9, 1), torch.tensor([[0.0, 1.0]])])
    images = batch(torch.tensor([[0.6, 0.5]]).repeat(8, 1), [0] * 8)
    engine = PGD(Ball(0.1), steps=10, step_size=0.02, random_start=False, keep="best")
    found = {}
    for targets in (1, 40):
        randomness = torch.Generator().manual_seed(1)
        model, items = Exposed(classifier()), gallery(pool, [1] * 10)
        found[targets] = run_in_turn(
            FeatureMatch(3, targets),
            lambda attack, some: run(attack, engine, model, some, items, randomness, rounded=False),  # noqa: B023
            images,
            "accuracy",
        ).scores["accuracy"]
    assert found[1].mean() > 50 and found[40].mean() == 0


def test_what_cannot_be_matched_is_refused() -> None:
    images = batch(POOL[:1], [0])
    with pytest.raises(InputError, match="one class only"):
        FeatureMatch(3).choose(Exposed(classifier())(POOL[:1]), images, gallery(POOL, [0, 0, 0, 0]), None)
    with pytest.raises(InputError, match="expected an Exposed classifier"):
        FeatureMatch(3).choose(classifier()(POOL[:1]), images, gallery(POOL, [0, 0, 1, 1]), None)
    with pytest.raises(InputError, match="does not show its features"):
        Exposed(nn.Linear(2, 3))
