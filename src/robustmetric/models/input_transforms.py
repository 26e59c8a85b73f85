"""Defences that only change the input (Guo et al., Xie et al. 2018; Raff et al. 2019), as wrappers of any model.

They mask gradients, by rounding or by chance, rather than remove what an attack exploits (Athalye et al. 2018). Chance
is drawn from torch's own generator of the input's device, as dropout's is, and stays on that device.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, Protocol, get_args, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from robustmetric.errors import InputError, nearest
from robustmetric.models.classifier import Classifier, Classifies
from robustmetric.models.encoder import Sized
from robustmetric.types import Embeddings, Inputs

Gradient = Literal["own", "straight"]
"""Backwards through a transform: by its own gradient (0 where it rounds), or as if it were not there (BPDA)."""
Images = Float[Tensor, "batch channels height width"]
Placed = Float[Tensor, "batch channels side side"]
"""Of another size, perhaps."""
Strength = Float[Tensor, "batch 1 1 1"]

LUMINANCE = (
    (16, 11, 10, 16, 24, 40, 51, 61),
    (12, 12, 14, 19, 26, 58, 60, 55),
    (14, 13, 16, 24, 40, 57, 69, 56),
    (14, 17, 22, 29, 51, 87, 80, 62),
    (18, 22, 37, 56, 68, 109, 103, 77),
    (24, 35, 55, 64, 81, 104, 113, 92),
    (49, 64, 78, 87, 103, 121, 120, 101),
    (72, 92, 95, 98, 112, 100, 103, 99),
)
CHROMINANCE = ((17, 18, 24, 47), (18, 21, 26, 66), (24, 26, 56, 99), (47, 66, 99, 99))
"""Quantisation at quality 50 (ITU-T T.81, annex K); chrominance is 99 outside its first four rows and columns."""
TO_LUMINANCE = ((0.299, 0.587, 0.114), (-0.168736, -0.331264, 0.5), (0.5, -0.418688, -0.081312))
BLUR = ((1.0, 2.0, 1.0), (2.0, 4.0, 2.0), (1.0, 2.0, 1.0))


@runtime_checkable
class InputTransform(Protocol):
    """Images in [0, 1] to images in [0, 1]."""

    def __call__(self, images: Images) -> Placed: ...


class Transformed(nn.Module):
    """`model(transforms(x))`, the transforms one after the other; `gradient` says how an attacker sees them."""

    def __init__(self, model: nn.Module, transforms: Sequence[InputTransform], gradient: Gradient = "own") -> None:
        super().__init__()
        if gradient not in get_args(Gradient):
            raise InputError(f"gradient {gradient!r} is not known{nearest(str(gradient), get_args(Gradient))}")
        if isinstance(transforms, str) or not transforms or not all(isinstance(t, InputTransform) for t in transforms):
            raise InputError(f"transforms {transforms!r} change no input; expected a list, [{{name: bit_depth}}, ...]")
        self.model, self.transforms, self.gradient = model, tuple(transforms), gradient
        # As the model behind it is: of logits, or of embeddings.
        if isinstance(model, Classifies):
            self.classes = model.classes

    @property
    def dim(self) -> int:
        """Length of an embedding: the model's."""
        if not isinstance(self.model, Sized):
            raise InputError(f"{type(self.model).__name__} does not say its `dim`; wrap it: Encoder(module, shape=...)")
        return self.model.dim

    def forward(self, inputs: Inputs) -> Embeddings:
        return self.model(self.transformed(inputs))

    def features(self, inputs: Inputs) -> Float[Tensor, "batch features"]:
        """The classifier's features of the transformed inputs."""
        if not isinstance(self.model, Classifier | Transformed):
            raise InputError(f"{type(self.model).__name__} has no features before a head; expected a classifier")
        return self.model.features(self.transformed(inputs))

    def logits(self, features: Float[Tensor, "batch features"]) -> Float[Tensor, "batch classes"]:
        """What the classifier's head makes of features."""
        if not isinstance(self.model, Classifier | Transformed):
            raise InputError(f"{type(self.model).__name__} has no head; expected a classifier")
        return self.model.logits(features)

    def transformed(self, inputs: Inputs) -> Placed:
        """What the model sees."""
        if inputs.dim() != 4:
            raise InputError(f"inputs of shape {tuple(inputs.shape)} are no images; expected (batch, channels, h, w)")
        out = inputs
        for transform in self.transforms:
            out = transform(out)
        if self.gradient == "own":
            return out
        if out.shape != inputs.shape:
            raise InputError(
                f"images of {tuple(inputs.shape[2:])} become {tuple(out.shape[2:])}, so that no gradient can pass "
                "straight; expected transforms that keep the size, or gradient: own"
            )
        return inputs + (out - inputs).detach()


