"""From a split to batches on the device: kept there as bytes when they fit, cut and flipped there in one go."""

from collections.abc import Callable, Generator, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from robustmetric.data.base import Split
from robustmetric.data.protocols import Transform
from robustmetric.errors import InputError
from robustmetric.jobs.loading import Pinned, Raw, ahead
from robustmetric.types import Batch


class Feed:
    """A split as seen by one device; `resident`: whether a GPU holds all inputs (None: if it has room for them)."""

    def __init__(self, split: Split, device: torch.device, *, resident: bool | None = None) -> None:
        self.labels = split.labels
        self.names = split.names
        self.device = device
        if resident is None:
            resident = device.type == "cuda" and _fits(split.inputs, device)
        # Models compute in float32; rows of a table come in float64.
        inputs = split.inputs if split.inputs.dtype == torch.uint8 else split.inputs.float()
        self.inputs = inputs.to(device) if resident else inputs
        # A few bytes per sample, looked up on the device so that the host need not wait for a copy of them.
        self._labels, self._sizes = split.labels.to(device), split.sizes.to(device)

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
        inputs = self.inputs.index_select(0, rows.to(self.inputs.device)).to(self.device)
        return self.transformed(Raw(rows.to(self.device), inputs), transform, generator, index)

    def stream(self, batches: Sequence[Int[Tensor, " _"]]) -> Generator[Raw, None, None]:
        """Batches of rows, one by one, as stored; the next ones are fetched while this one is used.

        To be read by one loop, whose end, early or not, ends the fetching (see `ahead`).
        """
        if batches:
            yield from ahead(self._fetch(max(len(rows) for rows in batches)), batches)

    def transformed(
        self,
        raw: Raw,
        transform: Transform,
        generator: torch.Generator | None = None,
        index: Int[Tensor, " batch"] | None = None,
    ) -> Batch:
        """A batch of `stream` as the model sees it; `index` as in `batch`, which gives the same for the same rows."""
        raw = raw.settled()
        rows = raw.rows.to(self.device)
        inputs = self.inputs.index_select(0, rows) if raw.inputs is None else raw.inputs.to(self.device)
        if inputs.dtype == torch.uint8:
            inputs = transform(inputs, self._sizes[rows], generator)
        elif not bool(torch.isfinite(inputs).all()):
            bad = rows[~torch.isfinite(inputs.flatten(1)).all(dim=1)][0]
            raise InputError(f"{self.names[int(bad)]}: the input holds NaN or infinity; clean or drop this row")
        return Batch(inputs, self._labels[rows], rows if index is None else index.to(self.device))

    def _fetch(self, largest: int) -> Callable[[Tensor], Raw]:
        """How rows, at most so many at a time, are brought from where they lie."""
        if self.device.type == "cuda":
            return Pinned(None if self.inputs.is_cuda else self.inputs, self.device, largest)
        return lambda rows: Raw(rows, self.inputs.index_select(0, rows))


def _fits(inputs: Tensor, device: torch.device) -> bool:
    """Whether the bytes take at most half of what is free on the device."""
    free, _ = torch.cuda.mem_get_info(device)
    return inputs.numel() * inputs.element_size() < free // 2
