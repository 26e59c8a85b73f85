"""CIFAR-10 (Krizhevsky 2009) from class folders or the binary version: the same ten classes in both splits."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from robustmetric.data.base import Dataset, Split, data_root, report_count, with_validation
from robustmetric.data.files import find_tree
from robustmetric.data.listing import ImageFiles, Listing, Plan, class_folders
from robustmetric.errors import InputError

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
FOLDERS = ("cifar10", "cifar-10", "CIFAR10", "cifar", "cifar-10-batches-bin")
BINARY = ("data_batch_1.bin", *(f"data_batch_{i}.bin" for i in range(2, 6)), "test_batch.bin")
JPEG = "a JPEG copy"
"""What is told of images that were compressed again: they are not the original's."""
EXPECTED = (
    "expected cifar10/train/<class>/* and cifar10/test/<class>/* (a folder, or zips named cifar10*.zip), or the binary "
    "version (data_batch_1.bin ...); get it from the CIFAR page of the University of Toronto. The python version is "
    "not read: its pickle files can run code"
)


@dataclass(frozen=True, kw_only=True)
class Cifar10(ImageFiles):
    """50,000 training and 10,000 test images. Only the binary version is bit-exact: of JPEG copies `note` says so."""

    size: int = 32

    def load(self) -> Dataset:
        """The dataset: the binary version in memory where it is there, else the image files."""
        folder = _binary_folder(data_root(self.root))
        if folder is None:
            dataset = super().load()
            return replace(dataset, note=JPEG) if _is_lossy(dataset) else dataset
        if self.size != 32:
            raise InputError(f"size {self.size}: the binary version of CIFAR-10 is read as it is; use size: 32")
        dataset = Dataset("cifar10", read_binary(folder, BINARY[:5], "train"), read_binary(folder, BINARY[5:], "test"))
        report_count("cifar10, train", dataset.train.n, 50_000)
        report_count("cifar10, test", dataset.queries.n, 10_000)
        return with_validation(dataset, self.validation)

    @property
    def has_files(self) -> bool:
        """Not of the binary version."""
        return _binary_folder(data_root(self.root)) is None

    def plan(self) -> Plan:
        """Class folders under train/ and test/."""
        tree = find_tree(
            data_root(self.root), FOLDERS, ("cifar10*.zip", "cifar-10*.zip", "CIFAR10*.zip"), ("train",), EXPECTED
        )
        images = tree.images()
        train, test = _part(images, "train"), _part(images, "test")
        return Plan("cifar10", tree, train, test, expected=(50_000, 10_000, None), layout=EXPECTED)


def read_binary(folder: Path, files: tuple[str, ...], part: str) -> Split:
    """Records of one label byte and 3 x 32 x 32 pixels, bit-exact."""
    records = []
    for file in files:
        try:
            content = np.fromfile(folder / file, np.uint8)
        except OSError as error:
            raise InputError(f"{folder / file} cannot be read ({error.strerror}); {EXPECTED}") from error
        if len(content) % 3073:
            raise InputError(f"{folder / file}: {len(content):,} bytes are no whole number of images; fetch it again")
        records.append(content.reshape(-1, 3073))
    rows = torch.from_numpy(np.concatenate(records))
    if rows[:, 0].max() > 9:
        raise InputError(
            f"{folder}: label {int(rows[:, 0].max())} is not one of the ten classes 0-9; fetch the files again"
        )
    return Split(
        inputs=rows[:, 1:].reshape(-1, 3, 32, 32),
        labels=rows[:, 0].long(),
        names=tuple(f"{part}/{i:05d}" for i in range(len(rows))),
        sizes=torch.full((len(rows), 2), 32),
        class_names=CLASSES,
    )


def _binary_folder(root: Path) -> Path | None:
    places = (root, *(root / name for name in FOLDERS))
    return next((place for place in places if (place / BINARY[0]).is_file()), None)


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
