"""Recall and clustering of an ensemble by every reading: each member alone, mean, side by side, and the three votes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.metrics.clustering import ami, nmi, pairwise_f1
from robustmetric.metrics.recall import recall_at
from robustmetric.numerics.distances import nearest
from robustmetric.numerics.kmeans import Backend, check_backend, kmeans
from robustmetric.numerics.vote import (
    Ties,
    centroid_distances,
    check_ties,
    consensus,
    unit_members,
    vote_aligned,
    vote_by_rank,
    vote_in_pool,
    vote_on_hits,
    vote_on_names,
)

ALONE = "alone"
"""The reading of a single model."""
VOTES = ("V1, C1", "V2, C2", "V3, C3")
"""Rules for recall and for clusters go in pairs: each reading has both."""

Judge = Literal["R@1", "NMI", "F1"]
"""One score that stands for a set."""

PerQuery = Mapping[str, Float[Tensor, " n"]]


@dataclass(frozen=True)
class Reading:
    """How an ensemble's embeddings are read, and what is counted."""

    members: int = 1
    ks: Sequence[int] = (1, 2, 4, 8)
    seeds: int = 5
    """k-means runs, from seed 0 on; scores are their mean and standard deviation."""
    clusters: int | None = None
    """None: as many as there are classes."""
    ties: Ties = "nearest"
    backend: Backend = "torch"

    def __post_init__(self) -> None:
        if self.members < 1 or self.seeds < 1 or not self.ks or min(self.ks) < 1:
            raise InputError(
                f"members={self.members}, seeds={self.seeds}, ks={list(self.ks)}; expected all to be 1 or more"
            )
        check_ties(self.ties)
        check_backend(self.backend)

    @property
    def names(self) -> tuple[str, ...]:
        """The readings there are."""
        if self.members == 1:
            return (ALONE,)
        return (*(f"member {i}" for i in range(1, self.members + 1)), "mean", "concatenated", *VOTES)

    def embeddings(self, z: Float[Tensor, "n dim"]) -> dict[str, Float[Tensor, "n _"]]:
        """By reading, the embeddings that are searched or clustered as they are (all but the votes)."""
        if self.members == 1:
            return {ALONE: z}
        parts = unit_members(z, self.members)
        mean = torch.nn.functional.normalize(torch.stack(list(parts)).mean(dim=0), dim=1)
        return {**{f"member {i}": part for i, part in enumerate(parts, 1)}, "mean": mean, "concatenated": z}


@torch.no_grad()
def recall_by_reading(
    queries: Float[Tensor, "n dim"],
    items: Float[Tensor, "items dim"],
    labels: Int[Tensor, " n"],
    item_labels: Int[Tensor, " items"],
    exclude: Int[Tensor, " n"] | None,
    reading: Reading,
) -> dict[str, PerQuery]:
    """By reading, "R@k" for each k: per query 1 if it hits, else 0."""
    found: dict[str, PerQuery] = {}
    lists: list[tuple[Tensor, Tensor]] = []
    sides = zip(reading.embeddings(queries).items(), reading.embeddings(items).values(), strict=True)
    for (name, z), gallery in sides:
        distances, top = nearest(z, gallery, k=max(reading.ks), exclude=exclude)
        found[name] = {f"R@{k}": recall_at(item_labels[top], labels, k) for k in reading.ks}
        if name.startswith("member"):
            lists.append((distances, item_labels[top]))
    return found | (voted_recall(lists, labels, reading) if lists else {})