@dataclass(frozen=True)
class BitDepth:
    """Each value rounded to one of 2^bits levels."""

    bits: int = 3

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 8:
            raise InputError(f"bits {self.bits} are no depth of an image; expected 1 to 8")

    def __call__(self, images: Images) -> Images:
        return _reduced(images, 2.0**self.bits)


@dataclass(frozen=True)
class Jpeg:
    """JPEG at this quality without chroma subsampling: what its rounding leaves of 8 x 8 blocks of cosines."""

    quality: int = 75

    def __post_init__(self) -> None:
        if not 1 <= self.quality <= 100:
            raise InputError(f"quality {self.quality} is none of JPEG's; expected 1 to 100")

    def __call__(self, images: Images) -> Images:
        return _compressed(images, torch.full((len(images),), float(self.quality), device=images.device))


@dataclass(frozen=True)
class ResizeAndPad:
    """Each image resized to a random side of `smallest` to `largest` and put at a random place among zeros.

    The result measures `largest`; Xie et al. take 299 to 331 pixels for images of 299.
    """

    smallest: int
    largest: int

    def __post_init__(self) -> None:
        if not 1 <= self.smallest <= self.largest:
            raise InputError(
                f"sides of {self.smallest} to {self.largest} are no range; expected 1 <= smallest <= largest"
            )

    def __call__(self, images: Images) -> Placed:
        draws = torch.rand(3, len(images), device=images.device)
        side = self.smallest + (draws[0] * (self.largest - self.smallest + 1)).floor()
        return _placed(images, side, (draws[1:] * (self.largest - side + 1)).floor(), self.largest)


@dataclass(frozen=True)
class Barrage:
    """Each of six weak transforms with probability `share` and a strength of its own, anew for every image and call."""

    share: float = 0.5

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise InputError(f"share {self.share} is no probability of a transform; expected 0 < share <= 1")

    def __call__(self, images: Images) -> Images:
        draws = torch.rand(len(WEAK), 2, len(images), 1, 1, 1, device=images.device)
        out = images
        for weak, (chance, strength) in zip(WEAK, draws, strict=True):
            out = torch.where(chance < self.share, weak(out, strength).clamp(0, 1), out)
        return out


def _zoomed(images: Images, strength: Strength) -> Images:
    """Smaller by up to a fifth, in the middle."""
    size = images.shape[-1]
    side = (size * (1 - 0.2 * strength.flatten())).round()
    return _placed(images, side, ((size - side) / 2).floor().expand(2, -1), size)


def _stretched(images: Images, strength: Strength) -> Images:
    """Contrast of 0.7 to 1.3."""
    return (images - 0.5) * (0.7 + 0.6 * strength) + 0.5


def _noisy(images: Images, strength: Strength) -> Images:
    return images + 0.1 * strength * torch.randn_like(images)


def _softened(images: Images, strength: Strength) -> Images:
    return torch.lerp(images, _blurred(images), strength)


def _coarsened(images: Images, strength: Strength) -> Images:
    """32 to 4 levels."""
    return _reduced(images, (32 - 28 * strength).round())


def _squeezed(images: Images, strength: Strength) -> Images:
    """JPEG of quality 95 to 50."""
    return _compressed(images, 95 - 45 * strength.flatten())


WEAK: tuple[Callable[[Tensor, Tensor], Tensor], ...] = (_zoomed, _stretched, _noisy, _softened, _coarsened, _squeezed)
"""What a barrage is made of, in order; the strength is drawn from 0 to 1."""


def _reduced(images: Images, levels: float | Tensor) -> Images:
    return (images * (levels - 1)).round() / (levels - 1)


def _blurred(images: Images) -> Images:
    channels = images.shape[1]
    kernel = _constant(BLUR, images.dtype, images.device).div(16).expand(channels, 1, 3, 3)
    return functional.conv2d(functional.pad(images, (1, 1, 1, 1), mode="replicate"), kernel, groups=channels)


