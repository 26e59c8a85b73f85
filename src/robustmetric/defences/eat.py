"""Ensemble adversarial training, EAT ("Towards adversarially robust deep metric learning", arXiv 2501.01025)."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Int
from torch import Tensor, nn

from robustmetric.attacks.base import Engine
from robustmetric.defences.adversary import Adversary, Objective
from robustmetric.defences.base import Defence, require, require_each, require_share
from robustmetric.errors import InputError
from robustmetric.losses.base import MetricLoss
from robustmetric.losses.proxy_anchor import ProxyAnchor
from robustmetric.losses.triplet import Triplet
from robustmetric.models.encoder import mixes_rows, perturbed
from robustmetric.models.ensemble import Ensemble, members_of, split
from robustmetric.perturb.pgd import frozen
from robustmetric.types import Batch, Embed, Inputs, Labels, Triplets


class EnsembleAdversarial(Defence):
    """Each member trains on adversaries of all: sum_i clean_share L_i(F_i(x)) + (1 - clean_share) L_i(F_i(x~)).

    `divided`: the training set is cut into N parts, and member i never trains on part i, though it is attacked on it.
    `shared`: the adversaries of a batch are made once, for all members; else each member has those of its own part of
    the batch made for itself, as the algorithm is written: N - 1 times the climbs, and where rows climb alone the same
    result. A class with fewer images than members is refused unless `small_classes`: a member may then miss it whole.
    `by_class`: whole classes are divided instead of the images of each, and the proxies of a member are those of its
    classes; proxies of classes that it never sees would be negatives that no image holds in place. `growing` as in
    `Adversary`.
    """

    parts: Tensor

    def __init__(
        self,
        losses: Sequence[MetricLoss],
        attack: Engine,
        clean_share: float = 0.5,
        divided: bool = True,
        objective: Objective = "shift",
        shared: bool = True,
        small_classes: bool = False,
        by_class: bool = False,
        seed: int = 0,
        growing: float = 0.0,
    ) -> None:
        super().__init__()
        require_each(losses, MetricLoss, "losses")
        require(attack, Engine, "attack")
        require_share(clean_share, "clean_share")
        if divided and len(losses) == 1:
            raise InputError(
                "losses for 1 member, which would be kept from all images; expected 2 or more, or divided: false"
            )
        if divided and any(isinstance(loss, Triplet) for loss in losses):
            raise InputError("a triplet loss mines in pairs, which parts would break up; expected proxy_anchor losses")
        if by_class:
            _check_by_class(losses, divided, objective)
        self.losses = nn.ModuleList(losses)
        self.adversary = Adversary(attack, objective, growing)
        self.clean_share, self.divided, self.shared = clean_share, divided, shared
        self.small_classes, self.by_class, self.seed = small_classes, by_class, seed
        # Follows from labels and seed, so a saved state need not hold it.
        self.register_buffer("parts", torch.empty(0, dtype=torch.long), persistent=False)

    def repeated(self, model: nn.Module) -> Sequence[nn.Module]:
        """The members."""
        return list(members_of(model, len(self.losses)).members)

    @property
    def separates(self) -> bool:
        """With a share of clean images."""
        return 0 < self.clean_share < 1

    def prepare(self, labels: Labels) -> None:
        """Cut the training set into parts."""
        if not self.divided:
            return
        if self.by_class:
            cut = divide_classes(labels, len(self.losses), self.seed)
        else:
            cut = divide(labels, len(self.losses), self.seed, self.small_classes)
        self.parts = cut.to(self.parts.device)
        for i, loss in enumerate(self.losses):
            if self.by_class and isinstance(loss, ProxyAnchor):
                loss.keep(labels.cpu()[cut != i].unique())

    def forward(self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        return self.step(model, batch, generator)[0]

    def step(
        self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None
    ) -> tuple[dict[str, Tensor], dict[int, Tensor]]:
        """The terms of this batch, and by member the perturbed images it trains on, of its `rows`."""
        ensemble = members_of(model, len(self.losses))
        with self.attacked(model) as embed, frozen(self.losses):
            rows, adversaries, triplets = self._attack(embed, batch, generator)

        def total(embeddings: Sequence[Tensor]) -> Tensor:
            values = [
                self.losses[i](z, batch.labels[rows[i]], triplets[i], generator)
                for i, z in zip(rows, embeddings, strict=True)
            ]
            return torch.stack(values).sum()

        size = usual_size(len(batch), len(self.losses)) if self.steady and self.divided else None
        if not self.clean_share:
            return {"adversarial": total(each_of(ensemble, [adversaries], size)[0])}, adversaries
        clean = {i: batch.inputs[row] for i, row in rows.items()}
        adversarial, unmoved = each_of(ensemble, [adversaries, clean], size)
        return {
            "adversarial": (1 - self.clean_share) * total(adversarial),
            "clean": self.clean_share * total(unmoved),
        }, adversaries

    def rows(self, batch: Batch) -> dict[int, Tensor]:
        """By member, the rows it trains on; a member that may train on none is left out."""
        everything = torch.arange(len(batch), device=batch.labels.device)
        if not self.divided:
            return dict.fromkeys(range(len(self.losses)), everything)
        self._require_parts()
        parts = self.parts[batch.index]
        rows = {i: everything[parts != i] for i in range(len(self.losses))}
        return {i: row for i, row in rows.items() if len(row)}

    def _require_parts(self) -> None:
        if self.divided and not len(self.parts):
            raise InputError("the training set has not been cut into parts; call prepare(labels) before the first step")

    def _attack(
        self, embed: Embed, batch: Batch, generator: torch.Generator | None
    ) -> tuple[dict[int, Tensor], dict[int, Tensor], dict[int, Triplets | None]]:
        """By member, the rows it trains on, these perturbed, and the triplets if the climb was in the same images."""
        if not self.shared:
            rows = self.rows(batch)
            each, mined = self._climb(embed, batch, list(rows.values()), generator)
            own = {i: triplets[i] for i, triplets in zip(rows, mined, strict=True)}
            return rows, dict(zip(rows, each, strict=True)), own
        self._require_parts()
        everything = torch.arange(len(batch), device=batch.labels.device)
        (moved,), (of_all,) = self._climb(embed, batch, [everything], generator)
        # Counted behind the climbs: the host waits for the device here, which would else run out of work meanwhile.
        rows = self.rows(batch)
        own = {i: None if self.divided else of_all[i] for i in rows}
        return rows, {i: moved[row] for i, row in rows.items()}, own

    def _climb(
        self, embed: Embed, batch: Batch, climbed: Sequence[Tensor], generator: torch.Generator | None
    ) -> tuple[list[Inputs], list[list[Triplets | None]]]:
        """Several parts of a batch, each perturbed against all members, and what each member mined in it."""
        losses = [loss for loss in self.losses if isinstance(loss, MetricLoss)]
        with torch.no_grad():
            clean = embed(batch.inputs)
        mined = [
            [
                loss.mine(z, batch.labels[row], generator)
                for loss, z in zip(losses, split(clean[row], len(losses)), strict=True)
            ]
            for row in climbed
        ]
        origin = self.adversary.origin(clean, generator)
        moved = [
            self.adversary.at(self.progress)(embed, select(batch, row), origin[row], losses, triplets, generator)
            for row, triplets in zip(climbed, mined, strict=True)
        ]
        return moved, mined


def each_of(ensemble: Ensemble, several: Sequence[dict[int, Tensor]], size: int | None = None) -> list[list[Tensor]]:
    """The own embeddings of some members, of each of several inputs: in one pass, unless that would mix their rows.

    The first inputs are the perturbed ones, which auxiliary batch norms are for.
    Those of a member have as many rows in each. With a `size`, passes of fewer rows are filled up with rows that are
    not looked at, so that most passes are of one size.
    """
    if mixes_rows(ensemble):
        with perturbed(ensemble):
            first = ensemble.each(several[0])
        return [first, *(ensemble.each(inputs) for inputs in several[1:])]
    joined = {i: torch.cat([inputs[i] for inputs in several]) for i in several[0]}
    passed = joined if size is None else {i: filled(x, len(several) * size) for i, x in joined.items()}
    found = [z[: len(x)].chunk(len(several)) for z, x in zip(ensemble.each(passed), joined.values(), strict=True)]
    return [list(part) for part in zip(*found, strict=True)]


def filled(x: Tensor, size: int) -> Tensor:
    """`x` and then its rows again, until there are `size`; one that has as many is left as it is."""
    return x if len(x) >= size else x[torch.arange(size, device=x.device) % len(x)]


def usual_size(batch: int, members: int) -> int:
    """Rows that a member's share of a batch seldom exceeds: 2.5 standard deviations above N - 1 of N, in eights."""
    mean, deviation = batch * (members - 1) / members, math.sqrt(batch * (members - 1)) / members
    return min(batch, 8 * math.ceil((mean + 2.5 * deviation) / 8))


