"""Feature scattering: the plan couples rows, the ascent leaves the model alone, and it trains both kinds of model."""

import math

import pytest
import torch
from small import CLASSES, DIM, Watched, encoder, figures, paired_batch, pgd, seeded
from torch import Tensor, nn

from robustmetric.defences.plain import Plain
from robustmetric.defences.scattering import FeatureScattering
from robustmetric.errors import InputError
from robustmetric.losses.base import MetricLoss
from robustmetric.losses.cross_entropy import CrossEntropy
from robustmetric.losses.mining import Hardest
from robustmetric.losses.proxy_anchor import ProxyAnchor
from robustmetric.losses.triplet import Triplet
from robustmetric.models.classifier import Classifier
from robustmetric.models.convnet import ConvNet
from robustmetric.models.wide_resnet import WideResNet
from robustmetric.numerics.transport import IPOT, IdentityMatching, Matching, Sinkhorn, UniformMatching, cost_matrix
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD
from robustmetric.types import Batch

ONE_STEP = PGD(Ball(0.1), steps=1, step_size=0.1)
# Angles of 0, 60 and 90 degrees.
ROWS = torch.tensor([[1.0, 0.0], [0.5, math.sqrt(3) / 2], [0.0, 1.0]])


def classifier(seed: int = 0) -> Classifier:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Classifier(ConvNet(side=8, kernel=3, widths=(4, 8), hidden=16, dim=12), CLASSES)


def scattering(matching: Matching, rows: Tensor, moved: Tensor, **settings: object) -> Tensor:
    """What is climbed at `moved`, of a model that gives its inputs as they are."""
    still = PGD(Ball(9.0, bounds=(-9.0, 9.0)), steps=0, step_size=0.0, random_start=False)
    attack = Watched(still)
    labels = torch.zeros(len(rows), dtype=torch.long)
    defence = FeatureScattering(Triplet(Hardest()), attack, matching, **settings)
    return defence._scattering(rows, moved, labels)


def test_identity_and_uniform_matching_by_hand() -> None:
    # Turned by 60 degrees each: every own pair has cosine 1/2.
    turned = torch.stack([ROWS[1], torch.tensor([-0.5, math.sqrt(3) / 2]), torch.tensor([-math.sqrt(3) / 2, 0.5])])
    torch.testing.assert_close(scattering(IdentityMatching(), ROWS, turned), torch.full((3,), 0.5 / 3))
    # Of one perturbed row at 60 degrees: costs 1/2, 0 and 1 - sqrt(3)/2, each with weight 1/9.
    uniform = scattering(UniformMatching(), ROWS, turned)
    assert uniform[0].item() == pytest.approx((0.5 + 0 + 1 - math.sqrt(3) / 2) / 9)


def test_a_plan_of_least_cost_matches_a_swapped_batch_with_itself() -> None:
    # Inputs that changed places have not moved as a set: transport sees 0 where their own pairs see a distance.
    swapped = ROWS[[2, 1, 0]]
    for matching in (Sinkhorn(), Sinkhorn(stable=True), IPOT(beta=0.1)):
        assert scattering(matching, ROWS, swapped).sum() < 1e-3
    assert scattering(IdentityMatching(), ROWS, swapped).sum().item() == pytest.approx(2 / 3)


def test_groups_are_problems_of_their_own_and_the_rest_is_another() -> None:
    rows, moved = torch.randn(2, 7, 5, generator=seeded())
    together = scattering(Sinkhorn(), rows, moved, group=3)
    alone = [scattering(Sinkhorn(), rows[s], moved[s]) for s in (slice(0, 3), slice(3, 6), slice(6, 7))]
    torch.testing.assert_close(together, torch.cat(alone))
    torch.testing.assert_close(scattering(Sinkhorn(), rows, moved, group=60), scattering(Sinkhorn(), rows, moved))


