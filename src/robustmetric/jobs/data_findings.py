"""What counts of a data set mean, a sentence each: for a search, for training, for what a score on it is worth."""

import os
import shlex
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

from robustmetric.data.census import Sample, copies, in_both, is_across, unmatched
from robustmetric.data.looks import Look
from robustmetric.jobs.findings import Finding, equal
from robustmetric.jobs.own import unsearchable

SPLIT_WORDS = frozenset(
    {"train", "training", "val", "valid", "validation", "dev", "test", "testing", "query", "gallery"}
)
"""Names of folders that mean a part of the data, in whatever letters."""
FORMATS = frozenset({".heic", ".heif", ".avif", ".jfif", ".jp2", ".dng", ".cr2", ".nef", ".arw"})
"""Photographs that are not read, by the ends of their names."""
SMALL = 4
"""An image is small where its shorter side is enlarged more than so many times."""


def of_search(queries: Sequence[str], gallery: Sequence[str] | None) -> Iterator[Finding]:
    """Whether a search can be right: classes of the queries, and of the gallery unless they search one another."""
    lost = unmatched(queries, gallery)
    if why := unsearchable(Counter(queries if gallery is None else gallery).values(), has_gallery=gallery is not None):
        yield Finding("unsearchable", "mend", why)
    elif gallery is not None and len(lost) == len(set(queries)):
        yield Finding("unmatched", "mend", "no class of the queries is in the gallery, so no search can be right")
    elif lost:
        which = "with a single image" if gallery is None else "of queries that the gallery lacks"
        yield Finding("unmatched", "look", f"classes {which}, for which no search can be right", tuple(lost))


def of_classes(train: Sequence[str], test: Sequence[str]) -> Iterator[Finding]:
    """Whether the classes of test are new (zero-shot), known (closed set), or some of them known."""
    if not train or not test:
        return
    both = in_both(train, test)
    if not both:
        yield Finding("zero_shot", "fact", "zero-shot: no class of test is in train")
    elif len(both) == len(set(test)):
        yield Finding("closed_set", "fact", "closed set: every class of test is in train")
    else:
        advice = "the other classes of test are not, so that this is neither zero-shot nor a closed set"
        yield Finding("partly_shared", "look", "classes both in train and in test", tuple(both), advice)


def of_copies(samples: Sequence[Sample], unit: Literal["images", "rows"]) -> Iterator[Finding]:
    """What is there more than once: under other labels, in train and in test, or merely again."""
    found = copies(samples)
    if found.mislabelled:
        across = sum(map(is_across, found.mislabelled))
        advice = "not all of their labels are right" if unit == "images" else "no metric tells them apart"
        advice += f"; {across:,} of them in train and in test" if across else ""
        items = tuple(equal(group, with_labels=True) for group in found.mislabelled)
        yield Finding("mislabelled", "look", f"{unit} that are there again under another label", items, advice)
    if found.leaked:
        items, advice = tuple(map(equal, found.leaked)), "a score on what was trained on is too good"
        yield Finding("leaked", "look", f"{unit} both in train and in test", items, advice)
    if found.repeated:
        items, says = tuple(map(equal, found.repeated)), f"{unit} that are there more than once"
        if unit == "images":
            advice = "where they are searched, one finds the other whatever the model"
            yield Finding("repeated", "look", says, items, advice)
        else:  # in a table of few values nothing else is to be expected
            yield Finding("repeated", "fact", says, items)


def of_looks(names: Sequence[str], found: Sequence[Look], side: int) -> Iterator[Finding]:
    """Sizes and colour; images are squashed to squares of `side` pixels."""
    if not found:
        return
    by_area = sorted(found, key=lambda one: (one.height * one.width, one.width))
    least, middle, most = (f"{one.width} x {one.height}" for one in (by_area[0], by_area[len(found) // 2], by_area[-1]))
    sizes = f"all {least}" if least == most else f"{least} to {most} (median {middle})"
    squashed = "" if least == most == f"{side} x {side}" else f", squashed to {side} x {side}"
    yield Finding("sizes", "fact", f"pixels, width x height: {sizes}{squashed}")
    if grey := sum(one.is_grey for one in found):
        yield Finding("grey", "fact", f"without colour: {grey:,} of {len(found):,}")
    if turned := sum(one.is_turned for one in found):
        yield Finding("turned", "fact", f"turned as their camera noted (EXIF): {turned:,} of {len(found):,}")
    small = tuple(name for name, one in zip(names, found, strict=True) if SMALL * min(one.height, one.width) < side)
    if small:
        advice = f"enlarged to {side} they are blurred"
        yield Finding("small", "look", f"images under {side / SMALL:g} pixels wide or high", small, advice)


def of_folders(paths: Sequence[str], classes: Sequence[str]) -> Iterator[Finding]:
    """Folders such as train/ and val/ that are taken for classes, because there are not both train/ and test/."""
    deeper = {name for path, name in zip(paths, classes, strict=True) if path.split("/")[-2] != name}
    taken = tuple(sorted(name for name in deeper if name.lower() in SPLIT_WORDS))
    if taken:
        advice = "call the parts train/ and test/ (and gallery/), in small letters; the first two are needed"
        yield Finding("parts_as_classes", "mend", "folders of a part of the data, taken for classes", taken, advice)


def of_neighbours(folder: Path) -> Iterator[Finding]:
    """Whether class folders are those of one part, train/ say, while the others lie beside it and are not seen."""
    given = folder.absolute()
    if given.name.lower() not in SPLIT_WORDS or not os.access(given.parent, os.R_OK):
        return
    beside = sorted(
        one.name for one in given.parent.iterdir() if one.is_dir() and one.name.lower() != given.name.lower()
    )
    others = [name for name in beside if name.lower() in SPLIT_WORDS]
    if others:
        says = f"{given.name}/ is a part of the data, beside {', '.join(f'{name}/' for name in others)}"
        whole = shlex.quote(str(folder.parent if folder.name else folder / ".."))
        advice = f"here what is trained on and what is tested on are not kept apart: check {whole} instead"
        yield Finding("one_part", "look", says, advice=advice)


def of_left_out(files: Sequence[str], images: Sequence[str], listed: Sequence[str]) -> Iterator[Finding]:
    """Photographs of a folder that nothing reads: in no class folder, or of another format."""
    known = set(listed)
    if astray := tuple(name for name in images if name not in known):
        yield Finding("astray", "look", "images in no folder of a class, or beside train/ and test/, left out", astray)
    if other := tuple(name for name in files if name[name.rfind(".") :].lower() in FORMATS):
        yield Finding(
            "format", "look", "photographs of a format that is not read, left out", other, "save them as JPEG"
        )
