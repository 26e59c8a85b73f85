"""MNIST (LeCun et al. 1998) and Fashion-MNIST (Xiao et al. 2017) from IDX files: closed set, ten classes."""

import gzip
import struct
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch

from robustmetric.data.base import Dataset, Split, check_validation, data_root, report_count, with_validation
from robustmetric.errors import InputError

FOLDERS = {
    "mnist": ("mnist", "MNIST", "MNIST/raw", "mnist/raw", "MNIST/MNIST/raw"),
    "fashion": ("fashion", "fashion-mnist", "fashion_mnist", "FashionMNIST", "FashionMNIST/raw", "fashion/raw"),
}
CLASSES = {
    "mnist": tuple("0123456789"),
    "fashion": (
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
    ),
}  # fmt: skip
SOURCE = {"mnist": "the MNIST page (LeCun, Cortes and Burges)", "fashion": "Zalando's fashion-mnist repository"}
SUFFIXES = ("-ubyte", "-ubyte.gz")


@dataclass(frozen=True)
class Mnist:
    """60,000 training and 10,000 test images, 1 x 28 x 28, from four IDX files (plain or .gz)."""

    root: str | None = None
    variant: Literal["mnist", "fashion"] = "mnist"
    validation: float = 0.0
    """This share of the training classes, not trained on, takes the place of the test part, for model selection."""

    def __post_init__(self) -> None:
        check_validation(self.validation)
        if self.variant not in CLASSES:
            raise InputError(f"variant {self.variant!r} is not known; expected 'mnist' or 'fashion'")

    def load(self) -> Dataset:
        """The dataset, in memory."""
        folder = self._folder(data_root(self.root))
        train, test = self._split(folder, "train", 60_000), self._split(folder, "t10k", 10_000)
        return with_validation(Dataset(name=self.variant, train=train, queries=test), self.validation)

    def _folder(self, root: Path) -> Path:
        for folder in (*(root / name for name in FOLDERS[self.variant]), root):
            if _file(folder, "train-images-idx3") is not None:
                return folder
        raise InputError(
            f"{root} holds no {self.variant} data; expected train-images-idx3-ubyte(.gz), train-labels-idx1-ubyte(.gz) "
            f"and the two t10k files there or in {FOLDERS[self.variant][0]}/; get them from {SOURCE[self.variant]}"
        )

    def _split(self, folder: Path, part: str, expected: int) -> Split:
        images = read_idx(_needed(folder, f"{part}-images-idx3"), axes=3)
        labels = read_idx(_needed(folder, f"{part}-labels-idx1"), axes=1)
        if len(images) != len(labels):
            raise InputError(f"{folder}: {len(images)} {part} images but {len(labels)} labels; fetch the files again")
        if len(labels) and labels.max() > 9:
            raise InputError(
                f"{folder}: {part} label {labels.max()} is not one of the ten classes 0-9; fetch the file again"
            )
        report_count(f"{self.variant}, {part}", len(images), expected)
        return Split(
            inputs=torch.from_numpy(images)[:, None],
            labels=torch.from_numpy(labels).long(),
            names=tuple(f"{part}/{i:05d}" for i in range(len(images))),
            sizes=torch.tensor(images.shape[1:]).expand(len(images), 2),
            class_names=CLASSES[self.variant],
        )


@dataclass(frozen=True)
class Fashion:
    """Fashion-MNIST: `Mnist(variant="fashion")` by a name of its own."""

    root: str | None = None
    validation: float = 0.0
    """This share of the training classes, not trained on, takes the place of the test part, for model selection."""

    def __post_init__(self) -> None:
        check_validation(self.validation)

    def load(self) -> Dataset:
        """The dataset, in memory."""
        return Mnist(self.root, "fashion", self.validation).load()


def read_idx(path: Path, axes: int) -> npt.NDArray[np.uint8]:
    """An IDX file of bytes: a header of big-endian integers (type and number of axes, each length), then the values."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path} cannot be read ({error}); fetch it again") from error
    start = 4 * (axes + 1)
    # 0x0800: unsigned bytes; the last byte counts the axes.
    if len(content) < start or struct.unpack(">i", content[:4])[0] != 0x0800 + axes:
        raise InputError(f"{path} is no IDX file of bytes with {axes} axes; fetch it again")
    shape = struct.unpack(f">{axes}i", content[4:start])
    if len(content) - start != np.prod(shape):
        raise InputError(
            f"{path} holds {len(content) - start:,} values, its header says {np.prod(shape):,}; fetch it again"
        )
    # A copy, because bytes are read-only and torch wants writable memory.
    return np.frombuffer(content, np.uint8, offset=start).reshape(shape).copy()


def _file(folder: Path, stem: str) -> Path | None:
    # Some copies write train-images.idx3-ubyte.
    stems = (stem, stem.replace("-idx", ".idx"))
    return next((p for s in stems for end in SUFFIXES if (p := folder / f"{s}{end}").is_file()), None)


def _needed(folder: Path, stem: str) -> Path:
    found = _file(folder, stem)
    if found is None:
        raise InputError(f"{folder} lacks {stem}-ubyte or {stem}-ubyte.gz; all four IDX files are needed")
    return found