def test_the_value_is_the_transported_cost_and_its_gradient_goes_through_the_plan_or_not() -> None:
    rows, moved = torch.randn(2, 6, 5, generator=seeded(), dtype=torch.float64)
    gradients = []
    for detached in (False, True):
        x = moved.clone().requires_grad_()
        value = scattering(Sinkhorn(0.1), rows, x, detached=detached).sum()
        gradients.append(torch.autograd.grad(value, x)[0])
    x = moved.clone().requires_grad_()
    cost = cost_matrix(rows, x)
    plan = Sinkhorn(0.1)(cost)
    torch.testing.assert_close(value, (plan * cost).sum())
    torch.testing.assert_close(gradients[0], torch.autograd.grad((plan * cost).sum(), x, retain_graph=True)[0])
    torch.testing.assert_close(gradients[1], torch.autograd.grad((plan.detach() * cost).sum(), x)[0])
    assert (gradients[0] - gradients[1]).abs().max() > 1e-3


def test_the_batch_is_moved_within_the_ball_and_the_model_is_left_alone() -> None:
    model = Classifier(WideResNet(10, 1, channels=1), CLASSES)
    batch, attack = paired_batch(), Watched(ONE_STEP)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    defence = FeatureScattering(CrossEntropy(0.5), attack)
    with torch.no_grad():
        terms = defence(model, batch, seeded())
    moved = attack.moved[0]
    assert (moved - batch.inputs).abs().max() <= 0.1 + 1e-6 and 0 <= moved.min() <= moved.max() <= 1
    assert attack.after[0].sum() > attack.before[0].sum() + 1e-4
    assert model.training and all(p.grad is None and p.requires_grad for p in model.parameters())
    # The training pass alone moved the running statistics: once.
    after = model.state_dict()
    assert after["encoder.trunk.last.0.num_batches_tracked"] == 1
    again = Classifier(WideResNet(10, 1, channels=1), CLASSES)
    again.load_state_dict(before)
    torch.testing.assert_close(terms["scattered"], CrossEntropy(0.5)(again(moved), batch.labels))
    torch.testing.assert_close(again.state_dict(), after)


def test_labels_play_no_part_in_the_attack_and_other_rows_do() -> None:
    model, batch = classifier(), paired_batch()
    moved = []
    for labels, inputs in (
        (batch.labels, batch.inputs),
        (batch.labels.roll(3), batch.inputs),
        (batch.labels, torch.cat([batch.inputs[:10], batch.inputs[10:].flip(3)])),
    ):
        attack = Watched(PGD(Ball(0.3), steps=3, step_size=0.1))
        defence = FeatureScattering(CrossEntropy(), attack, UniformMatching())
        defence(model, Batch(inputs, labels, batch.index), seeded())
        moved.append(attack.moved[0])
    assert torch.equal(moved[0], moved[1])
    assert not torch.equal(moved[0][:10], moved[2][:10]), "the first half moves by what the second half is"


def test_figures_say_where_the_mass_of_the_plan_lies() -> None:
    defence = FeatureScattering(CrossEntropy(), ONE_STEP, IdentityMatching())
    defence(classifier(), paired_batch(), seeded())
    assert figures(defence) == pytest.approx({"own": 1, "own_class": 1})
    defence = FeatureScattering(CrossEntropy(), ONE_STEP, UniformMatching())
    batch = paired_batch()
    defence(classifier(), batch, seeded())
    # Twenty rows, four of each class.
    assert figures(defence) == pytest.approx({"own": 1 / 20, "own_class": 4 / 20})


