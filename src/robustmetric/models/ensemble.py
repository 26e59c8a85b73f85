"""Ensemble: several encoders as one, their embeddings side by side."""

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn

from robustmetric.errors import InputError
from robustmetric.models.encoder import Sized
from robustmetric.types import Embeddings, Inputs


class Ensemble(nn.Module):
    """`[z_1, ..., z_k] / sqrt(k)`: unit length when every member's embedding is.

    The squared distance of two embeddings is the mean of the members' squared distances. `z.chunk(k, 1)` gives the
    members back up to the factor 1/sqrt(k), which leaves their neighbours and angles alone; `split` also undoes it.
    """

    def __init__(self, members: list[nn.Module]) -> None:
        super().__init__()
        if not members:
            raise InputError("an ensemble needs at least one member")
        sizes = []
        for member in members:
            if not isinstance(member, Sized):
                raise InputError(
                    f"ensemble member {type(member).__name__} has no `dim`; wrap it: Encoder(module, shape=...)"
                )
            sizes.append(member.dim)
        if len(set(sizes)) > 1:
            raise InputError(f"ensemble members have embeddings of sizes {sizes}; expected one size for all")
        self.members = nn.ModuleList(members)
        self.dim = sum(sizes)

    def forward(self, inputs: Inputs) -> Embeddings:
        return torch.cat([member(inputs) for member in self.members], dim=1) / math.sqrt(len(self.members))

    def split(self, embeddings: Embeddings) -> tuple[Float[Tensor, "batch member"], ...]:
        """Each member's own embeddings."""
        return (embeddings * math.sqrt(len(self.members))).chunk(len(self.members), dim=1)
