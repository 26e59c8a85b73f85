"""The climbs of one trial, kept for the same attack in its other mode, which need not climb again."""

import torch

from robustmetric.attacks.base import Climb
from robustmetric.attacks.suite import Trial

AT_MOST = 2**31
"""Bytes kept in the memory of a host; on a GPU half of what is free when a trial begins."""


class Climbs:
    """Kept by where their batch begins, for one trial at a time: modes of a trial come one after the other."""

    def __init__(self) -> None:
        self._trial = ""
        self._kept: dict[int, Climb] = {}
        self._left = 0

    def begin(self, trial: Trial, device: torch.device) -> None:
        """Forget the climbs of another trial; those of the same in another mode stay."""
        described = f"{trial.label} {trial.attack!r} {trial.engine!r}"  # a mode is not part of this
        if described != self._trial:
            self._kept.clear()
            self._left = torch.cuda.mem_get_info(device)[0] // 2 if device.type == "cuda" else AT_MOST
        self._trial = described

    def of(self, first: int) -> Climb | None:
        """That of the batch that begins there, if it was kept."""
        return self._kept.get(first)

    def keep(self, first: int, climb: Climb | None) -> None:
        """Keep it, if it can be shared and there is room; the first mode's stay."""
        if climb is None or first in self._kept:
            return
        tensors = [climb.inputs, *climb.targets.values()]
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        if size <= self._left:
            self._kept[first] = climb
            self._left -= size
