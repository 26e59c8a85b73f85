"""ACT: positive and negative are pulled together, and the anchor stays clean."""

import inspect
from typing import Any

import pytest
import torch
from small import Watched, encoder, paired_batch, pgd, seeded
from torch import nn

from robustmetric.defences.act import AntiCollapseTriplet
from robustmetric.defences.plain import Plain
from robustmetric.errors import InputError
from robustmetric.losses.mining import DistanceWeighted, Hardest, Miner, Random, SemiHard, SoftHard
from robustmetric.losses.triplet import Triplet, triplet_values
from robustmetric.numerics.distances import paired
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD
from robustmetric.types import Batch

MINERS = [Random(), SemiHard(), SoftHard(), DistanceWeighted(), Hardest()]
# With the nearest negatives: (0, 1, 3) and (3, 3.5, 1).
LINE = Batch(torch.tensor([[0.0], [1.0], [3.0], [3.5]]), torch.tensor([0, 0, 1, 1]), torch.arange(4))


def quarters(steps: int) -> Watched:
    """Steps of 0.25, which floats hold exactly, from a clean start."""
    return Watched(PGD(Ball(9.0, bounds=(-9.0, 9.0)), steps=steps, step_size=0.25, random_start=False))


def still_start(steps: int = 6) -> Watched:
    """Fine steps: an encoder that has learnt nothing keeps all images within 0.1 of one another."""
    return Watched(PGD(Ball(0.008), steps=steps, step_size=0.002, random_start=False))


def test_two_triplets_on_a_line() -> None:
    attack = quarters(steps=2)
    defence = AntiCollapseTriplet(Hardest(), attack, margin=1.0)
    terms = defence(nn.Identity(), LINE, seeded())
    # p and n each come 0.5 nearer to one another: 1, 3 -> 1.5, 2.5 and 3.5, 1 -> 3, 1.5.
    assert attack.moved[0].flatten().tolist() == [1.5, 3, 2.5, 1.5]
    # From the clean anchors: 1.5 - 2.5 + 1 = 0, and 0 - 1.5 + 1 < 0.
    assert list(terms) == ["triplet"] and terms["triplet"].item() == 0
    # Before: 1 - 3, 0.5 - 2; after: 1.5 - 2.5, 0 - 1.5.
    figures = {name: figure.item() for name, figure in defence.measures.items()}
    assert figures == {"before": -1.75, "after": -1.25}
    assert AntiCollapseTriplet(Hardest(), attack, margin=2.0)(nn.Identity(), LINE, seeded())["triplet"].item() == 0.75


def test_points_that_have_met_stay_together() -> None:
    attack = quarters(steps=20)
    AntiCollapseTriplet(Hardest(), attack)(nn.Identity(), LINE, seeded())
    # Distances of 2 and 2.5 in steps of 0.5.
    assert attack.moved[0].flatten().tolist() == [2, 2.25, 2, 2.25]


def test_only_positives_and_negatives_move_and_come_nearer() -> None:
    attack, model, batch = still_start(), encoder(), paired_batch(4)
    terms = AntiCollapseTriplet(SoftHard(), attack)(model, batch, seeded(2))
    with torch.no_grad():
        triplets = SoftHard()(model(batch.inputs), batch.labels, seeded(2))
    anchor, positive, negative = triplets.of(batch.inputs)
    moved = attack.moved[0]
    assert len(moved) == 2 * len(anchor)
    assert (moved - torch.cat([positive, negative])).abs().max() <= 0.008 + 1e-6
    assert moved.min() >= 0 and moved.max() <= 1
    with torch.no_grad():
        before, after = paired(model(positive), model(negative)), paired(*model(moved).chunk(2))
        at_random = paired(*model(attack.ball.random_point(torch.cat([positive, negative]), seeded(1))).chunk(2))
    torch.testing.assert_close(attack.before[0], -before)
    assert (after < before).all() and (after < at_random).all()
    p, n = model(moved).chunk(2)
    torch.testing.assert_close(terms["triplet"], triplet_values(model(anchor), p, n, 0.2).mean())


@pytest.mark.parametrize("miner", MINERS)
def test_radius_zero_and_a_share_of_one_are_plain_training_also_in_its_gradient(miner: Miner) -> None:
    gradients = []
    for defence in (
        Plain(Triplet(miner)),
        AntiCollapseTriplet(miner, pgd(0.0)),
        AntiCollapseTriplet(miner, pgd(0.3), plain_share=1.0),
    ):
        model = encoder()
        sum(defence(model, paired_batch(), seeded(1)).values()).backward()
        gradients.append([p.grad for p in model.parameters()])
    torch.testing.assert_close(gradients[1], gradients[0])
    torch.testing.assert_close(gradients[2], gradients[0])


