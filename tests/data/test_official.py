"""The published image sets, on small trees in their official layouts."""

import json
import logging
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.io import savemat

from conftest import Paint
from robustmetric.data.cars import Cars
from robustmetric.data.cifar import CLASSES, Cifar10
from robustmetric.data.cub import Cub
from robustmetric.data.inshop import InShop
from robustmetric.data.listing import ImageFiles
from robustmetric.data.sop import Sop
from robustmetric.errors import InputError


def cub_2011(root: Path, paint: Paint) -> None:
    lines = []
    for number in (1, 100, 101, 200):
        for i in (2, 1):  # the official list is not sorted within a class
            name = f"{number:03d}.Bird/bird_{i}.jpg"
            paint(root / "CUB_200_2011" / "images" / name, shade=number % 100 + i)
            lines.append(f"{len(lines) + 1} {name}")
    (root / "CUB_200_2011" / "images.txt").write_text("\n".join(lines) + "\n")


def test_cub_2011_takes_the_order_of_its_list(tmp_path: Path, paint: Paint) -> None:
    cub_2011(tmp_path, paint)
    dataset = Cub(root=str(tmp_path), size=8).load()
    assert dataset.train.class_names == ("001.Bird", "100.Bird") and dataset.queries.class_names == (
        "101.Bird",
        "200.Bird",
    )
    assert dataset.train.names[:2] == ("images/001.Bird/bird_2.jpg", "images/001.Bird/bird_1.jpg")
    inside = Cub(root=str(tmp_path / "CUB_200_2011"), size=8).load()
    assert inside.train.names == dataset.train.names


def test_cub_2011_without_a_list_goes_by_class_folder(tmp_path: Path, paint: Paint) -> None:
    cub_2011(tmp_path, paint)
    (tmp_path / "CUB_200_2011" / "images.txt").unlink()
    dataset = Cub(root=str(tmp_path), size=8).load()
    assert dataset.queries.names[:2] == ("images/101.Bird/bird_1.jpg", "images/101.Bird/bird_2.jpg")


def test_two_zips_make_up_cub(tmp_path: Path, paint: Paint) -> None:
    cub_2011(tmp_path / "plain", paint)
    (tmp_path / "plain" / "CUB_200_2011" / "images.txt").unlink()
    images = tmp_path / "plain" / "CUB_200_2011" / "images"
    for half, numbers in (("001-100", (1, 100)), ("101-200", (101, 200))):
        for number in numbers:
            where = tmp_path / half / "CUB_200_2011" / "images" / f"{number:03d}.Bird"
            shutil.copytree(images / f"{number:03d}.Bird", where)
        shutil.make_archive(str(tmp_path / f"cub-200-2011-{half}"), "zip", tmp_path / half)
        shutil.rmtree(tmp_path / half)
    shutil.rmtree(tmp_path / "plain")
    dataset = Cub(root=str(tmp_path), size=8).load()
    assert dataset.train.n == dataset.queries.n == 4
    assert dataset.train.class_names == ("001.Bird", "100.Bird")


def test_a_listed_bird_that_is_missing_is_counted_and_said(
    tmp_path: Path, paint: Paint, caplog: pytest.LogCaptureFixture
) -> None:
    cub_2011(tmp_path, paint)
    paint(tmp_path / "CUB_200_2011" / "images" / "101.Bird" / "unlisted.jpg")
    (tmp_path / "CUB_200_2011" / "images" / "101.Bird" / "bird_2.jpg").unlink()
    with caplog.at_level(logging.WARNING):
        dataset = Cub(root=str(tmp_path), size=8).load()
    assert dataset.skipped == ("images/101.Bird/bird_2.jpg",)
    assert dataset.queries.n == 3
    assert "1 listed files missing" in caplog.text
    assert "3 images found, the official number is 5,924" in caplog.text


