"""Recall at k as retrieval counts it: did any of the k nearest share the query's label."""

from jaxtyping import Float, Int
from torch import Tensor

from robustmetric.errors import InputError


def recall_at(neighbour_labels: Int[Tensor, "n depth"], labels: Int[Tensor, " n"], k: int) -> Float[Tensor, " n"]:
    """Per query, 1 if one of its k nearest has its label, else 0. Columns: nearest first, self left out."""
    depth = neighbour_labels.shape[1]
    if not 1 <= k <= depth:
        raise InputError(f"R@{k} asked of {depth} neighbours per query; expected 1 <= k <= {depth}")
    return (neighbour_labels[:, :k] == labels[:, None]).any(dim=1).float()


def recall_of(
    neighbours: Int[Tensor, "n depth"], labels: Int[Tensor, " n"], gallery_labels: Int[Tensor, " items"], k: int
) -> Float[Tensor, " n"]:
    """`recall_at` from the indices that `numerics.distances.nearest` returns."""
    return recall_at(gallery_labels[neighbours], labels, k)
