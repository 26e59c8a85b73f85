"""The sets that are arrays: digits, MNIST's IDX files, tables."""

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from robustmetric.data.digits import Digits, DigitsTable
from robustmetric.data.mnist import Fashion, Mnist
from robustmetric.data.tabular import Sheet, Tabular
from robustmetric.errors import InputError


def test_digits_are_real_images_of_disjoint_classes() -> None:
    dataset = Digits().load()
    assert (dataset.train.n, dataset.queries.n) == (901, 896)
    assert dataset.train.class_names == tuple("01234") and dataset.queries.class_names == tuple("56789")
    assert dataset.train.shape == (1, 8, 8) and dataset.train.inputs.dtype == torch.uint8
    assert dataset.train.inputs.max() == 255
    # Levels 0..16 become round(level * 255 / 16): level 5 is 80 (79.7).
    assert set(dataset.train.inputs.unique().tolist()) == {round(v * 255 / 16) for v in range(17)}
    assert dataset.train.names[0] == "digits/0000" and dataset.train.labels[:5].tolist() == [0, 1, 2, 3, 4]


def test_digits_hold_training_classes_out_on_request() -> None:
    held = Digits(validation=0.4).load()
    # 0.4 of the five training classes: two are searched, three train; 5-9 play no part.
    assert len(held.queries.class_names) == 2 and len(held.train.class_names) == 3
    assert sorted(held.train.class_names + held.queries.class_names) == list("01234")
    assert held.train.n + held.queries.n == 901 and held.gallery is None
    assert Digits(validation=0.4).load().queries.class_names == held.queries.class_names


def test_closed_digits_have_all_classes_in_both_parts_and_no_image_twice() -> None:
    closed, table = Digits(closed=True).load(), DigitsTable().load()
    assert (closed.train.n, closed.queries.n) == (1257, 540) and closed.gallery is None
    assert closed.train.class_names == closed.queries.class_names == tuple("0123456789")
    train, test = (torch.bincount(split.labels) for split in (closed.train, closed.queries))
    assert ((test - 0.3 * (train + test)).abs() < 1).all()
    assert len({*closed.train.names, *closed.queries.names}) == 1797
    # The same cut as the table's, as images of bytes.
    assert closed.train.names == table.train.names and closed.train.shape == (1, 8, 8)
    levels = (closed.queries.inputs.flatten(1) / 255 * 16).round() / 16
    torch.testing.assert_close(levels, table.queries.inputs)


@pytest.mark.parametrize("share", [1.0, -0.1])
def test_a_validation_share_that_is_none_is_refused(share: float) -> None:
    for make in (Digits, Mnist, Fashion, lambda validation: Tabular("t.npz", validation=validation)):
        with pytest.raises(InputError, match="not a share of the classes"):
            make(validation=share)


def idx(path: Path, values: np.ndarray, packed: bool) -> None:
    content = struct.pack(f">i{values.ndim}i", 0x0800 + values.ndim, *values.shape) + values.tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    if packed:
        path.with_name(path.name + ".gz").write_bytes(gzip.compress(content))
    else:
        path.write_bytes(content)


def mnist(folder: Path, packed: bool = True) -> np.ndarray:
    images = np.random.default_rng(0).integers(0, 256, (5, 28, 28), np.uint8)
    for part in ("train", "t10k"):
        idx(folder / f"{part}-images-idx3-ubyte", images, packed)
        idx(folder / f"{part}-labels-idx1-ubyte", np.array([3, 1, 4, 1, 5], np.uint8), packed)
    return images


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("folder", ["", "mnist", "MNIST/raw"])
def test_idx_files_are_found_and_read(tmp_path: Path, packed: bool, folder: str) -> None:
    images = mnist(tmp_path / folder, packed)
    dataset = Mnist(str(tmp_path)).load()
    assert (dataset.train.inputs[:, 0].numpy() == images).all()
    assert dataset.queries.labels.tolist() == [3, 1, 4, 1, 5]
    assert dataset.train.class_names == dataset.queries.class_names == tuple("0123456789")


def test_fashion_has_its_own_folder_and_class_names(tmp_path: Path) -> None:
    mnist(tmp_path / "fashion-mnist")
    assert Fashion(str(tmp_path)).load().train.class_names[9] == "Ankle boot"
    assert Mnist(str(tmp_path), variant="fashion").load().name == "fashion"
    with pytest.raises(InputError, match="holds no mnist data; expected train-images-idx3-ubyte"):
        Mnist(str(tmp_path)).load()


