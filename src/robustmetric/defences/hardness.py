"""Hardness manipulation, HM (Zhou & Patel, "Enhancing adversarial robustness for deep metric learning", CVPR 2022)."""

import math

import torch
from torch import Tensor, nn

from robustmetric.attacks.base import Engine
from robustmetric.defences.base import Defence, require
from robustmetric.defences.destinations import Destination, Mined, Moment
from robustmetric.defences.groups import check_mining, clean_triplets, group_means, groups_in, spread
from robustmetric.defences.structure import PLACES, Structure
from robustmetric.errors import InputError
from robustmetric.losses.mining import Miner
from robustmetric.losses.triplet import hardness, triplet_values
from robustmetric.perturb.pgd import Rowwise
from robustmetric.types import Batch, Inputs

FIRST_LOSS = 2.0
"""Stands for the loss before the first step: above every cap, so that a gradual adversary starts at its weakest."""


class HardnessManipulation(Defence):
    """Raise the hardness of `source` triplets to `destination`, then train on them: HM[source, destination].

    A triplet that has reached its goal moves no further. `structure` adds ICS. `groups` mines, and remembers the loss
    of the step before, in each of so many parts of the batch: 2 on one GPU is the published setting of two.

    `offset` is added to every coordinate of the differences that the attack measures. Where the positive is the anchor
    itself (soft-hard), their distance is 0 and has no direction: with 0 the first step moves anchor and negative only,
    with 1e-6, as in the reference code, it parts the two copies along the diagonal. Other triplets do not notice.
    """

    last_loss: Tensor

    def __init__(
        self,
        source: Miner,
        destination: Destination,
        attack: Engine,
        margin: float = 0.2,
        structure: Structure | None = None,
        groups: int = 1,
        offset: float = 0.0,
    ) -> None:
        super().__init__()
        require(destination, Destination, "destination")
        require(attack, Engine, "attack")
        if not 0 <= offset < math.inf:
            raise InputError(f"offset {offset} is no small length; expected a number >= 0, such as 1e-6")
        if structure is not None:
            require(structure, Structure, "structure")
        check_mining(source, margin, groups)
        self.source, self.destination, self.attack = source, destination, attack
        self.margin, self.structure, self.groups = margin, structure, groups
        self.offset = offset
        self.register_buffer("last_loss", torch.full((groups,), FIRST_LOSS))

    def forward(self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        groups = groups_in(batch, self.groups)
        with self.attacked(model) as embed:
            z, triplets = clean_triplets(embed, self.source, batch, groups, generator)
            before = hardness(*triplets.of(z))
            clean = torch.cat(triplets.of(batch.inputs))
            goal, adversarial, computed = before, clean, 0

            def shortfall(x: Inputs, goal: Tensor) -> Tensor:
                nonlocal computed
                computed += len(x)
                a, p, n = embed(x).chunk(3)
                return -(goal - hardness(a + self.offset, p, n)).relu().square()

            if not self._is_still:
                last_loss = spread(self.last_loss[:groups], len(before))
                goal = self.destination(Moment(z, batch.labels, last_loss, groups, generator))
                adversarial = self.attack(Rowwise(shortfall, (goal,), width=3), clean, generator)
        embeddings = self._embeddings(model, adversarial, clean)
        a, p, n = (embeddings[f"{place}~"] for place in PLACES)
        losses = group_means(triplet_values(a, p, n, self.margin), groups)
        self.last_loss[:groups] = losses.detach()
        after = hardness(a, p, n)
        self.note(before=before, goal=goal, after=after, attacked=before < goal, passes=computed / len(clean))
        terms = {"triplet": losses.mean()}
        return terms if self.structure is None else {**terms, "structure": self.structure(embeddings)}

    @property
    def _is_still(self) -> bool:
        """Equal source and destination are ordinary training: each triplet is its own goal."""
        return isinstance(self.destination, Mined) and self.destination.miner == self.source

    def _embeddings(self, model: nn.Module, adversarial: Inputs, clean: Inputs) -> dict[str, Tensor]:
        """In one pass: a~, p~, n~, and of a, p, n those that the structure term looks at."""
        wanted = () if self.structure is None else self.structure.clean
        images = dict(zip(PLACES, clean.chunk(3), strict=True))
        z = model(torch.cat([adversarial, *(images[place] for place in wanted)]))
        names = [*(f"{place}~" for place in PLACES), *wanted]
        return dict(zip(names, z.chunk(len(names)), strict=True))