def test_cub_2010_reads_its_own_list(tmp_path: Path, paint: Paint) -> None:
    train = ["001.Albatross/b.jpg", "001.Albatross/a.jpg", "002.Auklet/f.jpg", "002.Auklet/e.jpg"]
    listed = [*train, "150.Sparrow/c.jpg", "150.Sparrow/d.jpg"]
    for name in listed:
        paint(tmp_path / "CUB-200" / "images" / name)
    (tmp_path / "CUB-200" / "lists").mkdir()
    (tmp_path / "CUB-200" / "lists" / "files.txt").write_text("".join(f"{name}\n" for name in listed))
    dataset = Cub(root=str(tmp_path), release=2010, size=8).load()
    assert dataset.name == "cub2010"
    assert dataset.train.names == tuple(f"images/{name}" for name in train)
    assert dataset.queries.class_names == ("150.Sparrow",)


def test_a_folder_that_is_no_bird_class_is_named(tmp_path: Path, paint: Paint) -> None:
    paint(tmp_path / "images" / "birds" / "1.jpg")
    with pytest.raises(InputError, match="'birds' is not a class folder of CUB"):
        Cub(root=str(tmp_path)).load()


def test_cars_by_annotations_ignore_the_official_flags(tmp_path: Path, paint: Paint) -> None:
    kinds = [(f"car_ims/{i:06d}.jpg", number) for i, number in enumerate((1, 1, 98, 98, 99, 99, 196, 196))]
    for i, (path, _) in enumerate(kinds):
        paint(tmp_path / "cars196" / path, shade=10 * i)
    kind = [("relative_im_path", object), ("class", object), ("test", object)]
    rows = np.array([(path, number, i % 2) for i, (path, number) in enumerate(kinds)][::-1], dtype=kind)
    names = np.array([f"Car {i + 1}" for i in range(196)], dtype=object)
    savemat(tmp_path / "cars196" / "cars_annos.mat", {"annotations": rows, "class_names": names})
    dataset = Cars(root=str(tmp_path), size=8).load()
    assert dataset.train.class_names == ("Car 1", "Car 98") and dataset.queries.class_names == ("Car 99", "Car 196")
    assert dataset.train.inputs[:, 0, 0, 0].tolist() == [0, 10, 20, 30]


def test_cars_by_class_folders_merge_train_and_test(tmp_path: Path, paint: Paint) -> None:
    for c in range(196):
        paint(tmp_path / "train" / f"Make {c:03d}" / "2.jpg", shade=c)
        paint(tmp_path / "test" / f"Make {c:03d}" / "1.jpg", shade=c)
    dataset = Cars(root=str(tmp_path), size=4).load()
    assert dataset.train.classes == dataset.queries.classes == 98
    assert dataset.train.n == dataset.queries.n == 196
    assert dataset.train.names[:2] == ("test/Make 000/1.jpg", "train/Make 000/2.jpg")
    assert dataset.queries.class_names[0] == "Make 098"
    shutil.rmtree(tmp_path / "train" / "Make 007")
    shutil.rmtree(tmp_path / "test" / "Make 007")
    with pytest.raises(InputError, match="has 195 class folders, CARS196 has 196"):
        Cars(root=str(tmp_path), size=4).load()


def test_zips_of_some_classes_each_make_up_cars(tmp_path: Path, paint: Paint, caplog: pytest.LogCaptureFixture) -> None:
    for c in range(196):
        for i, part in enumerate(("train", "test")):
            paint(tmp_path / f"part{c // 66}" / "cars196" / part / f"Make {c:03d}" / f"{i}.jpg", shade=c)
    for part in range(3):
        shutil.make_archive(str(tmp_path / f"cars196-256px-{part}"), "zip", tmp_path / f"part{part}")
    with caplog.at_level(logging.WARNING):
        dataset = Cars(root=str(tmp_path), size=4).load()
    assert dataset.train.n == dataset.queries.n == 196 and dataset.queries.class_names[0] == "Make 098"
    assert dataset.train.names[:2] == ("cars196/train/Make 000/0.jpg", "cars196/test/Make 000/1.jpg")
    assert "cars196, queries: 196 images found, the official number is 8,131" in caplog.text
    (tmp_path / "cars196-256px-1.zip").unlink()
    with pytest.raises(InputError, match="has 130 class folders, CARS196 has 196"):
        Cars(root=str(tmp_path), size=4).load()


