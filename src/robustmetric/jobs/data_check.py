"""Data check: a path or a name -> what is there -> findings -> a verdict, before anything is trained or attacked."""

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from robustmetric.data.base import Dataset, data_root, miscounted, pairless
from robustmetric.data.cache import PATIENCE
from robustmetric.data.census import Part, Sample, labels_of
from robustmetric.data.folder import Folder
from robustmetric.data.listing import ImageFiles, Plan
from robustmetric.data.looks import Look, looks, looks_of, samples_of
from robustmetric.data.manifest import Manifest, is_manifest
from robustmetric.errors import InputError
from robustmetric.jobs.data_findings import (
    of_classes,
    of_copies,
    of_folders,
    of_left_out,
    of_looks,
    of_neighbours,
    of_search,
)
from robustmetric.jobs.data_next import of_images, of_ours
from robustmetric.jobs.data_table import check_rows, check_table
from robustmetric.jobs.findings import Finding, Report
from robustmetric.jobs.own import own_source
from robustmetric.jobs.own_table import TABLES
from robustmetric.jobs.progress import told


def check(name: str, settings: Sequence[str] = (), *, skip_unreadable: bool = False) -> Report:
    """Look at every image or row of a folder, zip, CSV manifest, table or data set of ours; nothing is written.

    `settings` are those of a table, `data.label=COLUMN`. What cannot be taken for data at all is an error.
    """
    path = Path(name)
    if path.suffix.lower() in TABLES and not is_manifest(data_root(name)):
        return check_table(name, settings, skip_unreadable=skip_unreadable)
    source = own_source(name, skip_unreadable, where="")
    if settings:
        raise InputError(
            f"{settings[0]!r} stands after {name!r}, which is no table; expected one path and, of a table, settings "
            "such as data.label=COLUMN"
        )
    if isinstance(source, ImageFiles) and source.has_files:
        return _check_files(name, source)
    dataset = source.load()
    return _check_loaded(name, dataset) if dataset.queries.inputs.dim() == 4 else check_rows(name, dataset)


# Image files.


@dataclass(frozen=True)
class Seen:
    """The images of a plan that could be read, and the names of those that could not, or are not there."""

    samples: tuple[Sample, ...]
    looks: tuple[Look, ...]
    missing: tuple[str, ...]
    unreadable: tuple[str, ...]

    def labels(self, *parts: str) -> list[str]:
        """The class of each image of these parts."""
        return labels_of(self.samples, *parts)


def _check_files(name: str, source: ImageFiles) -> Report:
    plan, is_cut = _planned(source)
    seen = _seen(plan)
    findings = (
        *_of_files(plan, seen, source),
        *_of_place(plan, source, is_cut=is_cut),
        *_of_parts(plan, seen, is_cut=is_cut),
        *of_classes(seen.labels("train"), seen.labels("queries")),
        *of_copies(seen.samples, "images"),
        *of_looks([sample.name for sample in seen.samples], seen.looks, source.size),
    )
    parts = tuple(Part.of(part, labels) for part in plan.parts() if (labels := seen.labels(part)))
    can_train = bool(seen.labels("train")) and all(one.kind != "pairless" for one in findings)
    report = Report(name, _layout(plan, source, is_cut=is_cut), "images", parts, findings)
    return of_images(report, source, can_train=can_train, is_short=not torch.cuda.is_available())


def _planned(source: ImageFiles) -> tuple[Plan, bool]:
    """What is in which part, and whether that is a cut by name, which `train` makes and `evaluate --data` does not."""
    plan = source.plan()
    if not isinstance(source, Folder) or not plan.may_lack_train or len(set(plan.queries.class_of)) < 2:
        return plan, False
    return replace(source, test_share=0.5).plan(), True


def _seen(plan: Plan) -> Seen:
    """Every listed image looked at once, one after another."""
    known = set(plan.tree.names)
    listed = [
        (part, path, label)
        for part, listing in plan.parts().items()
        for path, label in zip(listing.paths, listing.class_of, strict=True)
    ]
    present = [entry for entry in listed if entry[1] in known]
    samples, found, unreadable = [], [], []
    shown = _shown(looks(plan.tree, [path for _, path, _ in present], upright=plan.upright), len(present))
    for (part, path, label), one in zip(present, shown, strict=True):
        if one is None:
            unreadable.append(path)
            continue
        samples.append(Sample(part, path, label, one.digest))
        found.append(one)
    # A file may be listed as query and as gallery: one loss, said once.
    missing = tuple(dict.fromkeys(path for _, path, _ in listed if path not in known))
    return Seen(tuple(samples), tuple(found), missing, tuple(dict.fromkeys(unreadable)))


