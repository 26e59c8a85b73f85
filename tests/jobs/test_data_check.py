"""`robustmetric data check` on real small trees: what it says, the exit code, and that it goes on."""

import json
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from commands import Command
from robustmetric.jobs import data_check
from robustmetric.jobs.data_check import check

Pictures = Callable[..., Path]


@pytest.fixture
def photos(pictures: Pictures, tmp_path: Path) -> Path:
    """Three classes train, three others are searched."""
    pictures(tmp_path / "photos" / "train", classes=3, side=64)
    pictures(tmp_path / "photos" / "test", classes=3, side=64, first=3)
    return tmp_path / "photos"


def found(report: Any) -> dict[str, tuple[str, ...]]:
    """The items of findings that are more than facts."""
    return {one.kind: one.items for one in report.findings if one.weight != "fact"}


@pytest.mark.parametrize("has_gpu", [True, False])
def test_good_photographs_will_do_and_the_next_command_is_told(
    has_gpu: bool, photos: Path, command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: has_gpu)
    short = "" if has_gpu else " epochs=15 optimiser.rate=3e-5"
    why = "" if has_gpu else f"{short[1:]} is the short form, a fifth of the published length, as no GPU is here; "
    done = command("data", "check", "photos")
    assert (done.code, done.err) == (0, "")
    assert done.out.splitlines() == [
        "photos: a folder with train/ and test/",
        "train    9 images of 3 classes, each of 3",
        "queries  9 images of 3 classes, each of 3",
        "zero-shot: no class of test is in train",
        "pixels, width x height: all 64 x 64, squashed to 256 x 256",
        "verdict: this data will do",
        "next: robustmetric evaluate company.build ers_sketch224 --data photos --queries 32",
        f"next: robustmetric train cub/act data.name=folder data.root=photos 'model={{name: company.build}}'{short}",
        f"({why}your own model is named FILE.FUNCTION, as in company.build for `def build()` in ./company.py)",
    ]


def test_nothing_is_written(photos: Path) -> None:
    before = sorted(photos.parent.rglob("*"))
    check(str(photos))
    assert sorted(photos.parent.rglob("*")) == before


def test_unreadable_files_are_all_named_and_the_check_goes_on(photos: Path, command: Command) -> None:
    (photos / "train" / "class00" / "1.png").write_bytes(b"no image")
    broken = photos / "test" / "class03" / "2.png"
    broken.write_bytes(broken.read_bytes()[:-100])
    done = command("data", "check", "photos")
    assert done.code == 1
    assert "mend: files that cannot be read as images: 2; replace them, or leave them out with --skip-un" in done.out
    assert "    train/class00/1.png\n    test/class03/2.png\n" in done.out
    assert "train    8 images of 3 classes, of 2 to 3 (median 3)" in done.out
    assert done.out.splitlines()[-1] == "next: robustmetric data check photos --skip-unreadable"
    skipped = command("data", "check", "photos", "--skip-unreadable")
    assert skipped.code == 0 and "look: files that cannot be read as images, left out: 2" in skipped.out


def test_a_class_that_loses_its_pair_to_an_unreadable_file_is_told(photos: Path) -> None:
    for i in (1, 2):
        (photos / "train" / "class00" / f"{i}.png").write_bytes(b"no image")
    report = check(str(photos), skip_unreadable=True)
    assert not report.is_usable
    assert "training class 'class00' has 1 image" in next(o.says for o in report.findings if o.kind == "pairless")


def test_copies_are_told_apart_by_label_and_part(photos: Path) -> None:
    shutil.copy(photos / "train" / "class00" / "0.png", photos / "test" / "class03" / "noise.png")
    (photos / "test" / "class01").mkdir()
    for i in (0, 1):
        shutil.copy(photos / "train" / "class01" / f"{i}.png", photos / "test" / "class01" / f"{i}.png")
    with Image.open(photos / "test" / "class04" / "0.png") as image:
        image.save(photos / "test" / "class04" / "again.bmp")  # the same pixels, other bytes
    report = check(str(photos))
    assert report.is_usable
    assert found(report) == {
        "partly_shared": ("class01",),
        "mislabelled": ("train/class00/0.png (class00) = test/class03/noise.png (class03)",),
        "leaked": (
            "train/class01/0.png = test/class01/0.png",
            "train/class01/1.png = test/class01/1.png",
        ),
        "repeated": ("test/class04/0.png = test/class04/again.bmp",),
    }


