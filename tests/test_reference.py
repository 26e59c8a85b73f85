"""The benchmarks' plain reference gives the same numbers as the package: attacks, miners, training steps.

In float64 the two must agree to rounding, perturbed images included. In float32 values agree to 1e-5; an image may
differ only where a gradient is so near 0 that its sign is rounding, which at most 1 pixel in 100 may be.
"""

import copy
import importlib.util
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from robustmetric.attacks.base import Attack, Targets
from robustmetric.attacks.candidate import Candidate
from robustmetric.attacks.embedding_shift import EmbeddingShift
from robustmetric.attacks.mismatch import TargetedMismatch
from robustmetric.attacks.misrank import LearnToMisrank
from robustmetric.attacks.objectives import nudged
from robustmetric.attacks.query import Query
from robustmetric.attacks.top1 import TopOneMisranking, TopOneTranslocation
from robustmetric.data.digits import Digits
from robustmetric.defences.act import AntiCollapseTriplet
from robustmetric.defences.destinations import Fixed, Mined
from robustmetric.defences.est import EmbeddingShiftedTriplet
from robustmetric.defences.hardness import HardnessManipulation
from robustmetric.defences.madry import Madry
from robustmetric.defences.plain import Plain
from robustmetric.defences.structure import Structure
from robustmetric.losses.mining import DistanceWeighted, Hardest, Miner, Random, SemiHard, SoftHard
from robustmetric.losses.triplet import Triplet, hardness, triplet_values
from robustmetric.models.convnet import ConvNet
from robustmetric.models.encoder import Encoder
from robustmetric.numerics.distances import paired
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD, frozen, value_and_gradient
from robustmetric.types import Batch, Gallery, Triplets, Value


def load(name: str) -> ModuleType:
    """A file of `benchmarks/`, which is no package."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[1] / "benchmarks" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference = load("reference")

ATTACKS: dict[str, Attack] = {
    "CA+": Candidate("up", queries=2),
    "CA-": Candidate("down", queries=2, pool=0.1),
    "QA+": Query("up", candidates=2),
    "QA-": Query("down", candidates=2, pool=0.1),
    "ES": EmbeddingShift(),
    "LTM": LearnToMisrank(),
    "GTM": TopOneMisranking(),
    "GTT": TopOneTranslocation(),
    "TMA": TargetedMismatch(),
}
MINERS: dict[str, Miner] = {
    "random": Random(),
    "semi_hard": SemiHard(),
    "soft_hard": SoftHard(),
    "distance_weighted": DistanceWeighted(),
    "hardest": Hardest(),
}
RADIUS, STEP, STEPS = 0.1, 0.03, 6
CLIMB = reference.Climb(RADIUS, STEP, STEPS)
ENGINE = PGD(Ball(RADIUS), steps=STEPS, step_size=STEP, random_start=False)
TOLERANCE = {torch.float64: 1e-9, torch.float32: 1e-5}
PRECISIONS = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])


def encoder(dtype: torch.dtype) -> Encoder:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Encoder(ConvNet(side=8, kernel=3, widths=(4, 8), hidden=16, dim=8)).to(dtype)


def scene(dtype: torch.dtype) -> tuple[Encoder, Batch, Tensor, Gallery]:
    """An encoder, 12 queries, the images of a gallery of 60 that holds them, and the gallery embedded."""
    model = encoder(dtype).eval()
    queries = Digits().load().queries
    images, labels = queries.inputs[:60].to(dtype) / 255, queries.labels[:60]
    places = torch.arange(0, 60, 5)
    with torch.no_grad():
        gallery = Gallery(model(images), labels)
    return model, Batch(images[places], labels[places], places), images, gallery


def chosen(
    name: str, model: nn.Module, batch: Batch, gallery: Gallery, attack: Attack | None = None
) -> tuple[Targets, Tensor]:
    """Our targets, and the same in the reference's form."""
    with torch.no_grad():
        clean = model(batch.inputs)
    targets = (attack or ATTACKS[name]).choose(clean, batch, gallery, torch.Generator().manual_seed(1))
    if name == "LTM":
        return targets, targets["exclude"]
    if name == "ES":
        return targets, targets["origin"]
    return targets, targets["index"].view(len(batch), -1)


