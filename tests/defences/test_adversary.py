"""What the adversary inside a defence climbs: three objectives, each of them for one model and for an ensemble."""

import math
from typing import get_args

import pytest
import torch
from small import CLASSES, DIM, Watched, encoder, paired_batch, pgd, seeded
from torch import Tensor

from robustmetric.attacks.objectives import clean_proxies
from robustmetric.defences.adversary import Adversary, Objective
from robustmetric.defences.base import Defence, require_each, require_word
from robustmetric.defences.eat import EnsembleAdversarial
from robustmetric.defences.iat import InterpolatedAdversarial
from robustmetric.defences.madry import Madry
from robustmetric.defences.trades import Trades
from robustmetric.errors import InputError
from robustmetric.losses.base import MetricLoss
from robustmetric.losses.proxy_anchor import ProxyAnchor
from robustmetric.models.ensemble import Ensemble
from robustmetric.numerics.distances import paired
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD, evaluate, frozen, value_and_gradient
from robustmetric.types import Batch, Value

OBJECTIVES: tuple[Objective, ...] = get_args(Objective)


def climbed(objective: Objective, members: int, engine: PGD) -> tuple[Watched, Tensor]:
    """What was climbed in the digits, and the inputs it ended at."""
    attack, batch = Watched(engine), paired_batch()
    model = Ensemble([encoder(seed) for seed in range(members)])
    losses = [ProxyAnchor(CLASSES, DIM, seed=seed) for seed in range(members)]
    with frozen(model) as embed:
        adversary = Adversary(attack, objective)
        origin = adversary.origin(evaluate(embed, batch.inputs), seeded(9))
        return attack, adversary(embed, batch, origin, losses, [None] * members, seeded(1))


@pytest.mark.parametrize("members", [1, 3])
@pytest.mark.parametrize("objective", OBJECTIVES)
def test_every_objective_rises_from_a_clean_start_inside_the_ball(objective: Objective, members: int) -> None:
    engine = PGD(Ball(0.2), steps=5, step_size=0.05, random_start=False)
    attack, moved = climbed(objective, members, engine)
    distance = (moved - paired_batch().inputs).abs()
    # From a clean start a distance has no gradient: an attack that is stuck there would return the images themselves.
    assert (distance.flatten(1).amax(dim=1) > 0.1).all() and distance.max() <= 0.2 + 1e-6
    assert (attack.after[0] > attack.before[0] + 0.01).all()


def test_without_the_nudge_a_distance_does_not_move() -> None:
    batch = paired_batch()
    with frozen(encoder()) as embed:
        clean = evaluate(embed, batch.inputs)
        stuck = PGD(Ball(0.2), steps=5, step_size=0.05, random_start=False)(
            lambda x: paired(embed(x), clean), batch.inputs
        )
    assert torch.equal(stuck, batch.inputs)


def test_the_shift_of_an_ensemble_climbs_the_sum_of_its_members_squared_shifts() -> None:
    inputs = paired_batch().inputs.double()
    model = Ensemble([encoder(seed) for seed in range(3)]).double()
    with frozen(model) as embed:
        clean = evaluate(embed, inputs)
        start = inputs + 0.05 * torch.rand(inputs.shape, generator=seeded())
        _, joint = value_and_gradient(lambda x: paired(embed(x), clean), start)
        alone = torch.zeros_like(joint)
        for member in model.members:
            origin = evaluate(member, inputs)
            alone += value_and_gradient(lambda x, f=member, z=origin: paired(f(x), z).square(), start)[1]
        lengths = [gradient.flatten(1).norm(dim=1)[:, None, None, None] for gradient in (joint, alone)]
    torch.testing.assert_close(joint / lengths[0], alone / lengths[1])


def test_clean_proxies_by_hand() -> None:
    z = torch.tensor([[1.0, 0.0], [0.6, 0.8]])
    clean = torch.eye(2)
    # Cosines: row 0 is (1, 0), row 1 is (0.6, 0.8). Own proxy only, scale 32, margin 0.1:
    pull = (math.log(1 + math.exp(-32 * 0.9)) + math.log(1 + math.exp(-32 * 0.7))) / 2
    push = (math.log(1 + math.exp(32 * 0.7)) + math.log(1 + math.exp(32 * 0.1))) / 2
    values = clean_proxies(z, clean, torch.eye(2).bool())
    assert values.tolist() == pytest.approx([pull + push] * 2, rel=1e-5)
    # All of one class: nothing repels, both pull at both.
    pulls = [[0.9, 0.5], [-0.1, 0.7]]
    expected = sum(math.log(1 + sum(math.exp(-32 * s) for s in column)) for column in pulls) / 2
    assert clean_proxies(z, clean, torch.ones(2, 2).bool())[0].item() == pytest.approx(expected, rel=1e-5)


