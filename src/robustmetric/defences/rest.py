"""Revised EST, REST (Zhou et al., "Adversarial attack and defense in deep ranking", 2021): the anchor stays clean."""

from typing import get_args

import torch
from torch import Tensor, nn

from robustmetric.attacks.base import Engine
from robustmetric.defences.base import Defence, require, require_word
from robustmetric.defences.est import Nudge, shifted
from robustmetric.defences.groups import check_mining, clean_triplets, group_means, groups_in
from robustmetric.losses.mining import Miner
from robustmetric.losses.triplet import hardness, triplet_values
from robustmetric.types import Batch


class RevisedShiftedTriplet(Defence):
    """Mine on the clean batch; move positives and negatives as far as the ball allows; train on (a, p~, n~).

    `groups` mines in so many parts of the batch: 2 on one GPU is the published setting of two.
    `nudge` is as in EST.
    """

    def __init__(
        self, source: Miner, attack: Engine, margin: float = 0.2, groups: int = 1, nudge: Nudge = "random"
    ) -> None:
        super().__init__()
        require(attack, Engine, "attack")
        check_mining(source, margin, groups)
        require_word(nudge, get_args(Nudge), "nudge")
        self.source, self.attack, self.margin, self.groups, self.nudge = source, attack, margin, groups, nudge

    def forward(self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        groups = groups_in(batch, self.groups)
        with self.attacked(model) as embed:
            z, triplets = clean_triplets(embed, self.source, batch, groups, generator)
            (anchors, *images), (_, *origins) = triplets.of(batch.inputs), triplets.of(z)
            moved = shifted(self.attack, embed, torch.cat(images), torch.cat(origins), generator, self.nudge)
        a, p, n = model(torch.cat([anchors, moved])).chunk(3)
        self.note(before=hardness(*triplets.of(z)), after=hardness(a, p, n))
        return {"triplet": group_means(triplet_values(a, p, n, self.margin), groups).mean()}
