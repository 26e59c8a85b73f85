"""Encoder: any module, with pixel normalisation before it and unit length after it."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from typing import Literal, Protocol, get_args, runtime_checkable

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from robustmetric.errors import InputError, nearest
from robustmetric.types import Embeddings, Inputs

FrozenPart = Literal["live", "statistics", "whole", "auxiliary"]


@runtime_checkable
class Sized(Protocol):
    """A model that says how long its embeddings are."""

    dim: int


class Encoder(nn.Module):
    """Inputs in [0, 1] to unit-length embeddings: `trunk((x - mean) / std)`, normalised in fp32.

    `batch_norm`: "live" is ordinary; "statistics" keeps the running statistics as they are (always eval mode) while the
    affine part is trained; "whole" also fixes the affine part; "auxiliary" is live, with a second set of norms for
    perturbed images (AdvProp, Xie et al., CVPR 2020), which takes the first one's place inside `perturbed` and plays no
    part elsewhere. `dim` is taken from the argument, from a trunk that says its own, or measured once by a dry run on
    one input of `shape` (channels, height, width); a trunk with none of these works too, but its `dim` cannot be asked
    for.
    """

    mean: Tensor
    std: Tensor

    def __init__(
        self,
        trunk: nn.Module,
        mean: Sequence[float] = (),
        std: Sequence[float] = (),
        normalise: bool = True,
        batch_norm: FrozenPart = "live",
        dim: int | None = None,
        shape: Sequence[int] = (),
    ) -> None:
        super().__init__()
        if batch_norm not in get_args(FrozenPart):
            raise InputError(f"batch_norm {batch_norm!r} is not known{nearest(batch_norm, get_args(FrozenPart))}")
        if len(mean) != len(std) or any(not deviation > 0 for deviation in std):
            raise InputError(
                f"mean {tuple(mean)} and std {tuple(std)} do not fit; expected one of each per channel, std > 0"
            )
        self.trunk = trunk
        self.normalise = normalise
        self.batch_norm = batch_norm
        # Constants of the architecture, not weights: a checkpoint does not carry them.
        self.register_buffer("mean", torch.tensor(mean, dtype=torch.float32), persistent=False)
        self.register_buffer("std", torch.tensor(std, dtype=torch.float32), persistent=False)
        if batch_norm == "whole":
            for layer in self._batch_norms():
                for parameter in layer.parameters():
                    parameter.requires_grad_(False)
        second = map(deepcopy, self._batch_norms()) if batch_norm == "auxiliary" else ()
        self.auxiliary = nn.ModuleList(second)
        if batch_norm == "auxiliary" and not len(self.auxiliary):
            raise InputError(f"{type(trunk).__name__} has no batch norm to keep in two; expected batch_norm: 'live'")
        self.train(self.training)
        self._dim = dim if dim is not None else self._find_dim(shape)

    @property
    def dim(self) -> int:
        """Length of an embedding."""
        if self._dim is None:
            name = type(self.trunk).__name__
            raise InputError(
                f"the embedding size of {name} is not known; give Encoder its `dim`, or an input's `shape`"
            )
        return self._dim

    def forward(self, inputs: Inputs) -> Embeddings:
        embeddings = self._embed(self._standardise(inputs)).flatten(1)
        if embeddings.dtype in (torch.float16, torch.bfloat16):
            embeddings = embeddings.float()
        return functional.normalize(embeddings, dim=1) if self.normalise else embeddings

    def train(self, mode: bool = True) -> "Encoder":
        """As usual, but fixed batch norms stay in eval mode."""
        super().train(mode)
        if self.batch_norm in ("statistics", "whole"):
            for layer in self._batch_norms():
                layer.eval()
        return self

    def _standardise(self, inputs: Tensor) -> Tensor:
        """(x - mean) / std per channel, differentiable."""
        channels = len(self.mean)
        if not channels:
            return inputs
        if inputs.dim() < 2 or inputs.shape[1] != channels:
            raise InputError(f"{_described(inputs)}; this encoder expects {channels} channels")
        per_channel = (-1, *[1] * (inputs.dim() - 2))
        return (inputs - self.mean.view(per_channel)) / self.std.view(per_channel)

    def _embed(self, inputs: Tensor) -> Tensor:
        try:
            given: object = self.trunk(inputs)
            if isinstance(given, Tensor):
                return self._of_each(given, inputs)
        except RuntimeError as error:
            # Only after a failure: how many channels a trunk wants is otherwise its own business.
            first = next((m for m in self.trunk.modules() if isinstance(m, nn.Conv1d | nn.Conv2d | nn.Conv3d)), None)
            if first is None or inputs.dim() < 2 or inputs.shape[1] == first.in_channels:
                raise
            raise InputError(f"{_described(inputs)}; this encoder expects {first.in_channels} channels") from error
        raise InputError(
            f"{type(self.trunk).__name__} returned a {type(given).__name__}; expected a tensor with one embedding per "
            "input: wrap it in a module that picks it out"
        )

    def _of_each(self, given: Tensor, inputs: Tensor) -> Tensor:
        if given.dim() < 2:
            raise InputError(
                f"{type(self.trunk).__name__} returned a tensor of shape {tuple(given.shape)} for {len(inputs)} inputs"
                "; expected one embedding per input, (batch, dim)"
            )
        return given

    def swap_norms(self) -> None:
        """Put the second set of norms, their statistics and affine parts, in the first one's place, and the reverse."""
        for one, other in zip(self._batch_norms() if len(self.auxiliary) else (), self.auxiliary, strict=True):
            # Contents, not layers: whoever looks at the trunk, a shadow for one, finds what is in force.
            one._parameters, other._parameters = other._parameters, one._parameters
            one._buffers, other._buffers = other._buffers, one._buffers

    def _batch_norms(self) -> Iterator[nn.Module]:
        return (layer for layer in self.trunk.modules() if isinstance(layer, _BatchNorm))

    def _find_dim(self, shape: Sequence[int]) -> int | None:
        if isinstance(self.trunk, Sized):
            return self.trunk.dim
        if not shape:
            return None
        modes = [(layer, layer.training) for layer in self.modules()]
        self.eval()  # so that the dry run leaves running statistics alone
        with torch.no_grad():
            device = next(self.trunk.parameters(), self.mean).device
            size = self.to(device)(torch.zeros(1, *shape, device=device)).shape[1]
        for layer, training in modes:
            layer.training = training
        return size


@contextmanager
def perturbed(model: nn.Module) -> Iterator[None]:
    """Inside, the auxiliary batch norms of all encoders in the model are in force; of a model without, nothing is."""
    encoders = [part for part in model.modules() if isinstance(part, Encoder)]
    for encoder in encoders:
        encoder.swap_norms()
    try:
        yield
    finally:
        for encoder in encoders:
            encoder.swap_norms()


def has_auxiliary(model: nn.Module) -> bool:
    """Whether some of its batch norms are kept in two, for clean and for perturbed images."""
    return any(isinstance(part, Encoder) and len(part.auxiliary) for part in model.modules())


def mixes_rows(model: nn.Module) -> bool:
    """Whether it matters which images share a pass: batch norm in training mode takes its statistics over them."""
    return any(isinstance(layer, _BatchNorm) and layer.training for layer in model.modules())


def _described(inputs: Tensor) -> str:
    return f"inputs of shape {tuple(inputs.shape)} have {inputs.shape[1] if inputs.dim() > 1 else 'no'} channels"
