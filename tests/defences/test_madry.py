"""Adversarial training: the same triplets climb and descend, and radius 0 is plain training."""

import pytest
import torch
from small import CLASSES, DIM, LINE, Watched, encoder, figures, paired_batch, pgd, quarters, seeded
from torch import Tensor, nn

from robustmetric.defences.madry import Madry
from robustmetric.defences.plain import Plain
from robustmetric.errors import InputError
from robustmetric.losses.adapter import PytorchMetricLearning
from robustmetric.losses.base import MetricLoss
from robustmetric.losses.mining import Hardest
from robustmetric.losses.proxy_anchor import ProxyAnchor
from robustmetric.losses.triplet import Triplet
from robustmetric.types import Triplets


def mined(seed: int) -> tuple[Triplets, Tensor]:
    """The triplets that a defence with this generator mines, and the plain loss on them."""
    model, batch = encoder().eval(), paired_batch()
    triplets = Triplet().mine(model(batch.inputs).detach(), batch.labels, seeded(seed))
    return triplets, Triplet()(model(batch.inputs), batch.labels, triplets)


def test_radius_zero_is_the_plain_loss_of_the_same_triplets() -> None:
    terms = Madry(Triplet(), pgd(0.0))(encoder(), paired_batch(), seeded(3))
    assert list(terms) == ["adversarial"]
    torch.testing.assert_close(terms["adversarial"], mined(3)[1])


@pytest.mark.parametrize("loss", [Triplet(Hardest()), ProxyAnchor(CLASSES, DIM)])
def test_radius_zero_is_plain_training_also_in_its_gradient(loss: MetricLoss) -> None:
    gradients = []
    for defence in (Plain(loss), Madry(loss, pgd(0.0))):
        model = encoder()
        sum(defence(model, paired_batch(), seeded()).values()).backward()
        gradients.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(gradients[0], gradients[1])


def test_perturbed_batch_has_a_larger_loss_in_every_row_the_same() -> None:
    attack = Watched(pgd(0.2))
    model, batch, loss = encoder(), paired_batch(), Triplet()
    terms = Madry(loss, attack)(model, batch, seeded(3))
    assert attack.before[0].shape == (len(batch),) and len(attack.before[0].unique()) == 1
    torch.testing.assert_close(attack.before[0][0], mined(3)[1].detach())
    assert attack.after[0][0] > attack.before[0][0] + 0.05
    # What is minimised is the value that was climbed, at the point reached.
    torch.testing.assert_close(terms["adversarial"].detach(), attack.after[0][0])
    assert (attack.moved[0] - batch.inputs).abs().max() <= 0.2 + 1e-6


def test_clean_share_weighs_the_two_losses() -> None:
    batch, attack = paired_batch(), pgd(0.2)
    pure = Madry(Triplet(), attack)(encoder(), batch, seeded(3))["adversarial"]
    mixed = Madry(Triplet(), attack, clean_share=0.25)(encoder(), batch, seeded(3))
    assert list(mixed) == ["adversarial", "clean"]
    torch.testing.assert_close(mixed["adversarial"], 0.75 * pure)
    torch.testing.assert_close(mixed["clean"], 0.25 * mined(3)[1])


def test_clean_share_of_one_is_plain_training() -> None:
    terms = Madry(Triplet(), pgd(0.2), clean_share=1.0)(encoder(), paired_batch(), seeded(3))
    assert terms["adversarial"].item() == 0
    torch.testing.assert_close(terms["clean"], mined(3)[1])


def test_a_loss_that_mines_nothing_costs_no_clean_pass() -> None:
    seen: list[int] = []
    for loss, objective in (
        (ProxyAnchor(CLASSES, DIM), "label"),
        (ProxyAnchor(CLASSES, DIM), "shift"),
        (Triplet(), "label"),
    ):
        model, calls = encoder(), []
        model.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        Madry(loss, pgd(0.1, steps=3), objective=objective)(model, paired_batch(), seeded())
        seen.append(len(calls))
    assert seen == [3 + 1, 1 + 3 + 1, 1 + 3 + 1], "steps and update; where it is needed, a look at clean inputs first"


