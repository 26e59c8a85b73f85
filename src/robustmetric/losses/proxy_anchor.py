"""Proxy-Anchor loss (Kim et al. 2020): each class has a learnt proxy that gathers its samples and repels the others."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional

from robustmetric.errors import InputError
from robustmetric.losses.base import MetricLoss
from robustmetric.types import Embeddings, Labels, Triplets


class ProxyAnchor(MetricLoss):
    """Labels are 0 .. classes - 1, the training classes; s(x, p) is the cosine, so an embedding's length plays no part.

    L = 1/|P+| sum_{p in P+} log(1 + sum_{x of p} e^{-scale (s(x,p) - margin)})
      + 1/|P|  sum_{p in P}  log(1 + sum_{x not of p} e^{scale (s(x,p) + margin)}),  P+ the classes in the batch.
    """

    def __init__(self, classes: int, dim: int, margin: float = 0.1, scale: float = 32.0, seed: int = 0) -> None:
        super().__init__()
        if classes < 1 or dim < 1:
            raise InputError(f"classes={classes}, dim={dim}; expected both at least 1")
        self.margin, self.scale = margin, scale
        self.proxies = nn.Parameter(torch.empty(classes, dim))
        nn.init.kaiming_normal_(self.proxies, mode="fan_out", generator=torch.Generator().manual_seed(seed))

    def forward(
        self,
        embeddings: Embeddings,
        labels: Labels,
        triplets: Triplets | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, ""]:
        classes = len(self.proxies)
        # One host synchronisation per batch: a label without a proxy would otherwise be a sample of no class.
        lowest, highest = torch.stack(labels.aminmax()).tolist()
        if lowest < 0 or highest >= classes:
            raise InputError(f"labels {lowest} to {highest} do not fit {classes} proxies; expected 0 to {classes - 1}")
        own = labels[:, None] == torch.arange(classes, device=labels.device)
        return proxy_anchor(cosines(embeddings, self.proxies), own, self.margin, self.scale)


def proxy_anchor(
    cosine: Float[Tensor, "batch proxies"], own: Bool[Tensor, "batch proxies"], margin: float = 0.1, scale: float = 32.0
) -> Float[Tensor, ""]:
    """The loss of samples with these cosines to proxies, whatever the proxies are; `own` marks those of a sample."""
    pull = log_one_plus_sum(-scale * (cosine - margin), own)
    push = log_one_plus_sum(scale * (cosine + margin), ~own)
    # A proxy without samples in the batch has an empty sum, so its pull is log 1 = 0.
    return pull.sum() / own.any(dim=0).sum() + push.sum() / own.shape[1]


def cosines(embeddings: Embeddings, proxies: Float[Tensor, "proxies _"]) -> Float[Tensor, "batch proxies"]:
    """In fp32 or better also under autocast: times 32 in an exponent, bf16's rounding would be a factor."""
    size, expected = embeddings.shape[1], proxies.shape[1]
    if size != expected:
        raise InputError(f"embeddings of size {size} do not fit proxies of size {expected}; set the loss's dim: {size}")
    precise = torch.promote_types(embeddings.dtype, torch.float32)
    with torch.autocast(embeddings.device.type, enabled=False):
        samples = functional.normalize(embeddings.to(precise), dim=1)
        return samples @ functional.normalize(proxies.to(precise), dim=1).T


def log_one_plus_sum(
    exponents: Float[Tensor, "batch classes"], mask: Bool[Tensor, "batch classes"]
) -> Float[Tensor, " classes"]:
    """log(1 + sum over the masked rows of e^exponent), without overflow: the 1 is a row of zeros."""
    masked = exponents.masked_fill(~mask, -torch.inf)
    return torch.cat([torch.zeros_like(masked[:1]), masked]).logsumexp(dim=0)
