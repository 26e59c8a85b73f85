"""Tables: feature rows with a label, from .npz or .csv; the same classes in both splits, as k-NN is used."""

import csv
import math
import os
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from robustmetric.data.base import VARIABLE, Dataset, Split, check_validation, data_root, keep_classes, with_validation
from robustmetric.errors import InputError, nearest

Values = npt.NDArray[np.float64]
Classes = npt.NDArray[np.generic]
Arrays = dict[str, npt.NDArray[np.generic]]
EXPECTED = "expected a .npz with x_train, y_train, x_test, y_test (or x, y), or a .csv with one column of labels"


@dataclass(frozen=True)
class Tabular:
    """A table that comes split (x_train, ...) is taken as it is, in its row order; one that does not is cut by `seed`.

    `scale` maps each feature to [0, 1] by its training minimum and maximum; test values may then lie a little outside.
    """

    file: str
    label: str = "label"
    """The label column of a .csv."""
    test_share: float = 0.5
    seed: int = 0
    scale: bool = False
    join: Sequence[Sequence[str]] = ()
    """Classes taken as one, by name: [["1", "2"]] makes two classes of the three of Splice."""
    validation: float = 0.0
    """This share of the training classes, not trained on, takes the place of the test part, for model selection."""

    def __post_init__(self) -> None:
        check_validation(self.validation)
        if not 0 < self.test_share < 1:
            raise InputError(f"test_share {self.test_share} is not a share of the rows; expected 0 < share < 1")

    def load(self) -> Dataset:
        """The dataset, in memory, as float64: what is proved is proved of the rows as they are, not of rounded ones."""
        path = self.path()
        return self.of(read_csv(path, self.label) if path.suffix.lower() == ".csv" else read_npz(path))

    def of(self, arrays: Arrays) -> Dataset:
        """The dataset of the file's arrays: x and y, or x_train, y_train, x_test and y_test."""
        path = self.path()
        for name in ("x", "x_train", "x_test"):  # before a cut, whose rows are others
            if name in arrays:
                arrays[name] = _finite(arrays[name], path, name)
        if "x" in arrays:
            arrays = self._cut(arrays["x"], arrays["y"], path)
        x_train, x_test = (np.asarray(arrays[part], np.float64) for part in ("x_train", "x_test"))
        if x_train.shape[1] != x_test.shape[1]:
            raise InputError(f"{path}: {x_train.shape[1]} features to train on, {x_test.shape[1]} to test")
        if self.scale:
            low, span = x_train.min(0), np.ptp(x_train, axis=0)
            span[span == 0] = 1  # a constant feature becomes 0
            x_train, x_test = (x_train - low) / span, (x_test - low) / span
        labels = self._joined(np.concatenate([arrays["y_train"], arrays["y_test"]]), path)
        class_names, codes = np.unique(labels, return_inverse=True)
        names = tuple(str(name) for name in class_names.tolist())
        train = _split(x_train, codes[: len(x_train)], names, _ids(arrays, "train"), path)
        test = _split(x_test, codes[len(x_train) :], names, _ids(arrays, "test"), path)
        if self.validation:
            # Classes of the test part alone can be neither trained on nor held out.
            train = keep_classes(train, train.labels.unique())
        return with_validation(Dataset(path.stem, train, test), self.validation)

    def _joined(self, labels: Classes, path: Path) -> Classes:
        """Labels with each group of `join` under one name: `1+2`."""
        if not self.join:
            return labels
        known = {str(name) for name in np.unique(labels).tolist()}
        names = {}
        for group in self.join:
            for name in map(str, group):
                if name not in known:
                    raise InputError(f"{path}: class {name!r} to join is not there{nearest(name, known)}")
                names[name] = "+".join(map(str, group))
        return np.array([names.get(str(label), str(label)) for label in labels.tolist()])

    def path(self) -> Path:
        """The file as named, or as named under the data folder."""
        path = data_root(self.file)
        if not path.is_file():
            if path != Path(self.file).expanduser():
                raise InputError(f"{self.file} is neither in this folder nor in {data_root(None)}; {EXPECTED}")
            is_elsewhere = path.is_absolute() or os.environ.get(VARIABLE)
            unset = "" if is_elsewhere else f" ({VARIABLE}, where data sets lie, is not set)"
            raise InputError(f"{path} does not exist{unset}; {EXPECTED}")
        return path

    def _cut(self, x: npt.NDArray[np.generic], y: Classes, path: Path) -> Arrays:
        """A random cut that keeps the row order within each part, and which rows of the file these are, from 1."""
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(self.seed)).numpy()
        count = round(len(x) * (1 - self.test_share))
        if len(x) != len(y) or not 0 < count < len(x):
            raise InputError(
                f"{path}: {len(x)} rows with {len(y)} labels cannot be cut at test_share {self.test_share}"
            )
        train, test = np.sort(order[:count]), np.sort(order[count:])
        parts = {"train": train, "test": test}
        return {
            f"{name}_{part}": values[rows] for part, rows in parts.items() for name, values in (("x", x), ("y", y))
        } | {f"rows_{part}": rows + 1 for part, rows in parts.items()}


