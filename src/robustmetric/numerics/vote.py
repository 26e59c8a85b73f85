"""Votes of an ensemble's members on neighbours (V1 to V3) and on clusters (C1 to C3), with rules for ties.

"Towards adversarially robust deep metric learning" (arXiv 2501.01025) votes and does not say how: these are readings.
"""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.cluster.hierarchy import linkage
from scipy.optimize import linear_sum_assignment
from scipy.spatial.distance import pdist
from torch import Tensor

from robustmetric.errors import InputError, nearest
from robustmetric.numerics.distances import paired
from robustmetric.numerics.kmeans import cluster_means

NumPy = np.ndarray[Any, np.dtype[Any]]
Ties = Literal["nearest", "first"]
"""Who wins when several proposals have most votes: the one made at the smallest distance, or by the first member."""

NOTHING = -1
"""Stands for "no label" where a list of labels has fewer than asked for."""


def majority(
    proposals: Int[Tensor, "*rows members"], distances: Float[Tensor, "*rows members"], ties: Ties = "nearest"
) -> Int[Tensor, "*rows"]:
    """What most members propose; `distances` says how far each member's evidence lies, the nearest breaks a tie."""
    check_ties(ties)
    votes = (proposals[..., :, None] == proposals[..., None, :]).sum(dim=-1)
    beaten = votes < votes.amax(dim=-1, keepdim=True)
    order = (
        distances if ties == "nearest" else torch.arange(proposals.shape[-1], device=distances.device).expand_as(votes)
    )
    winner = order.double().masked_fill(beaten, torch.inf).sort(dim=-1, stable=True).indices[..., :1]
    return proposals.gather(-1, winner)[..., 0]


def vote_by_rank(
    labels: Int[Tensor, "n members depth"], distances: Float[Tensor, "n members depth"], ties: Ties = "nearest"
) -> Int[Tensor, "n depth"]:
    """V1: at rank r every member proposes the label of its own r-th neighbour; the majority of each rank."""
    return majority(labels.transpose(1, 2), distances.transpose(1, 2), ties)


def vote_in_pool(
    labels: Int[Tensor, "n members k"], distances: Float[Tensor, "n members k"], ties: Ties = "nearest"
) -> Int[Tensor, "n k"]:
    """V2: the k labels with most votes among the k nearest of all members together, most first, then `NOTHING`."""
    check_ties(ties)
    k = labels.shape[2]
    pool, far = labels.flatten(1), distances.flatten(1)
    same = pool[:, :, None] == pool[:, None, :]
    # One entry stands for its label: the first of them in the pool.
    repeated = same.tril(diagonal=-1).any(dim=2)
    votes = same.sum(dim=2).masked_fill(repeated, 0)
    if ties == "nearest":
        closest = far[:, None, :].expand_as(same).masked_fill(~same, torch.inf).amin(dim=2)
        by_distance = closest.sort(dim=1, stable=True).indices
        pool, votes = pool.gather(1, by_distance), votes.gather(1, by_distance)
    chosen = votes.sort(dim=1, descending=True, stable=True).indices[:, :k]
    return pool.gather(1, chosen).masked_fill(votes.gather(1, chosen) == 0, NOTHING)


def vote_on_hits(
    hits: Bool[Tensor, "n members"], distances: Float[Tensor, "n members"], ties: Ties = "nearest"
) -> Bool[Tensor, " n"]:
    """V3: whether most members hit; where half of them do, the member with the nearest neighbour decides."""
    return majority(hits.long(), distances, ties).bool()


def align(clusters: Int[Tensor, " n"], reference: Int[Tensor, " n"], count: int) -> Int[Tensor, " n"]:
    """The clusters renamed, one to one, so that most points bear the name they have in `reference` (Hungarian)."""
    table = torch.bincount(clusters * count + reference, minlength=count**2).view(count, count)
    _, name = linear_sum_assignment(table.cpu().numpy(), maximize=True)
    return torch.from_numpy(name).to(clusters.device)[clusters]


