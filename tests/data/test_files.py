import os
import zipfile
from pathlib import Path

import pytest

from robustmetric.data.files import FolderTree, ZipTree, find_tree, open_tree
from robustmetric.errors import InputError


def pack(path: Path, content: dict[str, str]) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in content.items():
            archive.writestr(name, text)
    return path


def test_a_folder_is_listed_sorted_without_hidden_files(tmp_path: Path) -> None:
    for name in ("b/2.jpg", "a/1.txt", ".cache/x.jpg", "a/.hidden"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    tree = open_tree([tmp_path])
    assert tree.names == ("a/1.txt", "b/2.jpg")
    assert tree.read("b/2.jpg") == b"b/2.jpg"
    assert tree.images() == ["b/2.jpg"]


def test_a_link_that_leads_back_up_is_walked_once(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "1.jpg").write_text("")
    os.symlink(tmp_path, tmp_path / "a" / "up")
    assert FolderTree(tmp_path).names == ("a/1.jpg",)


def test_a_linked_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "disk" / "a").mkdir(parents=True)
    (tmp_path / "disk" / "a" / "1.jpg").write_text("")
    (tmp_path / "data").mkdir()
    os.symlink(tmp_path / "disk", tmp_path / "data" / "images")
    assert FolderTree(tmp_path / "data").names == ("images/a/1.jpg",)


def test_several_zips_are_one_tree_in_stored_order(tmp_path: Path) -> None:
    first = pack(
        tmp_path / "1.zip", {"top/b.jpg": "B", "top/a.jpg": "A", "__MACOSX/top/a.jpg": "", "top/.DS_Store": ""}
    )
    second = pack(tmp_path / "2.zip", {"top/c.jpg": "C"})
    tree = open_tree([first, second])
    assert tree.names == ("top/b.jpg", "top/a.jpg", "top/c.jpg")
    assert tree.read("top/c.jpg") == b"C"
    assert tree.home == tmp_path


def test_a_stamp_changes_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_text("1")
    before = FolderTree(tmp_path).stamp("a.jpg")
    (tmp_path / "a.jpg").write_text("22")
    assert FolderTree(tmp_path).stamp("a.jpg") != before
    one = ZipTree([pack(tmp_path / "1.zip", {"a": "1"})]).stamp("a")
    assert ZipTree([pack(tmp_path / "1.zip", {"a": "2"})]).stamp("a") != one


def test_find_returns_the_file_nearest_the_top(tmp_path: Path) -> None:
    tree = ZipTree([pack(tmp_path / "1.zip", {"x/y/images.txt": "", "x/images.txt": "", "x/myimages.txt": ""})])
    assert tree.find("images.txt") == "x/images.txt"
    assert tree.find("none.txt") is None


def test_a_broken_zip_is_named(tmp_path: Path) -> None:
    (tmp_path / "bad.zip").write_text("not a zip")
    with pytest.raises(InputError, match=r"bad\.zip cannot be read as a zip"):
        open_tree([tmp_path / "bad.zip"])


def test_data_is_found_by_folder_by_zip_or_one_level_down(tmp_path: Path) -> None:
    def find(root: Path) -> Path:
        return find_tree(root, ("cub",), ("cub*.zip",), ("images",), "expected images/").home

    with pytest.raises(InputError, match="does not hold this data; expected images/"):
        find(tmp_path)
    with pytest.raises(InputError, match="does not exist; expected images/"):
        find(tmp_path / "none")
    archive = pack(tmp_path / "cub-1.zip", {"images/a.jpg": ""})
    assert find(tmp_path) == find(archive) == tmp_path
    (tmp_path / "cub" / "inner" / "images").mkdir(parents=True)
    archive.unlink()
    assert find(tmp_path) == tmp_path / "cub" / "inner"
    (tmp_path / "cub" / "images").mkdir()
    assert find(tmp_path) == find(tmp_path / "cub") == tmp_path / "cub"


def test_a_zip_is_looked_up_once_however_many_files_it_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pack(tmp_path / "1.zip", {f"top/{i}.jpg": "" for i in range(20)})
    asked: list[Path] = []
    resolve = Path.resolve
    monkeypatch.setattr(Path, "resolve", lambda path, strict=False: asked.append(path) or resolve(path, strict))
    assert len(ZipTree([tmp_path / "1.zip"]).names) == 20 and len(asked) <= 1


def test_what_is_hidden_is_told_by_every_part_of_a_name(tmp_path: Path) -> None:
    names = ("./a.jpg", "b/../c.jpg", "b/.d/e.jpg", "__MACOSX/f.jpg", "g.JPG", "h/i", "j.jpg/k.txt")
    tree = ZipTree([pack(tmp_path / "1.zip", dict.fromkeys(names, ""))])
    assert tree.names == ("./a.jpg", "g.JPG", "h/i", "j.jpg/k.txt")
    assert tree.images() == ["./a.jpg", "g.JPG"]
