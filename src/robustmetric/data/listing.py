"""From lists of image files to a dataset: the road every image dataset takes."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from robustmetric.data.base import (
    Dataset,
    Split,
    check_validation,
    report_count,
    require_pairs,
    share_classes,
    with_validation,
)
from robustmetric.data.cache import Cache, cache_folder
from robustmetric.data.files import Tree
from robustmetric.errors import InputError

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Listing:
    """Image files with the class of each, in the order of the split."""

    paths: tuple[str, ...]
    class_of: tuple[str, ...]
    class_names: tuple[str, ...] | None = None
    """The order of the labels; None: as the classes first appear."""
    cameras: tuple[int, ...] | None = None

    @staticmethod
    def of(pairs: Sequence[tuple[str, str]], class_names: tuple[str, ...] | None = None) -> "Listing":
        """From (path, class) pairs."""
        return Listing(tuple(path for path, _ in pairs), tuple(name for _, name in pairs), class_names)

    def __len__(self) -> int:
        return len(self.paths)

    def keep(self, rows: Sequence[int]) -> "Listing":
        """These rows; classes left without a file disappear."""
        class_of = tuple(self.class_of[i] for i in rows)
        present = set(class_of)
        return Listing(
            paths=tuple(self.paths[i] for i in rows),
            class_of=class_of,
            class_names=self.class_names and tuple(name for name in self.class_names if name in present),
            cameras=self.cameras and tuple(self.cameras[i] for i in rows),
        )


@dataclass(frozen=True)
class Plan:
    """What a dataset's files say: which images make which split, and how many there should be."""

    name: str
    tree: Tree
    train: Listing
    queries: Listing
    gallery: Listing | None = None
    expected: tuple[int | None, int | None, int | None] = (None, None, None)
    """Official counts of train, queries and gallery."""
    may_lack_train: bool = False
    """Data to evaluate on only: an empty training list is meant."""
    needs_pairs: bool = True
    """Refuse a training class with one image."""
    layout: str = ""
    """What was expected, for the error when nothing is found."""
    upright: bool = False
    """Turn images as their camera noted (EXIF); published data sets are taken as they are stored."""

    def lacking(self, part: str, what: str) -> str:
        """That a part is empty: none of its images "is there", or "can be read"."""
        return f"no image of the {part} part of {self.name} {what}; {self.layout}"

    def parts(self) -> dict[str, Listing]:
        """The lists by the names of their splits."""
        listed = {"train": self.train, "queries": self.queries, "gallery": self.gallery}
        return {part: listing for part, listing in listed.items() if listing is not None}


@dataclass(frozen=True, kw_only=True)
class ImageFiles(ABC):
    """A dataset of image files: where it lies and how its images are kept."""

    root: str | None = None
    """The folder or zip; None: what ROBUSTMETRIC_DATA names."""
    size: int = 256
    """Side of the square that images are squashed to, once."""
    cache: str | None = None
    """Where decoded images go; None: beside the data, or the user's cache."""
    validation: float = 0.0
    """This share of the training classes takes the place of the test classes, for model selection."""
    skip_unreadable: bool = False
    """Leave unreadable images out (counted in `Dataset.skipped`) instead of stopping."""

    def __post_init__(self) -> None:
        if self.size < 1:
            raise InputError(f"size {self.size} is not a number of pixels; expected at least 1, such as 256")
        check_validation(self.validation)

    @property
    def has_files(self) -> bool:
        """Whether `plan` has image files to find; CIFAR-10 has a version without."""
        return True

    @abstractmethod
    def plan(self) -> Plan:
        """Find the files and say which make which split."""

    def load(self) -> Dataset:
        """The dataset, its images decoded (once) and memory-mapped."""
        plan = self.plan()
        cache = Cache(cache_folder(self.cache, plan.tree.home), self.size, self.skip_unreadable, plan.upright)
        train, lost_train = read_split(plan, plan.train, cache, "train", plan.expected[0])
        queries, lost_queries = read_split(plan, plan.queries, cache, "queries", plan.expected[1])
        gallery: Split | None = None
        lost_gallery: tuple[str, ...] = ()
        if plan.gallery is not None:
            gallery, lost_gallery = read_split(plan, plan.gallery, cache, "gallery", plan.expected[2])
            queries, gallery = share_classes(queries, gallery)
        # A file may be listed as query and as gallery: one loss, said once.
        skipped = tuple(dict.fromkeys((*lost_train, *lost_queries, *lost_gallery)))
        dataset = Dataset(plan.name, train, queries, gallery, skipped)
        if plan.needs_pairs:
            require_pairs(train)
        dataset = with_validation(dataset, self.validation)
        if dataset.unmatched:
            log.warning("%s: %s queries have no match in the gallery", plan.name, f"{dataset.unmatched:,}")
        return dataset