def vote_aligned(
    clusters: Int[Tensor, "members n"], distances: Float[Tensor, "members n"], count: int, ties: Ties = "nearest"
) -> Int[Tensor, " n"]:
    """C1: every member's clusters named as the first member's, then the majority; `distances` are to the centroids."""
    aligned = torch.stack([clusters[0], *(align(other, clusters[0], count) for other in clusters[1:])])
    return majority(aligned.T, distances.T, ties)


def vote_on_names(
    clusters: Int[Tensor, "members n"],
    distances: Float[Tensor, "members n"],
    labels: Int[Tensor, " n"],
    ties: Ties = "nearest",
) -> Int[Tensor, " n"]:
    """C2: a cluster is named by the true label of its medoid (the point nearest to its centroid); majority of names."""
    pairs = zip(clusters, distances, strict=True)
    names = torch.stack([labels[_medoids(groups, gap)][groups] for groups, gap in pairs])
    return majority(names.T, distances.T, ties)


def consensus(clusters: Int[Tensor, "members n"], count: int) -> Int[Tensor, " n"]:
    """C3: average linkage of the share of members that part two points, cut into `count` (Fred & Jain 2005).

    Memory: 4 n^2 bytes, twice (n = 8,131: 0.5 GB).
    """
    if not 1 <= count <= clusters.shape[1]:
        raise InputError(
            f"{count} clusters asked of {clusters.shape[1]} points; expected 1 <= clusters <= {clusters.shape[1]}"
        )
    if clusters.shape[1] == 1:
        return torch.zeros_like(clusters[0])
    tree = linkage(pdist(clusters.T.cpu().numpy(), metric="hamming"), method="average")
    return torch.from_numpy(_cut(tree, count)).to(clusters.device)


def _cut(tree: Float[NumPy, "joins 4"], count: int) -> Int[NumPy, " n"]:
    """The clusters, 0 to `count` - 1, that a linkage has before its last `count` - 1 joins.

    The same as scipy's `cut_tree`, which looks at all points again for every join: of joins at one height, the order is
    that of a walk from the root, level by level and right before left, backwards.
    """
    n = len(tree) + 1
    walk = [len(tree) - 1]
    for join in walk:
        walk += [int(part) - n for part in tree[join, 1::-1] if part >= n]
    backwards = np.array(walk[::-1])
    joins = backwards[np.argsort(tree[backwards, 2], kind="stable")][: n - count]
    parent = np.arange(2 * n - 1)
    parent[tree[joins, :2].astype(np.int64)] = n + joins[:, None]
    while (parent != (above := parent[parent])).any():
        parent = above
    return np.unique(parent[:n], return_inverse=True)[1]


def centroid_distances(x: Float[Tensor, "n dim"], clusters: Int[Tensor, " n"], count: int) -> Float[Tensor, " n"]:
    """How far each point lies from the mean of its cluster."""
    centres, _ = cluster_means(x, clusters, count)
    return paired(x, centres[clusters])


def check_ties(ties: str) -> None:
    """Refuse a rule that would be taken for "first" in silence."""
    if ties not in get_args(Ties):
        raise InputError(f"ties {ties!r} is not known{nearest(ties, get_args(Ties))}")


def unit_members(embeddings: Float[Tensor, "n dim"], members: int) -> Sequence[Float[Tensor, "n part"]]:
    """Each member's embeddings out of those side by side, at unit length again."""
    if members < 1 or embeddings.shape[1] % members:
        raise InputError(
            f"embeddings of size {embeddings.shape[1]} are not those of {members} members side by side; "
            "expected a size that is a multiple of the members"
        )
    return [torch.nn.functional.normalize(part, dim=1) for part in embeddings.chunk(members, dim=1)]


def _medoids(clusters: Int[Tensor, " n"], distances: Float[Tensor, " n"]) -> Int[Tensor, " clusters"]:
    """By cluster, its point with the smallest distance, the first of several (of an empty cluster, any point)."""
    by_distance = distances.sort(stable=True).indices
    by_cluster = by_distance[clusters[by_distance].sort(stable=True).indices]
    names = torch.arange(int(clusters.max()) + 1, device=clusters.device)
    first = torch.searchsorted(clusters[by_cluster], names)
    return by_cluster[first]
