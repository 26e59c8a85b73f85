"""The attack protocol, and the straight line from a batch to scores that every attack follows."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from robustmetric.attacks.modes import ClimbsAlike, guess_places, mode_of
from robustmetric.errors import InputError
from robustmetric.numerics.distances import chunks, nearest, pairwise
from robustmetric.perturb.engine import Engine as Engine
from robustmetric.perturb.half import HalfView
from robustmetric.perturb.pgd import PGD, Rowwise, View, frozen, value_and_gradient
from robustmetric.perturb.seeking import Search, quick_view, seek
from robustmetric.types import Batch, Embed, Embeddings, Gallery, Inputs, Value

BUDGET = 2**26
"""Distances from inputs to gallery held at one time (256 MiB in float32; up to eight such arrays live together)."""

TIE = 1e-6
"""Distances this close tie: float32 cannot tell them apart, and a collapsed model must not win by rounding noise."""

Targets = Mapping[str, Tensor]
"""What an attack fixed before it began, one row per input: indices into the gallery, distances, embeddings."""
Scores = Mapping[str, Tensor]
"""One number per input under each published name: percent for rates and ranks, distances and cosines as they are."""


@runtime_checkable
class Attack(Protocol):
    """Whom to target, what to climb, how to score. Targets are chosen from the clean state and stay fixed."""

    role: ClassVar[Literal["query", "candidate"]]
    """Which side of the search the attacker moves."""

    def choose(self, clean: Embeddings, batch: Batch, gallery: Gallery, generator: torch.Generator | None) -> Targets:
        """Whom: anything fixed for the climb."""

    def value(self, z: Embeddings, targets: Targets, gallery: Gallery) -> Float[Tensor, " batch"]:
        """What to climb, per row; larger is worse for the model."""

    def score(self, z: Embeddings, targets: Targets, batch: Batch, gallery: Gallery) -> Scores:
        """How it went, per row, in the published unit."""


@runtime_checkable
class ScoredEarly(Protocol):
    """An attack that in mode `compat` takes some of its scores one step before the last."""

    def score_early(self, z: Embeddings, targets: Targets) -> Scores:
        """These scores, of the embeddings before the last step; they replace those of `score`."""


@dataclass(frozen=True)
class Climb:
    """Where a climb led, not rounded, and what it was told to aim at."""

    inputs: Inputs
    targets: Targets

    def serves(self, targets: Targets) -> bool:
        """Whether a climb towards these would be the same; one host synchronisation per target."""
        return self.targets.keys() == targets.keys() and all(
            torch.equal(self.targets[name], target) for name, target in targets.items()
        )


@dataclass(frozen=True)
class Outcome:
    """The perturbed inputs, their embeddings, and the attack's scores; the climb, where another mode may share it.

    (A batch that is attacked in parts shares none: what one part draws at random depends on those before it.)
    """

    inputs: Inputs
    embeddings: Embeddings
    scores: Scores
    climb: Climb | None = None
    shared: bool = False
    """Whether an earlier climb was used."""
    aims: Int[Tensor, "batch _"] | None = None
    """The places in the gallery of the items that were chosen for each row, of an attack that chooses some."""


def joined(parts: Sequence[Outcome]) -> Outcome:
    """Outcomes of the rows of one batch, in order, as one."""
    if len(parts) == 1:
        return parts[0]
    aims = [part.aims for part in parts]
    return Outcome(
        inputs=torch.cat([part.inputs for part in parts]),
        embeddings=torch.cat([part.embeddings for part in parts]),
        scores={name: torch.cat([part.scores[name] for part in parts]) for name in parts[0].scores},
        aims=None if aims[0] is None else torch.cat([each for each in aims if each is not None]),
    )


def run(
    attack: Attack,
    engine: Engine,
    model: nn.Module,
    batch: Batch,
    gallery: Gallery,
    generator: torch.Generator | None = None,
    *,
    rounded: bool = True,
    budget: int = BUDGET,
    view: View = "exact",
    search: Search = "fp32",
    earlier: Climb | None = None,
) -> Outcome:
    """Attack one batch. `rounded` scores the images as 8 bits hold them, which is what a real attacker can send.

    (Published tables are of images that are not rounded; the mode of an attack is explained in `modes.py`.)

    A batch with more than `budget` distances to the gallery is attacked some rows at a time, so memory stays bounded.
    `view` is how the attack sees the model, and how it is scored: see `frozen`; with another `search` than fp32 it is
    climbed on in that precision, see `seek`. `earlier` is the climb of this batch, by this engine and generator, in the
    attack's other mode: it is used where it would be the same.
    """
    with frozen(model, view) as embed:
        quick = quick_view(model, embed, search)
        parts = [
            _run_rows(
                attack,
                engine,
                embed,
                quick,
                part,
                gallery,
                generator,
                rounded,
                earlier if len(part) == len(batch) else None,
                # Beside float16 little is left in fp32 (a head, distances), and TF32 would only round it.
                search == "tf32",
            )
            for part in _parts(batch, budget // max(1, len(gallery)))
        ]
    return joined(parts)


def _parts(batch: Batch, rows: int) -> list[Batch]:
    """The batch, at most `rows` (but at least one) at a time; one that fits stays as it is."""
    if len(batch) <= max(1, rows):
        return [batch]
    return [Batch(batch.inputs[s], batch.labels[s], batch.index[s]) for s in chunks(len(batch), rows)]


def _run_rows(
    attack: Attack,
    engine: Engine,
    embed: Embed,
    quick: Embed | None,
    batch: Batch,
    gallery: Gallery,
    generator: torch.Generator | None,
    rounded: bool,
    earlier: Climb | None,
    tf32: bool,
) -> Outcome:
    """Choose, climb (or take the climb of the other mode), score."""
    with torch.no_grad():
        clean = embed(batch.inputs)
    compat = mode_of(attack) == "compat"
    if compat:
        batch = guess_places(batch, clean, gallery)
    targets = attack.choose(clean, batch, gallery, generator)

    def value(embed: Embed, x: Inputs, *fixed: Tensor) -> Tensor:
        return attack.value(embed(x), dict(zip(targets, fixed, strict=True)), gallery)

    climbed = Rowwise(partial(value, embed), tuple(targets.values()))
    shared = earlier is not None and isinstance(attack, ClimbsAlike) and earlier.serves(targets)
    early: Scores = {}
    if compat and isinstance(attack, ScoredEarly):
        before, perturbed = _last_two(engine, climbed, batch.inputs, generator)
        with torch.no_grad():
            early = attack.score_early(embed(before), targets)
    elif shared and earlier is not None:
        perturbed = earlier.inputs
    else:
        sought = None if quick is None else Rowwise(partial(value, quick), climbed.constants)
        half = quick if isinstance(quick, HalfView) else None
        perturbed = seek(engine, climbed, sought, batch.inputs, generator, tf32, half)
    climb = Climb(perturbed, targets) if isinstance(attack, ClimbsAlike) else None
    if rounded:
        perturbed = engine.ball.to_bytes(perturbed, batch.inputs)
    with torch.no_grad():
        z = embed(perturbed)
        scores = {**attack.score(z, targets, batch, gallery), **early}
    return Outcome(perturbed, z, scores, climb, shared, aims_of(targets))


def aims_of(targets: Targets) -> Int[Tensor, "batch _"] | None:
    """The places in the gallery of the items that were chosen; None where none were."""
    return targets["index"].view(len(targets["index"]), -1) if "index" in targets else None


def _last_two(engine: Engine, value: Value, clean: Inputs, generator: torch.Generator | None) -> tuple[Inputs, Inputs]:
    """The last two images of a climb: all steps but one, and then that one from there."""
    if not isinstance(engine, PGD) or engine.steps < 1 or engine.restarts > 1 or engine.keep != "last":
        raise InputError(
            f"mode 'compat' also scores the image before the last step, which {engine!r} does not have; "
            "expected pgd with steps >= 1, restarts: 1 and keep: last"
        )
    before = replace(engine, steps=engine.steps - 1)(value, clean, generator)
    _, gradient = value_and_gradient(value, before)
    return before, engine.ball.ascent(clean, engine.step_size)(before, gradient)


def to_gallery(z: Embeddings, gallery: Gallery, exclude: Int[Tensor, " batch"] | None = None) -> Tensor:
    """Distances to every item, infinite at the excluded one (-1: none)."""
    distances = pairwise(z, gallery.embeddings)
    if exclude is None:
        return distances
    return distances.masked_fill(torch.arange(len(gallery), device=z.device) == exclude[:, None], torch.inf)


def recall_at_1(z: Embeddings, batch: Batch, gallery: Gallery) -> Float[Tensor, " batch"]:
    """100 where the nearest item other than the query itself has the query's label, else 0."""
    _, top = nearest(z, gallery.embeddings, k=1, exclude=batch.index)
    return 100.0 * (gallery.labels[top[:, 0]] == batch.labels).float()