def test_features_can_be_scattered_in_the_place_of_logits() -> None:
    model, batch = classifier(), paired_batch()
    attacks = {space: Watched(ONE_STEP) for space in ("logits", "features")}
    for space, attack in attacks.items():
        FeatureScattering(CrossEntropy(), attack, space=space)(model, batch, seeded())
    assert not torch.equal(attacks["logits"].moved[0], attacks["features"].moved[0])
    with torch.no_grad():
        cost = cost_matrix(model.features(batch.inputs), model.features(attacks["features"].moved[0]))
        torch.testing.assert_close(attacks["features"].after[0].sum(), (Sinkhorn()(cost) * cost).sum())
    with pytest.raises(InputError, match="Encoder has no features before a head"):
        FeatureScattering(CrossEntropy(), ONE_STEP, space="features")(encoder(), batch, seeded())


@pytest.mark.parametrize("loss", [Triplet(Hardest()), ProxyAnchor(CLASSES, DIM)])
def test_radius_zero_is_plain_training_of_a_metric_model(loss: MetricLoss) -> None:
    gradients = []
    for defence in (Plain(loss), FeatureScattering(loss, pgd(0.0))):
        model = encoder()
        sum(defence(model, paired_batch(), seeded()).values()).backward()
        gradients.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(gradients[0], gradients[1])


TRAINED: dict[str, tuple[nn.Module, MetricLoss]] = {
    "classifier": (classifier(), CrossEntropy(0.5)),
    "metric model": (encoder(), ProxyAnchor(CLASSES, DIM)),
}


@pytest.mark.parametrize("kind", TRAINED)
def test_it_trains_classifiers_and_metric_models(kind: str) -> None:
    model, loss = TRAINED[kind]
    batch = paired_batch(4)
    defence = FeatureScattering(loss, PGD(Ball(0.05), steps=1, step_size=0.05))
    optimiser = torch.optim.Adam([*model.parameters(), *defence.parameters()], lr=5e-3)
    values = []
    for step in range(80):
        optimiser.zero_grad()
        value = defence(model, batch, seeded(step))["scattered"]
        value.backward()
        optimiser.step()
        values.append(value.item())
    # Half a label of five cannot be learnt below its entropy: ln 2 + ln 4 / 2 = 1.386; it begins at ln 5 = 1.609.
    assert values[-1] < (1.45 if kind == "classifier" else 0.6 * values[0])


def test_a_batch_of_one_is_scattered_from_itself() -> None:
    batch = paired_batch()
    one = Batch(batch.inputs[:1], batch.labels[:1], batch.index[:1])
    for matching in (Sinkhorn(), IPOT(), IdentityMatching(), UniformMatching()):
        attack = Watched(ONE_STEP)
        terms = FeatureScattering(CrossEntropy(), attack, matching)(classifier(), one, seeded())
        assert terms["scattered"].isfinite() and attack.after[0] > 0


def test_an_empty_batch_is_refused_in_one_line() -> None:
    empty = Batch(torch.zeros(0, 1, 8, 8), torch.zeros(0, dtype=torch.long), torch.arange(0))
    for group in (None, 3):
        with pytest.raises(InputError, match="a batch of 0 inputs has nothing to scatter"):
            FeatureScattering(CrossEntropy(), ONE_STEP, group=group)(classifier(), empty, seeded())


def test_outputs_that_hold_nan_are_refused_and_a_plan_of_nan_shows_in_the_loss_that_training_looks_at() -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.flatten(1)[:, :CLASSES] * math.nan

    with pytest.raises(InputError, match="hold NaN"):
        FeatureScattering(CrossEntropy(), ONE_STEP)(Broken(), paired_batch(), seeded())

    class Lost:
        """As IPOT of costs with NaN, on a device where nobody looks."""

        def __call__(self, cost: Tensor, mu: Tensor | None = None, nu: Tensor | None = None) -> Tensor:
            return cost * math.nan

    terms = FeatureScattering(CrossEntropy(), ONE_STEP, Lost())(classifier(), paired_batch(), seeded())
    assert terms["scattered"].isnan(), "a step along NaN goes nowhere: without this it would train on noise, unseen"


def test_settings_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InputError, match="group 0 is no number of rows"):
        FeatureScattering(CrossEntropy(), ONE_STEP, group=0)