def test_a_broken_annotation_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "cars_annos.mat").write_bytes(b"MATLAB? no" * 20)
    with pytest.raises(InputError, match=r"cars_annos\.mat is not the annotation file"):
        Cars(root=str(tmp_path)).load()


def test_products_follow_their_lists(tmp_path: Path, paint: Paint) -> None:
    root = tmp_path / "Stanford_Online_Products"
    for part, start in (("train", 0), ("test", 10)):
        lines = ["image_id class_id super_class_id path"]
        for i in range(4):
            name = f"chair_final/{part}_{i}.JPG"
            paint(root / name, shade=20 * i + start)
            lines.append(f"{i + 1} {start + 1 + i // 2} 1 {name}")
        (root / f"Ebay_{part}.txt").write_text("\n".join(lines) + "\n")
    dataset = Sop(root=str(tmp_path), size=8).load()
    assert dataset.train.class_names == ("1", "2") and dataset.queries.class_names == ("11", "12")
    assert dataset.queries.names[0] == "chair_final/test_0.JPG"
    shutil.make_archive(str(tmp_path / "Stanford_Online_Products"), "zip", tmp_path, "Stanford_Online_Products")
    shutil.rmtree(root)
    zipped = Sop(root=str(tmp_path), size=8).load()
    assert (zipped.queries.inputs == dataset.queries.inputs).all()


def test_a_broken_product_list_is_named_by_line(tmp_path: Path) -> None:
    (tmp_path / "Ebay_train.txt").write_text("image_id class_id super_class_id path\n1 1 1 a.jpg\n2 1 a.jpg\n")
    with pytest.raises(InputError, match=r"Ebay_train\.txt, line 3: expected image_id"):
        Sop(root=str(tmp_path)).load()
    (tmp_path / "Ebay_train.txt").write_text("image_id class_id super_class_id path\n1 1 1 a.jpg\n")
    with pytest.raises(InputError, match=r"has no Ebay_test\.txt"):
        Sop(root=str(tmp_path)).load()


@pytest.fixture
def shop(tmp_path: Path, paint: Paint) -> Path:
    rows = []
    items = {"train": (1, 1, 2), "query": (7, 8, 7), "gallery": (9, 8, 7)}
    for i, (item, part) in enumerate((item, part) for part, found in items.items() for item in found):
        name = f"img/WOMEN/Dresses/id_{item:08d}/{i:02d}_1_front.jpg"
        paint(tmp_path / "inshop" / "Img" / name, shade=10 * i)
        rows.append(f"{name}   id_{item:08d} {part}")
    (tmp_path / "inshop" / "Eval").mkdir()
    text = f"{len(rows)}\nimage_name item_id evaluation_status\n" + "\n".join(rows) + "\n"
    (tmp_path / "inshop" / "Eval" / "list_eval_partition.txt").write_text(text)
    return tmp_path


def test_shop_queries_and_gallery_share_their_items(shop: Path) -> None:
    dataset = InShop(root=str(shop), size=8).load()
    assert dataset.gallery is not None
    assert (dataset.train.n, dataset.queries.n, dataset.gallery.n) == (3, 3, 3)  # a product with one picture is kept
    items = dataset.queries.class_names
    assert items == dataset.gallery.class_names == ("id_00000007", "id_00000008", "id_00000009")
    assert dataset.queries.labels.tolist() == [0, 1, 0] and dataset.gallery.labels.tolist() == [2, 1, 0]