def plain_batches(share: float, seeds: range) -> list[bool]:
    """Whether the batch of each seed was trained on as it is."""
    model, batch = encoder(), paired_batch(1)
    plain = []
    for seed in seeds:
        attack = still_start(steps=1)
        AntiCollapseTriplet(Random(), attack, plain_share=share)(model, batch, seeded(seed))
        plain.append(not attack.moved)
    return plain


def test_the_share_of_plain_batches_follows_the_generator() -> None:
    assert not any(plain_batches(0.0, range(10))) and all(plain_batches(1.0, range(10)))
    half = plain_batches(0.5, range(200))
    # Three standard deviations of 200 coins are 21.
    assert 79 <= sum(half) <= 121
    assert half[:20] == plain_batches(0.5, range(20))
    assert sum(plain_batches(0.1, range(200))) < 40


def test_loss_is_the_mean_of_the_means_of_uneven_groups() -> None:
    # Three pairs and two, no step taken. Margin 3 on hardness -2, -1.5, 1 - 1.5 | 1 - 4, 2 - 3.
    points = torch.tensor([0.0, 1.0, 3.0, 3.5, 5.0, 6.0, 0.0, 1.0, 4.0, 6.0])[:, None]
    batch = Batch(points, torch.tensor([0, 0, 1, 1, 0, 0, 0, 0, 1, 1]), torch.arange(10))
    terms = AntiCollapseTriplet(Hardest(), quarters(steps=0), margin=3.0, groups=2)(nn.Identity(), batch, seeded())
    assert terms["triplet"].item() == pytest.approx(((1 + 1.5 + 2.5) / 3 + (0 + 2) / 2) / 2)


def test_a_last_batch_with_fewer_pairs_than_groups_is_trained_on() -> None:
    terms = AntiCollapseTriplet(Random(), quarters(steps=2), groups=3)(nn.Identity(), LINE, seeded())
    assert terms["triplet"].isfinite()


def test_gradients_reach_every_parameter_after_the_climb_only() -> None:
    model = encoder()
    terms = AntiCollapseTriplet(SoftHard(), pgd(0.1))(model, paired_batch(), seeded())
    assert all(p.grad is None and p.requires_grad for p in model.parameters()) and model.training
    terms["triplet"].backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


def test_the_best_iterate_is_kept_for_each_pair_of_images() -> None:
    # Steps of 0.3 each from a distance of 2: 1.4, 0.8, 0.2, 0.4, 0.2, 0.4; and of 2.5: 1.9, 1.3, 0.7, 0.1, 0.5, 0.1.
    distances = {}
    for keep in ("last", "best"):
        ball = Ball(9.0, bounds=(-9.0, 9.0))
        attack = Watched(PGD(ball, steps=5, step_size=0.3, random_start=False, keep=keep))
        AntiCollapseTriplet(Hardest(), attack)(nn.Identity(), LINE, seeded())
        p, n = attack.moved[0].chunk(2)
        distances[keep] = (p - n).abs().flatten().tolist()
    assert distances["last"] == pytest.approx([0.2, 0.5], abs=1e-5)
    assert distances["best"] == pytest.approx([0.2, 0.1], abs=1e-5)


@pytest.mark.parametrize("keep", ["last", "best"])
def test_restarts_bring_each_pair_no_less_near(keep: str) -> None:
    after = []
    for restarts in (1, 4):
        attack = Watched(PGD(Ball(0.05), steps=2, step_size=0.02, restarts=restarts, keep=keep))
        terms = AntiCollapseTriplet(Hardest(), attack)(encoder(), paired_batch(4), seeded(1))
        assert terms["triplet"].isfinite() and len(attack.moved[0]) == 2 * len(attack.after[0])
        after.append(attack.after[0])
    # The first start is the same: the others can only improve on it.
    assert (after[1] >= after[0] - 1e-6).all() and (after[1] > after[0] + 1e-5).any()


def build(**changes: Any) -> None:
    """Unwrapped: the type checker that runs in tests only would refuse the value first."""
    kind = AntiCollapseTriplet
    inspect.unwrap(kind.__init__)(kind.__new__(kind), **{"source": Random(), "attack": pgd(0.1), **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": "softhard"}, "source 'softhard' chooses no triplets"),
        ({"attack": "pgd"}, r"attack 'pgd' is a word; write \{name: pgd\}"),
        ({"attack": Triplet()}, "attack: Triplet is not of the kind Engine"),
        ({"groups": 0}, "groups 0, margin 0.2; expected groups >= 1"),
        ({"margin": -0.2}, "groups 1, margin -0.2; expected groups >= 1, margin >= 0"),
        ({"plain_share": -0.1}, "plain_share -0.1 is not a share of the batches; expected 0 to 1"),
        ({"plain_share": 1.1}, "plain_share 1.1 is not a share of the batches; expected 0 to 1"),
    ],
)
def test_parts_of_another_kind_are_refused_when_it_is_built(changes: dict[str, Any], message: str) -> None:
    build()
    with pytest.raises(InputError, match=message):
        build(**changes)