def test_idx_files_hold_training_classes_out_on_request(tmp_path: Path) -> None:
    mnist(tmp_path / "mnist")
    mnist(tmp_path / "fashion")
    for held in (Mnist(str(tmp_path), validation=0.3).load(), Fashion(str(tmp_path), validation=0.3).load()):
        # Three of the ten classes are searched, seven train.
        assert (len(held.queries.class_names), len(held.train.class_names)) == (3, 7)
        assert held.train.n and held.queries.n
        assert sorted(held.train.names + held.queries.names) == [f"train/{i:05d}" for i in range(5)]
        assert not set(held.train.class_names) & set(held.queries.class_names)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("train-images-idx3-ubyte.gz", b"\x1f\x8b broken", "cannot be read"),
        ("train-images-idx3-ubyte.gz", gzip.compress(b"\x00\x00\x08\x03"), "is no IDX file of bytes with 3 axes"),
        ("t10k-labels-idx1-ubyte.gz", gzip.compress(b"\0\0\x08\1\0\0\0\x09123"), "holds 3 values, its header says 9"),
        ("t10k-labels-idx1-ubyte.gz", gzip.compress(b"\0\0\x08\1\0\0\0\3\1\2\3"), "5 t10k images but 3 labels"),
        ("train-labels-idx1-ubyte.gz", gzip.compress(b"\0\0\x08\1\0\0\0\5\1\2\3\4\x0b"), "label 11 is not one"),
    ],
    ids=["no gzip", "axes", "values", "labels", "class"],  # bytes of a gzip hold the time, and an id must not
)
def test_broken_idx_files_are_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    mnist(tmp_path)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match=message):
        Mnist(str(tmp_path)).load()


