"""Small classifiers made of linear, convolution and ReLU layers only, so that their linear bounds can be found."""

from collections.abc import Sequence

from torch import nn

from robustmetric.errors import InputError


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
    if classes < 2 or min(sizes) < 1:
        raise InputError(f"classes={classes}, sizes={sizes}; expected 2 classes or more and sizes of at least 1")
