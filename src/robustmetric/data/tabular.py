"""Tables: feature rows with a label, from .npz or .csv; the same classes in both splits, as k-NN is used."""

import csv
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from robustmetric.data.base import Dataset, Split, check_validation, data_root, keep_classes, with_validation
from robustmetric.errors import InputError, nearest

Values = npt.NDArray[np.float32]
Classes = npt.NDArray[np.generic]
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
        """The dataset, in memory, as float32."""
        path = self._path()
        arrays = read_csv(path, self.label) if path.suffix == ".csv" else read_npz(path)
        if "x" in arrays:
            arrays = self._cut(arrays["x"], arrays["y"], path)
        x_train, x_test = _features(arrays["x_train"], path), _features(arrays["x_test"], path)
        if x_train.shape[1] != x_test.shape[1]:
            raise InputError(f"{path}: {x_train.shape[1]} features to train on, {x_test.shape[1]} to test")
        if self.scale:
            low, span = x_train.min(0), np.ptp(x_train, axis=0)
            span[span == 0] = 1  # a constant feature becomes 0
            x_train, x_test = (x_train - low) / span, (x_test - low) / span
        labels = self._joined(np.concatenate([arrays["y_train"], arrays["y_test"]]), path)
        class_names, codes = np.unique(labels, return_inverse=True)
        names = tuple(str(name) for name in class_names.tolist())
        train = _split(x_train, codes[: len(x_train)], names, "train", path)
        test = _split(x_test, codes[len(x_train) :], names, "test", path)
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

    def _path(self) -> Path:
        """The file as named, or as named under the data folder."""
        path = Path(self.file).expanduser()
        if not path.is_file() and not path.is_absolute():
            path = data_root(None) / self.file
        if not path.is_file():
            raise InputError(f"{path} does not exist; {EXPECTED}")
        return path

    def _cut(self, x: npt.NDArray[np.generic], y: Classes, path: Path) -> dict[str, npt.NDArray[np.generic]]:
        """A random cut that keeps the row order within each part."""
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(self.seed)).numpy()
        count = round(len(x) * (1 - self.test_share))
        if len(x) != len(y) or not 0 < count < len(x):
            raise InputError(
                f"{path}: {len(x)} rows with {len(y)} labels cannot be cut at test_share {self.test_share}"
            )
        train, test = np.sort(order[:count]), np.sort(order[count:])
        return {"x_train": x[train], "y_train": y[train], "x_test": x[test], "y_test": y[test]}


def read_npz(path: Path) -> dict[str, npt.NDArray[np.generic]]:
    """The arrays of a .npz; pickled objects are refused, they can run code."""
    try:
        with np.load(path, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path} cannot be read ({error}); {EXPECTED}") from error
    if not ({"x_train", "y_train", "x_test", "y_test"} <= arrays.keys() or {"x", "y"} <= arrays.keys()):
        raise InputError(f"{path} holds {', '.join(sorted(arrays)) or 'nothing'}; {EXPECTED}")
    return arrays


def read_csv(path: Path, label: str) -> dict[str, npt.NDArray[np.generic]]:
    """All columns but `label` as numbers."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        header, *rows = [row for row in csv.reader(file) if row] or [[]]
    if label not in header:
        raise InputError(f"{path} has no label column {label!r}{nearest(label, header)}; name it by data.label=COLUMN")
    place = header.index(label)
    short = next((i for i, row in enumerate(rows) if len(row) != len(header)), None)
    if short is not None:
        raise InputError(f"{path}, row {short + 1}: {len(rows[short])} cells under {len(header)} columns")
    try:
        x = np.array([[float(cell) for i, cell in enumerate(row) if i != place] for row in rows])
    except ValueError as error:
        raise InputError(f"{path}: a feature is not a number ({error})") from error
    return {"x": x, "y": np.array([row[place] for row in rows])}


def _features(x: npt.NDArray[np.generic], path: Path) -> Values:
    values = np.ascontiguousarray(x, dtype=np.float32)
    if values.ndim != 2 or not values.size:
        raise InputError(f"{path}: features have shape {values.shape}; expected rows x features, neither empty")
    broken = np.flatnonzero(~np.isfinite(values).all(1))
    if len(broken):
        raise InputError(
            f"{path}: row {broken[0] + 1} holds a value that is not finite ({len(broken)} such rows); fill or drop it"
        )
    return values


def _split(x: Values, codes: npt.NDArray[np.intp], class_names: tuple[str, ...], part: str, path: Path) -> Split:
    if len(x) != len(codes):
        raise InputError(f"{path}: {len(x)} {part} rows but {len(codes)} labels")
    return Split(
        inputs=torch.from_numpy(x),
        labels=torch.from_numpy(codes).long(),
        names=tuple(f"{part}/{i}" for i in range(len(x))),
        sizes=torch.tensor([1, x.shape[1]]).expand(len(x), 2),
        class_names=class_names,
    )