def test_an_idx_file_that_is_missing_is_named(tmp_path: Path) -> None:
    mnist(tmp_path)
    (tmp_path / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(InputError, match="lacks t10k-labels-idx1-ubyte"):
        Mnist(str(tmp_path)).load()


def table(path: Path, **arrays: np.ndarray) -> str:
    np.savez(path, **arrays)
    return str(path)


def test_a_split_table_keeps_its_rows_and_shares_its_classes(tmp_path: Path) -> None:
    file = table(
        tmp_path / "t.npz",
        x_train=np.array([[0, 5], [2, 5], [4, 5]], np.uint8),
        y_train=np.array([6, 1, 6]),
        x_test=np.array([[1, 5], [8, 6]], np.uint8),
        y_test=np.array([1, 10]),
    )
    dataset = Tabular(file).load()
    assert dataset.train.inputs.tolist() == [[0, 5], [2, 5], [4, 5]] and dataset.train.inputs.dtype == torch.float64
    assert dataset.train.class_names == dataset.queries.class_names == ("1", "6", "10")  # by number, not by spelling
    assert dataset.train.labels.tolist() == [1, 0, 1] and dataset.queries.labels.tolist() == [0, 2]
    # Scaled by the training range 0..4; the constant column becomes 0 on what is trained on.
    scaled = Tabular(file, scale=True).load()
    assert scaled.train.inputs.tolist() == [[0, 0], [0.5, 0], [1, 0]]
    assert scaled.queries.inputs.tolist() == [[0.25, 0], [2, 1]]


def test_a_table_holds_training_classes_out_on_request(tmp_path: Path) -> None:
    # Class 9 is in the test part only: it can be neither trained on nor held out.
    file = table(
        tmp_path / "t.npz",
        x_train=np.arange(8.0).reshape(8, 1),
        y_train=np.array([0, 1, 2, 3, 0, 1, 2, 3]),
        x_test=np.array([[9.0]]),
        y_test=np.array([9]),
    )
    held = Tabular(file, validation=0.25).load()
    assert (held.train.n, held.queries.n) == (6, 2)
    assert sorted(held.train.class_names + held.queries.class_names) == list("0123")
    assert sorted(held.train.names + held.queries.names) == [f"train/{i}" for i in range(8)]


def test_an_unsplit_table_is_cut_by_its_seed(tmp_path: Path) -> None:
    file = table(tmp_path / "t.npz", x=np.arange(20.0).reshape(20, 1), y=np.arange(20) % 2)
    dataset = Tabular(file, test_share=0.25).load()
    train, test = dataset.train.inputs.flatten().tolist(), dataset.queries.inputs.flatten().tolist()
    assert len(train) == 15 and sorted(train + test) == list(range(20)) and train == sorted(train)
    assert dataset.train.labels.tolist() == [int(v) % 2 for v in train]
    assert Tabular(file, test_share=0.25).load().train.inputs.flatten().tolist() == train
    assert Tabular(file, test_share=0.25, seed=1).load().train.inputs.flatten().tolist() != train


def test_a_csv_has_one_column_of_labels(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("height,kind,width\n1,oak,2\n3,elm,4\n5,oak,6\n7,elm,8\n")
    dataset = Tabular(str(path), label="kind").load()
    rows = torch.cat([dataset.train.inputs, dataset.queries.inputs])
    assert sorted(rows.tolist()) == [[1, 2], [3, 4], [5, 6], [7, 8]]
    assert dataset.train.class_names == ("elm", "oak")
    kinds = [dataset.train.class_names[i] for i in dataset.train.labels]
    assert kinds == ["oak" if row[0] in (1, 5) else "elm" for row in dataset.train.inputs.tolist()]
    with pytest.raises(InputError, match=r"has no label column 'kinds'; did you mean 'kind'\? .* data.label=COLUMN"):
        Tabular(str(path), label="kinds").load()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("label,x\na,1\nb\n", "row 2: 1 cells under 2 columns"),
        ("label,x\na,1\nb,tall\n", "row 2, column 'x': 'tall' is not a number"),
        ("label,x,y\na,1,2\nb,3,4\nb,5,\n", "row 3, column 'y': no value; fill it or drop the row"),
        ("label,x\na,1\n,2\n", "row 2: no label in column 'label'"),
        ("label;x\na;1\nb;2\n", "cells are separated by ';'; expected commas"),
        (",label,x\n0,a,1\n1,b,2\n", r"column 1 has no name; .*index=False"),
        ("label,x\n" + "a,1\nb,2\n" * 9 + "b,nan\na,3\n", "row 19, column 'x': 'nan' is not finite; fill it"),
        ("1.5,0,2\n3,1,4\n", r"t\.csv: the first row holds numbers alone; expected the names of the columns"),
        ("", "has no label column"),
        ("label,x\na,1\n", "cannot be cut"),
    ],
)
def test_bad_cells_are_said(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        Tabular(str(tmp_path / "t.csv")).load()


def test_a_sheet_names_every_fault(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("label,x,y\na,1,\nb,tall,3\n,1,2\na,1\nb,1,2\n")
    assert list(Sheet.read(tmp_path / "t.csv", "label").faults()) == [
        "row 1, column 'y': no value; fill it or drop the row",
        "row 2, column 'x': 'tall' is not a number; write it as one, or drop the column",
        "row 3: no label in column 'label'; fill it or drop the row",
        "row 4: 2 cells under 3 columns",
    ]


def test_a_table_that_is_no_text_is_said(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes("label,größe\na,1\nb,2\n".encode("latin-1"))
    with pytest.raises(InputError, match=r"t\.csv cannot be read as CSV .*; expected a \.npz with"):
        Tabular(str(tmp_path / "t.csv")).load()


def test_bad_tables_are_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"does not exist; expected a \.npz with x_train"):
        Tabular(str(tmp_path / "none.npz")).load()
    (tmp_path / "t.npz").write_bytes(b"no")
    with pytest.raises(InputError, match="cannot be read"):
        Tabular(str(tmp_path / "t.npz")).load()
    with pytest.raises(InputError, match="holds a; expected"):
        Tabular(table(tmp_path / "t.npz", a=np.zeros(3))).load()
    x, y = np.zeros((3, 2)), np.zeros(3)
    with pytest.raises(InputError, match="2 features to train on, 3 to test"):
        Tabular(table(tmp_path / "t.npz", x_train=x, y_train=y, x_test=np.zeros((3, 3)), y_test=y)).load()
    with pytest.raises(InputError, match="3 test rows but 2 labels"):
        Tabular(table(tmp_path / "t.npz", x_train=x, y_train=y, x_test=x, y_test=y[:2])).load()
    with pytest.raises(InputError, match="expected rows x features"):
        Tabular(table(tmp_path / "t.npz", x_train=y, y_train=y, x_test=y, y_test=y)).load()
    with pytest.raises(InputError, match="test_share 1"):
        Tabular("t.npz", test_share=1.0)
    with pytest.raises(InputError, match=r"cannot be read .* save words by y\.astype\(str\)"):
        Tabular(table(tmp_path / "t.npz", x=x, y=np.array(["a", "b", "a"], dtype=object))).load()
    with pytest.raises(InputError, match="x is not of numbers"):
        Tabular(table(tmp_path / "t.npz", x=np.array([["1 cm"], ["2 cm"]]), y=y[:2])).load()
    broken = np.array([[0.0], [np.nan]])
    with pytest.raises(InputError, match="row 2 of x_test holds a value that is not finite"):
        Tabular(table(tmp_path / "t.npz", x_train=broken[:1], y_train=y[:1], x_test=broken, y_test=y[:2])).load()


def test_a_table_that_is_in_neither_folder_names_both(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROBUSTMETRIC_DATA", str(tmp_path))
    with pytest.raises(InputError, match=rf"^mine\.csv is neither in this folder nor in {tmp_path}; expected"):
        Tabular("mine.csv").load()


def test_a_table_that_is_not_there_is_named_where_no_data_folder_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ROBUSTMETRIC_DATA", raising=False)
    with pytest.raises(InputError, match=r"^mine\.csv does not exist \(ROBUSTMETRIC_DATA, .* is not set\); expected"):
        Tabular("mine.csv").load()
