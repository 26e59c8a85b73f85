"""Photographs that lie on their side in the file are turned in somebody's own data, and in no published set."""

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from robustmetric.data.base import Split
from robustmetric.data.cub import Cub
from robustmetric.data.folder import Folder
from robustmetric.data.listing import ImageFiles
from robustmetric.data.looks import looks
from robustmetric.data.manifest import Manifest
from robustmetric.jobs.data_check import check

CLASSES = ("a", "b", "c", "d")


def photograph(path: Path, orientation: int) -> None:
    """Dark above and bright below as it is seen; kept as a camera does that was held on its side."""
    path.parent.mkdir(parents=True, exist_ok=True)
    seen = np.repeat(np.repeat(np.array([[[0] * 3], [[255] * 3]], np.uint8), 8, 0), 8, 1)
    note = Image.Exif()
    note[0x0112] = orientation
    # 6: to be turned clockwise; so it is stored turned the other way.
    stored = Image.fromarray(seen).rotate(90, expand=True) if orientation == 6 else Image.fromarray(seen)
    stored.save(path, exif=note)


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    for name in CLASSES:
        photograph(tmp_path / "photos" / name / "0.jpg", 1)
        photograph(tmp_path / "photos" / name / "1.jpg", 6)
    return tmp_path / "photos"


def folder(photographs: Path) -> Folder:
    return Folder(str(photographs), size=8)


def zipped(photographs: Path) -> Folder:
    shutil.make_archive(str(photographs), "zip", photographs)
    return Folder(f"{photographs}.zip", size=8)


def parted(photographs: Path) -> Folder:
    for part in ("train", "test", "gallery"):
        shutil.copytree(photographs, photographs.parent / "parted" / part)
    return Folder(str(photographs.parent / "parted"), size=8)


def manifest(photographs: Path) -> Manifest:
    parts = zip(CLASSES, ("train", "test") * 2, strict=True)
    rows = [f"{name}/{i}.jpg,{name},{part}" for name, part in parts for i in (0, 1)]
    (photographs / "list.csv").write_text("\n".join(["path,label,split", *rows]))
    return Manifest(str(photographs / "list.csv"), size=8)


def is_upright(split: Split) -> list[bool]:
    """Of each image, whether it is dark above and bright below."""
    rows = split.inputs.float().mean(dim=(1, 3))
    return ((rows[:, 0] < 50) & (rows[:, -1] > 200)).tolist()


@pytest.mark.parametrize("source", [folder, zipped, parted, manifest])
def test_photographs_of_ones_own_are_turned_as_their_camera_noted(
    source: Callable[[Path], ImageFiles], photographs: Path
) -> None:
    dataset = source(photographs).load()
    parts = [part for part in (dataset.train, dataset.queries, dataset.gallery) if part is not None]
    assert len(parts) == (3 if source is parted else 2)
    assert all(is_upright(part) == [True] * part.n for part in parts)


def test_a_published_set_is_taken_as_it_is_stored(tmp_path: Path) -> None:
    for number in (1, 2, 101, 102):
        for i, orientation in enumerate((1, 6)):
            photograph(tmp_path / "images" / f"{number:03}.Bird" / f"{i}.jpg", orientation)
    dataset = Cub(root=str(tmp_path), size=8).load()
    assert is_upright(dataset.train) == is_upright(dataset.queries) == [True, False] * 2


def test_a_check_of_data_sees_them_as_they_are_attacked(photographs: Path) -> None:
    says = [finding.says for finding in check(str(photographs)).findings]
    assert "turned as their camera noted (EXIF): 4 of 8" in says
    tree = folder(photographs).plan().tree
    stored = list(looks(tree, ["a/0.jpg", "a/1.jpg"]))
    seen = list(looks(tree, ["a/0.jpg", "a/1.jpg"], upright=True))
    assert [one and one.is_turned for one in seen] == [False, True]
    assert [one and one.is_turned for one in stored] == [False, False]
    assert (seen[1] and seen[1].digest) != (stored[1] and stored[1].digest)
