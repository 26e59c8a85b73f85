"""Average precision over the whole ranking, at R (Musgrave et al. 2020) and at a fixed depth: per query, in [0, 1]."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.numerics.distances import BLOCK, check_rows, chunks, mask_excluded, pairwise


def average_precision(relevant: Bool[Tensor, "n items"]) -> Float[Tensor, " n"]:
    """Mean over the relevant items of the precision at their rank; 0 where there is none. Columns are in rank order."""
    return _precisions(relevant).sum(dim=1) / relevant.sum(dim=1).clamp_min(1)


def average_precision_at_r(relevant: Bool[Tensor, "n items"]) -> Float[Tensor, " n"]:
    """sum_{k <= R} precision@k * relevant_k / R, where R is the query's number of relevant items; 0 where R = 0."""
    count = relevant.sum(dim=1, keepdim=True)
    counted = _ranks(relevant) <= count
    return (_precisions(relevant) * counted).sum(dim=1) / count[:, 0].clamp_min(1)


def average_precision_at(relevant: Bool[Tensor, "n items"], depth: int = 10) -> Float[Tensor, " n"]:
    """sum_{k <= depth} precision@k * relevant_k / depth: below 1 where fewer items than `depth` are relevant."""
    if depth < 1:
        raise InputError(f"depth {depth} is not a rank; expected 1 or more")
    return _precisions(relevant[:, :depth]).sum(dim=1) / depth


@torch.no_grad()
def rank_metrics(
    queries: Float[Tensor, "n dim"],
    gallery_embeddings: Float[Tensor, "items dim"],
    query_labels: Int[Tensor, " n"],
    gallery_labels: Int[Tensor, " items"],
    exclude: Int[Tensor, " n"] | None = None,
    ks: Sequence[int] = (1, 2, 4, 8),
) -> dict[str, Float[Tensor, " n"]]:
    """Per query "R@k" for each k, "mAP", "mAP@R" and "mAP@10", from one ranking of all items (ties by lower index).

    `exclude[i]` is the item that is query i itself, -1 for none. A query without relevant items scores 0.
    """
    _check(queries, gallery_embeddings, exclude, ks)
    parts = []
    for rows in chunks(len(queries), BLOCK // max(1, len(gallery_embeddings))):
        distances = pairwise(queries[rows], gallery_embeddings)
        relevant = query_labels[rows, None] == gallery_labels
        if exclude is not None:
            mask_excluded(distances, exclude[rows])
            relevant &= distances.isfinite()
        # Excluded items are last and irrelevant: they change no precision.
        ranked = relevant.gather(1, distances.sort(dim=1, stable=True).indices)
        parts.append(
            {f"R@{k}": ranked[:, :k].any(dim=1).double() for k in ks}
            | {
                "mAP": average_precision(ranked),
                "mAP@R": average_precision_at_r(ranked),
                "mAP@10": average_precision_at(ranked, depth=10),
            }
        )
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def without_positives(
    query_labels: Int[Tensor, " n"], gallery_labels: Int[Tensor, " items"], exclude: Int[Tensor, " n"] | None = None
) -> Bool[Tensor, " n"]:
    """Which queries have no item of their label to find, themselves left out: their scores are 0 whatever the model."""
    ordered = gallery_labels.sort().values
    count = torch.searchsorted(ordered, query_labels, right=True) - torch.searchsorted(ordered, query_labels)
    if exclude is not None:
        excluded_label = gallery_labels[exclude.clamp_min(0)]
        count = count - ((exclude >= 0) & (excluded_label == query_labels)).long()
    return count == 0


def _ranks(relevant: Tensor) -> Float[Tensor, " items"]:
    return torch.arange(1, relevant.shape[1] + 1, device=relevant.device, dtype=torch.float64)


def _precisions(relevant: Bool[Tensor, "n items"]) -> Float[Tensor, "n items"]:
    """precision@k where item k is relevant, 0 elsewhere."""
    return relevant.cumsum(dim=1) / _ranks(relevant) * relevant


def _check(queries: Tensor, gallery: Tensor, exclude: Tensor | None, ks: Sequence[int]) -> None:
    """Refuse what cannot be ranked: no queries, NaN, depths beyond the gallery."""
    if not len(queries):
        raise InputError("no queries to rank; expected at least one: check the query split")
    check_rows(queries, gallery, exclude)
    available = len(gallery) - int(exclude is not None and bool((exclude >= 0).any()))
    for k in ks:
        if not 1 <= k <= available:
            raise InputError(f"R@{k} asked of {available} items per query; expected 1 <= k <= {available}")
