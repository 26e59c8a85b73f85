"""Proxy-Anchor loss (Kim et al. 2020): each class has a learnt proxy that gathers its samples and repels the others."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional

from robustmetric.errors import InputError
from robustmetric.losses.base import MetricLoss
from robustmetric.types import Embeddings, Labels, Triplets


class ProxyAnchor(MetricLoss):
    """Labels are 0 .. classes - 1, the training classes; s(x, p) is the cosine, so an embedding's length plays no part.

    L = 1/|P+| sum_{p in P+} log(1 + sum_{x of p} e^{-scale (s(x,p) - margin)})
      + 1/|P|  sum_{p in P}  log(1 + sum_{x not of p} e^{scale (s(x,p) + margin)}),  P+ the classes in the batch.
    `keep` leaves out the proxies of other classes, as if they did not exist: P is then what is kept.
    """

    kept: Tensor

    def __init__(self, classes: int, dim: int, margin: float = 0.1, scale: float = 32.0, seed: int = 0) -> None:
        super().__init__()
        if classes < 1 or dim < 1:
            raise InputError(f"classes={classes}, dim={dim}; expected both at least 1")
        self.margin, self.scale = margin, scale
        self.proxies = nn.Parameter(torch.empty(classes, dim))
        nn.init.kaiming_normal_(self.proxies, mode="fan_out", generator=torch.Generator().manual_seed(seed))
        self.register_buffer("kept", torch.arange(classes), persistent=False)

    def keep(self, classes: Int[Tensor, " kept"]) -> None:
        """Let the proxies of these classes alone take part, neither pulled nor pushed by the others."""
        self.kept = classes.to(self.kept.device)

    def forward(
        self,
        embeddings: Embeddings,
        labels: Labels,
        triplets: Triplets | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, ""]:
        own = labels[:, None] == self.kept
        # One host synchronisation per batch: a label without a proxy would otherwise be a sample of no class.
        if not own.any(dim=1).all():
            raise InputError(self._misfit(labels))
        proxies = self.proxies if len(self.kept) == len(self.proxies) else self.proxies[self.kept]
        return proxy_anchor(cosines(embeddings, proxies), own, self.margin, self.scale)

    def _misfit(self, labels: Labels) -> str:
        """What is wrong with labels of which some have no proxy."""
        lowest, highest, classes = int(labels.min()), int(labels.max()), len(self.proxies)
        if lowest < 0 or highest >= classes:
            return f"labels {lowest} to {highest} do not fit {classes} proxies; expected 0 to {classes - 1}"
        missing = int(labels[~torch.isin(labels, self.kept)][0])
        return f"label {missing} is of no class whose proxy is kept; expected one of {len(self.kept)} of {classes}"


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