@pytest.mark.parametrize("share", [-0.1, 1.1])
def test_what_is_no_share_is_refused(share: float) -> None:
    with pytest.raises(InputError, match="clean_share"):
        Madry(Triplet(), pgd(0.2), clean_share=share)


def test_gradients_reach_every_parameter_and_the_proxies_after_the_climb_only() -> None:
    model, loss = encoder(), ProxyAnchor(CLASSES, DIM)
    defence = Madry(loss, pgd(0.1))
    terms = defence(model, paired_batch(), seeded())
    assert all(p.grad is None and p.requires_grad for p in (*model.parameters(), *defence.parameters()))
    assert model.training and loss.training
    sum(terms.values()).backward()
    for parameter in (*model.parameters(), *defence.parameters()):
        assert parameter.grad is not None and parameter.grad.abs().sum() > 0


def test_two_triplets_on_a_line_and_their_hardness_before_and_after() -> None:
    attack = quarters(steps=1)
    defence = Madry(Triplet(Hardest(), margin=3.0), attack)
    terms = defence(nn.Identity(), LINE, seeded())
    # (0, 1, 3) and (3, 3.5, 1) share images. dL/dx: 0: -1 + 1; 1: +1 of its own pair, +1 as a negative left of 3;
    # 3: -1 as a negative of 0, -1 - 1 as an anchor; 3.5: +1. So 0, 1.25, 2.75, 3.75.
    assert attack.moved[0].flatten().tolist() == [0, 1.25, 2.75, 3.75]
    # 1.25 - 2.75 and 1 - 1.5.
    assert figures(defence) == {"before": -1.75, "after": -1}
    assert terms["adversarial"].item() == 2


LOSSES = {
    "proxy anchor": lambda: ProxyAnchor(CLASSES, DIM),
    "multi-similarity": lambda: PytorchMetricLearning("MultiSimilarityLoss"),
    "contrastive": lambda: PytorchMetricLearning("ContrastiveLoss"),
}


@pytest.mark.parametrize("name", LOSSES)
def test_other_losses_are_raised_by_the_attack_and_fall_in_training(name: str) -> None:
    model, batch, attack = encoder(), paired_batch(4), Watched(pgd(0.05, steps=3))
    defence = Madry(LOSSES[name](), attack, clean_share=0.5)
    optimiser = torch.optim.Adam([*model.parameters(), *defence.parameters()], lr=5e-3)
    losses = []
    for step in range(60):
        optimiser.zero_grad()
        loss = torch.stack(list(defence(model, batch, seeded(step)).values())).sum()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert attack.after[0][0] > attack.before[0][0] and attack.after[-1][0] > attack.before[-1][0]
    assert losses[-1] < 0.8 * losses[0], losses
    assert defence.measures == {}


def test_triplets_of_the_librarys_miners_are_chosen_once_too() -> None:
    attack, model, batch = Watched(pgd(0.2)), encoder(), paired_batch()
    loss = PytorchMetricLearning("TripletMarginLoss", miner="TripletMarginMiner", miner_arguments={"margin": 0.1})
    defence = Madry(loss, attack)
    terms = defence(model, batch, seeded())
    triplets = loss.mine(model(batch.inputs).detach(), batch.labels)
    assert triplets is not None and len(triplets.anchor) > 0
    torch.testing.assert_close(terms["adversarial"], loss(model(attack.moved[0]), batch.labels, triplets))
    assert attack.after[0][0] > attack.before[0][0] and figures(defence)["after"] > figures(defence)["before"]


def test_a_miner_that_finds_nothing_or_pairs_leaves_nothing_to_note() -> None:
    nothing = PytorchMetricLearning("TripletMarginLoss", miner="TripletMarginMiner", miner_arguments={"margin": -9.0})
    pairs = PytorchMetricLearning("MultiSimilarityLoss", miner="MultiSimilarityMiner")
    for loss in (nothing, pairs):
        defence = Madry(loss, pgd(0.1))
        terms = defence(encoder(), paired_batch(), seeded())
        assert terms["adversarial"].isfinite() and defence.measures == {}
    assert pairs.mine(encoder()(paired_batch().inputs), paired_batch().labels) is None
