"""Hardness manipulation: worked on a line, and compared with a plain loop on digits."""

import inspect
from dataclasses import replace
from typing import Any

import pytest
import torch
from small import Watched, encoder, paired_batch, pgd, seeded
from torch import Tensor, nn

from robustmetric.defences.destinations import Boosted, Destination, Fixed, Gradual, Mined, Moment
from robustmetric.defences.hardness import FIRST_LOSS, HardnessManipulation
from robustmetric.defences.plain import Plain
from robustmetric.defences.structure import Structure
from robustmetric.errors import InputError
from robustmetric.losses.mining import DistanceWeighted, Hardest, Miner, Random, SemiHard, SoftHard
from robustmetric.losses.triplet import Triplet, hardness, triplet_values
from robustmetric.models.encoder import Encoder
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD, value_and_gradient
from robustmetric.types import Batch, Triplets

MINERS = [Random(), SemiHard(), SoftHard(), DistanceWeighted(), Hardest()]
LABELS = torch.tensor([0, 0, 1, 1])
# With the nearest negatives: (0, 1, 3) of hardness 1 - 3 = -2, and (3, 3.5, 1) of hardness 0.5 - 2 = -1.5.
LINE = Batch(torch.tensor([[0.0], [1.0], [3.0], [3.5]]), LABELS, torch.arange(4))


def quarters(steps: int = 8, radius: float = 9.0) -> Watched:
    """Steps of 0.25, which floats hold exactly, from a clean start."""
    return Watched(PGD(Ball(radius, bounds=(-9.0, 9.0)), steps=steps, step_size=0.25, random_start=False))


def still_start(radius: float = 0.2, steps: int = 6, step_size: float = 0.05) -> Watched:
    return Watched(PGD(Ball(radius), steps=steps, step_size=step_size, random_start=False))


def precise(pairs_per_class: int = 2) -> tuple[Encoder, Batch]:
    """Doubles: no sign of a gradient hangs on rounding."""
    batch = paired_batch(pairs_per_class)
    return encoder().double(), Batch(batch.inputs.double(), batch.labels, batch.index)


def source_of(model: nn.Module, batch: Batch, miner: Miner = Hardest(), seed: int = 0) -> tuple[Triplets, Tensor]:  # noqa: B008  # frozen
    """The source triplets of a step with this seed, and their hardness."""
    with torch.no_grad():
        z = model(batch.inputs)
    triplets = miner(z, batch.labels, seeded(seed))
    return triplets, hardness(*triplets.of(z))


def plain_loop(model: nn.Module, clean: Tensor, goal: Tensor, steps: int, step_size: float, radius: float) -> Tensor:
    """The reference's loop: all triplets at every step, one mean objective, to be minimised."""
    x = clean
    for _ in range(steps):
        x = x.detach().requires_grad_()
        objective = (goal - hardness(*model(x).chunk(3))).clamp_min(0).square().mean()
        (gradient,) = torch.autograd.grad(objective, x)
        x = (x - step_size * gradient.sign()).clamp(clean - radius, clean + radius).clamp(0, 1)
    return x.detach()


def test_two_triplets_on_a_line_stop_at_their_goal() -> None:
    attack = quarters()
    terms = HardnessManipulation(Hardest(), Fixed(-1.0), attack, margin=1.5)(nn.Identity(), LINE, seeded())
    # p moves away from a, n comes nearer. The first anchor has both on one side, where dH/da = 0: H rises by 0.5 a
    # step, -2, -1.5, -1. The second lies between them and goes to n: one step is 1, from -1.5 to -0.5.
    assert attack.moved[0].flatten().tolist() == [0, 2.75, 1.5, 3.75, 2.5, 1.25]
    assert terms["triplet"].item() == ((1.5 - 1) + (1.5 - 0.5)) / 2