def test_classes_with_a_single_image_are_counted_and_the_first_named(photos: Path, command: Command) -> None:
    for number in range(4):
        (photos / "test" / f"alone{number}").mkdir()
        Image.new("RGB", (70, 70), (number, 0, 0)).save(photos / "test" / f"alone{number}" / "0.png")
    done = command("data", "check", "photos")
    assert done.code == 0
    said = (
        "look: classes with a single image, for which no search can be right: 4\n    alone0\n    alone1\n    alone2\n"
    )
    assert f"{said}    and 1 more\n" in done.out


def test_class_folders_are_searched_whole_and_cut_for_training(pictures: Pictures, tmp_path: Path) -> None:
    report = check(str(pictures(tmp_path / "photos", classes=5, side=64)))
    assert "`evaluate` searches them all, `train` cuts them by name" in report.layout
    assert [(part.name, part.classes) for part in report.parts] == [("train", 2), ("queries", 3)]
    assert len(report.next) == 2


def test_a_cut_that_leaves_one_class_to_test_on_is_told(pictures: Pictures, tmp_path: Path) -> None:
    # Half of three classes, rounded to even, is two to train on.
    report = check(str(pictures(tmp_path / "photos", classes=3, side=64)))
    assert report.is_usable and set(found(report)) == {"one_tested"}


def test_class_folders_that_cannot_be_trained_on_can_still_be_searched(pictures: Pictures, tmp_path: Path) -> None:
    root = pictures(tmp_path / "photos", side=64)
    for i in (1, 2):
        (root / "class00" / f"{i}.png").unlink()
    report = check(str(root))
    assert report.is_usable and set(found(report)) == {"unmatched", "pairless"}
    assert [command.split()[1] for command in report.next] == ["evaluate"]


@pytest.mark.parametrize(
    ("classes", "each", "said"),
    [(1, 3, "images of one class only"), (3, 1, "one image of each class, so no search can be right")],
)
def test_images_in_which_nothing_can_be_searched_must_be_mended(
    classes: int, each: int, said: str, pictures: Pictures, command: Command, tmp_path: Path
) -> None:
    pictures(tmp_path / "photos", classes=classes, each=each)
    done = command("data", "check", "photos")
    assert done.code == 1 and f"mend: {said}" in done.out
    assert done.out.splitlines()[-1] == "next: robustmetric data check photos"


def test_a_part_without_class_folders_is_told(photos: Path) -> None:
    for path in (photos / "test").rglob("*.png"):
        path.rename(photos / "test" / f"{path.parent.name}-{path.name}")
    report = check(str(photos))
    (empty,) = (one for one in report.findings if one.kind == "empty")
    assert empty.weight == "mend"
    assert empty.says.startswith("no image of the queries part of photos is there; expected one sub-folder of images")
    assert len(found(report)["astray"]) == 9


def test_a_gallery_is_what_the_queries_search(photos: Path, pictures: Pictures) -> None:
    pictures(photos / "gallery", classes=2, side=64, first=4)
    report = check(str(photos))
    assert report.layout == "a folder with train/ and test/, which searches gallery/"
    assert [part.name for part in report.parts] == ["train", "queries", "gallery"]
    assert found(report)["unmatched"] == ("class03",)


def test_one_part_of_the_data_alone_is_told(photos: Path, command: Command) -> None:
    done = command("data", "check", "photos/train")
    assert done.code == 0
    assert (
        "look: train/ is a part of the data, beside test/; here what is trained on and what is tested on are not kept "
        "apart: check photos instead\n"
    ) in done.out
    assert "verdict: this data will do; see what is marked `look`" in done.out
    assert "one_part" not in found(check(str(photos)))


def test_parts_beside_are_no_matter_of_a_folder_that_has_its_own(photos: Path, tmp_path: Path) -> None:
    whole = photos.rename(tmp_path / "train")
    (tmp_path / "test").mkdir()
    assert "one_part" not in found(check(str(whole)))


def test_train_and_val_are_no_classes(pictures: Pictures, tmp_path: Path) -> None:
    pictures(tmp_path / "photos" / "train", classes=2)
    pictures(tmp_path / "photos" / "val", classes=2)
    report = check(str(tmp_path / "photos"))
    assert not report.is_usable and found(report)["parts_as_classes"] == ("train", "val")


def test_a_zip_is_checked_in_place_like_its_folder(photos: Path, command: Command, tmp_path: Path) -> None:
    shutil.copy(photos / "train" / "class00" / "0.png", photos / "test" / "class03" / "noise.png")
    plain = check(str(photos))
    shutil.make_archive(str(tmp_path / "zipped"), "zip", photos)
    shutil.rmtree(photos)
    zipped = check(str(tmp_path / "zipped.zip"))
    assert zipped.layout == "a zip with train/ and test/"
    assert (zipped.parts, found(zipped)) == (plain.parts, found(plain))
    with zipfile.ZipFile(tmp_path / "zipped.zip", "a") as archive:
        archive.writestr("test/class03/broken.png", b"no image")
    assert found(check(str(tmp_path / "zipped.zip")))["unreadable"] == ("test/class03/broken.png",)