@PRECISIONS
@pytest.mark.parametrize("name", list(ATTACKS))
def test_values_and_gradients_agree(name: str, dtype: torch.dtype) -> None:
    model, batch, _, gallery = scene(dtype)
    ours, theirs = chosen(name, model, batch, gallery)
    x = Ball(RADIUS).random_point(batch.inputs, torch.Generator().manual_seed(2))
    value, gradient = value_and_gradient(lambda x: ATTACKS[name].value(model(x), ours, gallery), x)
    x.requires_grad_()
    loss = reference.LOSSES[name](model(x), theirs, batch, gallery)
    (other,) = torch.autograd.grad(loss.sum(), x)
    if name == "TMA":  # published as 1 - cosine
        loss = loss - 1
    assert value.abs().max() > 1e-3 and gradient.abs().max() > 1e-4, "or there is nothing to compare"
    torch.testing.assert_close(value, -loss.detach(), atol=TOLERANCE[dtype], rtol=0)
    torch.testing.assert_close(gradient, -other, atol=10 * TOLERANCE[dtype], rtol=0)


@PRECISIONS
@pytest.mark.parametrize("at_random", [False, True], ids=["clean start", "random start"])
@pytest.mark.parametrize("name", list(ATTACKS))
def test_perturbed_images_and_scores_agree(name: str, at_random: bool, dtype: torch.dtype) -> None:
    model, batch, images, gallery = scene(dtype)
    attack = ATTACKS[name]
    ours, theirs = chosen(name, model, batch, gallery, attack)
    start = ENGINE.ball.random_point(batch.inputs, torch.Generator().manual_seed(3)) if at_random else batch.inputs
    outcome = reference.attack(
        name, model, batch, images, gallery.labels, CLIMB, np.random.default_rng(0), targets=theirs, start=start
    )
    with frozen(model) as embed:
        x = climb_from(start, lambda x: attack.value(embed(x), ours, gallery), batch.inputs)
        if not at_random:
            assert torch.equal(x, ENGINE(lambda x: attack.value(embed(x), ours, gallery), batch.inputs))
        apart = (x - outcome.images).abs() > 1e-6
        assert apart.double().mean() <= (0 if dtype == torch.float64 else 0.01)
        assert (x - batch.inputs).abs().max() > STEP
        # Scored on the same images: a score may jump where an image differs.
        with torch.no_grad():
            scores = attack.score(embed(outcome.images), ours, batch, gallery)
    assert set(scores) == set(outcome.scores)
    for key, row in scores.items():
        torch.testing.assert_close(row.double(), outcome.scores[key].double(), atol=1e-4, rtol=0)


def climb_from(start: Tensor, value: Value, clean: Tensor) -> Tensor:
    """Our engine's steps from a given start."""
    x, move = start, ENGINE.ball.ascent(clean, STEP)
    for _ in range(STEPS):
        _, gradient = value_and_gradient(value, x)
        x = move(x, gradient)
    return x


@pytest.mark.parametrize("name", ["GTM", "GTT", "LTM"])
def test_targets_without_chance_agree(name: str) -> None:
    model, batch, _, gallery = scene(torch.float64)
    _, theirs = chosen(name, model, batch, gallery)
    with torch.no_grad():
        found = reference.choose(name, model(batch.inputs), batch, gallery, np.random.default_rng(0))
    assert torch.equal(found, theirs)


@pytest.mark.parametrize("name", ["CA+", "QA+", "TMA"])
def test_targets_at_random_are_any_but_the_query(name: str) -> None:
    model, batch, _, gallery = scene(torch.float64)
    with torch.no_grad():
        clean = model(batch.inputs)
    drawn = torch.cat(
        [reference.choose(name, clean, batch, gallery, np.random.default_rng(s)) for s in range(100)], dim=1
    )
    ours = torch.cat(
        [
            ATTACKS[name].choose(clean, batch, gallery, torch.Generator().manual_seed(s))["index"].view(12, -1)
            for s in range(100)
        ],
        dim=1,
    )
    for found in (drawn, ours):
        assert (found != batch.index[:, None]).all() and len(found.unique()) == 60


