import logging
import zipfile
from pathlib import Path

import pytest
import torch

from conftest import Paint
from robustmetric.data.files import FolderTree, ZipTree
from robustmetric.data.folder import Folder
from robustmetric.data.listing import Listing, class_folders, located
from robustmetric.errors import InputError


@pytest.fixture
def birds(tmp_path: Path, paint: Paint) -> Path:
    """Four classes of three images; shade 10 x class + image."""
    for c, name in enumerate(("crow", "dove", "eagle", "finch")):
        for i in range(3):
            paint(tmp_path / "birds" / name / f"{i}.png", shade=10 * c + i, size=(20, 10))
    return tmp_path / "birds"


def test_listed_paths_are_found_below_any_top_folder(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        for name in ("top/img/a/1.jpg", "top/img/a/3.jpg", "top/other/1.jpg"):
            archive.writestr(name, "")
    tree = ZipTree([tmp_path / "x.zip"])
    # a/2.jpg is missing, and does not keep the others from being found.
    assert located(tree, ["a/2.jpg", "a/1.jpg"]) == ["top/img/a/2.jpg", "top/img/a/1.jpg"]
    assert located(tree, ["none.jpg"]) == ["none.jpg"]


def test_class_folders_are_sorted_and_files_keep_their_order() -> None:
    names = ["t/b/2.jpg", "t/b/1.jpg", "t/a/9.jpg", "t/stray.jpg", "u/c/1.jpg"]
    assert class_folders(names, "t/") == [("t/a/9.jpg", "a"), ("t/b/2.jpg", "b"), ("t/b/1.jpg", "b")]


def test_a_listing_forgets_classes_left_without_files() -> None:
    listing = Listing(("1", "2", "3"), ("a", "b", "a"), ("b", "a"), (7, 8, 9))
    kept = listing.keep([0, 2])
    assert kept.class_names == ("a",)
    assert kept.cameras == (7, 9)


def test_labels_inputs_names_and_sizes_belong_together(birds: Path) -> None:
    dataset = Folder(str(birds), size=8).load()
    assert dataset.train.class_names == ("crow", "dove") and dataset.queries.class_names == ("eagle", "finch")
    assert dataset.train.labels.tolist() == dataset.queries.labels.tolist() == [0, 0, 0, 1, 1, 1]
    assert dataset.queries.inputs[:, 0, 0, 0].tolist() == [20, 21, 22, 30, 31, 32]
    assert dataset.queries.names[4] == "finch/1.png"
    assert dataset.queries.sizes.tolist() == [[10, 20]] * 6
    assert dataset.gallery is None and dataset.skipped == ()
    assert (birds / ".cache").is_dir()


def test_a_validation_part_replaces_the_test_classes(birds: Path) -> None:
    held = Folder(str(birds), size=8, test_share=0.25, validation=0.34).load()
    assert held.queries.classes == 1 and held.train.classes == 2
    assert set(held.train.class_names + held.queries.class_names) == {"crow", "dove", "eagle"}


def test_unreadable_files_are_skipped_counted_and_said(birds: Path, caplog: pytest.LogCaptureFixture) -> None:
    (birds / "dove" / "1.png").write_bytes(b"broken")
    with pytest.raises(InputError, match=r"dove/1\.png cannot be read as an image"):
        Folder(str(birds), size=8).load()
    with caplog.at_level(logging.WARNING):
        dataset = Folder(str(birds), size=8, skip_unreadable=True).load()
    assert dataset.skipped == ("dove/1.png",)
    assert dataset.train.inputs[:, 0, 0, 0].tolist() == [0, 1, 2, 10, 12]
    assert dataset.train.labels.tolist() == [0, 0, 0, 1, 1]
    assert "1 unreadable" in caplog.text and "dove/1.png" in caplog.text


def test_a_part_with_nothing_readable_is_refused(birds: Path) -> None:
    for i in range(3):
        (birds / "eagle" / f"{i}.png").write_bytes(b"")
        (birds / "finch" / f"{i}.png").write_bytes(b"")
    with pytest.raises(InputError, match="no image of the queries part of birds can be read"):
        Folder(str(birds), size=8, skip_unreadable=True).load()


def test_queries_without_a_match_are_said(birds: Path, caplog: pytest.LogCaptureFixture) -> None:
    (birds / "finch" / "0.png").unlink()
    (birds / "finch" / "1.png").unlink()
    with caplog.at_level(logging.WARNING):
        assert Folder(str(birds), size=8).load().unmatched == 1
    assert "1 queries have no match" in caplog.text


@pytest.mark.parametrize("settings", [{"size": 0}, {"validation": 1.0}, {"validation": -0.1}])
def test_settings_out_of_range_are_refused(birds: Path, settings: dict[str, float]) -> None:
    with pytest.raises(InputError, match=next(iter(settings))):
        Folder(str(birds), **settings)  # type: ignore[arg-type]  # one setting at a time


def test_loading_twice_gives_the_same(birds: Path) -> None:
    one, two = Folder(str(birds), size=8).load(), Folder(str(birds), size=8).load()
    assert torch.equal(one.train.inputs, two.train.inputs) and one.train.names == two.train.names
    assert FolderTree(birds).names == tuple(sorted((*one.train.names, *one.queries.names)))
