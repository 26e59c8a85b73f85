"""Transfer: the perturbation is found on a surrogate model and scored on the target (Papernot et al. 2016)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from robustmetric.attacks.base import BUDGET, Attack, Engine, Outcome, Scores, Targets, aims_of, joined, run
from robustmetric.attacks.candidate import lists_of
from robustmetric.attacks.modes import mode_of
from robustmetric.attacks.objectives import nudged
from robustmetric.errors import InputError
from robustmetric.numerics.distances import chunks
from robustmetric.perturb.pgd import View, frozen
from robustmetric.perturb.seeking import Search
from robustmetric.types import Batch, Embeddings, Gallery


@dataclass(frozen=True)
class Surrogate:
    """The attacker's own model, and the target's gallery as this model embeds it: the same items in the same order."""

    model: nn.Module
    gallery: Gallery
    members: int = 1
    """Of an ensemble that votes, as its target does; else 1."""


@dataclass(frozen=True)
class AtHand:
    """A surrogate that lies in no run folder: somebody's module, under the name that records give it."""

    name: str
    model: nn.Module = field(repr=False)


Source = str | AtHand
"""Where a surrogate comes from: a run folder, or it is there already."""


def source_name(source: Source) -> str:
    """The name of a surrogate, as labels have it: `PGD-20 from plain-seed0`."""
    return source.name if isinstance(source, AtHand) else Path(source).name


@dataclass(frozen=True)
class Transfer:
    """What a suite says: this attack, found on that other model. `transfer` carries it out.

    It has no white-box form: climbed on the target itself it would be another attack under this name.
    """

    attack: Attack
    surrogate: Source

    def __post_init__(self) -> None:
        check_fixed(self.attack)

    @property
    def role(self) -> Literal["query", "candidate"]:
        return self.attack.role

    def choose(self, clean: Embeddings, batch: Batch, gallery: Gallery, generator: torch.Generator | None) -> Targets:
        return self.attack.choose(clean, batch, gallery, generator)

    def value(self, z: Embeddings, targets: Targets, gallery: Gallery) -> Tensor:
        raise InputError(
            f"a transferred attack does not climb on its target; expected {self.attack!r} to be run by "
            f"attacks.transfer.transfer, with {self.surrogate!r} loaded as the surrogate"
        )

    def score(self, z: Embeddings, targets: Targets, batch: Batch, gallery: Gallery) -> Scores:
        return self.attack.score(z, targets, batch, gallery)


def check_fixed(attack: Attack) -> None:
    """Refuse to wrap an attack in mode `compat`: the faults of the published tables are those of PGD on the target."""
    if mode_of(attack) != "fixed":
        raise InputError(f"{attack!r} is in mode {mode_of(attack)!r}; expected mode 'fixed' in a black-box attack")


def transfer(
    attack: Attack,
    engine: Engine,
    surrogate: Surrogate,
    model: nn.Module,
    batch: Batch,
    gallery: Gallery,
    generator: torch.Generator | None = None,
    *,
    rounded: bool = True,
    budget: int = BUDGET,
    view: View = "exact",
    search: Search = "fp32",
    climbed: Attack | None = None,
) -> Outcome:
    """As `run`, but climbed on the surrogate: of the target the attacker sees its answers to the clean queries alone.

    Targets are chosen from the target model's lists, in which they are scored; the climb is towards the same items as
    the surrogate embeds them (the surrogate's own embedding of the query is what ES moves away from). `climbed` is the
    attack as it is put to the surrogate, where that has other members than the target.
    """
    check_fixed(attack)
    if len(surrogate.gallery) != len(gallery) or not torch.equal(surrogate.gallery.labels, gallery.labels):
        raise InputError(
            f"the surrogate's gallery ({len(surrogate.gallery)} items) is not the target's ({len(gallery)} items); "
            "expected the same items in the same order"
        )
    parts = []
    for rows in chunks(len(batch), budget // max(1, len(gallery))):
        part = Batch(batch.inputs[rows], batch.labels[rows], batch.index[rows])
        with frozen(model, view) as embed, torch.no_grad():
            targets = attack.choose(embed(part.inputs), part, gallery, generator)
        moved = run(
            _Seen(climbed or attack, targets), engine, surrogate.model, part, surrogate.gallery, generator,
            rounded=rounded, budget=budget, view=view, search=search,
        ).inputs  # fmt: skip
        with frozen(model, view) as embed, torch.no_grad():
            z = embed(moved)
            parts.append(Outcome(moved, z, attack.score(z, targets, part, gallery), aims=aims_of(targets)))
    return joined(parts)


@dataclass(frozen=True)
class _Seen:
    """An attack whose targets another model chose, as the surrogate sees them."""

    attack: Attack
    targets: Targets
    role: ClassVar[Literal["query", "candidate"]] = "query"  # no matter to the climb

    def choose(self, clean: Embeddings, batch: Batch, gallery: Gallery, generator: torch.Generator | None) -> Targets:
        return {
            name: _translation(name, self.attack)(self.targets, clean, gallery, generator)
            if tensor.is_floating_point()
            else tensor
            for name, tensor in self.targets.items()
        }

    def value(self, z: Embeddings, targets: Targets, gallery: Gallery) -> Tensor:
        return self.attack.value(z, targets, gallery)

    def score(self, z: Embeddings, targets: Targets, batch: Batch, gallery: Gallery) -> Scores:
        return {}


Translation = Callable[[Targets, Embeddings, Gallery, torch.Generator | None], Tensor]
"""(the target model's choice, the surrogate's clean embeddings and gallery, randomness) -> as the surrogate sees it."""


TRANSLATIONS: dict[str, Translation] = {
    "clean": lambda targets, clean, gallery, generator: clean,
    "origin": lambda targets, clean, gallery, generator: nudged(clean, generator),
    "target": lambda targets, clean, gallery, generator: gallery.embeddings[targets["index"]],
    "queries": lambda targets, clean, gallery, generator: gallery.embeddings[targets["index"]],
    "wanted": lambda targets, clean, gallery, generator: gallery.embeddings[targets["index"]],
    "share": lambda targets, clean, gallery, generator: targets["share"],
    "floor": lambda targets, clean, gallery, generator: targets["floor"],
    "lists": lambda targets, clean, gallery, generator: lists_of(targets["index"], gallery, targets["exclude"]),
}
"""Numbers among targets, by name. Indices and masks mean the same items to every model."""


def _translation(name: str, attack: Attack) -> Translation:
    if name not in TRANSLATIONS:
        raise InputError(
            f"{attack!r} fixes {name!r}, numbers of the target model that transfer cannot find on a surrogate; "
            f"expected indices, masks, or {', '.join(map(repr, TRANSLATIONS))}: add it to TRANSLATIONS"
        )
    return TRANSLATIONS[name]
