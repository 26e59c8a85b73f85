import logging
from pathlib import Path

import pytest

from conftest import Paint
from robustmetric.data.manifest import Manifest, is_manifest
from robustmetric.errors import InputError


@pytest.fixture
def images(tmp_path: Path, paint: Paint) -> Path:
    for i in range(8):
        paint(tmp_path / "pictures" / f"{i}.png", shade=10 * i)
    return tmp_path


def write(root: Path, text: str) -> str:
    path = root / "list.csv"
    path.write_text(text)
    return str(path)


TRAIN = "pictures/0.png,cat,train\npictures/1.png,cat,train\npictures/2.png,dog,train\npictures/3.png,dog,train\n"


def test_rows_go_to_the_split_they_name(images: Path) -> None:
    text = "path,label,split\n" + TRAIN + "pictures/5.png,fox,test\npictures/4.png,fox,Test\n"
    dataset = Manifest(write(images, text), size=8).load()
    assert dataset.name == "list"
    assert dataset.train.class_names == ("cat", "dog") and dataset.train.labels.tolist() == [0, 0, 1, 1]
    assert dataset.queries.inputs[:, 0, 0, 0].tolist() == [50, 40]
    assert dataset.gallery is None and dataset.queries.cameras is None


def test_validation_rows_are_searched_only_when_asked_for(images: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = "path,label,split\n" + TRAIN + "pictures/4.png,fox,test\npictures/5.png,fox,test\n"
    text += "pictures/6.png,owl,val\npictures/7.png,owl,validation\n"
    file = write(images, text)
    with caplog.at_level(logging.WARNING):
        dataset = Manifest(file, size=8).load()
    assert dataset.queries.names == ("pictures/4.png", "pictures/5.png") and dataset.train.n == 4
    assert "2 rows of split 'validation' are left out" in caplog.text
    held = Manifest(file, size=8, use_validation=True).load()
    assert held.queries.names == ("pictures/6.png", "pictures/7.png") and held.queries.class_names == ("owl",)
    assert held.train.n == 4 and held.gallery is None


def test_a_manifest_of_the_other_part_only_says_how_to_use_it(images: Path) -> None:
    file = write(images, "path,label,split\n" + TRAIN + "pictures/4.png,fox,val\n")
    with pytest.raises(InputError, match="no row of split 'test', but 1 of 'validation'; set use_validation: true"):
        Manifest(file, size=8).load()


def test_paths_may_be_relative_to_another_root(images: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("lists")
    text = "label,path,split\nfox,4.png,test\nfox,5.png,test\n"
    dataset = Manifest(write(elsewhere, text), root=str(images / "pictures"), size=8).load()
    assert dataset.queries.names == ("4.png", "5.png")
    assert dataset.train.n == 0


def test_queries_and_gallery_are_told_apart(images: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = "path,label,split,is_query,is_gallery,camera\n" + TRAIN.replace("train", "train,,,0")
    text += "pictures/4.png,fox,test,True,False,1\npictures/5.png,fox,test,0,1,2\npictures/6.png,owl,test,no,yes,3\n"
    with caplog.at_level(logging.WARNING):
        dataset = Manifest(write(images, text), size=8).load()
    assert dataset.gallery is not None
    assert dataset.queries.names == ("pictures/4.png",) and dataset.gallery.names == (
        "pictures/5.png",
        "pictures/6.png",
    )
    assert dataset.queries.class_names == dataset.gallery.class_names == ("fox", "owl")
    assert dataset.gallery.labels.tolist() == [0, 1]
    assert dataset.gallery.cameras is not None and dataset.gallery.cameras.tolist() == [2, 3]
    assert "same camera" in caplog.text


def test_rows_that_are_all_query_and_gallery_search_one_another(images: Path) -> None:
    text = "path,label,split,is_query,is_gallery\npictures/4.png,fox,test,1,1\npictures/5.png,fox,test,1,1\n"
    assert Manifest(write(images, text), size=8).load().gallery is None


def test_a_query_that_would_find_itself_is_refused(images: Path) -> None:
    text = "path,label,split,is_query,is_gallery\npictures/4.png,fox,test,1,1\npictures/5.png,fox,test,0,1\n"
    with pytest.raises(InputError, match=r"line 2: 'pictures/4\.png' is query and gallery while others are not"):
        Manifest(write(images, text), size=8).load()


@pytest.mark.parametrize("missing", ["path", "label", "split"])
def test_a_missing_column_is_named(images: Path, missing: str) -> None:
    columns = [column for column in ("path", "label", "split") if column != missing]
    with pytest.raises(InputError, match=f"has no column '{missing}' .* needed are path, label, split"):
        Manifest(write(images, ",".join(columns) + "\nx,y\n")).load()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,label,split\npictures/0.png,cat,dev\n", "line 2: split 'dev' is not known"),
        ("path,label,split,is_query\npictures/0.png,cat,test,maybe\n", "line 2: is_query 'maybe' is neither"),
        ("path,label,split,camera\npictures/0.png,cat,test,left\n", "a camera is not a whole number"),
        ("path,label,split\nnone.png,cat,test\n", "no image of the queries part of list is there"),
        (
            "path,label,split\n" + TRAIN.replace("1.png,cat", "1.png,cow"),
            "training class 'cat'|no image of the queries",
        ),
    ],
)
def test_bad_rows_are_named(images: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        Manifest(write(images, text), size=8).load()


def test_a_missing_image_is_counted_and_said(images: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = (
        "path,label,split\n" + TRAIN + "pictures/4.png,fox,test\npictures/5.png,fox,test\npictures/gone.png,fox,test\n"
    )
    with caplog.at_level(logging.WARNING):
        dataset = Manifest(write(images, text), size=8).load()
    assert dataset.skipped == ("pictures/gone.png",) and dataset.queries.n == 2
    assert "1 listed files missing" in caplog.text


def test_a_missing_manifest_or_root_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read as CSV"):
        Manifest(str(tmp_path / "none.csv")).load()
    with pytest.raises(InputError, match="does not exist"):
        Manifest(write(tmp_path, "path,label,split\na,b,test\n"), root=str(tmp_path / "none")).load()


def test_columns_that_differ_in_capitals_alone_are_refused(images: Path) -> None:
    file = write(images, "path,label,split,Label\npictures/5.png,3,train,sedan\n")
    with pytest.raises(InputError, match="has two columns 'label', which capitals do not tell apart; rename"):
        Manifest(file, size=8).load()


def test_columns_may_begin_with_capitals(images: Path) -> None:
    rows = TRAIN + "pictures/5.png,fox,test\npictures/4.png,fox,test\n"
    file = write(images, "Path, Label,SPLIT\n" + rows)
    assert is_manifest(Path(file))
    dataset = Manifest(file, size=8).load()
    assert dataset.queries.names == ("pictures/5.png", "pictures/4.png")
    assert dataset.train.class_names == ("cat", "dog")
