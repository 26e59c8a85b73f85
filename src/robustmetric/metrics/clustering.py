"""How well clusters agree with classes: NMI, AMI and pairwise F1. None depends on how clusters are numbered."""

import torch
from jaxtyping import Float, Int
from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.numerics.kmeans import kmeans


def nmi(labels: Int[Tensor, " n"], clusters: Int[Tensor, " n"]) -> float:
    """Normalised mutual information (arithmetic mean of the entropies), in [0, 1]."""
    return float(normalized_mutual_info_score(labels.cpu().numpy(), clusters.cpu().numpy()))


def ami(labels: Int[Tensor, " n"], clusters: Int[Tensor, " n"]) -> float:
    """Mutual information adjusted for chance (arithmetic): 1 for a perfect match, about 0 for a random one."""
    return float(adjusted_mutual_info_score(labels.cpu().numpy(), clusters.cpu().numpy()))


def pairwise_f1(labels: Int[Tensor, " n"], clusters: Int[Tensor, " n"]) -> float:
    """F1 of "same cluster" as a guess at "same class", in [0, 1]: 2 TP / (pairs of a class + of a cluster)."""
    _, label = labels.unique(return_inverse=True)
    names, cluster = clusters.unique(return_inverse=True)
    agree = _pairs(label * len(names) + cluster)
    guessed_or_true = _pairs(label) + _pairs(cluster)
    # No pair on either side: every point stands alone in both, a perfect match.
    return 2 * agree / guessed_or_true if guessed_or_true else 1.0


@torch.no_grad()
def cluster_metrics(embeddings: Float[Tensor, "n dim"], labels: Int[Tensor, " n"], seed: int = 0) -> dict[str, float]:
    """ "NMI", "AMI" and "F1" of k-means with as many clusters as there are classes."""
    if not len(labels):
        raise InputError("no embeddings to cluster; expected at least one: check the test split")
    clusters = kmeans(embeddings, len(labels.unique()), seed=seed)
    return {"NMI": nmi(labels, clusters), "AMI": ami(labels, clusters), "F1": pairwise_f1(labels, clusters)}


def _pairs(groups: Int[Tensor, " n"]) -> int:
    """Pairs of points in the same group, from the group sizes alone (int64 is exact up to 4e9 points)."""
    sizes = groups.unique(return_counts=True)[1]
    return int((sizes * (sizes - 1) // 2).sum())
