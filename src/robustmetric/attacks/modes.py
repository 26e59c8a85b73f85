"""Two modes of an attack: `fixed`, as its paper means it, and `compat`, as the published tables were computed.

`compat` repeats the reference code (Zhou & Patel 2022) fault by fault. Each attack's own faults stand in its file; what
they share stands here, in `base.run` and in `jobs/evaluate.py`: a query's own place in the gallery is guessed, ranks
count the items that are strictly closer, images are not rounded, and a mean over queries is a mean of batch means.
"""

from typing import Literal, Protocol, get_args, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.errors import nearest as nearest_word
from robustmetric.numerics.distances import nearest
from robustmetric.types import Batch, Embeddings, Gallery

Mode = Literal["fixed", "compat"]


@runtime_checkable
class Moded(Protocol):
    """An attack that has both modes: a frozen dataclass with a field `mode`."""

    @property
    def mode(self) -> Mode: ...


@runtime_checkable
class ClimbsAlike(Protocol):
    """A moded attack whose `value` knows its targets alone: where both modes choose the same, they climb the same."""

    @property
    def climbs_alike(self) -> Literal[True]: ...


def mode_of(attack: object) -> Mode:
    """The attack's mode; one that knows of none is as its paper means it."""
    return attack.mode if isinstance(attack, Moded) else "fixed"


def check_mode(mode: str) -> None:
    """Refuse a mode that would be taken for `fixed` in silence."""
    if mode not in get_args(Mode):
        raise InputError(f"mode {mode!r} is not known{nearest_word(mode, get_args(Mode))}")


def guess_places(batch: Batch, clean: Embeddings, gallery: Gallery) -> Batch:
    """The batch with each query's own place taken to be the nearest item; of duplicates that is the first.

    A query that is no part of the gallery (-1) stays so.
    """
    _, top = nearest(clean, gallery.embeddings, k=1)
    return Batch(batch.inputs, batch.labels, torch.where(batch.index >= 0, top[:, 0], batch.index))


def left_out(batch: Batch, mode: Mode) -> Int[Tensor, " batch"]:
    """The places that are no part of a list: each row's own in `fixed` (-1 where it has none), none in `compat`."""
    return batch.index if mode == "fixed" else torch.full_like(batch.index, -1)


def strict_percentile(
    chosen: Float[Tensor, "batch chosen"], others: Float[Tensor, "batch #chosen items"]
) -> Float[Tensor, " batch"]:
    """Rank of the chosen distances in percent of the gallery: the items strictly closer, itself among all of them."""
    return 100 * (chosen[..., None] > others).float().mean(dim=(1, 2))
