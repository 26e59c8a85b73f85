"""C2F2: two convolutions and two linear layers (Zhou et al. 2020), for 28 x 28 and smaller images."""

from collections.abc import Sequence

from torch import nn

from robustmetric.errors import InputError
from robustmetric.types import Embeddings, Inputs


class ConvNet(nn.Module):
    """Per width: convolution (same size), ReLU, 2 x 2 max pooling; then Linear(hidden), ReLU, Linear(dim).

    The defaults are C2F2 on 1 x 28 x 28. For 8 x 8 digits: `ConvNet(side=8, kernel=3, hidden=256, dim=64)`.
    """

    def __init__(
        self,
        channels: int = 1,
        side: int = 28,
        widths: Sequence[int] = (32, 64),
        hidden: int = 1024,
        dim: int = 512,
        kernel: int = 5,
    ) -> None:
        super().__init__()
        pooled = side // 2 ** len(widths)
        if pooled < 1:
            raise InputError(
                f"side {side} is too small for {len(widths)} poolings; expected at least {2 ** len(widths)}"
            )
        if kernel % 2 == 0:
            raise InputError(f"kernel {kernel} is even; expected an odd size, so that padding keeps the image's size")
        self.channels, self.side, self.dim = channels, side, dim
        layers: list[nn.Module] = []
        for before, after in zip([channels, *widths], widths, strict=False):
            layers += [nn.Conv2d(before, after, kernel, padding=kernel // 2), nn.ReLU(), nn.MaxPool2d(2)]
        self.features = nn.Sequential(*layers)
        flat = (widths[-1] if widths else channels) * pooled**2
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(flat, hidden), nn.ReLU(), nn.Linear(hidden, dim))

    def forward(self, inputs: Inputs) -> Embeddings:
        expected = (self.channels, self.side, self.side)
        if tuple(inputs.shape[1:]) != expected:
            raise InputError(
                f"inputs of shape {tuple(inputs.shape)} do not fit; expected (batch, {', '.join(map(str, expected))})"
            )
        return self.head(self.features(inputs))