@pytest.mark.parametrize("name", ["CA-", "QA-"])
def test_near_targets_are_near_and_not_the_query(name: str) -> None:
    model, batch, _, gallery = scene(torch.float64)
    wide = Gallery(gallery.embeddings.repeat(5, 1), gallery.labels.repeat(5))  # 300 items: a pool of 3
    with torch.no_grad():
        clean = model(batch.inputs)
    drawn = [reference.choose(name, clean, batch, wide, np.random.default_rng(seed)) for seed in range(20)]
    # Four further copies of each query lie at distance 0; the three nearest are among them.
    assert all((index % 60 == batch.index[:, None]).all() and (index[:, 0] != batch.index).all() for index in drawn)


def test_an_attack_leaves_no_weight_gradients_and_chooses_by_itself() -> None:
    model, batch, images, gallery = scene(torch.float32)
    for name in ATTACKS:  # 1 % of 60 items is none: CA- and QA- draw the nearest
        outcome = reference.attack(name, model, batch, images, gallery.labels, CLIMB, np.random.default_rng(0))
        assert (outcome.images - batch.inputs).abs().max() <= RADIUS + 1e-6
        assert all(parameter.grad is None for parameter in model.parameters())


def paired_digits(dtype: torch.dtype = torch.float64) -> Batch:
    train = Digits().load().train
    rows = torch.cat([(train.labels == c).nonzero()[4 * k : 4 * k + 2, 0] for k in range(2) for c in range(5)])
    return Batch(train.inputs[rows].to(dtype) / 255, train.labels[rows], rows)


@pytest.mark.parametrize("name", list(MINERS))
def test_miners_draw_from_the_same_support(name: str) -> None:
    batch = paired_digits()
    with torch.no_grad():
        z = encoder(torch.float64)(batch.inputs)
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    theirs = [reference.mine(name, z, batch.labels, rng) for _ in range(150)]
    ours = [MINERS[name](z, batch.labels, generator) for _ in range(150)]
    for part in ("anchor", "positive", "negative"):
        a, b = (torch.stack([getattr(triplets, part) for triplets in drawn]) for drawn in (ours, theirs))
        if name == "distance_weighted" and part == "negative":  # rare ones may be missing from 150 draws
            frequent = [[set_of(column, at_least=8) for column in rows.T] for rows in (a, b)]
            every = [[set_of(column, at_least=1) for column in rows.T] for rows in (a, b)]
            assert all(x <= y for x, y in zip(frequent[0], every[1], strict=True))
            assert all(x <= y for x, y in zip(frequent[1], every[0], strict=True))
        else:
            assert [set_of(c, at_least=1) for c in a.T] == [set_of(c, at_least=1) for c in b.T]


def set_of(column: Tensor, at_least: int) -> set[int]:
    values, counts = column.unique(return_counts=True)
    return set(values[counts >= at_least].tolist())


@pytest.mark.parametrize("name", list(MINERS))
def test_a_batch_of_one_class_is_mined_alike(name: str) -> None:
    z = torch.nn.functional.normalize(torch.randn(4, 5, generator=torch.Generator().manual_seed(0)), dim=1)
    labels = torch.zeros(4, dtype=torch.long)
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    theirs = [reference.mine(name, z, labels, rng) for _ in range(60)]
    ours = [MINERS[name](z, labels, generator) for _ in range(60)]
    for drawn in (ours, theirs):
        assert set_of(torch.stack([t.positive for t in drawn])[:, 0], at_least=1) == {1}
        assert set_of(torch.stack([t.negative for t in drawn]).flatten(), at_least=1) == {0, 1, 2, 3}


def updated(model: nn.Module, loss: Tensor) -> list[Tensor]:
    """The weights after one SGD step of 0.1 on a loss."""
    gradients = torch.autograd.grad(loss, list(model.parameters()))
    return [weight - 0.1 * gradient for weight, gradient in zip(model.parameters(), gradients, strict=True)]


def sgd(model: nn.Module) -> torch.optim.SGD:
    return torch.optim.SGD(model.parameters(), lr=0.1)


