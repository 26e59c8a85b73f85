"""Climbs of more and more steps, each from where the last one ended: nothing but the work differs."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from robustmetric.attacks.base import run
from robustmetric.attacks.centroid import Centroid
from robustmetric.attacks.embedding_shift import EmbeddingShift
from robustmetric.attacks.joint import WholeSet
from robustmetric.attacks.suite import Suite, Trial
from robustmetric.attacks.trail import Onward, Trail
from robustmetric.attacks.vote import NeighbourMargin
from robustmetric.data.base import Dataset
from robustmetric.data.digits import Digits
from robustmetric.data.transforms import Identity
from robustmetric.jobs.arena import Arena
from robustmetric.jobs.clustering import run_clustering
from robustmetric.jobs.workers import Workers
from robustmetric.models.convnet import ConvNet
from robustmetric.models.encoder import Encoder
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.gradient_free import Square
from robustmetric.perturb.pgd import PGD
from robustmetric.types import Batch, Gallery, Inputs, Value

ENGINE = PGD(Ball(0.2), steps=1, step_size=0.03)


def climb(steps: int, label: str = "A1", whole: WholeSet | None = None, engine: PGD = ENGINE) -> Trial:
    return Trial(f"{label} in {steps}", whole or WholeSet(EmbeddingShift()), replace(engine, steps=steps))


@pytest.fixture(scope="module")
def arena() -> Arena:
    whole = Digits().load()
    rows = slice(0, 60)
    some = replace(
        whole.queries, inputs=whole.queries.inputs[rows], labels=whole.queries.labels[rows],
        names=whole.queries.names[rows], sizes=whole.queries.sizes[rows],
    )  # fmt: skip
    torch.manual_seed(0)
    model = Encoder(ConvNet(side=8, kernel=3, widths=(4, 8), hidden=16, dim=8))
    data = Dataset("digits", train=whole.train, queries=some)
    return Arena.prepare(model, data, Identity(), Workers(torch.device("cpu")), batch_size=32)


def all_images(arena: Arena) -> Batch:
    """All images of the arena as one batch."""
    return next(iter(replace(arena, batch_size=len(arena.rows)).batches()))[2]


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The steps that every call of PGD took."""
    found: list[int] = []
    whole, rest = PGD.__call__, PGD.go_on

    def call(self: PGD, value: Value, clean: Inputs, generator: torch.Generator | None = None) -> Tensor:
        found.append(self.steps)
        return whole(self, value, clean, generator)

    def go_on(self: PGD, value: Value, clean: Inputs, x: Inputs) -> Tensor:
        found.append(self.steps)
        return rest(self, value, clean, x)

    monkeypatch.setattr(PGD, "__call__", call)
    monkeypatch.setattr(PGD, "go_on", go_on)
    yield found


@pytest.mark.parametrize("attack", [EmbeddingShift(), NeighbourMargin()])
def test_records_are_those_of_climbs_from_the_start(
    arena: Arena, taken: list[int], attack: EmbeddingShift | NeighbourMargin
) -> None:
    trials = [climb(steps, whole=WholeSet(attack)) for steps in (1, 2, 5, 9)]
    together = list(run_clustering(arena, Suite("steps", trials), 0, {}))
    assert taken == [1, 1, 1, 1, 3, 3, 4, 4], "two chunks each, and 9 steps in all"
    alone = [r for each in trials for r in run_clustering(arena, Suite("steps", [each]), 0, {})]
    by_key = {record.key: record for record in alone}
    assert len(together) == 1 + 4 * 3 + 3
    for record in together:
        if record.settings["trial"] != "strongest":
            assert record.scores == by_key[record.key].scores and record.context == by_key[record.key].context


def test_a_batch_that_is_attacked_in_parts_goes_on_alike(arena: Arena) -> None:
    batch = all_images(arena)
    gallery = Gallery(arena.gallery.embeddings, batch.labels)
    trail, found = Trail(), []
    attack, trials = Centroid(target="random"), [climb(2), climb(5)]
    for place, trial in enumerate(trials, 1):
        trail.begin(trial, trials[place:])
        engine, randomness = trail.on(trial.engine, 0), torch.Generator().manual_seed(3)
        found.append(run(attack, engine, arena.model, batch, gallery, randomness, budget=20 * len(gallery)))
    whole = run(
        attack,
        trials[1].engine,
        arena.model,
        batch,
        gallery,
        torch.Generator().manual_seed(3),
        budget=20 * len(gallery),
    )
    assert torch.equal(found[1].inputs, whole.inputs) and not torch.equal(found[0].inputs, whole.inputs)


def test_a_way_ends_where_another_begins(arena: Arena, taken: list[int]) -> None:
    other = replace(ENGINE, step_size=0.02)
    trials = [climb(2), climb(3, "other", engine=other), climb(4)]
    list(run_clustering(arena, Suite("steps", trials), 0, {}))
    assert taken == [2, 2, 3, 3, 4, 4]


def test_fewer_steps_than_were_taken_begin_anew(arena: Arena, taken: list[int]) -> None:
    list(run_clustering(arena, Suite("steps", [climb(3), climb(2), climb(4)]), 0, {}))
    assert taken == [3, 3, 2, 2, 2, 2]


def test_what_was_finished_before_is_not_needed(arena: Arena, taken: list[int]) -> None:
    trials = [climb(1), climb(3)]
    whole = list(run_clustering(arena, Suite("steps", trials), 0, {}))
    done = {r.key: r for r in whole if r.settings["trial"] != "A1 in 3" and r.settings["trial"] != "strongest"}
    taken.clear()
    again = list(run_clustering(arena, Suite("steps", trials), 0, {}, finished=done))
    assert taken == [3, 3]
    assert [r.scores for r in again if r.settings["trial"] == "A1 in 3"] == [
        r.scores for r in whole if r.settings["trial"] == "A1 in 3"
    ]


def test_nothing_is_kept_that_no_climb_goes_on() -> None:
    trail, engine = Trail(), replace(ENGINE, steps=2)
    trail.begin(climb(2), [climb(1), climb(2, engine=replace(ENGINE, restarts=2))])
    assert trail.on(engine, 0) is engine


def test_the_last_climb_of_a_way_keeps_nothing() -> None:
    trail, clean = Trail(), torch.full((2, 1, 4, 4), 0.5)
    for steps, rest in ((2, [climb(5)]), (5, [])):
        trail.begin(climb(steps), rest)
        onward = trail.on(replace(ENGINE, steps=steps), 0)
        assert isinstance(onward, Onward)
        onward(lambda x: x.flatten(1).sum(dim=1), clean, None)
        assert (onward.ends is not None and len(onward.ends) == 1) is bool(rest)
    assert onward.taken == 2


@pytest.mark.parametrize(
    "trial",
    [
        climb(2, whole=WholeSet(EmbeddingShift(), bank="moving")),
        climb(2, whole=WholeSet(EmbeddingShift(), restarts=2)),
        climb(2, whole=WholeSet(EmbeddingShift(), surrogate="runs/other")),
        climb(2, engine=replace(ENGINE, keep="best")),
        climb(2, engine=replace(ENGINE, restarts=2)),
        Trial("Square", WholeSet(EmbeddingShift()), Square(Ball(0.2), 10)),
    ],
)
def test_climbs_that_are_no_single_way_are_left_as_they_are(trial: Trial) -> None:
    trail = Trail()
    trail.begin(trial, [trial])
    assert trail.on(trial.engine, 0) is trial.engine
