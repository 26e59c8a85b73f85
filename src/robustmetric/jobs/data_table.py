"""A table checked: cells that are no numbers, columns that say nothing or drown the others, rows that disagree."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from jaxtyping import Bool, Float

from robustmetric import recipe
from robustmetric.catalogue import NAMES
from robustmetric.data.base import Dataset
from robustmetric.data.census import Part, in_both, labels_of
from robustmetric.data.looks import digest_of, samples_of
from robustmetric.data.tabular import Arrays, Sheet, Tabular, read_npz
from robustmetric.errors import InputError
from robustmetric.jobs.data_findings import of_copies
from robustmetric.jobs.data_next import of_ours, of_table
from robustmetric.jobs.findings import Finding, Report
from robustmetric.jobs.own import skip_setting
from robustmetric.jobs.own_table import called, of_units, own_table
from robustmetric.jobs.progress import waiting
from robustmetric.overrides import override
from robustmetric.recipe import Spec

ROWS = 10
"""Of fewer rows there is no saying whether a column numbers them."""


def check_table(file: str, settings: Sequence[str], *, skip_unreadable: bool) -> Report:
    """A .csv or .npz, with settings as `certify` takes them: `data.label=COLUMN`, `data.scale=true`."""
    if skip_unreadable:
        skip_setting(Tabular, file)
    spec = _spec(file, settings)
    source: Tabular = recipe.build(spec, NAMES, file)
    with waiting(f"looking at {file}"):
        return of_table(_found(file, source, spec), settings)


def _found(file: str, source: Tabular, spec: Mapping[str, Spec]) -> Report:
    """The rows; where some cannot be used, these alone."""
    path = source.path()
    sheet = Sheet.read(path, source.label) if path.suffix.lower() == ".csv" else None
    arrays = _arrays(source, sheet)
    found = _loaded(source, arrays) if isinstance(arrays, dict) else arrays
    if not isinstance(found, Dataset):
        faults = (Finding("cells", "mend", "rows and cells that cannot be used", found),)
        return Report(file, "a table", "rows", (), faults)
    cut = ", cut at random" if "x" in arrays else ""
    return _checked(file, found, spec, sheet.features if sheet else (), cut)


def check_rows(name: str, dataset: Dataset) -> Report:
    """A table of ours, by its name."""
    return of_ours(_checked(name, dataset, {"name": name}))


def _spec(file: str, settings: Sequence[str]) -> dict[str, Spec]:
    """The settings of the table as a recipe has them."""
    spec = override({}, [*own_table(file), *settings])
    if strange := [key for key in spec if key != "data"]:
        raise InputError(f"{strange[0]!r} is not a setting of a table; expected data.KEY=VALUE, as data.label=COLUMN")
    if spec["data"]["name"] != "tabular":
        raise InputError(f"data.name={spec['data']['name']} is no table; {file!r} is one: leave it out")
    return dict(spec["data"])


def _arrays(source: Tabular, sheet: Sheet | None) -> Arrays | tuple[str, ...]:
    """What the file holds, or a sentence for each row and cell of a sheet that cannot be used."""
    if sheet is None:
        return read_npz(source.path())
    return tuple(sheet.faults()) or sheet.arrays()


def _loaded(source: Tabular, arrays: Arrays) -> Dataset | tuple[str, ...]:
    """The rows, or why they are none."""
    try:
        return source.of(arrays)
    except InputError as error:
        return (str(error).removeprefix(f"{source.path()}: "),)


def _checked(file: str, dataset: Dataset, spec: Mapping[str, Spec], names: Sequence[str] = (), cut: str = "") -> Report:
    splits = {"train": dataset.train, "test": dataset.queries}
    samples = [
        one for part, split in splits.items() for one in samples_of(part, split, map(digest_of, split.inputs.numpy()))
    ]
    labels = {part: labels_of(samples, part) for part in splits}
    findings = (
        *_of_classes(labels["train"], labels["test"]),
        *_of_columns(dataset.train.inputs.numpy(), spec, names),
        *of_copies(samples, "rows"),
    )
    parts = tuple(Part.of(part, labels[part]) for part in splits)
    return Report(file, f"a table of {dataset.train.shape[0]:,} columns beside the label{cut}", "rows", parts, findings)


def _of_classes(train: Sequence[str], test: Sequence[str]) -> Iterator[Finding]:
    """Whether neighbours can answer: they know the classes of train."""
    if len(set(train)) < 2:
        yield Finding(
            "one_class", "mend", "train has rows of one class only; expected two classes or more to tell apart"
        )
    known = set(in_both(train, test))
    if lost := tuple(dict.fromkeys(name for name in test if name not in known)):
        yield Finding("unmatched", "look", "classes of test that train lacks, for which no answer can be right", lost)


def _of_columns(
    x: Float[np.ndarray, "rows features"], spec: Mapping[str, Spec], names: Sequence[str]
) -> Iterator[Finding]:
    """Columns that tell nothing, and those that leave others no say."""
    if constant := tuple(called(i, names) for i in np.flatnonzero(np.ptp(x, axis=0) == 0).tolist()):
        yield Finding("constant", "look", "columns with one value in all rows of train", constant, "they tell nothing")
    if numbers := tuple(called(i, names) for i in np.flatnonzero(_counts(x)).tolist()):
        advice = "a row's number counts as a feature: drop it"
        yield Finding(
            "row_numbers", "look", "columns that only rise, in whole numbers, from row to row", numbers, advice
        )
    if said := of_units(x, spec, names):
        yield Finding("units", "look", said)


def _counts(x: Float[np.ndarray, "rows features"]) -> Bool[np.ndarray, " features"]:
    """Which columns only rise, in whole numbers, as row numbers do."""
    is_whole, rises = (x == np.floor(x)).all(axis=0), (np.diff(x, axis=0) > 0).all(axis=0)
    return is_whole & rises & (len(x) >= ROWS)
