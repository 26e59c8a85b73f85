import shutil
import zipfile
from pathlib import Path

import pytest

from conftest import Paint
from robustmetric.data.folder import Folder, top_folder
from robustmetric.errors import InputError


def classes(root: Path, paint: Paint, names: str, each: int = 2) -> None:
    for c, name in enumerate(names):
        for i in range(each):
            paint(root / name / f"{i}.png", shade=10 * c + i)


def test_the_last_classes_by_name_are_retrieved(tmp_path: Path, paint: Paint) -> None:
    classes(tmp_path, paint, "dcba")
    dataset = Folder(str(tmp_path), size=8, test_share=0.25).load()
    assert dataset.train.class_names == ("a", "b", "c") and dataset.queries.class_names == ("d",)


def test_a_share_of_one_keeps_every_class_for_retrieval(tmp_path: Path, paint: Paint) -> None:
    classes(tmp_path, paint, "ab")
    dataset = Folder(str(tmp_path), size=8, test_share=1.0).load()
    assert dataset.queries.class_names == ("a", "b") and dataset.queries.n == 4
    assert dataset.train.n == 0 and dataset.train.shape == (3, 8, 8)


def test_train_and_test_folders_are_taken_as_they_are(tmp_path: Path, paint: Paint) -> None:
    classes(tmp_path / "train", paint, "abc")
    classes(tmp_path / "test", paint, "xy")
    dataset = Folder(str(tmp_path), size=8).load()
    assert dataset.train.class_names == ("a", "b", "c") and dataset.queries.class_names == ("x", "y")
    assert dataset.gallery is None


def test_a_gallery_folder_is_searched_under_the_same_labels(tmp_path: Path, paint: Paint) -> None:
    classes(tmp_path / "train", paint, "abc")
    classes(tmp_path / "test", paint, "y")
    classes(tmp_path / "gallery", paint, "xyz")
    dataset = Folder(str(tmp_path), size=8).load()
    assert dataset.gallery is not None
    assert dataset.queries.class_names == dataset.gallery.class_names
    names = [dataset.gallery.class_names[i] for i in dataset.gallery.labels.tolist()]
    assert names == ["x", "x", "y", "y", "z", "z"]
    assert dataset.unmatched == 0


def test_a_zip_with_a_top_folder_reads_like_the_folder(tmp_path: Path, paint: Paint) -> None:
    classes(tmp_path / "plain" / "mine", paint, "abcd")
    shutil.make_archive(str(tmp_path / "mine"), "zip", tmp_path / "plain")
    zipped = Folder(str(tmp_path / "mine.zip"), size=8).load()
    plain = Folder(str(tmp_path / "plain"), size=8).load()
    assert zipped.train.class_names == plain.train.class_names == ("a", "b")
    assert (zipped.queries.inputs == plain.queries.inputs).all()


@pytest.mark.parametrize(
    ("names", "top"),
    [
        (["a/1.jpg", "b/1.jpg"], ""),
        (["top/a/1.jpg", "top/b/1.jpg"], "top/"),
        (["x/y/a/1.jpg", "x/y/b/1.jpg"], "x/y/"),
        (["a/1.jpg", "a/2.jpg"], ""),
    ],
)
def test_the_top_folder_is_what_all_class_folders_lie_in(names: list[str], top: str) -> None:
    assert top_folder(names) == top


def test_a_missing_or_empty_folder_says_what_was_expected(tmp_path: Path, paint: Paint) -> None:
    with pytest.raises(InputError, match="none does not exist; expected one sub-folder of images per class"):
        Folder(str(tmp_path / "none")).load()
    with pytest.raises(InputError, match="holds no images; expected one sub-folder of images per class"):
        Folder(str(tmp_path)).load()
    paint(tmp_path / "stray.png")
    with pytest.raises(InputError, match="images but no folder of a class"):
        Folder(str(tmp_path)).load()


def test_a_class_with_one_image_is_refused_by_name(tmp_path: Path, paint: Paint) -> None:
    classes(tmp_path, paint, "abcd")
    (tmp_path / "b" / "1.png").unlink()
    with pytest.raises(InputError, match="training class 'b' has 1 image"):
        Folder(str(tmp_path), size=8).load()


def test_a_folder_must_be_given() -> None:
    with pytest.raises(TypeError, match="root"):
        Folder()  # type: ignore[call-arg]  # what a recipe without root: does


def test_too_few_classes_or_a_bad_share_are_refused(tmp_path: Path, paint: Paint) -> None:
    classes(tmp_path, paint, "a")
    with pytest.raises(InputError, match="1 class folders cannot be cut"):
        Folder(str(tmp_path)).load()
    with pytest.raises(InputError, match="test_share 0"):
        Folder(str(tmp_path), test_share=0.0)


def test_a_zip_member_that_is_damaged_is_named(tmp_path: Path, paint: Paint) -> None:
    classes(tmp_path / "plain", paint, "abcd")
    archive = Path(shutil.make_archive(str(tmp_path / "mine"), "zip", tmp_path / "plain"))
    with zipfile.ZipFile(archive) as opened:
        entry = opened.getinfo("a/0.png")
        middle = entry.header_offset + 30 + len(entry.filename) + entry.compress_size // 2
    content = bytearray(archive.read_bytes())
    content[middle] ^= 0xFF
    archive.write_bytes(content)
    with pytest.raises(InputError, match=r"a/0\.png cannot be read"):
        Folder(str(archive), size=8).load()
