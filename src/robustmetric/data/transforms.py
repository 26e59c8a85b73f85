"""Batched image transforms on the device of the images: bytes in, floats in [0, 1] out.

The two published pipelines: squash to 256, crop 224 (`RandomCrop`, `CentreCrop`); and torchvision's crops, in the
geometry of the original image (`RandomResizedCrop`, `AspectCentreCrop`). The latter read the squashed copy of the cache
by bilinear interpolation, so they are a little less sharp than crops of the original file (and rougher where the copy
is much larger than the crop: nothing is averaged); their outputs are whole bytes, as an image file's are.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped, UInt8
from torch import Tensor

from robustmetric.errors import InputError

CANDIDATES = 10
"""Boxes that torchvision draws before it falls back to the centre."""


@dataclass(frozen=True)
class Identity:
    """The whole image, bytes / 255; tabular rows, already floats, pass as they are."""

    def __call__(
        self,
        images: Shaped[Tensor, "batch *shape"],
        sizes: Int[Tensor, "batch 2"],
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "batch *shape"]:
        return images if images.is_floating_point() else unit_range(images)


@dataclass(frozen=True)
class CentreCrop:
    """The central square, pixel for pixel."""

    size: int = 224

    def __post_init__(self) -> None:
        _check_size(self.size)

    def __call__(
        self,
        images: UInt8[Tensor, "batch channels height width"],
        sizes: Int[Tensor, "batch 2"],
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "batch channels size size"]:
        height, width = _check_fits(images, self.size)
        # Python rounds halves to even, and so does torchvision's centre crop.
        top, left = round((height - self.size) / 2), round((width - self.size) / 2)
        return unit_range(images[:, :, top : top + self.size, left : left + self.size])


@dataclass(frozen=True)
class RandomCrop:
    """A square at a place of its own for each image, pixel for pixel; mirrored with probability 1/2 if `flip`.

    `padding` black pixels are put round the image first (CIFAR: 4).
    """

    size: int = 224
    flip: bool = True
    padding: int = 0

    def __post_init__(self) -> None:
        _check_size(self.size)
        if self.padding < 0:
            raise InputError(f"padding {self.padding} is no number of pixels; expected 0 or more, such as 4")

    def __call__(
        self,
        images: UInt8[Tensor, "batch channels height width"],
        sizes: Int[Tensor, "batch 2"],
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "batch channels size size"]:
        if self.padding:
            images = F.pad(images, (self.padding,) * 4)
        height, width = _check_fits(images, self.size)
        draws = _uniform((3, len(images)), generator, images.device)
        top, left = whole_number(draws[0], height - self.size + 1), whole_number(draws[1], width - self.size + 1)
        steps = torch.arange(self.size, device=images.device)
        rows, columns = top[:, None] + steps, left[:, None] + steps
        if self.flip:
            columns = torch.where((draws[2] < 0.5)[:, None], columns.flip(1), columns)
        # One gather on flattened pixels: row * width + column, the same for every channel.
        pixels = (rows[:, :, None] * width + columns[:, None, :]).flatten(1)
        channels = images.shape[1]
        crops = images.flatten(2).gather(2, pixels[:, None, :].expand(-1, channels, -1))
        return unit_range(crops.view(len(images), channels, self.size, self.size))


@dataclass(frozen=True)
class RandomResizedCrop:
    """torchvision's RandomResizedCrop: a random box of the original image, resized to a square; mirrored if `flip`."""

    size: int = 224
    scale: Sequence[float | int] = (0.08, 1.0)
    ratio: Sequence[float | int] = (3 / 4, 4 / 3)
    flip: bool = True

    def __post_init__(self) -> None:
        _check_size(self.size)
        for name in ("scale", "ratio"):
            low, high = (float(value) for value in getattr(self, name))
            if not 0 < low <= high:
                raise InputError(f"{name} ({low}, {high}) is no range; expected 0 < low <= high")
            object.__setattr__(self, name, (low, high))

    def __call__(
        self,
        images: UInt8[Tensor, "batch channels height width"],
        sizes: Int[Tensor, "batch 2"],
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "batch channels size size"]:
        sizes = sizes.to(images.device)
        boxes = self.boxes(sizes, _uniform((len(images), CANDIDATES, 4), generator, images.device))
        # A draw is below 0 never, below 0.5 half the time.
        mirrored = _uniform((len(images),), generator, images.device) < (0.5 if self.flip else 0.0)
        return crop(images, boxes, sizes, self.size, mirrored)

    def boxes(
        self, sizes: Int[Tensor, "batch 2"], draws: Float[Tensor, "batch candidates 4"]
    ) -> Float[Tensor, "batch 4"]:
        """(top, left, height, width) in original pixels: the first candidate that fits, else a central box."""
        height, width = sizes[:, :1].float(), sizes[:, 1:].float()
        area = (height * width) * (self.scale[0] + draws[:, :, 0] * (self.scale[1] - self.scale[0]))
        low, high = math.log(self.ratio[0]), math.log(self.ratio[1])
        aspect = (low + draws[:, :, 1] * (high - low)).exp()
        w, h = (area * aspect).sqrt().round(), (area / aspect).sqrt().round()
        fits = (w > 0) & (w <= width) & (h > 0) & (h <= height)
        top = whole_number(draws[:, :, 2], height - h + 1).clamp_min(0)
        left = whole_number(draws[:, :, 3], width - w + 1).clamp_min(0)
        candidates = torch.stack([top, left, h, w], dim=-1)
        first = fits.int().argmax(1)
        chosen = candidates[torch.arange(len(sizes), device=sizes.device), first]
        return torch.where(fits.any(1, keepdim=True), chosen, self.central(sizes))

    def central(self, sizes: Int[Tensor, "batch 2"]) -> Float[Tensor, "batch 4"]:
        """The largest central box whose aspect ratio is allowed."""
        height, width = sizes.float().unbind(1)
        w = torch.minimum(width, (height * self.ratio[1]).round())
        h = torch.minimum(height, (width / self.ratio[0]).round())
        top, left = ((height - h) / 2).floor(), ((width - w) / 2).floor()
        return torch.stack([top, left, h, w], dim=1)