def test_shop_queries_may_search_one_another(shop: Path) -> None:
    dataset = InShop(root=str(shop), size=8, query_only=True).load()
    assert dataset.gallery is None and dataset.unmatched == 1  # item 8 occurs once


def test_a_broken_partition_is_named_by_line(shop: Path) -> None:
    path = shop / "inshop" / "Eval" / "list_eval_partition.txt"
    path.write_text("1\nimage_name item_id evaluation_status\nimg/a.jpg id_1 dev\n")
    with pytest.raises(InputError, match="line 3: expected image_name item_id train"):
        InShop(root=str(shop)).load()


def test_cifar_folders_have_the_official_class_order(tmp_path: Path, paint: Paint) -> None:
    for part, each in (("train", 2), ("test", 1)):
        for c, name in enumerate(CLASSES):
            for i in range(each):
                paint(tmp_path / "x" / "cifar10" / part / name / f"{i}.png", shade=c, size=(32, 32))
        shutil.make_archive(str(tmp_path / f"cifar10-{part}"), "zip", tmp_path / "x")
        shutil.rmtree(tmp_path / "x")
    dataset = Cifar10(root=str(tmp_path)).load()
    assert dataset.train.class_names == dataset.queries.class_names == CLASSES
    assert dataset.train.shape == (3, 32, 32) and (dataset.train.n, dataset.queries.n) == (20, 10)
    assert (dataset.train.inputs[:, 0, 0, 0] == dataset.train.labels).all()


def test_of_a_jpeg_copy_of_cifar_the_dataset_says_so_and_of_a_lossless_one_it_does_not(
    tmp_path: Path, paint: Paint
) -> None:
    for kind in ("png", "jpg"):
        for part in ("train", "test"):
            for c, name in enumerate(CLASSES):
                for i in range(2):
                    paint(tmp_path / kind / "cifar10" / part / name / f"{i}.{kind}", shade=c, size=(32, 32))
    notes = {kind: Cifar10(root=str(tmp_path / kind)).load().note for kind in ("png", "jpg")}
    assert notes == {"png": "", "jpg": "a JPEG copy"}
    assert Cifar10(root=str(tmp_path / "jpg"), validation=0.2).load().note == "a JPEG copy"


def test_the_binary_cifar_is_read_bit_for_bit(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (6, 3, 4, 3072), np.uint8)[:, 0]
    files = [f"data_batch_{i}.bin" for i in range(1, 6)] + ["test_batch.bin"]
    for file, images in zip(files, pixels, strict=True):
        labels = np.arange(4, dtype=np.uint8)[:, None]
        np.concatenate([labels, images], 1).tofile(tmp_path / file)
    with caplog.at_level(logging.WARNING):
        dataset = Cifar10(root=str(tmp_path)).load()
    assert (dataset.train.n, dataset.queries.n) == (20, 4)
    assert dataset.train.labels.tolist() == [0, 1, 2, 3] * 5
    assert (dataset.queries.inputs.numpy().reshape(4, 3072) == pixels[5]).all()
    assert "the official number is 50,000" in caplog.text
    held = Cifar10(root=str(tmp_path), validation=0.2).load()
    assert (held.train.classes, held.queries.classes) == (8, 2)
    with pytest.raises(InputError, match="use size: 32"):
        Cifar10(root=str(tmp_path), size=64).load()
    (tmp_path / "test_batch.bin").write_bytes(b"12345")
    with pytest.raises(InputError, match=r"test_batch\.bin: 5 bytes are no whole number of images"):
        Cifar10(root=str(tmp_path)).load()
    (tmp_path / "test_batch.bin").unlink()
    with pytest.raises(InputError, match=r"test_batch\.bin cannot be read"):
        Cifar10(root=str(tmp_path)).load()


