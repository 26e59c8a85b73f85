"""Images that are looked at and not kept."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from conftest import Paint
from robustmetric.data import looks as looks_module
from robustmetric.data.digits import Digits
from robustmetric.data.files import FolderTree
from robustmetric.data.looks import digest_of, look, looks, looks_of, samples_of


def encoded(image: Image.Image, kind: str) -> bytes:
    out = io.BytesIO()
    image.save(out, kind)
    return out.getvalue()


@pytest.fixture
def picture() -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 255, (6, 9, 3)).astype(np.uint8)
    return Image.fromarray(pixels)


def test_the_same_pixels_in_another_format_are_the_same(picture: Image.Image) -> None:
    png, bmp = look(encoded(picture, "PNG")), look(encoded(picture, "BMP"))
    assert png == bmp and (png.height, png.width, png.is_grey) == (6, 9, False)


def test_one_other_pixel_or_shape_is_another_image(picture: Image.Image) -> None:
    before = look(encoded(picture, "PNG")).digest
    picture.putpixel((3, 2), (1, 2, 3))
    assert look(encoded(picture, "PNG")).digest != before
    white = np.full((4, 6, 3), 255, np.uint8)
    assert digest_of(white) != digest_of(white.reshape(6, 4, 3))


def test_a_grey_image_is_told_whatever_its_mode(picture: Image.Image) -> None:
    grey = picture.convert("L")
    assert look(encoded(grey, "PNG")).is_grey
    assert look(encoded(grey.convert("RGB"), "PNG")) == look(encoded(grey, "PNG"))


def test_files_come_in_order_and_those_that_cannot_be_read_are_none(
    tmp_path: Path, paint: Paint, monkeypatch: pytest.MonkeyPatch
) -> None:
    for i in range(7):
        paint(tmp_path / f"{i}.png", shade=10 * i, size=(i + 1, 2))
    (tmp_path / "3.png").write_bytes(b"no image")
    content = (tmp_path / "5.png").read_bytes()
    (tmp_path / "5.png").write_bytes(content[:-30])
    monkeypatch.setattr(looks_module, "AT_A_TIME", 2)
    tree = FolderTree(tmp_path)
    assert [one and one.width for one in looks(tree, tree.names)] == [1, 2, 3, None, 5, None, 7]


def test_images_in_memory_are_looked_at_too() -> None:
    digits = Digits().load().train.subset([0, 1, 0])
    found = list(looks_of(digits))
    assert found[0] == found[2] != found[1]
    assert (found[0].height, found[0].width, found[0].is_grey) == (8, 8, True)
    named = samples_of("train", digits, (one.digest for one in found))
    assert [one.label for one in named] == ["0", "1", "0"] and named[0].name == "digits/0000"


def test_a_zero_has_no_sign() -> None:
    assert digest_of(np.array([0.0, 1.0])) == digest_of(np.array([-0.0, 1.0])) != digest_of(np.array([1.0, 0.0]))
