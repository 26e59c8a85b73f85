"""The attack protocol, and the straight line from a batch to scores that every attack follows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from robustmetric.errors import InputError
from robustmetric.numerics.distances import nearest, pairwise
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import frozen
from robustmetric.types import Batch, Embeddings, Gallery, Inputs, Value

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
class Engine(Protocol):
    """Anything that climbs a value inside a ball: PGD and its kin."""

    @property
    def ball(self) -> Ball: ...

    def __call__(self, value: Value, clean: Inputs, generator: torch.Generator | None = None) -> Inputs: ...


@dataclass(frozen=True)
class Outcome:
    """The perturbed inputs, their embeddings, and the attack's scores."""

    inputs: Inputs
    embeddings: Embeddings
    scores: Scores


def run(
    attack: Attack,
    engine: Engine,
    model: nn.Module,
    batch: Batch,
    gallery: Gallery,
    generator: torch.Generator | None = None,
    *,
    rounded: bool = True,
) -> Outcome:
    """Attack one batch. `rounded` scores the images as 8 bits hold them, which is what a real attacker can send."""
    with frozen(model) as embed:
        with torch.no_grad():
            clean = embed(batch.inputs)
        targets = attack.choose(clean, batch, gallery, generator)
        perturbed = engine(lambda x: attack.value(embed(x), targets, gallery), batch.inputs, generator)
        if rounded:
            perturbed = engine.ball.to_bytes(perturbed, batch.inputs)
        with torch.no_grad():
            z = embed(perturbed)
            return Outcome(perturbed, z, attack.score(z, targets, batch, gallery))


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
    chosen: Float[Tensor, "batch chosen"], others: Float[Tensor, "batch #chosen items"]
) -> Float[Tensor, " batch"]:
    """Rank of the chosen distances among the others, in percent of the gallery, ties counted half.

    Distances within 1e-6 tie: float32 cannot tell them apart, and a collapsed model must not win by rounding noise.
    """
    gap = chosen[..., None] - others
    closer = (gap > 1e-6).float().mean(dim=-1)
    level = (gap.abs() <= 1e-6).float().mean(dim=-1)
    return 100 * (closer + level / 2).mean(dim=1)


def check_direction(direction: str, count: int, what: str) -> None:
    """Refuse settings that a ranking attack would take in silence: another direction means "down", none of them NaN."""
    if direction not in ("up", "down"):
        raise InputError(f"direction {direction!r} is not known; expected 'up' or 'down'")
    if count < 1:
        raise InputError(f"{what}={count} moves nothing; expected 1 or more")


def draw(
    items: int, rows: int, width: int, device: torch.device, generator: torch.Generator | None
) -> Int[Tensor, "rows width"]:
    """Indices drawn uniformly with replacement."""
    return torch.randint(items, (rows, width), device=device, generator=generator)


def draw_near(
    z: Float[Tensor, "rows dim"],
    exclude: Int[Tensor, " rows"],
    gallery: Gallery,
    share: float,
    width: int,
    generator: torch.Generator | None,
) -> Int[Tensor, "rows width"]:
    """Per row, `width` indices drawn without replacement from the nearest `share` of the gallery, itself left out."""
    pool = int(share * len(gallery))
    if not width <= pool < len(gallery):
        raise InputError(
            f"the nearest {share:.2%} of a gallery of {len(gallery)} are {pool} items; expected at least {width} and "
            f"fewer than {len(gallery)}: use a larger gallery or another pool"
        )
    _, near = nearest(z, gallery.embeddings, k=pool, exclude=exclude)
    weights = torch.ones(near.shape, device=near.device)
    return near.gather(1, torch.multinomial(weights, width, replacement=False, generator=generator))
