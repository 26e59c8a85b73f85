"""Ensemble: several encoders as one, their embeddings side by side."""

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor, nn

from robustmetric.errors import InputError, nearest
from robustmetric.models.classifier import Classifies
from robustmetric.models.encoder import Sized
from robustmetric.models.stacked import is_channels_last, obstacle, run_stacked
from robustmetric.types import Embeddings, Inputs

Run = Literal["auto", "loop", "streams", "stacked"]

DEEP = 20
"""Layers with weights from which "auto" means "streams" on a GPU. `benchmarks/ensembles.py` compares the ways.

On an H200 streams take 0.74 to 0.94 of the loop's time to train 2 to 5 members of MobileNetV2 or ResNet-18 and 0.93 to
1.02 to attack them; for Mahalanobis and C2F2 the host cannot launch fast enough to fill one stream. Stacking copies the
weights at every call and makes grouped convolutions of the others: it pays for four and more members of C2F2 alone.
"""


class Ensemble(nn.Module):
    """`[z_1, ..., z_k] / sqrt(k)`: unit length when every member's embedding is.

    The squared distance of two embeddings is the mean of the members' squared distances. `z.chunk(k, 1)` gives the
    members back up to the factor 1/sqrt(k), which leaves their neighbours and angles alone; `split` also undoes it.

    `run` says how the members are called, and changes no number beyond rounding: "loop", one after the other;
    "streams", each on a CUDA stream of its own (elsewhere the loop); "stacked", as one network whose weights are the
    members' stacked, for members of one architecture without layers that are random or keep statistics (where weights
    lie in channels_last order, as in a fast view, the loop: stacks have no such order); "auto", streams for deep
    members on a GPU, else the loop.
    """

    def __init__(self, members: list[nn.Module], run: Run = "auto") -> None:
        super().__init__()
        if not members:
            raise InputError("an ensemble needs at least one member")
        if run not in get_args(Run):
            raise InputError(f"run {run!r} is not known{nearest(run, get_args(Run))}")
        sizes = []
        for member in members:
            if not isinstance(member, Sized):
                raise InputError(
                    f"ensemble member {type(member).__name__} has no `dim`; wrap it: Encoder(module, shape=...)"
                )
            if isinstance(member, Classifies):
                raise InputError(
                    f"ensemble member {type(member).__name__} is a classifier: logits side by side are no logits; "
                    "expected encoders, or a module of your own that takes the mean of its members' logits"
                )
            sizes.append(member.dim)
        if len(set(sizes)) > 1:
            raise InputError(
                f"ensemble members have embeddings of sizes {sizes}; expected one for all: give each the same `dim`"
            )
        self.members = nn.ModuleList(members)
        self.dim = sum(sizes)
        self.run: Run = run
        self._is_deep = sum(bool(list(layer.parameters(recurse=False))) for layer in members[0].modules()) >= DEEP

    def forward(self, inputs: Inputs) -> Embeddings:
        return torch.cat(self._embeddings(inputs), dim=1) / math.sqrt(len(self.members))

    def split(self, embeddings: Embeddings) -> tuple[Float[Tensor, "batch member"], ...]:
        """Each member's own embeddings."""
        return split(embeddings, len(self.members))

    def each(self, inputs: Mapping[int, Tensor]) -> list[Tensor]:
        """The own embeddings of some members, by number, each of inputs of its own."""
        members = [self.members[i] for i in inputs]
        if self._way == "streams" and len(members) > 1 and all(map(_may_fork, inputs.values())):
            return _run_on_streams(members, list(inputs.values()))
        return [member(x) for member, x in zip(members, inputs.values(), strict=True)]

    @property
    def _way(self) -> Run:
        return ("streams" if self._is_deep else "loop") if self.run == "auto" else self.run

    def _embeddings(self, inputs: Tensor) -> list[Tensor] | tuple[Tensor, ...]:
        members = list(self.members)
        if self._way == "stacked" and not is_channels_last(members[0]):
            if reason := obstacle(members):
                raise InputError(f"an ensemble cannot be run 'stacked': {reason}; expected run: 'auto' or 'loop'")
            return run_stacked(members, inputs)
        return self.each(dict.fromkeys(range(len(members)), inputs))


def split(embeddings: Embeddings, members: int) -> tuple[Float[Tensor, "batch member"], ...]:
    """Each member's own embeddings, of an ensemble of so many."""
    return (embeddings * math.sqrt(members)).chunk(members, dim=1)


def members_of(model: nn.Module, count: int) -> Ensemble:
    """The model as an ensemble of so many members; another one is refused."""
    if not isinstance(model, Ensemble):
        raise InputError(
            f"{type(model).__name__} is no ensemble of {count}; write model: {{name: ensemble, members: ...}}"
        )
    if len(model.members) != count:
        raise InputError(f"an ensemble of {len(model.members)} has {count} losses or defences; expected one per member")
    return model


def _may_fork(inputs: Tensor) -> bool:
    """Whether other streams may take part: a compiler, an exporter or a recorder of graphs orders the work itself."""
    return inputs.is_cuda and not torch.compiler.is_compiling() and not torch.cuda.is_current_stream_capturing()


def _run_on_streams(members: Sequence[nn.Module], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Each member's output, safe to use on the current stream. Autograd runs a backward on its forward's stream."""
    device = inputs[0].device
    current = torch.cuda.current_stream(device)
    streams = _streams(device, len(members))
    outputs = []
    for member, x, stream in zip(members, inputs, streams, strict=True):
        stream.wait_stream(current)
        # Until this stream is done with the inputs, and later the current one with the output, the memory stays theirs.
        x.record_stream(stream)
        with torch.cuda.stream(stream):
            outputs.append(member(x))
    for output, stream in zip(outputs, streams, strict=True):
        current.wait_stream(stream)
        output.record_stream(current)
    return outputs


@cache
def _streams(device: torch.device, count: int) -> list[torch.cuda.Stream]:
    """Kept, because memory freed on a stream is reused on that stream alone; and outside the module, to be copyable."""
    return [torch.cuda.Stream(device) for _ in range(count)]