def voted_recall(
    lists: Sequence[tuple[Float[Tensor, "n depth"], Int[Tensor, "n depth"]]],
    labels: Int[Tensor, " n"],
    reading: Reading,
) -> dict[str, PerQuery]:
    """V1, V2 and V3 from each member's distances and labels of neighbours, nearest first."""
    distances, proposed = (torch.stack(part, dim=1) for part in zip(*lists, strict=True))
    ranks = vote_by_rank(proposed, distances, reading.ties)
    first: dict[str, Tensor] = {}
    second: dict[str, Tensor] = {}
    third: dict[str, Tensor] = {}
    for k in reading.ks:
        pool = vote_in_pool(proposed[..., :k], distances[..., :k], reading.ties)
        hits = (proposed[..., :k] == labels[:, None, None]).any(dim=2)
        first[f"R@{k}"] = recall_at(ranks, labels, k)
        second[f"R@{k}"] = recall_at(pool, labels, k)
        third[f"R@{k}"] = vote_on_hits(hits, distances[..., 0], reading.ties).float()
    return dict(zip(VOTES, (first, second, third), strict=True))


@torch.no_grad()
def clusters_by_reading(
    z: Float[Tensor, "n dim"], labels: Int[Tensor, " n"], reading: Reading, only: Sequence[str] | None = None
) -> dict[str, dict[str, float]]:
    """By reading, NMI, AMI and F1 in [0, 1], the mean over k-means seeds, and "NMI std", "AMI std", "F1 std".

    `only` names the readings that are wanted: nothing is clustered for the others.
    """
    names = reading.names if only is None else tuple(only)
    runs = [_clusterings(z, labels, reading, seed, names) for seed in range(reading.seeds)]
    return {name: _mean_and_deviation([agreement(labels, run[name]) for run in runs]) for name in names}


def judge(z: Float[Tensor, "n dim"], labels: Int[Tensor, " n"], members: int, by: Judge) -> float:
    """R@1 of a set among itself, or NMI or F1 of its clusters (k-means seed 0), by vote; in [0, 1]."""
    reading = Reading(members, ks=(1,), seeds=1)
    name = VOTES[0] if members > 1 else reading.names[0]
    if by == "R@1":
        own = torch.arange(len(z), device=z.device)
        return float(recall_by_reading(z, z, labels, labels, own, reading)[name]["R@1"].mean())
    return clusters_by_reading(z, labels, reading, only=(name,))[name][by]


def agreement(labels: Int[Tensor, " n"], clusters: Int[Tensor, " n"]) -> dict[str, float]:
    """ "NMI", "AMI" and "F1" of one clustering."""
    return {"NMI": nmi(labels, clusters), "AMI": ami(labels, clusters), "F1": pairwise_f1(labels, clusters)}


def _clusterings(
    z: Tensor, labels: Tensor, reading: Reading, seed: int, names: Sequence[str]
) -> dict[str, Int[Tensor, " n"]]:
    count = len(labels.unique()) if reading.clusters is None else reading.clusters
    voted = [name for name in VOTES if name in names]
    spaces = {
        name: x for name, x in reading.embeddings(z).items() if name in names or (voted and name.startswith("member"))
    }
    found = {name: kmeans(x, count, seed=seed, backend=reading.backend) for name, x in spaces.items()}
    if not voted:
        return found
    voters = [name for name in spaces if name.startswith("member")]
    clusters = torch.stack([found[name] for name in voters])
    distances = torch.stack([centroid_distances(spaces[name], found[name], count) for name in voters])
    rules: dict[str, Callable[[], Tensor]] = {
        VOTES[0]: lambda: vote_aligned(clusters, distances, count, reading.ties),
        VOTES[1]: lambda: vote_on_names(clusters, distances, labels, reading.ties),
        VOTES[2]: lambda: consensus(clusters, count),
    }
    return found | {name: rules[name]() for name in voted}


def _mean_and_deviation(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Of each score, its mean and its sample standard deviation (0 of a single run)."""
    values = {name: torch.tensor([run[name] for run in runs], dtype=torch.float64) for name in runs[0]}
    deviation = {f"{name} std": float(v.std()) if len(v) > 1 else 0.0 for name, v in values.items()}
    return {name: float(v.mean()) for name, v in values.items()} | deviation
