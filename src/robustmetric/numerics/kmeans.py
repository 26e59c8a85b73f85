"""k-means: Lloyd's iterations from a greedy k-means++ start (Arthur & Vassilvitskii 2007), on CPU or GPU."""

import math
from importlib.util import find_spec
from typing import Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.numerics.distances import nearest, paired, pairwise, squared_within

Backend = Literal["torch", "faiss"]
"""Who clusters: ours, on CPU or GPU, or faiss, on the CPU."""


@torch.no_grad()
def kmeans(
    x: Float[Tensor, "n dim"],
    clusters: int,
    seed: int = 0,
    iterations: int = 25,
    restarts: int = 1,
    backend: Backend = "torch",
) -> Int[Tensor, " n"]:
    """The cluster, 0 to `clusters` - 1, of each row; of several restarts, the one with the smallest inertia."""
    if not 1 <= clusters <= len(x):
        raise InputError(f"{clusters} clusters asked of {len(x)} points; expected 1 <= clusters <= {len(x)}")
    if iterations < 1 or restarts < 1:
        raise InputError(f"iterations={iterations}, restarts={restarts}; expected both to be 1 or more")
    check_backend(backend)
    if backend == "faiss":
        return _faiss(x, clusters, seed, iterations, restarts)
    generator = torch.Generator().manual_seed(seed)
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    runs = [_lloyd(x, _spread(x, clusters, generator), iterations) for _ in range(restarts)]
    return min(runs, key=lambda labels: inertia(x, labels))


def check_backend(backend: str) -> None:
    """Refuse a k-means that is not known, or not installed, before hours of attacks are to be scored by it."""
    if backend not in get_args(Backend):
        raise InputError(f"backend {backend!r} is not known; expected 'torch' or 'faiss'")
    if backend == "faiss" and find_spec("faiss") is None:
        raise InputError("backend 'faiss' is not installed; pip install 'robustmetric[faiss]' or use 'torch'")


@torch.no_grad()
def inertia(x: Float[Tensor, "n dim"], labels: Int[Tensor, " n"]) -> float:
    """The sum of squared distances of the points to the mean of their cluster: what k-means makes small."""
    means, _ = cluster_means(x, labels, int(labels.max()) + 1)
    return float(paired(x, means[labels]).double().square().sum())


def _spread(x: Tensor, clusters: int, generator: torch.Generator) -> Float[Tensor, "clusters dim"]:
    """Greedy k-means++: each centre is the best of a few points drawn by squared distance to the centres so far."""
    trials = 2 + int(math.log(clusters))
    # Drawn on the CPU, so that a seed means the same on every device.
    draws = torch.rand(clusters, trials, generator=generator, dtype=torch.float64).to(x.device)
    first = (draws[0, :1] * len(x)).long()
    chosen = [first]
    squared = squared_within(x)
    gap = squared(first)[0]
    for draw in draws[1:]:
        cumulative = gap.cumsum(dim=0, dtype=torch.float64)
        candidates = torch.searchsorted(cumulative, draw * cumulative[-1], right=True).clamp_max(len(x) - 1)
        gaps = torch.minimum(gap, squared(candidates))
        best = gaps.sum(dim=1, dtype=torch.float64).argmin(keepdim=True)
        gap = gaps[best][0]
        chosen.append(candidates[best])
    return x[torch.cat(chosen)]


def _lloyd(x: Tensor, centres: Float[Tensor, "clusters dim"], iterations: int) -> Int[Tensor, " n"]:
    """Assign to the nearest centre, move centres to the means, until nothing changes or `iterations` moves are made."""
    distances, labels = (part[:, 0] for part in nearest(x, centres, k=1))
    for _ in range(iterations):
        means, counts = cluster_means(x, labels, len(centres))
        # The i-th empty cluster restarts at the i-th farthest point.
        empty = counts == 0
        farthest = distances.argsort(descending=True, stable=True)[: len(centres)]
        centres = torch.where(empty[:, None], x[farthest[(empty.cumsum(dim=0) - 1).clamp_min(0)]], means)
        previous = labels
        distances, labels = (part[:, 0] for part in nearest(x, centres, k=1))
        if torch.equal(labels, previous):
            break
    return labels


def cluster_means(
    x: Tensor, labels: Tensor, clusters: int
) -> tuple[Float[Tensor, "clusters dim"], Int[Tensor, " clusters"]]:
    """Mean and size of each cluster; the mean of an empty one is 0."""
    counts = torch.bincount(labels, minlength=clusters)
    sums = torch.zeros(clusters, x.shape[1], dtype=torch.float64, device=x.device).index_add_(0, labels, x.double())
    return (sums / counts.clamp_min(1)[:, None]).to(x.dtype), counts


def soft_assignments(
    x: Float[Tensor, "n dim"], centres: Float[Tensor, "clusters dim"], temperature: float
) -> Float[Tensor, "n clusters"]:
    """The logarithm of each point's shares in the clusters, softmax_k(-|x - c_k|^2 / temperature); differentiable."""
    return (-(pairwise(x, centres).square()) / temperature).log_softmax(dim=1)


@torch.no_grad()
def soft_kmeans(
    x: Float[Tensor, "n dim"], centres: Float[Tensor, "clusters dim"], temperature: float, iterations: int = 10
) -> Float[Tensor, "clusters dim"]:
    """Soft k-means (MacKay 2003) from these centres: each becomes the mean of all points, weighted by their shares."""
    for _ in range(iterations):
        shares = soft_assignments(x, centres, temperature).exp()
        weights = shares.sum(dim=0)[:, None]
        # A centre in which no point has a share (none that float32 can hold) stays where it is.
        centres = torch.where(weights > 0, shares.T @ x.to(shares.dtype) / weights, centres)
    return centres


def _faiss(x: Tensor, clusters: int, seed: int, iterations: int, restarts: int) -> Int[Tensor, " n"]:
    """The same by faiss, on the CPU, with all points (faiss by default takes 256 per centre)."""
    import faiss

    rows = x.detach().float().cpu().contiguous().numpy()
    model = faiss.Kmeans(
        rows.shape[1],
        clusters,
        niter=iterations,
        nredo=restarts,
        seed=seed,
        min_points_per_centroid=1,
        max_points_per_centroid=len(rows),
    )
    model.train(rows)
    return torch.from_numpy(model.index.search(rows, 1)[1][:, 0]).to(x.device)