def select(batch: Batch, rows: Int[Tensor, " rows"]) -> Batch:
    """These rows of a batch."""
    return Batch(batch.inputs[rows], batch.labels[rows], batch.index[rows])


def divide(labels: Labels, parts: int, seed: int, small_classes: bool = False) -> Labels:
    """The part of each sample: random, and as even as can be both within every class and in all."""
    labels = labels.cpu()
    smallest = int(torch.bincount(labels).where(torch.bincount(labels) > 0, len(labels)).min())
    if smallest < parts and not small_classes:
        raise InputError(
            f"a class of {smallest} images cannot be cut into {parts} parts; expected {parts} images of every class, "
            "fewer members, or small_classes: true"
        )
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    by_class = order[labels[order].argsort(stable=True)]
    return torch.empty_like(labels).scatter_(0, by_class, torch.arange(len(labels)) % parts)


def divide_classes(labels: Labels, parts: int, seed: int) -> Labels:
    """The part of each sample, which is its class's: random, with as many classes in each as can be."""
    classes, place = labels.cpu().unique(return_inverse=True)
    if len(classes) < parts:
        raise InputError(
            f"{len(classes)} classes cannot be cut into {parts} parts; expected at least one for each member, or fewer "
            "members"
        )
    order = torch.randperm(len(classes), generator=torch.Generator().manual_seed(seed))
    return torch.empty_like(classes).scatter_(0, order, torch.arange(len(classes)) % parts)[place]


def _check_by_class(losses: Sequence[MetricLoss], divided: bool, objective: Objective) -> None:
    """Refuse what has no meaning where members know different classes."""
    if not divided:
        raise InputError("by_class says what is divided, and nothing is; expected divided: true")
    require_each(losses, ProxyAnchor, "losses")
    if objective == "label":
        raise InputError(
            "objective 'label' asks every member for its loss of every class, and by class each lacks the proxies of "
            "some; expected another objective, such as 'shift'"
        )