def test_the_objectives_find_different_images() -> None:
    engine = PGD(Ball(0.2), steps=3, step_size=0.05, random_start=False)
    found = [climbed(objective, 1, engine)[1] for objective in OBJECTIVES]
    assert all(not torch.equal(one, other) for i, one in enumerate(found) for other in found[:i])


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_adversarial_training_takes_each_objective(objective: Objective) -> None:
    attack, model, batch, loss = Watched(pgd(0.2)), encoder(), paired_batch(), ProxyAnchor(CLASSES, DIM)
    terms = Madry(loss, attack, objective=objective)(model, batch, seeded())
    torch.testing.assert_close(terms["adversarial"], loss(model(attack.moved[0]), batch.labels))


def test_the_clean_embedding_in_the_labels_place() -> None:
    attack, model, batch, loss = Watched(pgd(0.2)), encoder(), paired_batch(), ProxyAnchor(CLASSES, DIM)
    literal = Madry(loss, attack, objective="shift", goal="embedding")(model, batch, seeded())
    moved, still = model(attack.moved[0]), model(batch.inputs)
    expected = (moved - still.detach()).square().sum(dim=1).mean()
    assert list(literal) == ["adversarial"]
    torch.testing.assert_close(literal["adversarial"], expected)
    for ours, theirs in zip(
        torch.autograd.grad(literal["adversarial"], model.parameters()),
        torch.autograd.grad(expected, model.parameters()),
        strict=True,
    ):
        torch.testing.assert_close(ours, theirs)
    mixed = Madry(loss, pgd(0.2), 0.5, "shift", "embedding")(model, batch, seeded())
    torch.testing.assert_close(mixed["adversarial"], 0.5 * literal["adversarial"])
    torch.testing.assert_close(mixed["clean"], 0.5 * loss(still, batch.labels))


def test_a_radius_grows_over_a_share_of_the_training_and_its_step_with_it() -> None:
    adversary = Adversary(PGD(Ball(0.2), steps=5, step_size=0.05), growing=0.5)
    # At a tenth of the training a fifth of its growing is done: radius 0.2 / 5, step 0.05 / 5.
    young = adversary.at(0.1).attack
    assert isinstance(young, PGD) and young.steps == 5
    assert (young.ball.radius, young.step_size) == (pytest.approx(0.04), pytest.approx(0.01))
    assert adversary.at(0.0).attack.ball.radius == 0
    assert adversary.at(0.5) is adversary and adversary.at(1.0) is adversary
    still = Adversary(adversary.attack)
    assert still.at(0.0) is still
    for growing in (-0.1, 1.5, math.nan):
        with pytest.raises(InputError, match="is not a share of the training; expected 0 to 1"):
            Adversary(adversary.attack, growing=growing)


def test_an_engine_that_cannot_be_had_in_another_ball_is_refused_at_once() -> None:
    class Still:
        ball = Ball(0.2)

        def __call__(self, value: Value, clean: Tensor, generator: torch.Generator | None = None) -> Tensor:
            return clean

    assert Adversary(Still()).at(0.0).attack.ball.radius == 0.2
    with pytest.raises(InputError, match="the radius of Still cannot grow, since it is no dataclass"):
        Adversary(Still(), growing=0.5)


def growing_defences() -> list[Defence]:
    loss, attack = ProxyAnchor(CLASSES, DIM), PGD(Ball(0.2), steps=4, step_size=0.1)
    return [
        Madry(loss, attack, objective="shift", growing=0.5),
        EnsembleAdversarial([loss], attack, divided=False, growing=0.5),
        InterpolatedAdversarial(loss, attack, growing=0.5),
        Trades(loss, attack, growing=0.5),
    ]


@pytest.mark.parametrize("defence", growing_defences(), ids=lambda defence: type(defence).__name__)
def test_defences_begin_with_clean_images_and_end_with_the_whole_radius(
    defence: Defence, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch, reached = paired_batch(), list[float]()
    climb = PGD.__call__

    def watched(self: PGD, value: Value, clean: Tensor, generator: torch.Generator | None = None) -> Tensor:
        moved = climb(self, value, clean, generator)
        reached.append((moved - clean).abs().max().item())
        return moved

    monkeypatch.setattr(PGD, "__call__", watched)
    for progress in (0.0, 0.25, 0.5, 1.0):
        defence.progress = progress
        defence(Ensemble([encoder()]), batch, seeded())
    assert reached == pytest.approx([0, 0.1, 0.2, 0.2], abs=1e-6)


def test_what_is_not_known_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(InputError, match="objective 'shifts' is not known; did you mean 'shift'"):
        require_word("shifts", OBJECTIVES, "objective")
    with pytest.raises(InputError, match=r"losses \[\] are not one per member"):
        require_each([], MetricLoss, "losses")
    with pytest.raises(InputError, match=r"losses\[1\]: Batch is not of the kind MetricLoss"):
        require_each([ProxyAnchor(2, 2), paired_batch()], MetricLoss, "losses")
    assert isinstance(paired_batch(), Batch)
