"""Attacks on a whole test set: clustering has no clean template, so every image moves, alone or all together.

"Towards adversarially robust deep metric learning" (arXiv 2501.01025) perturbs each image by itself (bank "still").
With bank "moving" all images climb at once, against the embeddings of the others as they move.
"""

from dataclasses import dataclass, field, replace
from itertools import product
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from robustmetric.attacks.base import Attack, Engine, Outcome, Scores, Targets, run
from robustmetric.attacks.keeping import Memory, Way
from robustmetric.attacks.modes import mode_of
from robustmetric.attacks.transfer import Source
from robustmetric.attacks.vote import Capped, climbs_of, damage, for_members
from robustmetric.errors import InputError, nearest
from robustmetric.metrics.voting import Judge, judge
from robustmetric.numerics.distances import chunks
from robustmetric.numerics.randomness import generator as seeded
from robustmetric.perturb.gradient_free import Square
from robustmetric.perturb.pgd import PGD, View, frozen, value_and_gradient
from robustmetric.perturb.seeking import Search, quick_view
from robustmetric.types import Batch, Embed, Embeddings, Gallery, Inputs, Value

Bank = Literal["still", "moving"]


@dataclass(frozen=True)
class WholeSet:
    """This attack on every image of a set. `move_all` carries it out; a climb of some images alone is another attack.

    `restarts` are of the whole set, and the one with the smallest `judge` is kept: the metrics are of the set, not of
    an image. (Those of the engine are of each image, by its value; a moving bank has none.)
    """

    attack: Attack
    bank: Bank = "still"
    """What the others are while an image climbs: as they were, or as they move."""
    refresh: int = 1
    """Steps between two embeddings of a moving bank."""
    restarts: int = 1
    judge: Judge = "R@1"
    surrogate: Source | None = field(default=None, repr=False)
    """For a black-box attack, the model that the climb is on (`transfer_all`). Records name it by weights."""

    def __post_init__(self) -> None:
        for name, word, known in (("bank", self.bank, get_args(Bank)), ("judge", self.judge, get_args(Judge))):
            if word not in known:
                raise InputError(f"{name} {word!r} is not known{nearest(word, known)}")
        if self.refresh < 1 or self.restarts < 1:
            raise InputError(f"refresh={self.refresh}, restarts={self.restarts}; expected both to be 1 or more")
        if mode_of(self.attack) != "fixed":
            raise InputError(f"{self.attack!r} is in mode {mode_of(self.attack)!r}; expected mode 'fixed'")

    @property
    def role(self) -> Literal["query", "candidate"]:
        return self.attack.role

    def choose(self, clean: Embeddings, batch: Batch, gallery: Gallery, generator: torch.Generator | None) -> Targets:
        return self.attack.choose(clean, batch, gallery, generator)

    def value(self, z: Embeddings, targets: Targets, gallery: Gallery) -> Tensor:
        raise InputError(
            f"a whole set is not climbed in batches; expected {self.attack!r} to be run by attacks.joint.move_all"
        )

    def score(self, z: Embeddings, targets: Targets, batch: Batch, gallery: Gallery) -> Scores:
        return self.attack.score(z, targets, batch, gallery)


@dataclass(frozen=True)
class Moved:
    """A set before and after: perturbed inputs, their embeddings, the clean ones."""

    inputs: Inputs | None
    """None where they are not asked for, or an earlier call made the climb: then embeddings alone are kept."""
    embeddings: Embeddings
    clean: Embeddings
    judged: float
    """What the judge says of the moved set, in [0, 1]."""
    flat: float
    """Percent of the images (of the first chunk) that have no gradient at the start: an attack that cannot move."""


@dataclass(frozen=True)
class Scene:
    """What all climbs of one set share."""

    engine: Engine
    model: nn.Module
    batch: Batch
    still: Gallery
    """The set's clean embeddings."""
    members: int
    chunk: int
    rounded: bool
    view: View
    search: Search = "fp32"
    way: Way | None = None
    keeps_inputs: bool = True

    @property
    def parts(self) -> list[slice]:
        """The set, some images at a time."""
        return list(chunks(len(self.batch), self.chunk))