def test_figures_of_a_step_are_means_and_the_work_it_took() -> None:
    defence = HardnessManipulation(Hardest(), Fixed(-1.0), quarters().engine, margin=1.5)
    assert defence.measures == {}
    defence(nn.Identity(), LINE, seeded())
    figures = {name: figure.item() for name, figure in defence.measures.items()}
    # Both triplets twice, then the first alone, to see that it has arrived too: (6 + 6 + 3) / 6 passes.
    assert figures == {"before": -1.75, "goal": -1, "after": -0.75, "attacked": 1, "passes": 2.5}
    assert not any(figure.requires_grad for figure in defence.measures.values())


def test_a_triplet_beyond_its_goal_stays_while_another_moves() -> None:
    attack = quarters()
    HardnessManipulation(Hardest(), Fixed(-1.75), attack)(nn.Identity(), LINE, seeded())
    # Only the first is short of -1.75; it oversteps to -1.5 and stays there.
    assert attack.moved[0].flatten().tolist() == [0, 3, 1.25, 3.5, 2.75, 1]


def test_the_share_of_triplets_attacked_is_noted() -> None:
    defence = HardnessManipulation(Hardest(), Fixed(-1.75), quarters().engine)
    defence(nn.Identity(), LINE, seeded())
    assert defence.measures["attacked"] == 0.5, "of -2 and -1.5"


def test_a_goal_below_all_moves_nothing_in_one_pass() -> None:
    attack, (model, batch) = still_start(), precise()
    HardnessManipulation(Hardest(), Fixed(-2.0), attack)(model, batch, seeded())
    triplets, _ = source_of(model, batch)
    assert torch.equal(attack.moved[0], torch.cat(triplets.of(batch.inputs)))
    unwatched = HardnessManipulation(Hardest(), Fixed(-2.0), attack.engine)
    unwatched(model, batch, seeded())
    assert unwatched.measures["passes"] == 1


@pytest.mark.parametrize("miner", MINERS)
@pytest.mark.parametrize("attack", [pgd(0.3), PGD(Ball(0.3), steps=3, step_size=0.1, random_start=False)])
def test_equal_source_and_destination_are_ordinary_training(miner: Miner, attack: PGD) -> None:
    watched, batch = Watched(attack), paired_batch()
    defence = HardnessManipulation(miner, Mined(type(miner)()), watched, structure=Structure())
    terms = defence(encoder(), batch, seeded(3))
    assert not watched.moved and defence.measures["passes"] == 0
    torch.testing.assert_close(terms["triplet"], Plain(Triplet(miner))(encoder(), batch, seeded(3))["metric"])
    assert terms["structure"].item() == 0, "ICS is zero where nothing is perturbed"
    torch.testing.assert_close(defence.measures["before"], defence.measures["after"])


def test_miners_that_differ_in_a_setting_are_not_equal() -> None:
    attack = still_start()
    HardnessManipulation(SemiHard(0.2), Mined(SemiHard(0.3)), attack)(encoder(), paired_batch(), seeded())
    assert attack.moved


@pytest.mark.parametrize(("steps", "reached"), [(2, 0.1), (3, 0.15), (8, 0.2)])
def test_steps_times_step_size_bound_the_perturbation(steps: int, reached: float) -> None:
    attack, (model, batch) = still_start(radius=0.2, steps=steps), precise()
    HardnessManipulation(Hardest(), Fixed(2.0), attack)(model, batch, seeded())
    triplets, _ = source_of(model, batch)
    moved = (attack.moved[0] - torch.cat(triplets.of(batch.inputs))).abs().max().item()
    assert moved == pytest.approx(reached)
    assert attack.moved[0].min() >= 0 and attack.moved[0].max() <= 1


def test_a_goal_of_two_is_min_max() -> None:
    attack, (model, batch) = still_start(), precise()
    HardnessManipulation(Hardest(), Fixed(2.0), attack)(model, batch, seeded())
    clean = torch.cat(source_of(model, batch)[0].of(batch.inputs))
    min_max = attack.engine(lambda x: hardness(*model(x).chunk(3)).repeat(3), clean)
    assert torch.equal(attack.moved[0], min_max) and not torch.equal(min_max, clean)
    # d/dx -(2 - h)^2 = 2 (2 - h) dh/dx, and h < 2.
    _, climbed = value_and_gradient(lambda x: hardness(*model(x).chunk(3)), clean)
    _, manipulated = value_and_gradient(lambda x: -(2 - hardness(*model(x).chunk(3))).relu().square(), clean)
    assert torch.equal(climbed.sign(), manipulated.sign())


