"""Random-targeted training: wrong classes drawn alike, the climb towards them, and the true label in training."""

import pytest
import torch
from small import CLASSES, Watched, paired_batch, pgd, seeded
from torch import nn
from torch.nn import functional

from robustmetric.defences.random_target import RandomTarget, wrong_labels
from robustmetric.errors import InputError
from robustmetric.losses.cross_entropy import CrossEntropy
from robustmetric.losses.triplet import Triplet
from robustmetric.models.classifier import Classifier
from robustmetric.models.convnet import ConvNet
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD
from robustmetric.types import Batch


def classifier() -> Classifier:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Classifier(ConvNet(side=8, kernel=3, widths=(4, 8), hidden=16, dim=12), CLASSES)


def test_every_wrong_class_is_drawn_as_often_and_the_true_one_never() -> None:
    labels = torch.arange(4).repeat(3000)
    drawn = wrong_labels(labels, 4, seeded())
    counts = torch.zeros(4, 4).index_put_((labels, drawn), torch.ones(12000), accumulate=True)
    assert (counts.diagonal() == 0).all()
    # 1000 each; the deviation of a count of 3000 draws at 1/3 is 26.
    assert ((counts + 1000 * torch.eye(4) - 1000).abs() < 4 * 26).all()
    assert torch.equal(wrong_labels(labels, 4, seeded()), drawn)
    assert torch.equal(wrong_labels(torch.tensor([0, 1]), 2, seeded()), torch.tensor([1, 0]))


def test_one_step_on_a_line_by_hand() -> None:
    # Logits (x, -x): towards class 1 the input falls, towards class 0 it rises; of two classes the wrong one is known.
    class Line(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([x, -x], dim=1)

    attack = Watched(PGD(Ball(0.25, bounds=(-1.0, 1.0)), steps=1, step_size=0.25, random_start=False))
    batch = Batch(torch.tensor([[0.5], [0.5]]), torch.tensor([0, 1]), torch.arange(2))
    terms = RandomTarget(CrossEntropy(), attack)(Line(), batch, seeded())
    assert attack.moved[0].flatten().tolist() == [0.25, 0.75]
    # Trained on the true labels: log(1 + e^-0.5) of (0.25, -0.25), log(1 + e^1.5) of (0.75, -0.75).
    expected = (torch.tensor([-0.5, 1.5]).exp() + 1).log().mean()
    torch.testing.assert_close(terms["adversarial"], expected)


def test_the_target_becomes_more_likely_and_the_loss_is_that_of_the_true_label() -> None:
    model, batch, attack = classifier(), paired_batch(), Watched(pgd(0.2))
    terms = RandomTarget(CrossEntropy(0.5), attack)(model, batch, seeded(3))
    assert (attack.after[0] > attack.before[0]).all()
    target = wrong_labels(batch.labels, CLASSES, seeded(3))
    reached = -functional.cross_entropy(model(attack.moved[0]), target, reduction="none")
    torch.testing.assert_close(attack.after[0], reached.detach())
    torch.testing.assert_close(terms["adversarial"], CrossEntropy(0.5)(model(attack.moved[0]), batch.labels))
    assert (attack.moved[0] - batch.inputs).abs().max() <= 0.2 + 1e-6


def test_a_model_that_says_its_classes_is_not_asked_for_them() -> None:
    model, asked = classifier(), []
    model.register_forward_hook(lambda module, inputs, output: asked.append(len(output)))
    batch = paired_batch()
    RandomTarget(CrossEntropy(), pgd(0.2))(model, batch, seeded())
    assert set(asked) == {len(batch)}


def test_losses_that_are_none_of_a_classifier_are_refused() -> None:
    with pytest.raises(InputError, match="loss: Triplet is not of the kind CrossEntropy"):
        RandomTarget.__init__.__wrapped__(RandomTarget.__new__(RandomTarget), Triplet(), pgd(0.1))
