"""Anti-collapse triplets, ACT (Zhou et al., "Adversarial attack and defense in deep ranking", 2021)."""

import torch
from torch import Tensor, nn

from robustmetric.attacks.base import Engine
from robustmetric.defences.base import Defence, require
from robustmetric.defences.groups import check_mining, clean_triplets, group_means, groups_in
from robustmetric.errors import InputError
from robustmetric.losses.mining import Miner
from robustmetric.losses.triplet import hardness, triplet_values
from robustmetric.numerics.distances import paired
from robustmetric.perturb.pgd import Rowwise
from robustmetric.types import Batch


class AntiCollapseTriplet(Defence):
    """Pull positive and negative together, d(p~, n~) -> 0, and train on (a, p~, n~): the clean anchor resists collapse.

    `plain_share`: each batch is, with this chance, trained on as it is (the mixed variant: 0.5). `groups` mines in so
    many parts of the batch: 2 on one GPU is the published setting of two.
    """

    def __init__(
        self, source: Miner, attack: Engine, margin: float = 0.2, plain_share: float = 0.0, groups: int = 1
    ) -> None:
        super().__init__()
        require(attack, Engine, "attack")
        check_mining(source, margin, groups)
        if not 0 <= plain_share <= 1:
            raise InputError(f"plain_share {plain_share} is not a share of the batches; expected 0 to 1, such as 0.5")
        self.source, self.attack, self.margin = source, attack, margin
        self.plain_share, self.groups = plain_share, groups

    def forward(self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        groups = groups_in(batch, self.groups)
        with self.attacked(model) as embed:
            z, triplets = clean_triplets(embed, self.source, batch, groups, generator)
            a, *others = triplets.of(batch.inputs)
            moved = torch.cat(others)
            if not self._is_plain(batch, generator):
                together = Rowwise(lambda x: -paired(*embed(x).chunk(2)), width=2)
                moved = self.attack(together, moved, generator)
        a, p, n = model(torch.cat([a, moved])).chunk(3)
        self.note(before=hardness(*triplets.of(z)), after=hardness(a, p, n))
        return {"triplet": group_means(triplet_values(a, p, n, self.margin), groups).mean()}

    def _is_plain(self, batch: Batch, generator: torch.Generator | None) -> bool:
        if not 0 < self.plain_share < 1:
            return self.plain_share == 1
        draw = torch.rand((), device=batch.inputs.device, generator=generator)
        return bool(draw < self.plain_share)