@pytest.mark.parametrize("share", [0.0, 0.3, 0.5, 0.9, 1.0])
def test_images_equal_those_of_a_plain_loop_whatever_share_has_arrived(share: float) -> None:
    attack, (model, batch) = still_start(steps=8), precise(4)
    triplets, before = source_of(model, batch)
    # The goal lies between two triplets, so that some start beyond it, and others reach it at different steps.
    goal = float(before.quantile(share)) + 1e-4
    HardnessManipulation(Hardest(), Fixed(goal), attack)(model, batch, seeded())
    clean = torch.cat(triplets.of(batch.inputs))
    expected = plain_loop(model, clean, torch.full_like(before, goal, dtype=torch.float32), 8, 0.05, 0.2)
    torch.testing.assert_close(attack.moved[0], expected, atol=1e-9, rtol=0)
    has_moved = (attack.moved[0] != clean).flatten(1).any(dim=1).view(3, -1).any(dim=0)
    assert torch.equal(has_moved, before < goal)
    with torch.no_grad():
        after = hardness(*model(attack.moved[0]).chunk(3))
    assert (after[has_moved] > before[has_moved]).all()


@pytest.mark.parametrize("destination", [Gradual(), Mined(SemiHard()), Boosted(SemiHard())])
def test_images_equal_those_of_a_plain_loop_for_goals_that_differ(destination: Destination) -> None:
    attack, (model, batch) = still_start(steps=5), precise()
    HardnessManipulation(SoftHard(), destination, attack)(model, batch, seeded(4))
    generator = seeded(4)
    with torch.no_grad():
        z = model(batch.inputs)
    triplets = SoftHard()(z, batch.labels, generator)
    goal = destination(Moment(z, batch.labels, torch.full((len(triplets.anchor),), FIRST_LOSS), generator=generator))
    expected = plain_loop(model, torch.cat(triplets.of(batch.inputs)), goal, 5, 0.05, 0.2)
    torch.testing.assert_close(attack.moved[0], expected, atol=1e-9, rtol=0)


def test_what_is_trained_on_is_the_perturbed_triplet_and_the_clean_pair() -> None:
    attack, model, batch = still_start(), encoder(), paired_batch()
    structure = Structure(weight=0.7)
    terms = HardnessManipulation(Hardest(), Fixed(0.5), attack, structure=structure)(model, batch, seeded())
    assert list(terms) == ["triplet", "structure"]
    a_, p_, n_ = model(attack.moved[0]).chunk(3)
    a, p, _ = source_of(model, batch)[0].of(model(batch.inputs))
    torch.testing.assert_close(terms["triplet"], triplet_values(a_, p_, n_, 0.2).mean())
    torch.testing.assert_close(terms["structure"], 0.7 * triplet_values(a, a_, p, 0.0).mean())
    assert terms["structure"] > 0


@pytest.mark.parametrize("triplet", [("a", "a~", "p~"), ("p", "p~", "a"), ("a", "p", "n"), ("a~", "p~", "n~")])
def test_a_structure_term_is_given_the_embeddings_it_names(triplet: tuple[str, ...]) -> None:
    attack, model, batch = still_start(), encoder(), paired_batch()
    structure = Structure(weight=1.0, margin=1.0, triplet=triplet)
    terms = HardnessManipulation(Hardest(), Fixed(0.5), attack, structure=structure)(model, batch, seeded())
    clean = source_of(model, batch)[0].of(model(batch.inputs))
    named = dict(zip(("a", "p", "n", "a~", "p~", "n~"), (*clean, *model(attack.moved[0]).chunk(3)), strict=True))
    torch.testing.assert_close(terms["structure"], structure(named))