def move_all(
    whole: WholeSet,
    engine: Engine,
    model: nn.Module,
    batch: Batch,
    generator: torch.Generator,
    *,
    members: int = 1,
    chunk: int = 128,
    rounded: bool = True,
    view: View = "exact",
    clean: Embeddings | None = None,
    search: Search = "fp32",
    memory: Memory | None = None,
    way: Way | None = None,
    keeps_inputs: bool = True,
) -> Moved:
    """Attack a whole set, `chunk` images at a time; `members` of an ensemble are judged by their vote (V1, C1).

    The set's own images are its gallery: `batch.index` is set to their places. Memory: up to four copies of the images.
    `clean` are the model's embeddings of the batch, where they are known. With another `search` than fp32 the model is
    climbed on in that precision; embeddings are as `view` sees them. Of several climbs, `memory` is told each.
    """
    _check_engine(whole, engine, search)
    batch = Batch(batch.inputs, batch.labels, torch.arange(len(batch), device=batch.labels.device))
    if clean is None:
        with frozen(model, view) as embed:
            clean = embed_all(embed, batch.inputs, chunk)
    still = Gallery(clean, batch.labels)
    scene = Scene(engine, model, batch, still, members, chunk, rounded, view, search, way, keeps_inputs)
    attack = for_members(whole.attack, members)
    seeds = torch.randint(2**31, (whole.restarts,), generator=generator, device=generator.device).tolist()
    flat = _flat(attack, scene, seeds[0])
    climbs = list(product(seeds, range(len(climbs_of(attack)) if whole.bank == "moving" else 1)))
    best: Moved | None = None
    for number, (seed, turn) in enumerate(climbs):
        inputs, z = None, None if memory is None else memory.recall(number)
        if z is None:
            inputs, z = _climb(whole, attack, scene, seed, turn)
            if memory is not None and len(climbs) > 1:
                memory.note(number, z)
        judged = judge(z, batch.labels, members, whole.judge)
        if best is None or judged < best.judged:
            best = Moved(inputs, z, clean, judged, flat)
    assert best is not None  # there is at least one restart
    return best


def transfer_all(
    whole: WholeSet,
    engine: Engine,
    surrogate: nn.Module,
    model: nn.Module,
    batch: Batch,
    generator: torch.Generator,
    *,
    surrogate_members: int = 1,
    members: int = 1,
    chunk: int = 128,
    rounded: bool = True,
    view: View = "exact",
    clean: Embeddings | None = None,
    search: Search = "fp32",
) -> Moved:
    """As `move_all`, but all is done on the surrogate, restarts judged by it too: the target is seen at the end."""
    moved = move_all(
        whole, engine, surrogate, batch, generator,
        members=surrogate_members, chunk=chunk, rounded=rounded, view=view, search=search,
    )  # fmt: skip
    with frozen(model, view) as embed:
        clean = embed_all(embed, batch.inputs, chunk) if clean is None else clean
        assert moved.inputs is not None  # nothing was recalled
        z = embed_all(embed, moved.inputs, chunk)
    return replace(moved, embeddings=z, clean=clean, judged=judge(z, batch.labels, members, whole.judge))


@torch.no_grad()
def embed_all(embed: Embed, inputs: Inputs, chunk: int) -> Float[Tensor, "batch dim"]:
    """Embeddings of all inputs, some at a time."""
    return torch.cat([embed(inputs[rows]).float() for rows in chunks(len(inputs), chunk)])


def _climb(whole: WholeSet, attack: Attack, scene: Scene, seed: int, turn: int) -> tuple[Inputs | None, Embeddings]:
    """A still climb, in which each image keeps its worst; or a moving climb by one of the ways that the attack has."""
    if whole.bank == "still":
        outcomes = (_worst(attack, scene, rows, seed) for rows in scene.parts)
        pairs = [(outcome.inputs if scene.keeps_inputs else None, outcome.embeddings) for outcome in outcomes]
        kept = [inputs for inputs, _ in pairs if inputs is not None]
        return torch.cat(kept) if kept else None, torch.cat([z for _, z in pairs]).float()
    with frozen(scene.model, scene.view) as embed:
        quick = quick_view(scene.model, embed, scene.search) or embed
        moved = _climb_together(climbs_of(attack)[turn], scene, quick, (seed, turn), whole.refresh)
        for rows in scene.parts if scene.rounded else ():
            moved[rows] = scene.engine.ball.to_bytes(moved[rows], scene.batch.inputs[rows])
        return moved if scene.keeps_inputs else None, embed_all(embed, moved, scene.chunk)