def test_the_plain_step_agrees() -> None:
    batch, model = paired_digits(), encoder(torch.float64)
    twin = copy.deepcopy(model)
    step = reference.plain_step(model, sgd(model), batch, "hardest", np.random.default_rng(0))
    loss = Plain(Triplet(Hardest()))(twin, batch)["metric"]
    assert step.loss == pytest.approx(loss.item(), abs=1e-9) and step.loss > 0.01
    torch.testing.assert_close(list(model.parameters()), updated(twin, loss), atol=1e-9, rtol=0)


def test_the_shifted_step_agrees() -> None:
    batch, model = paired_digits(), encoder(torch.float64)
    twin = copy.deepcopy(model)
    with frozen(twin) as embed, torch.no_grad():
        origin = nudged(embed(batch.inputs), torch.Generator().manual_seed(0))
    step = reference.est_step(model, sgd(model), batch, "hardest", CLIMB, np.random.default_rng(0), origin=origin)
    defence = EmbeddingShiftedTriplet(Triplet(Hardest()), ENGINE)
    loss = defence(twin, batch, torch.Generator().manual_seed(0))["metric"]
    assert step.loss == pytest.approx(loss.item(), abs=1e-9) and step.loss > 0.01
    torch.testing.assert_close(list(model.parameters()), updated(twin, loss), atol=1e-9, rtol=0)
    assert 0 < (step.images - batch.inputs).abs().amax() <= RADIUS + 1e-9


def test_the_adversarial_training_step_agrees() -> None:
    batch, model = paired_digits(), encoder(torch.float64)
    twin = copy.deepcopy(model)
    step = reference.madry_step(model, sgd(model), batch, "hardest", CLIMB, np.random.default_rng(0))
    loss = Madry(Triplet(Hardest()), ENGINE)(twin, batch)["adversarial"]
    assert step.loss == pytest.approx(loss.item(), abs=1e-9) and step.loss > 0.01
    torch.testing.assert_close(list(model.parameters()), updated(twin, loss), atol=1e-9, rtol=0)
    assert 0 < (step.images - batch.inputs).abs().amax() <= RADIUS + 1e-9


def test_the_anti_collapse_step_agrees() -> None:
    batch, model = paired_digits(), encoder(torch.float64)
    twin = copy.deepcopy(model)
    step = reference.act_step(model, sgd(model), batch, "random", CLIMB, np.random.default_rng(0))
    a, p, n = step.triplets.of(batch.inputs)
    with frozen(twin) as embed:
        # Both of a pair climb the nearness of the pair.
        moved = ENGINE(lambda x: -paired(*embed(x).chunk(2)).repeat(2) / 2, torch.cat([p, n]))
    images = torch.cat([a, moved])
    torch.testing.assert_close(step.images, images, atol=1e-9, rtol=0)
    loss = triplet_values(*twin(images).chunk(3), margin=0.2).mean()
    assert step.loss == pytest.approx(loss.item(), abs=1e-9) and step.loss > 0.01
    torch.testing.assert_close(list(model.parameters()), updated(twin, loss), atol=1e-9, rtol=0)


@dataclass(frozen=True)
class Given:
    """A miner that finds what was found before."""

    triplets: Triplets

    def __call__(self, embeddings: Tensor, labels: Tensor, generator: torch.Generator | None = None) -> Triplets:
        return self.triplets


def test_the_defence_act_takes_the_reference_step() -> None:
    batch, model = paired_digits(), encoder(torch.float64)
    twin = copy.deepcopy(model)
    step = reference.act_step(model, sgd(model), batch, "random", CLIMB, np.random.default_rng(0))
    loss = AntiCollapseTriplet(Given(step.triplets), ENGINE)(twin, batch)["triplet"]
    assert step.loss == pytest.approx(loss.item(), abs=1e-9) and step.loss > 0.01
    torch.testing.assert_close(list(model.parameters()), updated(twin, loss), atol=1e-9, rtol=0)


