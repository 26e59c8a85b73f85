"""Attacks found on one model and scored on another: who sees what, by hand on a circle and with a run folder."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import pytest
import torch
from circle import Circle, at, gallery, queries, seeded
from torch import Tensor, nn
from torch.nn import functional

from robustmetric.attacks.base import Attack, Outcome, run
from robustmetric.attacks.candidate import Candidate
from robustmetric.attacks.embedding_shift import EmbeddingShift
from robustmetric.attacks.mismatch import TargetedMismatch
from robustmetric.attacks.misrank import LearnToMisrank
from robustmetric.attacks.order import Order
from robustmetric.attacks.query import Query
from robustmetric.attacks.semantics import SemanticsPreservingQuery
from robustmetric.attacks.top1 import TopOneMisranking, TopOneTranslocation
from robustmetric.attacks.transfer import Surrogate, Transfer, transfer
from robustmetric.errors import InputError
from robustmetric.jobs import assemble
from robustmetric.jobs.arena import Arena, embed
from robustmetric.jobs.folder import RunFolder
from robustmetric.jobs.workers import Workers
from robustmetric.numerics.distances import paired
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD, evaluate, frozen
from robustmetric.types import Gallery

DEGREES, LABELS = [0, 20, 50, 90, 180], [0, 0, 1, 1, 2]
GALLERY = gallery(DEGREES, LABELS)
BATCH = queries([0, 20, 50], [0, 0, 1], [0, 1, 2])
ENGINE = PGD(Ball(0.1, bounds=(-2.0, 2.0)), steps=5, step_size=0.05, random_start=False)
FIXED = [
    Query("up"),
    Query("down"),
    Candidate("up"),
    Candidate("down"),
    TargetedMismatch(),
    LearnToMisrank(),
    TopOneMisranking(),
    TopOneTranslocation(),
    Order(pool=1.0),
    SemanticsPreservingQuery("up", kept=2),
]
"""All but ES, which draws a direction to begin with."""


class Bent(nn.Module):
    """A circle whose upper half is stretched: other embeddings, of another size, and so other neighbours."""

    def __init__(self, factor: float = 3.0) -> None:
        super().__init__()
        self.factor, self.calls = factor, 0

    def forward(self, inputs: Tensor) -> Tensor:
        self.calls += 1
        x, y = inputs.unbind(dim=1)
        return functional.normalize(torch.stack([x, self.factor * y, y * y], dim=1), dim=1)


def surrogate(model: nn.Module) -> Surrogate:
    with frozen(model) as seen:
        return Surrogate(model, Gallery(evaluate(seen, at(*DEGREES)), GALLERY.labels))


def moved(attack: Attack, source: Surrogate, target: nn.Module | None = None, **settings: int) -> Outcome:
    return transfer(attack, ENGINE, source, target or Circle(), BATCH, GALLERY, seeded(3), rounded=False, **settings)


@pytest.mark.parametrize("attack", FIXED, ids=repr)
def test_from_the_target_itself_it_is_the_white_box_attack(attack: Attack) -> None:
    white = run(attack, ENGINE, Circle(), BATCH, GALLERY, seeded(3), rounded=False)
    own = moved(attack, Surrogate(Circle(), GALLERY))
    torch.testing.assert_close(own.inputs, white.inputs)
    torch.testing.assert_close(own.embeddings, white.embeddings)
    torch.testing.assert_close(dict(own.scores), dict(white.scores))


@pytest.mark.parametrize("attack", FIXED, ids=repr)
def test_it_climbs_on_the_surrogate_and_is_scored_on_the_target(attack: Attack) -> None:
    source = surrogate(Bent())
    outcome = moved(attack, source)
    assert (outcome.inputs - BATCH.inputs).abs().max() <= 0.1 + 1e-9
    torch.testing.assert_close(outcome.embeddings, Circle()(outcome.inputs).detach())
    targets = attack.choose(BATCH.inputs, BATCH, GALLERY, seeded(3))
    expected = attack.score(outcome.embeddings, targets, BATCH, GALLERY)
    torch.testing.assert_close(dict(outcome.scores), dict(expected))
    white = run(attack, ENGINE, Circle(), BATCH, GALLERY, seeded(3), rounded=False)
    with frozen(Circle()) as seen:
        value = [attack.value(seen(x), targets, GALLERY).sum() for x in (outcome.inputs, white.inputs)]
    assert value[0] <= value[1] + 1e-6, "the white box knows better"


def test_the_surrogate_sees_the_items_that_the_target_chose() -> None:
    source = surrogate(Bent())
    outcome = moved(TargetedMismatch(), source)
    index = TargetedMismatch().choose(BATCH.inputs, BATCH, GALLERY, seeded(3))["index"]
    wanted = source.gallery.embeddings[index]
    before, after = (paired(source.model(x), wanted) for x in (BATCH.inputs, outcome.inputs))
    assert (index != BATCH.index).all() and (after < before - 0.05).all()


def test_embedding_shift_leaves_the_surrogates_own_embedding() -> None:
    source = surrogate(Bent())
    outcome = moved(EmbeddingShift(), source)
    assert (paired(source.model(outcome.inputs), source.model(BATCH.inputs)) > 0.05).all()
    # The score is of the target: how far its embedding has gone from its own clean one.
    torch.testing.assert_close(outcome.scores["ES:D"], paired(Circle()(outcome.inputs), BATCH.inputs).detach())


def test_the_target_is_asked_about_the_clean_and_the_final_images_alone() -> None:
    target = Bent(2.0)
    items = surrogate(target).gallery
    target.calls = 0
    transfer(TopOneMisranking(), ENGINE, surrogate(Bent()), target, BATCH, items, seeded(0), rounded=False)
    assert target.calls == 2


@pytest.mark.parametrize("budget", [0, 5, 10])
def test_a_batch_over_the_budget_gives_the_same_in_parts(budget: int) -> None:
    source = surrogate(Bent())
    whole, parts = moved(LearnToMisrank(), source), moved(LearnToMisrank(), source, budget=budget)
    torch.testing.assert_close(parts.inputs, whole.inputs)
    torch.testing.assert_close(parts.embeddings, whole.embeddings)
    torch.testing.assert_close(dict(parts.scores), dict(whole.scores))


def test_images_are_rounded_to_bytes_before_they_are_scored() -> None:
    batch = queries([10, 70], [0, 1])
    batch = type(batch)((batch.inputs * 255).round() / 255, batch.labels, batch.index)
    engine = PGD(Ball(0.01), steps=3, step_size=0.004, random_start=False)
    outcome = transfer(TopOneMisranking(), engine, surrogate(Bent()), Circle(), batch, GALLERY, seeded(0))
    levels = (outcome.inputs - batch.inputs) * 255
    torch.testing.assert_close(levels, levels.round())
    torch.testing.assert_close(outcome.embeddings, Circle()(outcome.inputs).detach())


def test_models_are_left_as_they_were() -> None:
    source, target = Surrogate(Circle().train(), GALLERY), Circle().train()
    moved(Query("up"), source, target)
    for model in (source.model, target):
        assert model.training and all(p.requires_grad and p.grad is None for p in model.parameters())


def test_another_gallery_than_the_targets_is_refused() -> None:
    for other in (gallery(DEGREES[:4], LABELS[:4]), gallery(DEGREES, [0, 1, 0, 1, 2])):
        with pytest.raises(InputError, match=r"the surrogate's gallery .* is not the target's"):
            moved(Query("up"), Surrogate(Circle(), other))


@dataclass(frozen=True)
class Odd:
    """An attack with numbers among its targets that nobody else knows."""

    role: ClassVar[Literal["query", "candidate"]] = "query"

    def choose(self, clean, batch, gallery, generator):  # type: ignore[no-untyped-def]  # as in Attack
        return {"odd": clean * 2}

    def value(self, z, targets, gallery):  # type: ignore[no-untyped-def]
        return (z * targets["odd"]).sum(dim=1)

    def score(self, z, targets, batch, gallery):  # type: ignore[no-untyped-def]
        return {"odd": z[:, 0]}


def test_targets_that_cannot_be_seen_through_a_surrogate_are_refused() -> None:
    with pytest.raises(InputError, match=r"Odd\(\) fixes 'odd'.*expected indices, masks, or 'clean'"):
        moved(Odd(), surrogate(Bent()))


def test_the_published_faults_are_not_transferred() -> None:
    for wrap in (lambda attack: Transfer(attack, "runs/other"), lambda attack: moved(attack, surrogate(Bent()))):
        with pytest.raises(InputError, match="mode 'compat'; expected mode 'fixed'"):
            wrap(Query("up", mode="compat"))


def test_what_a_suite_says_never_becomes_a_white_box_attack() -> None:
    attack = Transfer(Candidate("up"), "runs/other")
    assert isinstance(attack, Attack) and attack.role == "candidate"
    assert "runs/other" in repr(attack)
    with pytest.raises(InputError, match=r"does not climb on its target.*'runs/other' loaded as the surrogate"):
        run(attack, ENGINE, Circle(), BATCH, GALLERY, seeded(0), rounded=False)


def test_a_run_folder_is_a_surrogate(trained: Path) -> None:
    folder = RunFolder(trained)
    spec = folder.read_recipe()
    source, target = assemble.load_model(spec, str(trained)), assemble.load_model(spec, str(trained))
    folder.load_weights(source)
    folder.load_weights(target)
    data, view = assemble.load_data(spec, str(trained)), assemble.load_view(spec, str(trained))
    arena = Arena.prepare(target, data, view, Workers(torch.device("cpu")), limit=32)
    items = embed(source, arena.items, arena.view, arena.workers, arena.batch_size, seen=arena.seen)
    engine = PGD(Ball(0.15), steps=8, step_size=0.03)
    _, _, batch = next(arena.batches())
    outcome = transfer(
        LearnToMisrank(), engine, Surrogate(source, Gallery(items, arena.gallery.labels)), arena.model, batch,
        arena.gallery, seeded(0), view=arena.seen,
    )  # fmt: skip
    white = run(LearnToMisrank(), engine, arena.model, batch, arena.gallery, seeded(0), view=arena.seen)
    assert math.isclose(outcome.scores["LTM"].mean(), white.scores["LTM"].mean())
    assert outcome.scores["LTM"].mean() < 80


def test_the_items_aimed_at_are_told_as_of_an_attack_on_the_target_itself() -> None:
    model, attack = Circle(), TargetedMismatch()
    moved = transfer(attack, ENGINE, Surrogate(model, GALLERY), model, BATCH, GALLERY, seeded(0), rounded=False)
    alone = run(attack, ENGINE, model, BATCH, GALLERY, seeded(0), rounded=False)
    assert moved.aims is not None and alone.aims is not None and torch.equal(moved.aims, alone.aims)
