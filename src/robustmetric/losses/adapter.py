"""Every loss of pytorch-metric-learning (Musgrave et al. 2020), by class name."""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from robustmetric.errors import InputError, nearest
from robustmetric.losses.base import MetricLoss
from robustmetric.types import Embeddings, Labels, Triplets

NOT_ALONE = ("Base", "Multiple", "CrossBatchMemory", "SelfSupervised")
"""Wrappers around other losses: they take objects, not plain settings."""


class PytorchMetricLearning(MetricLoss):
    """`PytorchMetricLearning("MultiSimilarityLoss", alpha=2, beta=50)`; `miner` names one of the library's miners.

    Triplets given by a defence replace the miner's choice; the library's pair losses then use the pairs in them. A
    miner of pairs chooses anew at every call: a defence that mines once, on the clean batch, can do so with triplets.
    """

    def __init__(
        self,
        loss: str,
        miner: str | None = None,
        miner_arguments: Mapping[str, Any] | None = None,
        **arguments: Any,
    ) -> None:
        super().__init__()
        try:
            from pytorch_metric_learning import losses, miners
        except ImportError as error:
            raise InputError(f"loss {loss!r} needs an extra; run: pip install 'robustmetric[losses]'") from error
        self.loss = _build(vars(losses), loss, "Loss", arguments)
        self.miner = None if miner is None else _build(vars(miners), miner, "Miner", dict(miner_arguments or {}))

    def mine(self, embeddings: Embeddings, labels: Labels, generator: torch.Generator | None = None) -> Triplets | None:
        chosen = self._chosen(embeddings.to(torch.promote_types(embeddings.dtype, torch.float32)), labels)
        return Triplets(*chosen) if chosen is not None and len(chosen) == 3 else None

    def forward(
        self,
        embeddings: Embeddings,
        labels: Labels,
        triplets: Triplets | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, ""]:
        precise = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
        if triplets is None:
            chosen = self._chosen(precise, labels)
        else:
            chosen = (triplets.anchor, triplets.positive, triplets.negative)
        with torch.autocast(embeddings.device.type, enabled=False):
            return self.loss(precise, labels, chosen)

    def _chosen(self, embeddings: Embeddings, labels: Labels) -> tuple[Tensor, ...] | None:
        """The miner's triplets (three columns) or pairs (four: positive ones, negative ones)."""
        return None if self.miner is None else self.miner(embeddings, labels)


def _build(members: Mapping[str, Any], name: str, suffix: str, arguments: Mapping[str, Any]) -> torch.nn.Module:
    """The library's class of that name, built; an unknown name says which is nearest."""
    known = [
        n
        for n, kind in members.items()
        if isinstance(kind, type) and n.endswith(suffix) and not n.startswith(NOT_ALONE)
    ]
    if name not in known:
        raise InputError(f"{name!r} is not a {suffix.lower()} of pytorch-metric-learning{nearest(name, known)}")
    try:
        return members[name](**arguments)
    except TypeError as error:
        raise InputError(f"{name} refused its settings {dict(arguments)}: {error}") from error
