"""Min-max adversarial training of triplets (Madry et al. 2018, as in Zhou & Patel 2022): the row that collapses."""

import torch
from torch import Tensor, nn

from robustmetric.attacks.base import Engine
from robustmetric.defences.base import Defence, require
from robustmetric.defences.groups import check_mining, clean_triplets, group_means, groups_in
from robustmetric.losses.mining import Miner
from robustmetric.losses.triplet import hardness, triplet_values
from robustmetric.perturb.pgd import Rowwise
from robustmetric.types import Batch, Embed


class MinMax(Defence):
    """Make every triplet as hard as the ball allows, and train on it: HM[source, 2].

    `clean_anchor` is partial min-max: positives and negatives move, anchors do not. `groups` mines in so many parts of
    the batch: 2 on one GPU is the published setting of two.
    """

    def __init__(
        self, source: Miner, attack: Engine, margin: float = 0.2, clean_anchor: bool = False, groups: int = 1
    ) -> None:
        super().__init__()
        require(attack, Engine, "attack")
        check_mining(source, margin, groups)
        self.source, self.attack, self.margin = source, attack, margin
        self.clean_anchor, self.groups = clean_anchor, groups

    def forward(self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        groups = groups_in(batch, self.groups)
        with self.attacked(model) as embed:
            z, triplets = clean_triplets(embed, self.source, batch, groups, generator)
            adversarial = self._hardest(embed, triplets.of(batch.inputs), z[triplets.anchor], generator)
        a, p, n = model(adversarial).chunk(3)
        self.note(before=hardness(*triplets.of(z)), after=hardness(a, p, n))
        return {"triplet": group_means(triplet_values(a, p, n, self.margin), groups).mean()}

    def _hardest(
        self, embed: Embed, images: tuple[Tensor, ...], anchors: Tensor, generator: torch.Generator | None
    ) -> Tensor:
        """a~, p~, n~, one after the other; no margin, so that easy triplets move too."""
        if not self.clean_anchor:
            harder = Rowwise(lambda x: hardness(*embed(x).chunk(3)), width=3)
            return self.attack(harder, torch.cat(images), generator)
        harder = Rowwise(lambda x, a: hardness(a, *embed(x).chunk(2)), (anchors,), width=2)
        return torch.cat([images[0], self.attack(harder, torch.cat(images[1:]), generator)])