def _worst(attack: Attack, scene: Scene, rows: slice, seed: int) -> Outcome:
    """These images, each by the climb that does it most damage; the bank stands still."""
    batch = _rows(scene.batch, rows)

    def climb(way: Attack, turn: int) -> tuple[Outcome, Float[Tensor, " batch"]]:
        randomness = seeded(batch.inputs.device, seed, rows.start, turn)
        engine = _until(scene.engine, way)
        engine = engine if scene.way is None else scene.way.on(engine, (rows.start, turn))
        outcome = run(
            way, engine, scene.model, batch, scene.still, randomness,
            rounded=scene.rounded, view=scene.view, search=scene.search,
        )  # fmt: skip
        return outcome, damage(outcome.embeddings, batch, scene.still, scene.members)

    first, *others = climbs_of(attack)
    worst, harm = climb(first, 0)
    for turn, way in enumerate(others, 1):
        other, other_harm = climb(way, turn)
        wins = other_harm > harm
        images = wins.view(-1, *[1] * (batch.inputs.dim() - 1))
        inputs = torch.where(images, other.inputs, worst.inputs)
        worst = Outcome(inputs, torch.where(wins[:, None], other.embeddings, worst.embeddings), worst.scores)
        harm = torch.where(wins, other_harm, harm)
    return Outcome(worst.inputs, worst.embeddings, {"damage": harm})


def _until(engine: Engine, attack: Attack) -> Engine:
    """A search that also ends for rows whose value cannot rise any more, where the attack knows such a value."""
    if isinstance(engine, Square) and engine.goal is None and isinstance(attack, Capped):
        return replace(engine, goal=attack.ceiling)
    return engine


def _climb_together(attack: Attack, scene: Scene, embed: Embed, seed: tuple[int, int], refresh: int) -> Inputs:
    """Synchronous steps: embed all images, aim each at what the bank has become, step them all."""
    engine, clean, device = scene.engine, scene.batch.inputs, scene.batch.inputs.device
    assert isinstance(engine, PGD)  # see _check_engine
    x = engine.ball.random_point(clean, seeded(device, *seed, 1)) if engine.random_start else clean.clone()
    bank, aims = scene.still, dict[str, Tensor]()
    for step in range(engine.steps):
        if step % refresh == 0:
            bank = Gallery(embed_all(embed, x, scene.chunk), scene.batch.labels)
            # Of all rows at once, since what is found of the bank is the same for each of them; and with the same
            # randomness each time: a derangement, once drawn, holds for the climb.
            aims = dict(attack.choose(scene.still.embeddings, scene.batch, bank, seeded(device, *seed)))
        for rows in scene.parts:
            aim = {name: target[rows] for name, target in aims.items()}
            _, gradient = value_and_gradient(_value(attack, embed, aim, bank), x[rows])
            x[rows] = engine.ball.ascent(clean[rows], engine.step_size)(x[rows], gradient)
    return x


def _flat(attack: Attack, scene: Scene, seed: int) -> float:
    """Percent of the first images whose value has no gradient where the climb begins; 0 where no gradient is asked."""
    if not isinstance(scene.engine, PGD) or not scene.engine.steps:
        return 0.0
    batch, engine = _rows(scene.batch, scene.parts[0]), scene.engine
    climb, randomness = climbs_of(attack)[0], seeded(batch.inputs.device, seed)
    start = engine.ball.random_point(batch.inputs, randomness) if engine.random_start else batch.inputs
    with frozen(scene.model, scene.view) as embed:
        embed = quick_view(scene.model, embed, scene.search) or embed  # what the climb is on
        aim = climb.choose(scene.still.embeddings[batch.index], batch, scene.still, randomness)
        _, gradient = value_and_gradient(_value(climb, embed, aim, scene.still), start)
    return 100 * float((~gradient.flatten(1).any(dim=1)).float().mean())


def _value(attack: Attack, embed: Embed, aim: Targets, bank: Gallery) -> Value:
    return lambda x: attack.value(embed(x), aim, bank)


def _rows(batch: Batch, rows: slice) -> Batch:
    return Batch(batch.inputs[rows], batch.labels[rows], batch.index[rows])


def _check_engine(whole: WholeSet, engine: Engine, search: Search) -> None:
    if search == "fp16":
        raise InputError("a whole set is not sought in fp16, whose overflow nobody would notice; expected bf16")
    if whole.bank == "moving" and (not isinstance(engine, PGD) or engine.restarts > 1 or engine.keep != "last"):
        raise InputError(
            f"a moving bank is climbed in step, which {engine!r} cannot; "
            "expected pgd with restarts: 1 and keep: last (set restarts of whole_set instead)"
        )