def read_npz(path: Path) -> Arrays:
    """The arrays of a .npz; pickled objects are refused, they can run code."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        words = "; save words by y.astype(str)" if "Object arrays" in str(error) else ""
        raise InputError(f"{path} cannot be read ({error}){words}; {EXPECTED}") from error
    if not ({"x_train", "y_train", "x_test", "y_test"} <= arrays.keys() or {"x", "y"} <= arrays.keys()):
        raise InputError(f"{path} holds {', '.join(sorted(arrays)) or 'nothing'}; {EXPECTED}")
    return arrays


def read_csv(path: Path, label: str) -> Arrays:
    """All columns but `label` as numbers. Rows are counted from 1, below the header."""
    return Sheet.read(path, label).arrays()


@dataclass(frozen=True)
class Sheet:
    """A .csv as text: a header that holds the column of labels, and the rows below it."""

    path: Path
    label: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    @staticmethod
    def read(path: Path, label: str) -> "Sheet":
        """The file, of which the header is checked and the cells are not."""
        try:
            with path.open(newline="", encoding="utf-8-sig") as file:
                header, *rows = [row for row in csv.reader(file) if row] or [[]]
        except (UnicodeDecodeError, csv.Error) as error:
            raise InputError(f"{path} cannot be read as CSV ({error}); {EXPECTED}") from error
        _check_header(header, label, path)
        return Sheet(path, label, header, rows)

    @property
    def features(self) -> list[str]:
        """The names of the other columns."""
        place = self.header.index(self.label)
        return [name for j, name in enumerate(self.header) if j != place]

    def arrays(self) -> Arrays:
        """x and y; the first fault is an error."""
        if (fault := next(self.faults(), None)) is not None:
            raise InputError(f"{self.path}, {fault}")
        place = self.header.index(self.label)
        cells = [[float(cell) for j, cell in enumerate(row) if j != place] for row in self.rows]
        return {"x": np.array(cells), "y": np.array([row[place] for row in self.rows])}

    def faults(self) -> Iterator[str]:
        """A sentence for each row of another length or without a label, and for each cell that is no number."""
        place = self.header.index(self.label)
        for i, row in enumerate(self.rows, start=1):
            if len(row) != len(self.header):
                yield f"row {i}: {len(row)} cells under {len(self.header)} columns"
                continue
            if not row[place].strip():
                yield f"row {i}: no label in column {self.label!r}; fill it or drop the row"
            for j, cell in enumerate(row):
                if j != place and (fault := _fault(cell)):
                    yield f"row {i}, column {self.header[j]!r}: {fault}"


def _check_header(header: Sequence[str], label: str, path: Path) -> None:
    """Refuse a table without its column of labels, or with one that nobody named."""
    if len(header) == 1 and (other := next((sign for sign in ";\t|" if sign in header[0]), None)):
        raise InputError(f"{path}: cells are separated by {other!r}; expected commas")
    if header and label not in header and not any(map(_fault, header)):
        raise InputError(
            f"{path}: the first row holds numbers alone; expected the names of the columns above them, and that of the "
            "labels as data.label=COLUMN"
        )
    if label not in header:
        raise InputError(f"{path} has no label column {label!r}{nearest(label, header)}; name it by data.label=COLUMN")
    if "" in header:
        raise InputError(
            f"{path}: column {header.index('') + 1} has no name; a row number would count as a feature: name it, or "
            "drop it (pandas: to_csv(index=False))"
        )


def _fault(cell: str) -> str:
    """Why a cell is no number; "" where it is one."""
    try:
        return "" if math.isfinite(float(cell)) else f"{cell.strip()!r} is not finite; fill it or drop the row"
    except ValueError:
        words = f"{cell!r} is not a number; write it as one, or drop the column"
        return words if cell.strip() else "no value; fill it or drop the row"


def _finite(x: npt.NDArray[np.generic], path: Path, name: str) -> Values:
    """The features as float64, of which every one is a number."""
    try:
        values = np.ascontiguousarray(x, dtype=np.float64)
    except ValueError as error:
        raise InputError(f"{path}: {name} is not of numbers ({error})") from error
    if values.ndim != 2 or not values.size:
        raise InputError(f"{path}: features have shape {values.shape}; expected rows x features, neither empty")
    broken = np.flatnonzero(~np.isfinite(values).all(1))
    if len(broken):
        part = "" if name == "x" else f" of {name}"
        raise InputError(
            f"{path}: row {broken[0] + 1}{part} holds a value that is not finite ({len(broken)} such rows); "
            "fill or drop it"
        )
    return values


def _ids(arrays: Mapping[str, npt.NDArray[np.generic]], part: str) -> tuple[str, ...]:
    """What each row of a part is called: by its place in the file where that was cut, else by its place in the part."""
    if f"rows_{part}" in arrays:
        return tuple(f"row {row}" for row in arrays[f"rows_{part}"].tolist())
    return tuple(f"{part}/{i}" for i in range(len(arrays[f"x_{part}"])))


def _split(
    x: Values, codes: npt.NDArray[np.intp], class_names: tuple[str, ...], ids: tuple[str, ...], path: Path
) -> Split:
    if len(x) != len(codes):
        raise InputError(f"{path}: {len(x)} {ids[0].partition('/')[0]} rows but {len(codes)} labels")
    return Split(
        inputs=torch.from_numpy(x),
        labels=torch.from_numpy(codes).long(),
        names=ids,
        sizes=torch.tensor([1, x.shape[1]]).expand(len(x), 2),
        class_names=class_names,
    )