def _placed(images: Images, side: Tensor, corner: Float[Tensor, "2 batch"], size: int) -> Placed:
    """Square images resized to `side` with their upper left pixel at `corner`, among zeros, `size` pixels wide."""
    if images.shape[2] != images.shape[3]:
        raise InputError(f"images of {tuple(images.shape[2:])} pixels are not square; crop them first")
    # grid_sample asks for each output pixel where it lies in the input, which runs from -1 to 1.
    theta = torch.zeros(len(images), 2, 3, device=images.device)
    theta[:, 0, 0] = theta[:, 1, 1] = size / side
    top, left = corner
    theta[:, 0, 2] = (size - 2 * left) / side - 1
    theta[:, 1, 2] = (size - 2 * top) / side - 1
    grid = functional.affine_grid(theta, [len(images), images.shape[1], size, size], align_corners=False)
    read = functional.grid_sample(images, grid.to(images), padding_mode="border", align_corners=False)
    # By hand: the library's own zeros would be mixed into the rim of the image.
    return read * (grid.abs() <= 1).all(dim=-1)[:, None]


def _compressed(images: Images, quality: Float[Tensor, " batch"]) -> Images:
    """What is left of images after JPEG at each one's quality."""
    height, width = images.shape[-2:]
    in_colour = images.shape[1] == 3
    levels = (images * 255).round()
    if in_colour:
        levels = (_mixed(levels, _constant(TO_LUMINANCE, images.dtype, images.device)) + _offset(images)).round()
    levels = functional.pad(levels, (0, -width % 8, 0, -height % 8), mode="replicate") - 128
    blocks = levels.unflatten(3, (-1, 8)).unflatten(2, (-1, 8)).transpose(3, 4)
    basis = _cosines(images.dtype, images.device)
    steps = _steps(quality, images.shape[1])[:, :, None, None]
    coefficients = ((basis @ blocks @ basis.mT) / steps).round() * steps
    levels = (basis.mT @ coefficients @ basis).transpose(3, 4).flatten(4, 5).flatten(2, 3)[..., :height, :width] + 128
    levels = levels.round().clamp(0, 255)
    if in_colour:
        levels = _mixed(levels - _offset(images), _to_colour(images.dtype, images.device))
    return levels.round().clamp(0, 255) / 255


def _mixed(images: Tensor, matrix: Tensor) -> Tensor:
    return torch.einsum("ij,bjhw->bihw", matrix, images)


def _offset(images: Tensor) -> Tensor:
    """Colour differences lie around 128."""
    return _constant((0.0, 128.0, 128.0), images.dtype, images.device)[:, None, None]


# Once per device: copies make the host wait. Not as inference tensors, which a later gradient could not pass.
@cache
@torch.inference_mode(mode=False)
def _constant(values: Sequence[Any], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=device)


@cache
@torch.inference_mode(mode=False)
def _to_colour(dtype: torch.dtype, device: torch.device) -> Float[Tensor, "3 3"]:
    return torch.linalg.inv(torch.tensor(TO_LUMINANCE)).to(device, dtype)


@cache
@torch.inference_mode(mode=False)
def _cosines(dtype: torch.dtype, device: torch.device) -> Float[Tensor, "8 8"]:
    """The orthonormal cosine transform of eight values."""
    rows = torch.cos(math.pi * (torch.arange(8.0) + 0.5) * torch.arange(8.0)[:, None] / 8) / 2
    rows[0] /= math.sqrt(2)
    return rows.to(device, dtype)


@cache
@torch.inference_mode(mode=False)
def _tables(channels: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "channels 8 8"]:
    tables = torch.tensor(LUMINANCE, dtype=dtype).expand(channels, 8, 8).clone()
    if channels == 3:
        tables[1:] = 99
        tables[1:, :4, :4] = torch.tensor(CHROMINANCE, dtype=dtype)
    return tables.to(device)


def _steps(quality: Float[Tensor, " batch"], channels: int) -> Float[Tensor, "batch channels 8 8"]:
    """Quantisation steps per image and channel, by libjpeg's scale of quality."""
    tables = _tables(channels, quality.dtype, quality.device)
    scale = torch.where(quality < 50, 5000 / quality, 200 - 2 * quality).floor()
    return ((tables * scale[:, None, None, None] + 50) / 100).floor().clamp(1, 255)
