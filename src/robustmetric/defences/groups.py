"""Mining inside groups of a batch: one GPU as if it were several, each with its own pairs."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.losses.mining import Miner
from robustmetric.types import Batch, Embed, Embeddings, Labels, Triplets


def check_miner(miner: object, role: str) -> None:
    """Refuse a word where a miner belongs when the part is built, not at its first step."""
    if not callable(miner):
        raise InputError(f"{role} {miner!r} chooses no triplets; expected a miner, such as {{name: semihard}}")


def check_mining(source: object, margin: float, groups: int) -> None:
    """Refuse settings that no batch of triplets can be trained with."""
    check_miner(source, "source")
    if groups < 1 or not 0 <= margin < math.inf:
        raise InputError(f"groups {groups}, margin {margin}; expected groups >= 1, margin >= 0, such as 2 and 0.2")


def groups_in(batch: Batch, groups: int) -> int:
    """As many groups as asked for; the last batch of an epoch may hold fewer pairs than that."""
    return min(groups, len(batch) // 2)


def mine_in_groups(
    miner: Miner, embeddings: Embeddings, labels: Labels, groups: int, generator: torch.Generator | None
) -> Triplets:
    """The miner's triplets of each group of consecutive pairs, as positions in the whole batch."""
    pairs = len(labels) // 2
    if groups < 1 or groups > pairs:
        raise InputError(f"{pairs} pairs cannot be mined in {groups} groups; expected at most one group per pair")
    # Whole pairs; where they do not come out even, the first groups are one pair larger.
    sizes = [2 * len(part) for part in torch.arange(pairs).tensor_split(groups)]
    sizes[-1] += len(labels) % 2  # an odd row: the miner refuses it
    firsts = torch.tensor([0, *sizes[:-1]]).cumsum(0).tolist()
    mined = [miner(z, y, generator) for z, y in zip(embeddings.split(sizes), labels.split(sizes), strict=True)]
    parts = [(t.anchor + first, t.positive + first, t.negative + first) for t, first in zip(mined, firsts, strict=True)]
    return Triplets(*(torch.cat(column) for column in zip(*parts, strict=True)))


def clean_triplets(
    embed: Embed, miner: Miner, batch: Batch, groups: int, generator: torch.Generator | None
) -> tuple[Embeddings, Triplets]:
    """The clean embeddings of a batch, without a graph, and the triplets mined on them."""
    with torch.no_grad():
        z = embed(batch.inputs)
    return z, mine_in_groups(miner, z, batch.labels, groups, generator)


def group_means(values: Float[Tensor, " triplets"], groups: int) -> Float[Tensor, " groups"]:
    """The mean over each group's triplets, as `mine_in_groups` lays them out."""
    return torch.stack([part.mean() for part in values.tensor_split(groups)])


def spread(per_group: Float[Tensor, " groups"], triplets: int) -> Float[Tensor, " triplets"]:
    """Each group's number, once per triplet of the group."""
    groups = len(per_group)
    counts = [len(part) for part in torch.arange(triplets).tensor_split(groups)]
    return torch.cat([number.expand(count) for number, count in zip(per_group, counts, strict=True)])
