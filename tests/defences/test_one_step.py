"""Supervised one-step training: it is one step of Madry, and from a clean start it leaks labels."""

import torch
from small import CLASSES, Watched, paired_batch, seeded
from torch import Tensor, nn
from torch.nn import functional

from robustmetric.data.digits import Digits
from robustmetric.defences.madry import Madry
from robustmetric.defences.one_step import one_step
from robustmetric.losses.cross_entropy import CrossEntropy
from robustmetric.models.classifier import Classifier, mlp
from robustmetric.models.convnet import ConvNet
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD, frozen
from robustmetric.types import Batch


def classifier() -> Classifier:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Classifier(ConvNet(side=8, kernel=3, widths=(4, 8), hidden=16, dim=12), CLASSES)


def test_it_is_one_step_of_the_radius_up_the_loss() -> None:
    batch, ball = paired_batch(), Ball(0.1)
    ours = one_step(CrossEntropy(), ball)(classifier(), batch, seeded(3))
    theirs = Madry(CrossEntropy(), PGD(ball, steps=1, step_size=0.1))(classifier(), batch, seeded(3))
    torch.testing.assert_close(ours, theirs)
    shorter = one_step(CrossEntropy(), ball, step_size=0.05, random_start=False)(classifier(), batch, seeded(3))
    model = classifier()
    x = batch.inputs.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(CrossEntropy()(model(x), batch.labels), x)
    moved = (batch.inputs + 0.05 * gradient.sign()).clamp(0, 1)
    torch.testing.assert_close(shorter["adversarial"], CrossEntropy()(model(moved), batch.labels))


def test_another_loss_may_be_climbed_than_the_one_trained_on() -> None:
    # Logits (x, -x, 0) at x = 0.5, label 0. Hard labels: the slope of -x + log(e^x + e^-x + 1) is negative everywhere.
    # Smoothing 0.6 gives 0.4, 0.3, 0.3: the slope of -0.1 x + log(...) is -0.1 + (e^x - e^-x) / (...) = 0.22.
    class Line(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.cat([x, -x, torch.zeros_like(x)], dim=1)

    batch = Batch(torch.tensor([[0.5]]), torch.tensor([0]), torch.arange(1))
    reached = []
    for climbed in (None, CrossEntropy()):
        attack = Watched(PGD(Ball(0.25, bounds=(-2.0, 2.0)), steps=1, step_size=0.25, random_start=False))
        terms = Madry(CrossEntropy(0.6), attack, climbed=climbed)(Line(), batch, seeded())
        reached.append(round(attack.moved[0].item(), 6))
        torch.testing.assert_close(terms["adversarial"], CrossEntropy(0.6)(Line()(attack.moved[0]), batch.labels))
    assert reached == [0.75, 0.25]


def test_from_a_clean_start_labels_leak_and_more_steps_show_that_nothing_was_gained() -> None:
    data, ball = Digits(closed=True).load(), Ball(0.5)
    inputs, labels = data.train.inputs.float() / 255, data.train.labels
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Classifier(mlp(64, 32, (256,)), 10, shape=[1, 8, 8])
    defence, random = one_step(CrossEntropy(), ball, random_start=False), seeded()
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(300):
        rows = torch.randperm(len(labels), generator=random)[:60]
        optimiser.zero_grad()
        defence(model, Batch(inputs[rows], labels[rows], rows), random)["adversarial"].backward()
        optimiser.step()
    tested, truth = data.queries.inputs.float() / 255, data.queries.labels
    with frozen(model) as embed:
        once = PGD(ball, steps=1, step_size=0.5, random_start=False)
        often = PGD(ball, steps=20, step_size=0.05, random_start=False)

        def loss(x: Tensor) -> Tensor:
            return functional.cross_entropy(embed(x), truth, reduction="none")

        accuracy = {
            name: 100 * (embed(x).argmax(dim=1) == truth).float().mean().item()
            for name, x in (("clean", tested), ("own", once(loss, tested)), ("PGD", often(loss, tested)))
        }
    assert accuracy["own"] > accuracy["clean"] + 10 and accuracy["PGD"] < 10, accuracy
