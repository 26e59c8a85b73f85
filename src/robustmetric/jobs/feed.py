"""From a split to batches on the device: kept there as bytes when they fit, cut and flipped there in one go."""

import torch
from jaxtyping import Int
from torch import Tensor

from robustmetric.data.base import Split
from robustmetric.data.protocols import Transform
from robustmetric.errors import InputError
from robustmetric.types import Batch


class Feed:
    """A split as seen by one device."""

    def __init__(self, split: Split, device: torch.device) -> None:
        self.labels = split.labels
        self.sizes = split.sizes
        self.names = split.names
        self.device = device
        self.inputs = split.inputs.to(device) if device.type == "cuda" and _fits(split.inputs, device) else split.inputs

    def __len__(self) -> int:
        return len(self.labels)

    def batch(
        self,
        rows: Int[Tensor, " batch"],
        transform: Transform,
        generator: torch.Generator | None = None,
        index: Int[Tensor, " batch"] | None = None,
    ) -> Batch:
        """These rows, transformed; `index` is their place in the gallery (their own row where not given)."""
        raw = self.inputs[rows.to(self.inputs.device)].to(self.device)
        inputs = transform(raw, self.sizes[rows].to(self.device), generator) if raw.dtype == torch.uint8 else raw
        if raw.dtype != torch.uint8 and not bool(torch.isfinite(inputs).all()):
            bad = rows[(~torch.isfinite(inputs.flatten(1)).all(dim=1)).cpu()][0]
            raise InputError(f"{self.names[int(bad)]}: the input holds NaN or infinity; clean or drop this row")
        places = rows if index is None else index
        return Batch(inputs, self.labels[rows].to(self.device), places.to(self.device))


def _fits(inputs: Tensor, device: torch.device) -> bool:
    """Whether the bytes take at most half of what is free on the device."""
    free, _ = torch.cuda.mem_get_info(device)
    return inputs.numel() * inputs.element_size() < free // 2
