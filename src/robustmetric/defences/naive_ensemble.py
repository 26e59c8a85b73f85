"""The naive ensemble: members that are trained alone, side by side, for the vote at test time."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from robustmetric.defences.base import Defence, require_each
from robustmetric.errors import InputError
from robustmetric.models.ensemble import members_of
from robustmetric.types import Batch, Labels


class NaiveEnsemble(Defence):
    """Member i trains by defence i and knows nothing of the others; all of them meet the same batches."""

    def __init__(self, defences: Sequence[Defence]) -> None:
        super().__init__()
        require_each(defences, Defence, "defences")
        if any(defence.replays != 1 for defence in defences):
            raise InputError("a defence that replays its batches cannot share them; train its members one by one")
        self.defences = nn.ModuleList(defences)

    def repeated(self, model: nn.Module) -> Sequence[nn.Module]:
        """What the members' own defences call."""
        pairs = zip(self._each(), members_of(model, len(self.defences)).members, strict=True)
        return [part for defence, member in pairs for part in defence.repeated(member)]

    @property
    def beside(self) -> Sequence[nn.Module]:
        """What the members' own defences train beside them."""
        return [network for defence in self._each() for network in defence.beside]

    @property
    def separates(self) -> bool:
        """Where all of its defences do."""
        return all(defence.separates for defence in self._each())

    def prepare(self, labels: Labels) -> None:
        """Each defence sees them."""
        for defence in self._each():
            defence.prepare(labels)

    def forward(self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        members = members_of(model, len(self.defences)).members
        terms: dict[str, list[Tensor]] = {}
        for member, defence in zip(members, self._each(), strict=True):
            defence.view, defence.steady, defence.progress = self.view, self.steady, self.progress
            for name, term in defence(member, batch, generator).items():
                terms.setdefault(name, []).append(term)
        return {name: torch.stack(found).sum() for name, found in terms.items()}

    def _each(self) -> list[Defence]:
        return [defence for defence in self.defences if isinstance(defence, Defence)]
