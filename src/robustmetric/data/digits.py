"""Digits: scikit-learn's bundled handwritten digits (UCI), the embedded default."""

from dataclasses import dataclass

import torch
from sklearn.datasets import load_digits

from robustmetric.data.base import Dataset, Split, check_validation, keep_classes, with_validation

TRAIN_CLASSES = 5


@dataclass(frozen=True)
class Digits:
    """1,797 real images, 1 x 8 x 8, no download: 901 of classes 0-4 and 896 of the unseen classes 5-9."""

    validation: float = 0.0
    """This share of the training classes takes the place of the test classes, for model selection."""

    def __post_init__(self) -> None:
        check_validation(self.validation)

    def load(self) -> Dataset:
        """The dataset, in memory."""
        bunch = load_digits()
        levels = torch.from_numpy(bunch.images).float()
        labels = torch.from_numpy(bunch.target).long()
        whole = Split(
            # Levels 0..16 to bytes.
            inputs=(levels * 255 / 16).round().to(torch.uint8)[:, None],
            labels=labels,
            names=tuple(f"digits/{i:04d}" for i in range(len(labels))),
            sizes=torch.full((len(labels), 2), 8),
            class_names=tuple(str(digit) for digit in range(10)),
        )
        train = keep_classes(whole, torch.arange(TRAIN_CLASSES))
        test = keep_classes(whole, torch.arange(TRAIN_CLASSES, 10))
        return with_validation(Dataset(name="digits", train=train, queries=test), self.validation)
