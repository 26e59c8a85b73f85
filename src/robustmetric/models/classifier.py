"""Classifiers: a head on any trunk, and small networks of linear, convolution and ReLU layers with known bounds."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from robustmetric.errors import InputError
from robustmetric.models.encoder import Encoder, FrozenPart
from robustmetric.types import Inputs


@runtime_checkable
class Classifies(Protocol):
    """A model that says how many classes its logits are of: a classifier, or one behind a wrapper."""

    classes: int


class Classifier(nn.Module):
    """Inputs in [0, 1] to logits, `head(trunk((x - mean) / std))`: a model whose embedding is its logits.

    The head is a linear layer in fp32. An Encoder given for a trunk (a `backbone`) keeps its pixel statistics and loses
    its unit length. The size of the features is the trunk's own `dim`, or is measured on one input of `shape`.
    """

    def __init__(
        self,
        trunk: nn.Module,
        classes: int,
        mean: Sequence[float] = (),
        std: Sequence[float] = (),
        batch_norm: FrozenPart = "live",
        shape: Sequence[int] = (),
    ) -> None:
        super().__init__()
        _check(classes)
        if isinstance(trunk, Encoder):
            if mean or std:
                raise InputError("an encoder has pixel statistics of its own; leave out the classifier's mean and std")
            mean, std, batch_norm, trunk = trunk.mean.tolist(), trunk.std.tolist(), trunk.batch_norm, trunk.trunk
        self.encoder = Encoder(trunk, mean, std, normalise=False, batch_norm=batch_norm, shape=shape)
        self.head = nn.Linear(self.encoder.dim, classes)
        nn.init.zeros_(self.head.bias)
        self.classes = self.dim = classes

    def forward(self, inputs: Inputs) -> Float[Tensor, "batch classes"]:
        return self.logits(self.features(inputs))

    def features(self, inputs: Inputs) -> Float[Tensor, "batch features"]:
        """What the head reads: the penultimate layer."""
        return self.encoder(inputs)

    def logits(self, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch classes"]:
        """What the head makes of features; in fp32 also under autocast, so that close logits stay apart."""
        with torch.autocast(features.device.type, enabled=False):
            return self.head(features.to(self.head.weight.dtype))


def mlp(features: int, classes: int, widths: Sequence[int] = (256, 256)) -> nn.Sequential:
    """Flattened inputs through Linear and ReLU of each width, then Linear(classes)."""
    _check(classes, features, *widths)
    layers: list[nn.Module] = [nn.Flatten()]
    for before, after in zip([features, *widths], widths, strict=False):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear([features, *widths][-1], classes))


def cnn(channels: int, side: int, classes: int, widths: Sequence[int] = (16, 32), hidden: int = 100) -> nn.Sequential:
    """Per width: a 4 x 4 convolution of stride 2 (half the side) and ReLU; then Linear(hidden), ReLU, Linear(classes).

    Strides in place of pooling: a maximum is no layer whose linear bounds are known here.
    """
    _check(classes, channels, side, hidden, *widths)
    if side % 2 ** len(widths):
        raise InputError(f"side {side} cannot be halved {len(widths)} times; expected a multiple of {2 ** len(widths)}")
    layers: list[nn.Module] = []
    for before, after in zip([channels, *widths], widths, strict=False):
        layers += [nn.Conv2d(before, after, kernel_size=4, stride=2, padding=1), nn.ReLU()]
    flat = [channels, *widths][-1] * (side // 2 ** len(widths)) ** 2
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(flat, hidden), nn.ReLU(), nn.Linear(hidden, classes))


def _check(classes: int, *sizes: int) -> None:
    if classes < 2 or min(sizes, default=1) < 1:
        raise InputError(f"classes={classes}, sizes={sizes}; expected 2 classes or more and sizes of at least 1")