@dataclass(frozen=True)
class AspectCentreCrop:
    """torchvision's Resize (shorter side, aspect ratio kept) and CenterCrop, read from the squashed copy."""

    size: int = 224
    resize: int = 256

    def __post_init__(self) -> None:
        _check_size(self.size)
        if self.resize < self.size:
            raise InputError(f"resize {self.resize} is smaller than the crop of {self.size}; expected at least that")

    def __call__(
        self,
        images: UInt8[Tensor, "batch channels height width"],
        sizes: Int[Tensor, "batch 2"],
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, "batch channels size size"]:
        sizes = sizes.to(images.device)
        resized = self.resize * sizes // sizes.amin(1, keepdim=True)
        corner = ((resized - self.size) / 2).round()
        boxes = torch.cat([corner, torch.full_like(corner, self.size)], dim=1)
        never = torch.zeros(len(images), dtype=torch.bool, device=images.device)
        return crop(images, boxes, resized, self.size, never)


def crop(
    images: UInt8[Tensor, "batch channels height width"],
    boxes: Float[Tensor, "batch 4"],
    sizes: Int[Tensor, "batch 2"],
    size: int,
    mirrored: Shaped[Tensor, " batch"],
) -> Float[Tensor, "batch channels size size"]:
    """Boxes (top, left, height, width) of images that measured `sizes`, read from their squashed copies in one pass."""
    top, left, h, w = boxes.unbind(1)
    height, width = sizes.float().unbind(1)
    # grid_sample's coordinates run from -1 to 1 across the image: centre c lies at 2 c / length - 1.
    theta = torch.zeros(len(images), 2, 3, device=images.device)
    theta[:, 0, 0] = torch.where(mirrored, -w, w) / width
    theta[:, 0, 2] = (2 * left + w) / width - 1
    theta[:, 1, 1] = h / height
    theta[:, 1, 2] = (2 * top + h) / height - 1
    grid = F.affine_grid(theta, [len(images), images.shape[1], size, size], align_corners=False)
    read = F.grid_sample(images.float(), grid, mode="bilinear", padding_mode="border", align_corners=False)
    return read.round().clamp(0, 255) / 255


def unit_range(images: UInt8[Tensor, "batch *shape"]) -> Float[Tensor, "batch *shape"]:
    """Bytes as floats in [0, 1]."""
    return images.float() / 255


def whole_number(draw: Float[Tensor, "*shape"], count: Tensor | int) -> Tensor:
    """A number of [0, 1) as one of 0 .. count-1; int64 for a plain count, else as float."""
    scaled = draw * count
    if isinstance(count, int):
        return scaled.long().clamp_max(count - 1)
    return torch.minimum(scaled.floor(), count - 1)


def _uniform(shape: tuple[int, ...], generator: torch.Generator | None, device: torch.device) -> Tensor:
    """Numbers in [0, 1), drawn where the generator lives and moved to where they are used."""
    source = generator.device if generator is not None else device
    return torch.rand(shape, generator=generator, device=source).to(device, non_blocking=True)


def _check_size(size: int) -> None:
    if size < 1:
        raise InputError(f"crop size {size} is not a number of pixels; expected at least 1, such as 224")


def _check_fits(images: Tensor, size: int) -> tuple[int, int]:
    height, width = images.shape[-2:]
    if size > min(height, width):
        raise InputError(
            f"a {size} x {size} crop does not fit images of {height} x {width}; crop less or raise the data's size:"
        )
    return height, width