@pytest.mark.parametrize("structure", [0.5, 0.0])
@pytest.mark.parametrize("destination", ["hardest", 0.1, -0.05, 2.0])
def test_the_defence_hm_takes_the_reference_step(destination: str | float, structure: float) -> None:
    batch, model = paired_digits(), encoder(torch.float64)
    twin = copy.deepcopy(model)
    step = reference.hardness_step(
        model, sgd(model), batch, "random", destination, CLIMB, np.random.default_rng(0), structure, stop_below=0
    )
    goal = Mined(MINERS[destination]) if isinstance(destination, str) else Fixed(destination)
    term = Structure(structure) if structure else None
    defence = HardnessManipulation(Given(step.triplets), goal, ENGINE, structure=term).double()
    loss = torch.stack(list(defence(twin, batch).values())).sum()
    assert step.loss == pytest.approx(loss.item(), abs=1e-9) and step.loss > 0.01
    torch.testing.assert_close(list(model.parameters()), updated(twin, loss), atol=1e-9, rtol=0)


def test_the_hardness_step_agrees_with_fixed_batch_norm() -> None:
    """Ours embeds clean and perturbed images in one pass, the reference in two: the same while statistics are fixed."""
    batch = paired_digits()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 8)]
    model = Encoder(nn.Sequential(*layers), batch_norm="statistics", dim=8).double()
    twin = copy.deepcopy(model)
    step = reference.hardness_step(
        model, sgd(model), batch, "random", 2.0, CLIMB, np.random.default_rng(0), stop_below=0
    )
    defence = HardnessManipulation(Given(step.triplets), Fixed(2.0), ENGINE, structure=Structure(0.5)).double()
    loss = torch.stack(list(defence(twin, batch).values())).sum()
    assert step.loss == pytest.approx(loss.item(), abs=1e-9) and step.loss > 0.01
    torch.testing.assert_close(list(model.parameters()), updated(twin, loss), atol=1e-9, rtol=0)


def hardness_by_ours(model: nn.Module, batch: Batch, triplets: Triplets, goal: Tensor, structure: float) -> Tensor:
    with frozen(model) as embed:
        images = ENGINE(
            lambda x: -(goal - hardness(*embed(x).chunk(3))).relu().square().repeat(3) / 3,
            torch.cat(triplets.of(batch.inputs)),
        )
    a, p, n = model(images).chunk(3)
    clean_a, clean_p, _ = triplets.of(model(batch.inputs))
    return triplet_values(a, p, n, margin=0.2).mean() + structure * triplet_values(clean_a, a, clean_p, 0.0).mean()


@pytest.mark.parametrize(("destination", "structure"), [("hardest", 0.5), (0.1, 0.5), (-0.05, 0.0)])
def test_the_hardness_step_agrees(destination: str | float, structure: float) -> None:
    batch, model = paired_digits(), encoder(torch.float64)
    twin = copy.deepcopy(model)
    step = reference.hardness_step(
        model, sgd(model), batch, "random", destination, CLIMB, np.random.default_rng(0), structure, stop_below=0
    )
    with torch.no_grad():
        z = twin(batch.inputs)
    if isinstance(destination, str):
        goal = hardness(*MINERS[destination](z, batch.labels).of(z))
    else:
        goal = torch.full((len(batch) // 2,), destination, dtype=torch.float64)
    loss = hardness_by_ours(twin, batch, step.triplets, goal, structure)
    assert step.loss == pytest.approx(loss.item(), abs=1e-9) and step.loss > 0.01
    torch.testing.assert_close(list(model.parameters()), updated(twin, loss), atol=1e-9, rtol=0)
    moved = (step.images - torch.cat(step.triplets.of(batch.inputs))).abs().amax()
    assert 0 < moved <= RADIUS + 1e-9


def test_a_hardness_already_reached_moves_nothing_and_stops_early() -> None:
    batch, model = paired_digits(), encoder(torch.float64)
    passes: list[int] = []
    model.register_forward_hook(lambda *_: passes.append(1))
    step = reference.hardness_step(model, sgd(model), batch, "random", -2.0, CLIMB, np.random.default_rng(0))
    assert torch.equal(step.images, torch.cat(step.triplets.of(batch.inputs)))
    # Embed, two attack steps (the second sees no change), adversarial and clean forward of the update.
    assert len(passes) == 1 + 2 + 2