def test_gradients_reach_every_parameter_after_the_climb_only() -> None:
    model = encoder()
    terms = HardnessManipulation(SoftHard(), Gradual(), pgd(0.1), structure=Structure(margin=1.0))(
        model, paired_batch(), seeded()
    )
    assert all(p.grad is None and p.requires_grad for p in model.parameters()) and model.training
    for term in terms.values():
        gradients = torch.autograd.grad(term, list(model.parameters()), retain_graph=True)
        assert all(gradient.isfinite().all() and gradient.abs().sum() > 0 for gradient in gradients)


@pytest.mark.parametrize("source", MINERS, ids=lambda miner: type(miner).__name__)
@pytest.mark.parametrize("destination", MINERS, ids=lambda miner: type(miner).__name__)
def test_all_pairs_of_miners_take_a_step_towards_their_goal(source: Miner, destination: Miner) -> None:
    attack, model, batch = still_start(0.05, steps=4, step_size=0.01), encoder(), paired_batch(4)
    defence = HardnessManipulation(source, Mined(destination), attack)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    before = [p.detach().clone() for p in model.parameters()]
    defence(model, batch, seeded())["triplet"].backward()
    optimiser.step()
    assert all(
        not torch.equal(p, old) and p.isfinite().all() for p, old in zip(model.parameters(), before, strict=True)
    )
    if source == destination:
        assert not attack.moved
        return
    # What is climbed is minus the squared shortfall: 0 where the goal was reached at the start.
    short = attack.before[0] < 0
    assert (attack.after[0] >= attack.before[0]).all() and (attack.after[0] > attack.before[0])[short].all()


@pytest.mark.parametrize("keep", ["last", "best"])
def test_a_triplet_is_kept_whole_whichever_iterate_is_kept(keep: str) -> None:
    attack = Watched(replace(quarters().engine, keep=keep))
    HardnessManipulation(Hardest(), Fixed(-1.0), attack)(nn.Identity(), LINE, seeded())
    assert attack.moved[0].flatten().tolist() == [0, 2.75, 1.5, 3.75, 2.5, 1.25]


@pytest.mark.parametrize("keep", ["last", "best"])
def test_restarts_leave_no_triplet_further_from_its_goal(keep: str) -> None:
    after = []
    for restarts in (1, 4):
        attack = Watched(PGD(Ball(0.05), steps=2, step_size=0.02, restarts=restarts, keep=keep))
        HardnessManipulation(Hardest(), Fixed(2.0), attack)(encoder(), paired_batch(4), seeded(1))
        assert len(attack.moved[0]) == 3 * len(attack.after[0])
        after.append(attack.after[0])
    # The first start is the same: the others can only improve on it.
    assert (after[1] >= after[0] - 1e-6).all() and (after[1] > after[0] + 1e-5).any()


def build(**changes: Any) -> None:
    """Unwrapped: the type checker that runs in tests only would refuse the value first."""
    parts = {"source": Random(), "destination": Gradual(), "attack": pgd(0.1), **changes}
    kind = HardnessManipulation
    inspect.unwrap(kind.__init__)(kind.__new__(kind), **parts)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": "softhard"}, "source 'softhard' chooses no triplets"),
        ({"destination": "gradual"}, r"destination 'gradual' is a word; write \{name: gradual\}"),
        ({"destination": SemiHard()}, "destination: SemiHard is not of the kind Destination"),
        ({"attack": "pgd"}, r"attack 'pgd' is a word; write \{name: pgd\}"),
        ({"attack": Triplet()}, "attack: Triplet is not of the kind Engine"),
        ({"structure": "ics"}, r"structure 'ics' is a word; write \{name: ics\}"),
        ({"structure": 0.5}, "structure: float is not of the kind Structure"),
        ({"groups": 0}, "groups 0, margin 0.2; expected groups >= 1"),
        ({"margin": -0.2}, "groups 1, margin -0.2; expected groups >= 1, margin >= 0"),
        ({"offset": -1e-6}, "offset -1e-06 is no small length; expected a number >= 0"),
    ],
)
def test_parts_of_another_kind_are_refused_when_it_is_built(changes: dict[str, Any], message: str) -> None:
    build()
    with pytest.raises(InputError, match=message):
        build(**changes)