def read_split(
    plan: Plan, listing: Listing, cache: Cache, part: str, expected: int | None
) -> tuple[Split, tuple[str, ...]]:
    """The images of a listing as a split, and the names of those missing or unreadable."""
    if part == "train" and plan.may_lack_train and not listing.paths:
        return empty_split(cache.size), ()
    known = set(plan.tree.names)
    present = listing.keep([i for i, path in enumerate(listing.paths) if path in known])
    missing = tuple(path for path in listing.paths if path not in known)
    if not present.paths:
        raise InputError(f"{plan.tree.home}: {plan.lacking(part, 'is there')}")
    pixels = cache.load(plan.tree, present.paths, f"{plan.name}-{part}")
    unreadable = tuple(present.paths[i] for i in (~pixels.is_readable).nonzero().flatten().tolist())
    found = present.keep(pixels.is_readable.nonzero().flatten().tolist())
    if not found.paths:
        raise InputError(f"{plan.tree.home}: {plan.lacking(part, 'can be read')}")
    if missing or unreadable:
        log.warning(
            "%s, %s: %d listed files missing, %d unreadable, all left out (the first: %s)",
            plan.name, part, len(missing), len(unreadable), (*missing, *unreadable)[0],
        )  # fmt: skip
    report_count(f"{plan.name}, {part}", len(found), expected)
    class_names = found.class_names or tuple(dict.fromkeys(found.class_of))
    place = {name: i for i, name in enumerate(class_names)}
    split = Split(
        inputs=pixels.images,
        labels=torch.tensor([place[name] for name in found.class_of]),
        names=found.paths,
        sizes=pixels.sizes,
        class_names=class_names,
    )
    cameras = None if found.cameras is None else torch.tensor(found.cameras)
    return replace(split, cameras=cameras), (*missing, *unreadable)


def empty_split(size: int) -> Split:
    """No images, no classes."""
    nothing = torch.zeros(0, dtype=torch.long)
    return Split(torch.zeros(0, 3, size, size, dtype=torch.uint8), nothing, (), nothing.view(0, 2), ())


def located(tree: Tree, listed: Sequence[str]) -> list[str]:
    """The full names of files listed relative to some folder of the tree; the first one that exists tells which."""
    by_base: dict[str, list[str]] = {}
    for name in tree.names:
        by_base.setdefault(name.rpartition("/")[2], []).append(name)
    for path in listed:
        found = [n for n in by_base.get(path.rpartition("/")[2], ()) if n == path or n.endswith("/" + path)]
        if found:
            prefix = min(found, key=len).removesuffix(path)
            return [prefix + name for name in listed]
    return list(listed)


def class_folders(names: Sequence[str], below: str = "") -> list[tuple[str, str]]:
    """(path, class) of the images under `below`, by class and then as given; a class is a folder directly under it."""
    inside = [(name, name[len(below) :].split("/")) for name in names if name.startswith(below)]
    return sorted(((name, parts[0]) for name, parts in inside if len(parts) > 1), key=lambda pair: pair[1])
