"""Batches of row numbers. An epoch's order is a function of (seed, epoch), so a resumed run meets the same batches."""

import hashlib
import math
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from robustmetric.errors import InputError

Batches = list[Tensor]
"""Row numbers of the split, one tensor per step."""


@dataclass(frozen=True)
class Shuffled:
    """Every sample once per epoch, in random order; the last, smaller batch is dropped unless `drop_last` is off."""

    batch: int
    drop_last: bool = True

    def __post_init__(self) -> None:
        _check_positive(self.batch, "batch")

    def steps(self, labels: Int[Tensor, " n"], ranks: int = 1) -> int:
        """Batches per epoch and rank."""
        share = math.ceil(len(labels) / ranks)
        steps = share // self.batch if self.drop_last else math.ceil(share / self.batch)
        if not steps:
            raise InputError(
                f"a batch of {self.batch} is larger than the {share} samples there are per process; lower batch:"
            )
        return steps

    def batches(self, labels: Int[Tensor, " n"], epoch: int, seed: int, rank: int = 0, ranks: int = 1) -> Batches:
        """This rank's batches of this epoch."""
        rows = _shard(torch.randperm(len(labels), generator=_generator(seed, epoch)), rank, ranks)
        return list(rows.split(self.batch))[: self.steps(labels, ranks)]


@dataclass(frozen=True)
class Pairs:
    """Pairs (anchor, partner) laid out a0, p0, a1, p1, ...: every sample is an anchor once per epoch.

    The partner is uniform over all samples of the anchor's class, the anchor among them; classes may repeat within a
    batch and the last, smaller batch is kept (the "two samples per class" batch of Zhou and Patel 2022).
    """

    batch: int = 112
    """Images, twice the number of pairs."""

    def __post_init__(self) -> None:
        _check_positive(self.batch, "batch")
        if self.batch % 2:
            raise InputError(
                f"an odd batch of {self.batch} images cannot hold pairs; use {self.batch - 1 or 2} or {self.batch + 1}"
            )

    def steps(self, labels: Int[Tensor, " n"], ranks: int = 1) -> int:
        """Batches per epoch and rank: ceil(ceil(n / ranks) / pairs)."""
        return math.ceil(math.ceil(len(labels) / ranks) / (self.batch // 2))

    def batches(self, labels: Int[Tensor, " n"], epoch: int, seed: int, rank: int = 0, ranks: int = 1) -> Batches:
        """This rank's batches of this epoch."""
        generator = _generator(seed, epoch)
        labels = labels.cpu()
        anchors = torch.randperm(len(labels), generator=generator)
        by_class = labels.argsort(stable=True)
        counts = torch.bincount(labels)
        starts = counts.cumsum(0) - counts
        # Doubles: a float32 draw times a class size can round up to the size itself.
        draws = torch.rand(len(labels), generator=generator, dtype=torch.float64)
        partners = by_class[starts[labels[anchors]] + (draws * counts[labels[anchors]]).long()]
        pairs = _shard(torch.stack([anchors, partners], dim=1), rank, ranks)
        return list(pairs.flatten().split(self.batch))


@dataclass(frozen=True)
class Balanced:
    """P classes x K samples: distinct classes, `per_class` samples of each side by side; n // batch batches an epoch.

    A class's samples are distinct where it has enough of them, drawn with replacement where it has fewer.
    """

    batch: int = 112
    per_class: int = 2

    def __post_init__(self) -> None:
        _check_positive(self.batch, "batch")
        _check_positive(self.per_class, "per_class")
        if self.batch % self.per_class:
            lower = self.batch - self.batch % self.per_class
            raise InputError(
                f"a batch of {self.batch} is not a multiple of per_class {self.per_class}; "
                f"use {lower or self.per_class} or {lower + self.per_class}"
            )

    def steps(self, labels: Int[Tensor, " n"], ranks: int = 1) -> int:
        """Batches per epoch and rank; at least one."""
        return max(1, len(labels) // (self.batch * ranks))

    def batches(self, labels: Int[Tensor, " n"], epoch: int, seed: int, rank: int = 0, ranks: int = 1) -> Batches:
        """This rank's batches of this epoch; ranks draw independently."""
        labels = labels.cpu()
        counts = torch.bincount(labels)
        starts = counts.cumsum(0) - counts
        by_class = labels.argsort(stable=True)
        present = counts.nonzero().flatten()
        wanted = self.batch // self.per_class
        if wanted > len(present):
            raise InputError(
                f"a batch of {self.batch} needs {wanted} classes of {self.per_class}, there are {len(present)}; "
                f"use batch: {len(present) * self.per_class} or less"
            )
        generator = _generator(seed, epoch, rank)
        batches = []
        for _ in range(self.steps(labels, ranks)):
            classes = present[torch.randperm(len(present), generator=generator)[:wanted]]
            places = _distinct(counts[classes], self.per_class, generator)
            batches.append(by_class[starts[classes][:, None] + places].flatten())
        return batches


def _distinct(counts: Int[Tensor, " classes"], k: int, generator: torch.Generator) -> Int[Tensor, "classes k"]:
    """k distinct numbers below each count, in random order; with repetition where the count is less than k."""
    largest = max(int(counts.max()), k)
    keys = torch.rand(len(counts), largest, generator=generator)
    keys[torch.arange(largest) >= counts[:, None]] = -1  # below every draw: never among the k largest of a class with k
    distinct = keys.topk(k, dim=1).indices
    draws = torch.rand(len(counts), k, generator=generator, dtype=torch.float64)
    return torch.where(counts[:, None] >= k, distinct, (draws * counts[:, None]).long())


def _generator(*key: int) -> torch.Generator:
    """Randomness of its own for each (seed, epoch, ...): neighbours in seed and epoch share nothing."""
    digest = hashlib.sha256(":".join(map(str, key)).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7]))


def _shard(rows: Tensor, rank: int, ranks: int) -> Tensor:
    """Every `ranks`-th row from `rank` on; the first rows come again at the end, so that all ranks have as many."""
    if not 0 <= rank < ranks:
        raise InputError(f"rank {rank} of {ranks} processes does not exist; expected 0 <= rank < ranks")
    padded = rows.repeat(math.ceil(ranks / max(len(rows), 1)) + 1, *[1] * (rows.dim() - 1))
    return padded[: math.ceil(len(rows) / ranks) * ranks][rank::ranks]


def _check_positive(value: int, name: str) -> None:
    if value < 1:
        raise InputError(f"{name} {value} is no number of images; expected at least 1")
