"""Collapse-aware triplet decoupling, CA-TRIDE (Tian et al., ICML 2024): two adversaries that take turns."""

import math
from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

from robustmetric.attacks.objectives import nudged
from robustmetric.defences.base import Defence, require
from robustmetric.defences.groups import check_mining, clean_triplets, group_means, groups_in, spread
from robustmetric.errors import InputError
from robustmetric.losses.mining import Miner, SemiHard
from robustmetric.losses.triplet import hardness, triplet_values
from robustmetric.numerics.distances import paired
from robustmetric.perturb.pgd import PGD
from robustmetric.types import Batch, Embed, Embeddings, Inputs

Distances = Float[Tensor, " triplets"]
HALF_MARGIN = 0.04
"""Between the nearer halves of positives and negatives, in the term that `half_weight` weighs."""


class CollapseAwareTriplet(Defence):
    """Perturb positives and negatives on one batch, anchors on the next, and train on the triplet.

    Both adversaries look at the batch's collapseness, and grow: their steps are `attack.step_size` times `progress`.
    `sharpness` is the paper's lambda: 10 (CUB), 9.5 (CARS), 2 (SOP). Two habits of the public code are options:
    `gradual` has the margin of a semi-hard `source` fall to a quarter, and `half_weight` (0.5) adds a triplet loss of
    the means of the nearer halves. `groups` as elsewhere: collapseness is that of a group.
    """

    def __init__(
        self,
        source: Miner,
        attack: PGD,
        margin: float = 0.2,
        sharpness: float = 10.0,
        gradual: bool = False,
        half_weight: float = 0.0,
        groups: int = 1,
    ) -> None:
        super().__init__()
        require(attack, PGD, "attack")
        check_mining(source, margin, groups)
        if not (0 <= sharpness < math.inf and 0 <= half_weight < math.inf):
            raise InputError(
                f"sharpness {sharpness}, half_weight {half_weight}; expected numbers >= 0, as in 10 and 0.5"
            )
        if gradual and not isinstance(source, SemiHard):
            raise InputError(f"gradual is for a semi-hard source, not {source!r}; write source: {{name: semihard}}")
        self.source, self.attack, self.margin, self.sharpness = source, attack, margin, sharpness
        self.gradual, self.half_weight, self.groups = gradual, half_weight, groups
        self.turns = 0

    def forward(self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        groups = groups_in(batch, self.groups)
        attack = replace(self.attack, step_size=self.attack.step_size * self.progress)
        with self.attacked(model) as embed:
            z, triplets = clean_triplets(embed, self._miner(), batch, groups, generator)
            (a, p, n), clean = triplets.of(batch.inputs), triplets.of(z)
            if self.turns % 2 == 0:
                p, n = attack(self._candidates(embed, clean, groups), torch.cat([p, n]), generator).chunk(2)
            else:
                a = attack(self._anchors(embed, (nudged(clean[0], generator), *clean[1:]), groups), a, generator)
        self.turns += 1
        a, p, n = model(torch.cat([a, p, n])).chunk(3)
        self.note(before=hardness(*clean), after=hardness(a, p, n))
        terms = {"triplet": group_means(triplet_values(a, p, n, self.margin), groups).mean()}
        if self.half_weight:
            near, far = (_by_group(nearer_half, groups, paired(a, others)) for others in (p, n))
            terms["halves"] = self.half_weight * (near - far + HALF_MARGIN).relu().mean()
        return terms

    def _candidates(self, embed: Embed, clean: tuple[Embeddings, ...], groups: int) -> Callable[[Inputs], Tensor]:
        """-relu(-C): harder, until the weighted distances to positives and negatives meet."""
        a, _, _ = clean

        def value(x: Inputs) -> Tensor:
            near, far = (paired(a, others) for others in embed(x).chunk(2))
            collapse = _by_group(self._collapseness, groups, near, far)
            return spread(-(-collapse).relu(), len(a))

        return value

    def _anchors(self, embed: Embed, clean: tuple[Embeddings, ...], groups: int) -> Callable[[Inputs], Tensor]:
        """-relu(C) - g relu(mean of the nearer half of d(a~,n) - mean d(a~,a)), with g = exp(-relu(-C)) held fixed."""
        origin, p, n = clean

        def value(x: Inputs) -> Tensor:
            a = embed(x)
            far = paired(a, n)
            collapse = _by_group(self._collapseness, groups, paired(a, p), far)
            trust = (-(-collapse).relu()).exp().detach()
            approach = _by_group(nearer_half, groups, far) - group_means(paired(a, origin), groups)
            return spread(-collapse.relu() - trust * approach.relu(), len(a))

        return value

    def _collapseness(self, near: Distances, far: Distances) -> Float[Tensor, ""]:
        return weighted_mean(near, self.sharpness) - weighted_mean(far, self.sharpness)

    def _miner(self) -> Miner:
        if not (self.gradual and isinstance(self.source, SemiHard)):
            return self.source
        return replace(self.source, margin=self.source.margin * (1 - self.progress / 2) ** 2)

    def get_extra_state(self) -> int:
        """Whose turn it is, as a number that the host knows without asking the device."""
        return self.turns

    def set_extra_state(self, state: int) -> None:
        self.turns = state


def weighted_mean(distances: Distances, sharpness: float) -> Float[Tensor, ""]:
    """W = sum w d / sum w with w = exp(sharpness (d - max d)): near the largest where `sharpness` is large."""
    return ((sharpness * distances).softmax(dim=0) * distances).sum()


def nearer_half(distances: Distances) -> Float[Tensor, ""]:
    """The mean of the smaller half; of a single distance, itself."""
    return distances.topk(max(1, len(distances) // 2), largest=False).values.mean()


def _by_group(function: Callable[..., Tensor], groups: int, *columns: Distances) -> Float[Tensor, " groups"]:
    """The function of each group's part of the columns."""
    parts = zip(*(column.tensor_split(groups) for column in columns), strict=True)
    return torch.stack([function(*part) for part in parts])