def test_cifar_as_strips_of_png_is_read_bit_for_bit(tmp_path: Path) -> None:
    lines = np.random.default_rng(0).integers(0, 256, (6, 4, 1024, 3), np.uint8)
    home = tmp_path / "package"
    home.mkdir()
    for name, strip in zip([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"], lines, strict=True):
        Image.fromarray(strip).save(home / f"{name}.png")
    (home / "train_lables.json").write_text(json.dumps([9, 8, 7, 6] * 5))
    (home / "test_lables.json").write_text("[3, 2, 1, 0]")
    dataset = Cifar10(root=str(tmp_path)).load()
    assert dataset.train.labels.tolist() == [9, 8, 7, 6] * 5 and dataset.queries.labels.tolist() == [3, 2, 1, 0]
    # The second pixel of the second line of image 1 of batch 2: place 33 of its line.
    assert dataset.train.inputs[5, :, 1, 1].tolist() == lines[1, 1, 33].tolist()
    assert dataset.note == "" and not Cifar10(root=str(tmp_path)).has_files
    (home / "test_lables.json").write_text("[3, 2, 1]")
    with pytest.raises(InputError, match=r"test_lables\.json has 3 labels for 4 images"):
        Cifar10(root=str(tmp_path)).load()
    for wrong in ("[3, 2, 1, 300]", "{", '["a"]'):
        (home / "test_lables.json").write_text(wrong)
        with pytest.raises(InputError, match=r"test_lables\.json is no list of labels"):
            Cifar10(root=str(tmp_path)).load()
    (home / "test_lables.json").write_text("[3, 2, 1, 10]")
    with pytest.raises(InputError, match="label 10 is not one of the ten classes"):
        Cifar10(root=str(tmp_path)).load()
    Image.fromarray(lines[0, :, :32]).save(home / "test_batch.png")
    with pytest.raises(InputError, match="32 pixels wide; expected 1,024"):
        Cifar10(root=str(tmp_path)).load()
    (home / "test_batch.png").write_bytes(b"no picture")
    with pytest.raises(InputError, match=r"test_batch\.png cannot be read"):
        Cifar10(root=str(tmp_path)).load()


def test_the_pickled_cifar_is_refused_and_said_why(tmp_path: Path) -> None:
    (tmp_path / "cifar-10-batches-py").mkdir()
    with pytest.raises(InputError, match="its pickle files can run code"):
        Cifar10(root=str(tmp_path)).load()


def test_a_folder_that_is_no_cifar_class_is_named(tmp_path: Path, paint: Paint) -> None:
    paint(tmp_path / "train" / "zebra" / "1.png")
    with pytest.raises(InputError, match="train/zebra is not a class of CIFAR-10; expected airplane"):
        Cifar10(root=str(tmp_path)).load()


@pytest.mark.parametrize(
    ("source", "page"),
    [
        (Cub, "Caltech's CUB-200-2011 page"),
        (Cars, "Stanford's Cars page"),
        (Sop, "Stanford's Online Products page"),
        (InShop, "DeepFashion page"),
        (Cifar10, "University of Toronto"),
    ],
)
def test_missing_data_says_what_is_expected_and_where_to_get_it(
    source: type[ImageFiles], page: str, tmp_path: Path
) -> None:
    for root in (tmp_path, tmp_path / "none"):
        with pytest.raises(InputError, match=f"expected .*{page}"):
            source(root=str(root)).load()
    with pytest.raises(InputError, match="ROBUSTMETRIC_DATA"):
        source().load()


def test_an_empty_images_folder_says_what_is_expected(tmp_path: Path) -> None:
    (tmp_path / "images").mkdir()
    with pytest.raises(InputError, match="no image of the train part of cub2011 is there; expected images/NNN"):
        Cub(root=str(tmp_path)).load()


def test_an_unknown_release_is_refused() -> None:
    with pytest.raises((InputError, TypeError), match="release"):
        Cub(release=2012)  # type: ignore[arg-type]  # what a recipe may hold
