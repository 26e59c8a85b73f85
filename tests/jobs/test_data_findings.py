"""What counts mean, by the words that programs know them by."""

from pathlib import Path

import pytest

from robustmetric.data.looks import Look
from robustmetric.jobs.data_findings import of_classes, of_folders, of_left_out, of_looks, of_neighbours, of_search


@pytest.mark.parametrize(
    ("queries", "gallery", "kinds"),
    [
        ("aabb", None, []),
        ("aab", None, [("unmatched", "look")]),
        ("ab", None, [("unsearchable", "mend")]),
        ("aa", None, [("unsearchable", "mend")]),
        ("ab", "abc", []),
        ("ab", "ac", [("unmatched", "look")]),
        ("ab", "cd", [("unmatched", "mend")]),
        ("ab", "aa", [("unsearchable", "mend")]),
    ],
)
def test_a_search_needs_two_classes_and_a_match(
    queries: str, gallery: str | None, kinds: list[tuple[str, str]]
) -> None:
    found = list(of_search(list(queries), None if gallery is None else list(gallery)))
    assert [(one.kind, one.weight) for one in found] == kinds


@pytest.mark.parametrize(
    ("train", "test", "kinds"),
    [
        ("ab", "cd", ["zero_shot"]),
        ("ab", "ba", ["closed_set"]),
        ("abc", "a", ["closed_set"]),
        ("ab", "bc", ["partly_shared"]),
        ("", "a", []),
    ],
)
def test_test_classes_are_new_known_or_partly_known(train: str, test: str, kinds: list[str]) -> None:
    assert [one.kind for one in of_classes(list(train), list(test))] == kinds


def test_an_image_is_small_below_a_quarter_of_the_side_it_is_squashed_to() -> None:
    # Of 256, a quarter is 64: 63 is small, 64 is not.
    found = list(of_looks(["a", "b"], [Look(b"", 63, 300, True), Look(b"", 64, 300, False)], side=256))
    assert [one.kind for one in found] == ["sizes", "grey", "small"] and found[-1].items == ("a",)
    assert found[0].says == "pixels, width x height: 300 x 63 to 300 x 64 (median 300 x 64), squashed to 256 x 256"
    assert found[1].says == "without colour: 1 of 2"


def test_images_that_lie_on_their_side_are_counted() -> None:
    found = list(of_looks(["a", "b"], [Look(b"", 64, 64, False, is_turned=True), Look(b"", 64, 64, False)], side=64))
    assert [one.says for one in found if one.kind == "turned"] == ["turned as their camera noted (EXIF): 1 of 2"]


def test_images_of_the_size_that_is_used_are_not_squashed() -> None:
    (found,) = of_looks(["a"], [Look(b"", 32, 32, False)], side=32)
    assert found.says == "pixels, width x height: all 32 x 32"
    assert not list(of_looks([], [], side=32))


@pytest.mark.parametrize(
    ("paths", "taken"),
    [
        (["train/a/1.png", "val/a/1.png"], ("train", "val")),
        (["Train/a/1.png", "Test/a/1.png"], ("Test", "Train")),
        (["train/1.png", "plane/1.png"], ()),  # pictures of trains
        (["plane/red/1.png", "ship/red/1.png"], ()),
    ],
)
def test_parts_that_are_taken_for_classes_are_noticed(paths: list[str], taken: tuple[str, ...]) -> None:
    found = list(of_folders(paths, [path.split("/")[0] for path in paths]))
    assert [one.items for one in found] == ([taken] if taken else [])


def test_photographs_that_nothing_reads_are_named_and_other_files_are_not() -> None:
    files = ["a/1.png", "b.png", "a/IMG.HEIC", "a/notes.txt", "Makefile"]
    astray, other = of_left_out(files, ["a/1.png", "b.png"], ["a/1.png"])
    assert (astray.items, other.items) == (("b.png",), ("a/IMG.HEIC",))


@pytest.mark.parametrize(
    ("folder", "others", "says"),
    [
        ("train", ["test"], "train/ is a part of the data, beside test/"),
        ("Train", ["VAL", "test", "birds"], "Train/ is a part of the data, beside VAL/, test/"),
        ("val", ["train"], "val/ is a part of the data, beside train/"),
        ("train", ["birds"], None),
        ("train", [], None),
        ("birds", ["train", "test"], None),
    ],
)
def test_a_part_is_known_by_its_name_and_those_beside_it(
    folder: str, others: list[str], says: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (folder, *others):
        (tmp_path / "my photos" / name).mkdir(parents=True)
    (tmp_path / "my photos" / "testing").write_text("a file, no folder")
    monkeypatch.chdir(tmp_path)
    found = list(of_neighbours(Path("my photos") / folder))
    assert [(one.says, one.weight) for one in found] == ([(says, "look")] if says else [])
    assert all(one.advice.endswith(": check 'my photos' instead") for one in found)
    monkeypatch.chdir(tmp_path / "my photos")
    assert [one.advice.endswith(": check . instead") for one in of_neighbours(Path(folder))] == [True] * len(found)
    monkeypatch.chdir(folder)
    assert all(one.advice.endswith(": check .. instead") for one in of_neighbours(Path()))