def percentile(
    chosen: Float[Tensor, "batch chosen"], others: Float[Tensor, "batch #chosen items"], *, is_listed: bool = False
) -> Float[Tensor, " batch"]:
    """Rank of the chosen distances among the others, in percent of these, ties counted half.

    Items infinitely far are no part of the list. `is_listed`: the others hold each chosen distance itself, which then
    does not count: first is 0, last is 100.
    """
    gap = chosen[..., None] - others
    closer = (gap > TIE).sum(dim=-1)
    level = (gap.abs() <= TIE).sum(dim=-1) - int(is_listed)
    items = (others.isfinite().sum(dim=-1) - int(is_listed)).clamp_min(1)
    return 100 * ((closer + level / 2) / items).mean(dim=1)


def check_direction(direction: str, count: int, what: str) -> None:
    """Refuse settings that a ranking attack would take in silence: another direction means "down", none of them NaN."""
    if direction not in ("up", "down"):
        raise InputError(f"direction {direction!r} is not known; expected 'up' or 'down'")
    if count < 1:
        raise InputError(f"{what}={count} moves nothing; expected 1 or more")


def draw(
    items: int,
    rows: int,
    width: int,
    device: torch.device,
    generator: torch.Generator | None,
    exclude: Int[Tensor, " rows"] | None = None,
) -> Int[Tensor, "rows width"]:
    """Indices drawn uniformly with replacement, per row from all items but the excluded one (-1: none)."""
    drawn = torch.randint(items, (rows, width), device=device, generator=generator)
    if exclude is None:
        return drawn
    if items == 1 and bool((exclude >= 0).any()):
        raise InputError("no other item can be drawn from a gallery of 1 item, the query itself; expected at least 2")
    # One of the others in its place: 1/n + 1/n 1/(n-1) = 1/(n-1) each, and whoever did not draw himself keeps his draw.
    others = torch.randint(max(1, items - 1), (rows, width), device=device, generator=generator)
    others += others >= exclude[:, None]
    return torch.where(drawn == exclude[:, None], others, drawn)


def draw_near(
    z: Float[Tensor, "rows dim"],
    exclude: Int[Tensor, " rows"],
    gallery: Gallery,
    share: float,
    width: int,
    generator: torch.Generator | None,
    *,
    replacement: bool = False,
) -> Int[Tensor, "rows width"]:
    """Per row, `width` indices drawn from the nearest `share` of the gallery, itself left out, in random order.

    Where that share is too few items to draw from (a small gallery), the fewest that will do are taken.
    """
    least = 1 if replacement else width
    others = len(gallery) - 1
    if others < least:
        raise InputError(
            f"{width} neighbours cannot be drawn from a gallery of {len(gallery)}; expected at least {least + 1} items"
        )
    pool = min(max(int(share * len(gallery)), least), others)
    _, near = nearest(z, gallery.embeddings, k=pool, exclude=exclude)
    weights = torch.ones(near.shape, device=near.device)
    return near.gather(1, torch.multinomial(weights, width, replacement=replacement, generator=generator))
