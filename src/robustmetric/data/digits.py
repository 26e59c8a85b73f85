"""Digits: scikit-learn's bundled handwritten digits (UCI), the embedded default."""

from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from robustmetric.data.base import Dataset, Split, check_validation, keep_classes, with_validation

TRAIN_CLASSES = 5
LEVELS = 16


@dataclass(frozen=True)
class Digits:
    """1,797 real images, 1 x 8 x 8, no download: 901 of classes 0-4 and 896 of the unseen classes 5-9.

    `closed`: all ten classes in both parts, for classifiers: the 1,257 and 540 images of `DigitsTable`.
    """

    validation: float = 0.0
    """This share of the training classes takes the place of the test classes, for model selection."""
    closed: bool = False

    def __post_init__(self) -> None:
        check_validation(self.validation)

    def load(self) -> Dataset:
        """The dataset, in memory."""
        bunch = load_digits()
        levels = torch.from_numpy(bunch.images).float()
        labels = torch.from_numpy(bunch.target).long()
        whole = Split(
            # Levels 0..16 to bytes.
            inputs=(levels * 255 / LEVELS).round().to(torch.uint8)[:, None],
            labels=labels,
            names=tuple(f"digits/{i:04d}" for i in range(len(labels))),
            sizes=torch.full((len(labels), 2), 8),
            class_names=tuple(str(digit) for digit in range(10)),
        )
        if self.closed:
            train, test = (whole.subset(rows) for rows in _cut(bunch.target, seed=0))
        else:
            train = keep_classes(whole, torch.arange(TRAIN_CLASSES))
            test = keep_classes(whole, torch.arange(TRAIN_CLASSES, 10))
        return with_validation(Dataset(name="digits", train=train, queries=test), self.validation)


@dataclass(frozen=True)
class DigitsTable:
    """The same as rows of 64 numbers in [0, 1], all ten classes in both parts: 1,257 to learn from and 540 to test.

    The cut keeps the shares of the classes and is drawn by `seed`.
    """

    seed: int = 0

    def load(self) -> Dataset:
        """The dataset, in memory."""
        bunch = load_digits()
        parts = _cut(bunch.target, self.seed)
        rows, labels = torch.from_numpy(bunch.data).float() / LEVELS, torch.from_numpy(bunch.target).long()
        train, test = (
            Split(
                inputs=rows[index],
                labels=labels[index],
                names=tuple(f"digits/{i:04d}" for i in index),
                sizes=torch.full((len(index), 2), 8),
                class_names=tuple(str(digit) for digit in range(10)),
            )
            for index in parts
        )
        return Dataset(name="digits_table", train=train, queries=test)


def _cut(labels: npt.NDArray[Any], seed: int) -> tuple[list[int], list[int]]:
    """Row numbers of 70 % of the images and of the rest, each class in both in proportion."""
    train, test = train_test_split(range(len(labels)), test_size=0.3, stratify=labels, random_state=seed)
    return list(train), list(test)
