"""Splits and datasets: labelled inputs in memory (or memory-mapped), and what the protocols ask of them."""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from robustmetric.errors import InputError

VARIABLE = "ROBUSTMETRIC_DATA"

VALIDATION_SEED = 0
"""One held-out part for all runs, whatever seed they train with, so that runs are compared on the same classes."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Split:
    """Labelled inputs: uint8 images (n, channels, height, width) or rows of floats (n, features)."""

    inputs: Shaped[Tensor, "n *shape"]
    labels: Int[Tensor, " n"]
    """0 .. classes-1, positions in `class_names`."""
    names: tuple[str, ...]
    """File name or row id of each sample, for reports and errors."""
    sizes: Int[Tensor, "n 2"]
    """Original (height, width) of each image, before it was squashed to a square."""
    class_names: tuple[str, ...]
    cameras: Int[Tensor, " n"] | None = None
    """Which camera took each image, where a manifest says so."""

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def n(self) -> int:
        """How many samples."""
        return len(self.labels)

    @property
    def classes(self) -> int:
        """How many classes."""
        return len(self.class_names)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.inputs.shape[1:])

    def subset(self, rows: Tensor | Sequence[int]) -> "Split":
        """These rows, in this order, with the same class list. A run of consecutive rows is a view, others a copy."""
        index = torch.as_tensor(rows, dtype=torch.long)
        first = int(index[0]) if len(index) else 0
        is_run = torch.equal(index, torch.arange(first, first + len(index)))
        where = slice(first, first + len(index)) if is_run else index
        return Split(
            inputs=self.inputs[where],
            labels=self.labels[where],
            names=tuple(self.names[i] for i in index.tolist()),
            sizes=self.sizes[where],
            class_names=self.class_names,
            cameras=None if self.cameras is None else self.cameras[where],
        )


@dataclass(frozen=True)
class Dataset:
    """What a protocol needs: a training split, queries, and the gallery they search."""

    name: str
    train: Split
    queries: Split
    gallery: Split | None = None
    """None: the queries search one another, each leaving itself out by its index."""
    skipped: tuple[str, ...] = ()
    """Missing or unreadable files that were left out."""
    note: str = ""
    """What is to be told beside its name wherever its numbers stand: that its images are not the original's."""

    @property
    def unmatched(self) -> int:
        """Queries that no gallery item can match: they count as misses whatever the model does."""
        counts = torch.bincount((self.gallery or self.queries).labels, minlength=self.queries.classes)
        own = 1 if self.gallery is None else 0
        return int((counts[self.queries.labels] <= own).sum())


def data_root(path: str | None) -> Path:
    """Where data lies: the path given (also looked for under ROBUSTMETRIC_DATA), else ROBUSTMETRIC_DATA itself."""
    home = os.environ.get(VARIABLE)
    if path is None:
        if not home:
            raise InputError(f"no data folder given; set root: in the recipe or the environment variable {VARIABLE}")
        return Path(home).expanduser()
    given = Path(path).expanduser()
    if home and not given.is_absolute() and not given.exists():
        return Path(home).expanduser() / given
    return given


def check_validation(share: float) -> None:
    """Refuse a validation share that is none."""
    if not 0 <= share < 1:
        raise InputError(f"validation {share} is not a share of the classes; expected 0 <= share < 1")


def with_validation(dataset: Dataset, share: float) -> Dataset:
    """The dataset itself for a share of 0, else with that share of its training classes as queries."""
    return hold_out(dataset, share, VALIDATION_SEED) if share else dataset


def hold_out(dataset: Dataset, share: float, seed: int) -> Dataset:
    """The training classes cut in two: most to train on, `share` of them as queries, for model selection.

    The test split plays no part. Both parts are copies in memory.
    """
    classes = dataset.train.classes
    count = round(share * classes)
    if not 0 < share < 1 or not 0 < count < classes:
        raise InputError(f"validation share {share} of {classes} training classes leaves one side empty; try 0.2")
    order = torch.randperm(classes, generator=torch.Generator().manual_seed(seed))
    train = keep_classes(dataset.train, order[count:].sort().values)
    queries = keep_classes(dataset.train, order[:count].sort().values)
    return Dataset(name=dataset.name, train=train, queries=queries, skipped=dataset.skipped, note=dataset.note)


def keep_classes(split: Split, classes: Int[Tensor, " kept"]) -> Split:
    """The samples of these classes, relabelled 0 .. kept-1 in the order given."""
    kept = split.subset(torch.isin(split.labels, classes).nonzero().flatten())
    new_label = torch.full((split.classes,), -1, dtype=split.labels.dtype)
    new_label[classes] = torch.arange(len(classes), dtype=split.labels.dtype)
    names = tuple(split.class_names[i] for i in classes.tolist())
    return replace(kept, labels=new_label[kept.labels], class_names=names)


def share_classes(*splits: Split) -> tuple[Split, ...]:
    """The same splits over one class list, so that equal labels mean equal classes (queries and gallery)."""
    names = tuple(dict.fromkeys(name for split in splits for name in split.class_names))
    place = {name: i for i, name in enumerate(names)}

    def relabelled(split: Split) -> Split:
        new_label = torch.tensor([place[name] for name in split.class_names], dtype=split.labels.dtype)
        return replace(split, labels=new_label[split.labels], class_names=names)

    return tuple(relabelled(split) for split in splits)


def require_pairs(split: Split) -> None:
    """Refuse a training class with a single image, which has no positive pair, and one class alone: no negatives."""
    counts = torch.bincount(split.labels, minlength=split.classes)
    if why := pairless(dict(zip(split.class_names, counts.tolist(), strict=True))):
        raise InputError(why)


def pairless(sizes: Mapping[str, int]) -> str:
    """Why classes of these sizes cannot be trained on in pairs, in a sentence; "" where they can."""
    lonely = [name for name, size in sizes.items() if size < 2]
    if lonely:
        more = f" (and {len(lonely) - 1} more classes)" if len(lonely) > 1 else ""
        return (
            f"training class {lonely[0]!r}{more} has {sizes[lonely[0]]} image, at least 2 are needed for a positive "
            "pair; add images to it or remove it"
        )
    if len(sizes) == 1:
        return (
            f"training class {next(iter(sizes))!r} is the only one, so no image has a negative; expected two "
            "classes or more"
        )
    return ""


def report_count(name: str, found: int, expected: int | None) -> None:
    """Say so when a split does not have its official number of images."""
    if said := miscounted(found, expected):
        log.warning("%s: %s", name, said)


def miscounted(found: int, expected: int | None) -> str:
    """That this is not the official number of images; "" where it is, or there is none."""
    return "" if expected in (None, found) else f"{found:,} images found, the official number is {expected:,}"
