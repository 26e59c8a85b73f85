"""Order attack, FOA (Zhou et al., "Practical relative order attack in deep ranking", ICCV 2021): reorder near items."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from robustmetric.attacks.base import TIE, Scores, Targets, draw_near
from robustmetric.attacks.modes import Mode, check_mode
from robustmetric.attacks.objectives import ordering
from robustmetric.errors import InputError
from robustmetric.numerics.distances import paired
from robustmetric.types import Batch, Embeddings, Gallery


@dataclass(frozen=True)
class Order:
    """Of M near neighbours of the query, bring each before the next: two change places, more take a random order.

    Score: for two, FOA, percent of queries that find them in the wanted order (unattacked: 0); for more, FOA:tau,
    Kendall's tau-b between the wanted order and the one found (unattacked: about 0; reached: 1). Ties count half and
    not at all; in `compat` those of two count whole, and more of them are ties only when exact.
    """

    items: int = 2
    pool: float = 0.01
    """They are drawn from this share of the gallery (at least M items), the query's nearest neighbours."""
    mode: Mode = field(default="fixed", repr=False)
    role: ClassVar[Literal["query", "candidate"]] = "query"
    climbs_alike: ClassVar[Literal[True]] = True

    def __post_init__(self) -> None:
        check_mode(self.mode)
        if self.items < 2:
            raise InputError(f"items={self.items} have one order only; expected 2 or more")

    def choose(self, clean: Embeddings, batch: Batch, gallery: Gallery, generator: torch.Generator | None) -> Targets:
        index = draw_near(clean, batch.index, gallery, self.pool, self.items, generator)
        if self.items == 2:
            farther_first = _distances(clean, gallery.embeddings[index]).argsort(dim=1, descending=True)
            index = index.gather(1, farther_first)
        return {"index": index, "wanted": gallery.embeddings[index]}

    def value(self, z: Embeddings, targets: Targets, gallery: Gallery) -> Float[Tensor, " batch"]:
        return ordering(_distances(z, targets["wanted"]))

    def score(self, z: Embeddings, targets: Targets, batch: Batch, gallery: Gallery) -> Scores:
        tie = TIE if self.mode == "fixed" else 0.0
        distances = _distances(z, targets["wanted"])
        if self.items > 2:
            return {"FOA:tau": kendall(distances, tie)}
        ahead = distances[:, 1] - distances[:, 0]
        level = 50.0 if self.mode == "fixed" else 100.0
        return {"FOA": 100.0 * (ahead > tie).float() + level * (ahead.abs() <= tie).float()}


def kendall(values: Float[Tensor, "batch items"], tie: float = 0.0) -> Float[Tensor, " batch"]:
    """Kendall's tau-b of each row with the order 1, 2, ...; values within `tie` of one another tie, all of them: 0."""
    first, second = torch.triu_indices(values.shape[1], values.shape[1], offset=1, device=values.device)
    gap = values[:, second] - values[:, first]
    agree = gap.sign().masked_fill(gap.abs() <= tie, 0)
    told_apart = (agree != 0).sum(dim=1)
    return agree.sum(dim=1) / (len(first) * told_apart).clamp_min(1).sqrt()


def _distances(z: Embeddings, wanted: Float[Tensor, "batch items dim"]) -> Float[Tensor, "batch items"]:
    """d(z, c_m) for each query's own items."""
    width = wanted.shape[1]
    return paired(z.repeat_interleave(width, dim=0), wanted.flatten(0, 1)).view(-1, width)