def _shown(found: Iterator[Look | None], total: int) -> Iterator[Look | None]:
    """The same, with a bar where it takes longer than people wait without one."""
    began = time.monotonic()
    with told("looking at images") as tell:
        for done, one in enumerate(found, start=1):
            yield one
            if time.monotonic() - began > PATIENCE:
                tell(done, total)


def _of_files(plan: Plan, seen: Seen, source: ImageFiles) -> Iterator[Finding]:
    """Files that are no images, are not there, or are not read."""
    if seen.unreadable:
        says = "files that cannot be read as images"
        if source.skip_unreadable:
            yield Finding("unreadable", "look", f"{says}, left out", seen.unreadable)
        else:
            advice = "replace them, or leave them out with --skip-unreadable"
            yield Finding("unreadable", "mend", says, seen.unreadable, advice)
    if seen.missing:
        yield Finding("missing", "look", "files that are listed and not there, left out", seen.missing)
    if isinstance(source, Folder):
        listings = plan.parts().values()
        listed = [path for listing in listings for path in listing.paths]
        yield from of_left_out(plan.tree.names, plan.tree.images(), listed)
        yield from of_folders(listed, [name for listing in listings for name in listing.class_of])
    for (part, listing), expected in zip(plan.parts().items(), plan.expected, strict=False):
        if listing.paths and (said := miscounted(len(seen.labels(part)), expected)):
            yield Finding("count", "look", f"{part}: {said}")


def _of_place(plan: Plan, source: ImageFiles, *, is_cut: bool) -> Iterator[Finding]:
    """Whether class folders without parts of their own are a part of something larger."""
    if isinstance(source, Folder) and (is_cut or plan.may_lack_train) and data_root(source.root).is_dir():
        yield from of_neighbours(data_root(source.root))


def _of_parts(plan: Plan, seen: Seen, *, is_cut: bool) -> Iterator[Finding]:
    """Whether each part is there, can be searched and, if it trains, has pairs."""
    for part, listing in plan.parts().items():
        if not seen.labels(part) and not (part == "train" and plan.may_lack_train):
            is_there = not set(seen.missing).issuperset(listing.paths)
            yield Finding("empty", "mend", plan.lacking(part, "can be read" if is_there else "is there"))
    gallery = None if plan.gallery is None else seen.labels("gallery")
    queries = seen.labels("train", "queries") if is_cut else seen.labels("queries")
    if queries and gallery != []:
        yield from of_search(queries, gallery)
    if is_cut and len(set(seen.labels("queries"))) == 1:
        yield Finding("one_tested", "look", "`train` would test on one class, where every search is right")
    if plan.needs_pairs and (why := pairless(Counter(seen.labels("train")))):
        yield Finding("pairless", "look" if is_cut else "mend", f"`train` refuses this: {why}" if is_cut else why)


def _layout(plan: Plan, source: ImageFiles, *, is_cut: bool) -> str:
    """What the path was taken for."""
    if isinstance(source, Manifest):
        return f"a CSV manifest of images in {plan.tree.home}"
    if not isinstance(source, Folder):
        return f"our data set {plan.name}, in {plan.tree.home}"
    place = "a folder" if data_root(source.root).is_dir() else "a zip"
    if is_cut:
        return f"{place} of class folders; `evaluate` searches them all, `train` cuts them by name, so:"
    if not plan.may_lack_train:
        return f"{place} with train/ and test/{'' if plan.gallery is None else ', which searches gallery/'}"
    return f"{place} of class folders"


# Data sets of ours that are in memory.


def _check_loaded(name: str, dataset: Dataset) -> Report:
    splits = {"train": dataset.train, "queries": dataset.queries}
    found = {part: list(looks_of(split)) for part, split in splits.items()}
    samples = [
        one for part, split in splits.items() for one in samples_of(part, split, (look.digest for look in found[part]))
    ]
    train, queries = labels_of(samples, "train"), labels_of(samples, "queries")
    findings = (
        *of_search(queries, None),
        *of_classes(train, queries),
        *of_copies(samples, "images"),
        *of_looks([one.name for one in samples], [*found["train"], *found["queries"]], dataset.queries.shape[-1]),
    )
    parts = (Part.of("train", train), Part.of("queries", queries))
    return of_ours(Report(name, f"our data set {dataset.name}", "images", parts, findings))
