"""Counting a data set: how large its classes are, which have no match, which parts share them, what is there twice."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median


@dataclass(frozen=True, slots=True)
class Sample:
    """One image or row: where it is, of which class, and a digest of what it holds."""

    part: str
    """train, queries or gallery."""
    name: str
    label: str
    digest: bytes


@dataclass(frozen=True)
class Part:
    """How many samples a split has, of how many classes, and how large these are."""

    name: str
    samples: int
    classes: int
    smallest: int
    median: float
    largest: int

    @staticmethod
    def of(name: str, labels: Iterable[str]) -> "Part":
        """From the class of each sample; there is at least one."""
        sizes = Counter(labels).values()
        return Part(name, sum(sizes), len(sizes), min(sizes), float(median(sizes)), max(sizes))


def unmatched(queries: Sequence[str], gallery: Sequence[str] | None) -> list[str]:
    """Classes of the queries that no search can find: a single image among the queries, or none in the gallery."""
    sizes = Counter(queries)
    if gallery is None:
        return [name for name, size in sizes.items() if size == 1]
    known = set(gallery)
    return [name for name in sizes if name not in known]


def in_both(train: Iterable[str], test: Iterable[str]) -> list[str]:
    """Classes of `test` that are in `train` too."""
    known = set(train)
    return [name for name in dict.fromkeys(test) if name in known]


Group = tuple[Sample, ...]
"""Samples that hold the same."""


@dataclass(frozen=True)
class Copies:
    """Groups of equal samples, each under the worst that can be said of it."""

    mislabelled: list[Group]
    """Of different classes."""
    leaked: list[Group]
    """Of one class, in train and outside of it."""
    repeated: list[Group]
    """Of one class, all in train or all outside of it."""


def copies(samples: Iterable[Sample]) -> Copies:
    """What is there more than once, in the order of the first of each group."""
    found: dict[bytes, list[Sample]] = {}
    for sample in samples:
        found.setdefault(sample.digest, []).append(sample)
    groups = [tuple(group) for group in found.values() if len(group) > 1]
    mislabelled = [group for group in groups if len({sample.label for sample in group}) > 1]
    others = [group for group in groups if len({sample.label for sample in group}) == 1]
    return Copies(
        mislabelled,
        leaked=[group for group in others if is_across(group)],
        repeated=[group for group in others if not is_across(group)],
    )


def is_across(group: Group) -> bool:
    """Whether a group is in train and outside of it."""
    return len({sample.part == "train" for sample in group}) == 2


def labels_of(samples: Iterable[Sample], *parts: str) -> list[str]:
    """The class of each sample of these parts."""
    return [sample.label for sample in samples if sample.part in parts]
