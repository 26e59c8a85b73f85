"""Cross entropy of logits, with the label smoothing of feature scattering (Zhang & Wang, NeurIPS 2019)."""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from robustmetric.errors import InputError
from robustmetric.losses.base import MetricLoss
from robustmetric.types import Embeddings, Labels, Triplets


class CrossEntropy(MetricLoss):
    """A classifier's loss: its embeddings are logits, labels are 0 .. classes - 1.

    The true class gets exactly 1 - smoothing and each of the others smoothing / (classes - 1). This is not torch's
    `label_smoothing`, which gives the true class a share of the rest too: 0.5 here is 5/9 there for ten classes.
    """

    def __init__(self, smoothing: float = 0.0) -> None:
        super().__init__()
        if not 0 <= smoothing < 1:
            raise InputError(f"smoothing {smoothing} leaves the true class nothing; expected 0 <= smoothing < 1")
        self.smoothing = smoothing

    def forward(
        self,
        embeddings: Embeddings,
        labels: Labels,
        triplets: Triplets | None = None,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, ""]:
        logits = embeddings.to(torch.promote_types(embeddings.dtype, torch.float32))
        wanted = smoothed_labels(labels, logits.shape[1], self.smoothing).to(logits.dtype)
        return -(wanted * functional.log_softmax(logits, dim=1)).sum(dim=1).mean()


def smoothed_labels(labels: Labels, classes: int, smoothing: float) -> Float[Tensor, "batch classes"]:
    """(1 - d - d / (K - 1)) * onehot + d / (K - 1), which sums to 1."""
    if classes < 2:
        raise InputError(f"{classes} class leaves nothing to tell apart; expected logits of 2 classes or more")
    # Of numbers that the host knows: no wait for the GPU.
    if smoothing >= (classes - 1) / classes:
        raise InputError(
            f"smoothing {smoothing} of {classes} classes wants every other class at least as much as the label; "
            f"expected below {(classes - 1) / classes:.3g}"
        )
    # Training checks this once for all; on a GPU it would stop the host at every step of an attack.
    if not labels.is_cuda and len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise InputError(
            f"labels {int(labels.min())} to {int(labels.max())} do not fit {classes} logits; "
            f"expected 0 to {classes - 1}: give the classifier as many classes as the data has"
        )
    other = smoothing / (classes - 1)
    # By comparison, not by index: on a GPU an index without a logit would end the process.
    own = labels[:, None] == torch.arange(classes, device=labels.device)
    return (1 - smoothing - other) * own.float() + other
