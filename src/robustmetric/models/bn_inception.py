"""BN-Inception (Ioffe & Szegedy 2015), with the layer names of the public Caffe weights so that these load."""

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor, nn

from robustmetric.models.checkpoint import find_weights, load_weights, read_state
from robustmetric.types import Inputs

MEAN = (128 / 255, 117 / 255, 104 / 255)
STD = (1 / 255, 1 / 255, 1 / 255)
"""The weights read BGR in 0..255 less 104, 117, 128. `Encoder(trunk, MEAN, STD)` does that for RGB in [0, 1] (these are
in RGB order), and `BNInception(reverse=True)` then turns RGB into BGR."""

# Per block: width of 1x1 (0: none), (reduce, 3x3), (reduce, 3x3, 3x3), pooling and its projection's width (0: none).
# A block without 1x1 halves the image.
Block = tuple[int, tuple[int, int], tuple[int, int], str, int]
BLOCKS: dict[str, Block] = {
    "3a": (64, (64, 64), (64, 96), "avg", 32),
    "3b": (64, (64, 96), (64, 96), "avg", 64),
    "3c": (0, (128, 160), (64, 96), "max", 0),
    "4a": (224, (64, 96), (96, 128), "avg", 128),
    "4b": (192, (96, 128), (96, 128), "avg", 128),
    "4c": (160, (128, 160), (128, 160), "avg", 128),
    "4d": (96, (128, 192), (160, 192), "avg", 128),
    "4e": (0, (128, 192), (192, 256), "max", 0),
    "5a": (352, (192, 320), (160, 224), "avg", 128),
    "5b": (352, (192, 320), (192, 224), "max", 128),
}
STEM_WIDTH = 192


def block_width(block: Block, before: int) -> int:
    """Channels that come out of a block: its branches side by side; unprojected pooling passes its input on."""
    one, (_, three), (_, double), _, projection = block
    return one + three + double + (projection or before)


class BNInception(nn.Module):
    """The trunk with a linear head `last_linear`: 3 x 224 x 224 to `dim` numbers; 1000 is the ImageNet classifier.

    `dim=None` leaves pooling and head out and gives the last feature map, 1024 x 7 x 7. `reverse` turns RGB inputs into
    the BGR that the public weights read. `weights` names a file of trunk weights.
    """

    def __init__(
        self, dim: int | None = 512, channels: int = 3, reverse: bool = True, weights: str | None = None
    ) -> None:
        super().__init__()
        self.reverse = reverse
        self._add("conv1_7x7_s2", channels, 64, kernel=7, stride=2)
        self._add("conv2_3x3_reduce", 64, 64, kernel=1)
        self._add("conv2_3x3", 64, STEM_WIDTH, kernel=3)
        width = STEM_WIDTH
        for name, block in BLOCKS.items():
            self._add_block(f"inception_{name}", block, width)
            width = block_width(block, width)
        self.dim = width if dim is None else dim
        self.last_linear = None if dim is None else nn.Linear(width, dim)
        self.relu = nn.ReLU(inplace=True)
        # Rounding up, as Caffe does: 112 -> 56 -> 28 -> 14 -> 7.
        self.halve = nn.MaxPool2d(3, stride=2, ceil_mode=True)
        self.pools = nn.ModuleDict(
            {"avg": nn.AvgPool2d(3, stride=1, padding=1), "max": nn.MaxPool2d(3, stride=1, padding=1)}
        )
        if weights is not None:
            self._load(find_weights(weights))

    def _load(self, path: Path) -> None:
        """The trunk's weights from a file; the head stays as it is, whatever head the file has."""
        kept = {key: value for key, value in self.state_dict().items() if key.startswith("last_linear")}
        trunk = {key: value for key, value in read_state(path).items() if not key.startswith("last_linear")}
        load_weights(self, {**trunk, **kept}, str(path))

    def forward(self, inputs: Inputs) -> Float[Tensor, "batch *features"]:
        features = self.stages(inputs)["5b"]
        return features if self.last_linear is None else self.last_linear(features.mean(dim=(2, 3)))

    def stages(self, inputs: Inputs) -> dict[str, Tensor]:
        """The feature map after the stem and after each block."""
        x = inputs.flip(1) if self.reverse else inputs
        x = self.halve(self._unit("conv1_7x7_s2", x))
        x = self.halve(self._unit("conv2_3x3", self._unit("conv2_3x3_reduce", x)))
        maps = {"stem": x}
        for name, block in BLOCKS.items():
            x = maps[name] = self._block(f"inception_{name}", block, x)
        return maps

    def _add(self, name: str, before: int, after: int, kernel: int, stride: int = 1) -> None:
        # The Caffe layers have a bias before batch norm too; without it the public weights would not load.
        self.add_module(name, nn.Conv2d(before, after, kernel, stride=stride, padding=kernel // 2))
        self.add_module(f"{name}_bn", nn.BatchNorm2d(after))

    def _add_block(self, name: str, block: Block, before: int) -> None:
        one, (reduce, three), (double_reduce, double), _, projection = block
        stride = 1 if one else 2
        if one:
            self._add(f"{name}_1x1", before, one, kernel=1)
        self._add(f"{name}_3x3_reduce", before, reduce, kernel=1)
        self._add(f"{name}_3x3", reduce, three, kernel=3, stride=stride)
        self._add(f"{name}_double_3x3_reduce", before, double_reduce, kernel=1)
        self._add(f"{name}_double_3x3_1", double_reduce, double, kernel=3)
        self._add(f"{name}_double_3x3_2", double, double, kernel=3, stride=stride)
        if projection:
            self._add(f"{name}_pool_proj", before, projection, kernel=1)

    def _unit(self, name: str, x: Tensor) -> Tensor:
        """Convolution, batch norm, ReLU."""
        return self.relu(self.get_submodule(f"{name}_bn")(self.get_submodule(name)(x)))

    def _chain(self, names: list[str], x: Tensor) -> Tensor:
        for name in names:
            x = self._unit(name, x)
        return x

    def _block(self, name: str, block: Block, x: Tensor) -> Tensor:
        one, _, _, pool, projection = block
        branches = [self._unit(f"{name}_1x1", x)] if one else []
        branches.append(self._chain([f"{name}_3x3_reduce", f"{name}_3x3"], x))
        branches.append(self._chain([f"{name}_double_3x3_{part}" for part in ("reduce", "1", "2")], x))
        branches.append(self._unit(f"{name}_pool_proj", self.pools[pool](x)) if projection else self.halve(x))
        return torch.cat(branches, dim=1)