def test_a_manifest_is_checked_by_its_rows(pictures: Pictures, command: Command, tmp_path: Path) -> None:
    pictures(tmp_path / "photos", side=64)
    rows = [f"photos/class0{c}/{i}.png,{c},{'train' if c < 2 else 'test'}" for c in range(4) for i in range(3)]
    rows += ["photos/gone.png,3,test", "photos/class00/0.png,2,test"]
    (tmp_path / "list.csv").write_text("\n".join(["path,label,split", *rows]))
    done = command("data", "check", "list.csv", "--json")
    assert done.code == 0
    told = json.loads(done.out)
    assert told["layout"].startswith("a CSV manifest of images in ")
    assert [part["samples"] for part in told["parts"]] == [6, 7]
    looked = {one["kind"]: one["items"] for one in told["findings"] if one["weight"] == "look"}
    assert looked == {
        "missing": ["photos/gone.png"],
        "mislabelled": ["photos/class00/0.png (0) = photos/class00/0.png (2)"],
    }
    assert told["is_usable"] and "data.name=manifest data.file=list.csv" in told["next"][1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["empty"], "empty holds no images; expected one sub-folder of images per class"),
        (["nowhere"], "'nowhere' is no folder, no CSV file and no data set; expected cars, cifar10, cub"),
        (["digts"], "error: 'digts' is no folder, no CSV file and no data set; did you mean 'digits'?"),
        (["folder"], "error: folder: Folder needs 'root'; give the path of a folder, zip or CSV manifest"),
        (["cub"], "ROBUSTMETRIC_DATA"),
        (["digits", "--skip-unreadable"], "--skip-unreadable is for data sets of image files; 'digits' reads none"),
        (["photos", "more"], "'more' stands after 'photos', which is no table; expected one path"),
        (["photos/train/class00/0.png"], "0.png is neither a folder nor a zip; name the folder of the images"),
        (["broken.zip"], "broken.zip cannot be read as a zip"),
        (["list.csv"], "list.csv has no column 'split' (found: path, label)"),
    ],
)
def test_what_is_no_data_at_all_is_one_line(
    words: list[str], said: str, photos: Path, command: Command, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.zip").write_bytes(b"no zip")
    (tmp_path / "list.csv").write_text("path,label\na.png,x\n")
    done = command("data", "check", *words)
    assert said in done.error and not done.out


@pytest.mark.parametrize(
    ("name", "parts", "next_word"), [("digits", [901, 896], "train"), ("digits_table", [1257, 540], "certify")]
)
def test_a_data_set_of_ours_is_checked_by_its_name(
    name: str, parts: list[int], next_word: str, command: Command
) -> None:
    done = command("data", "check", name, "--json")
    told = json.loads(done.out)
    assert done.code == 0 and [part["samples"] for part in told["parts"]] == parts
    assert told["next"][0].split()[1] == next_word


def test_the_binary_cifar_has_no_files_to_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    records = b"".join(bytes([label]) + bytes([shade + label]) * 3072 for label in range(10) for shade in (0, 100))
    for name in (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"):
        (tmp_path / name).write_bytes(records)
    monkeypatch.setenv("ROBUSTMETRIC_DATA", str(tmp_path))
    report = check("cifar10")
    assert [part.samples for part in report.parts] == [100, 20] and len(found(report)["leaked"]) == 20


def test_a_long_look_is_told_as_it_goes(
    photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said = []
    monkeypatch.setattr("robustmetric.jobs.progress.Bar.advance", lambda _, by: said.append(by))
    check(str(photos))
    assert not said
    monkeypatch.setattr(data_check, "PATIENCE", -1.0)
    check(str(photos))
    assert sum(said) == 18


def test_an_unreadable_image_elsewhere_points_here(photos: Path, suite: Path, command: Command) -> None:
    (photos / "test" / "class03" / "1.png").write_bytes(b"no image")
    error = command("evaluate", "own_parts.Net", suite, "--data", "photos").error
    assert "`robustmetric data check` names them all" in error


@pytest.mark.data
def test_the_birds_will_do() -> None:
    report = check("cub")
    assert report.is_usable
    assert [(part.samples, part.classes, part.largest) for part in report.parts] == [(5864, 100, 60), (5924, 100, 60)]
    assert [one.kind for one in report.findings if one.weight == "fact"] == ["zero_shot", "sizes"]
    (pair,) = found(report)["repeated"]  # two files with the same pixels
    assert pair.count("058.Pigeon_Guillemot/") == 2
    assert report.next == ("robustmetric train cub/act",)
