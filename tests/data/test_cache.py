import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

from conftest import Paint
from robustmetric.data import cache as cache_module
from robustmetric.data.cache import Cache, cache_folder, decode, opaque
from robustmetric.data.files import FolderTree
from robustmetric.errors import InputError


@pytest.fixture
def images(tmp_path: Path, paint: Paint) -> Path:
    for i in range(4):
        paint(tmp_path / "images" / f"{i}.png", shade=50 * i, size=(12, 6))
    return tmp_path / "images"


def test_images_are_squashed_and_their_original_sizes_kept(images: Path, tmp_path: Path) -> None:
    tree = FolderTree(images)
    pixels = Cache(tmp_path / "cache", 8).load(tree, tree.names, "toy")
    assert pixels.images.shape == (4, 3, 8, 8)
    assert pixels.images[:, 0, 0, 0].tolist() == [0, 50, 100, 150]
    assert pixels.sizes.tolist() == [[6, 12]] * 4


def test_decoding_equals_pillows_bilinear_squash(tmp_path: Path) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
    Image.fromarray(noise).save(tmp_path / "noise.png")
    pixels, size = decode((tmp_path / "noise.png").read_bytes(), 8)
    expected = np.asarray(Image.fromarray(noise).resize((8, 8), Image.Resampling.BILINEAR))
    assert size == (20, 30)
    assert (pixels == expected.transpose(2, 0, 1)).all()


@pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1"])
def test_every_colour_mode_becomes_three_channels(tmp_path: Path, mode: str) -> None:
    file = tmp_path / ("image.jpg" if mode == "CMYK" else "image.png")
    Image.new("RGB", (5, 5), (255, 255, 255)).convert(mode).save(file)
    pixels, _ = decode(file.read_bytes(), 5)
    assert pixels.shape == (3, 5, 5)
    assert pixels.min() > 250


@pytest.mark.parametrize("suffix", ["png", "tiff", "pgm"])
def test_sixteen_bits_of_grey_keep_their_high_byte(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"scan.{suffix}"
    # 0x1234 and 0xABCD: 18 and 171 of 255.
    Image.fromarray(np.array([[0x1234, 0xABCD]], np.uint16)).save(file)
    assert np.asarray(opaque(file.read_bytes())[0]).tolist() == [[[18] * 3, [171] * 3]]


def noted(path: Path, orientation: int) -> Image.Image:
    """Blocks of noise, stored with a camera's note of how to turn them."""
    noise = np.random.default_rng(0).integers(0, 256, (4, 6, 3), np.uint8).repeat(8, 0).repeat(8, 1)
    note = Image.Exif()
    note[0x0112] = orientation
    Image.fromarray(noise).save(path, exif=note)
    return Image.open(path)


@pytest.mark.parametrize("suffix", ["jpg", "png", "webp", "tiff"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_images_are_turned_as_pillow_turns_them(tmp_path: Path, suffix: str, orientation: int) -> None:
    with noted(tmp_path / f"image.{suffix}", orientation) as image:
        image.load()
        expected = np.asarray(ImageOps.exif_transpose(image).convert("RGB"))
    found, _ = opaque((tmp_path / f"image.{suffix}").read_bytes(), upright=True)
    assert (np.asarray(found) == expected).all()


def test_an_image_on_its_side_is_turned_where_that_is_asked_for(tmp_path: Path) -> None:
    with noted(tmp_path / "phone.jpg", 6):
        content = (tmp_path / "phone.jpg").read_bytes()
    (stored, is_stored_turned), (seen, is_turned) = opaque(content), opaque(content, upright=True)
    # 6: a quarter turn clockwise, so that the first column from below is the first row.
    assert (np.asarray(seen)[0] == np.asarray(stored)[::-1, 0]).all()
    assert stored.size == (48, 32) and seen.size == (32, 48)
    assert is_turned and not is_stored_turned
    assert decode(content, 8, upright=True)[1] == (48, 32)


@pytest.mark.parametrize("orientation", [b"\x00", b"\x09"])
def test_a_damaged_note_leaves_an_image_as_it_is_stored(tmp_path: Path, orientation: bytes) -> None:
    with noted(tmp_path / "image.jpg", 6) as image:
        stored = np.asarray(image)
    content = (tmp_path / "image.jpg").read_bytes()
    entry = b"\x01\x12\x00\x03\x00\x00\x00\x01\x00"  # tag 274, SHORT, one value, its high byte
    assert content.count(entry + b"\x06") == 1
    for damaged in (content.replace(entry + b"\x06", entry + orientation), content.replace(b"MM\x00*", b"??\x00*")):
        found, is_turned = opaque(damaged, upright=True)
        assert (np.asarray(found) == stored).all() and not is_turned


def test_images_decoded_as_stored_are_decoded_again_upright(tmp_path: Path) -> None:
    with noted(tmp_path / "phone.jpg", 6):
        tree = FolderTree(tmp_path)
    stored = Cache(tmp_path / ".cache", 8).load(tree, tree.names, "toy")
    seen = Cache(tmp_path / ".cache", 8, upright=True).load(tree, tree.names, "toy")
    assert stored.sizes.tolist() == [[32, 48]] and seen.sizes.tolist() == [[48, 32]]
    assert not (stored.images == seen.images).all()


def test_grey_values_of_no_known_range_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.array([[0.25, 1000.0]], np.float32)).save(tmp_path / "depth.tiff")
    with pytest.raises(ValueError, match="no known range"):
        opaque((tmp_path / "depth.tiff").read_bytes())


def test_an_image_of_too_many_pixels_is_told_from_a_damaged_one(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 30)  # an error from twice as many on: the images have 72
    tree = FolderTree(images)
    with pytest.raises(InputError, match=r"0\.png has more pixels than Pillow decodes; replace it"):
        Cache(tmp_path / "cache", 8).load(tree, tree.names[:1], "toy")


def test_the_second_load_decodes_nothing(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache(tmp_path / "cache", 8)
    tree = FolderTree(images)
    first = cache.load(tree, tree.names, "toy")

    def refuse(content: bytes, size: int) -> None:
        raise AssertionError("decoded again")

    monkeypatch.setattr(cache_module, "decode", refuse)
    again = cache.load(tree, tree.names, "toy")
    assert torch.equal(first.images, again.images)
    assert not list((tmp_path / "cache").glob("*.part"))


def test_writing_to_a_loaded_image_does_not_reach_the_file(images: Path, tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", 8)
    tree = FolderTree(images)
    cache.load(tree, tree.names, "toy").images.fill_(7)
    assert cache.load(tree, tree.names, "toy").images.float().mean() == 75


def test_a_changed_file_is_decoded_again(images: Path, tmp_path: Path, paint: Paint) -> None:
    cache = Cache(tmp_path / "cache", 8)
    cache.load(FolderTree(images), FolderTree(images).names, "toy")
    paint(images / "0.png", shade=222, size=(3, 3))
    pixels = cache.load(FolderTree(images), FolderTree(images).names, "toy")
    assert pixels.images[0, 0, 0, 0] == 222
    assert pixels.sizes[0].tolist() == [3, 3]


@pytest.mark.parametrize("damage", ["truncated", "garbage", "empty", "sizes"])
def test_a_damaged_cache_is_rebuilt(
    images: Path, tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    cache = Cache(tmp_path / "cache", 8)
    tree = FolderTree(images)
    before = cache.load(tree, tree.names, "toy").images.clone()
    sizes = next((tmp_path / "cache").glob("*.sizes.npy"))
    pixels = sizes.with_name(sizes.name.replace(".sizes", ""))
    if damage == "sizes":
        np.save(sizes, np.zeros((2, 2), np.int32))
    else:
        content = pixels.read_bytes()
        pixels.write_bytes({"truncated": content[:-100], "garbage": b"x" * len(content), "empty": b""}[damage])
    with caplog.at_level(logging.WARNING):
        assert torch.equal(cache.load(tree, tree.names, "toy").images, before)
    assert "decoding again" in caplog.text


def test_an_unreadable_image_is_named_and_nothing_is_left_behind(images: Path, tmp_path: Path) -> None:
    (images / "1.png").write_bytes(b"not an image")
    tree = FolderTree(images)
    with pytest.raises(
        InputError, match=r"1\.png cannot be read as an image; .* --skip-unreadable .*skip_unreadable: true"
    ):
        Cache(tmp_path / "cache", 8).load(tree, tree.names, "toy")
    assert not list((tmp_path / "cache").iterdir())


def test_unreadable_images_are_left_out_on_request_in_order(images: Path, tmp_path: Path) -> None:
    (images / "1.png").write_bytes((images / "1.png").read_bytes()[:45])
    tree = FolderTree(images)
    pixels = Cache(tmp_path / "cache", 8, skip_unreadable=True).load(tree, tree.names, "toy")
    assert pixels.is_readable.tolist() == [True, False, True, True]
    assert pixels.images[:, 0, 0, 0].tolist() == [0, 100, 150]
    with pytest.raises(InputError, match=r"1\.png cannot be read"):
        Cache(tmp_path / "cache", 8).load(tree, tree.names, "toy")


def test_a_full_disk_is_said_before_anything_is_written(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = FolderTree(images)
    monkeypatch.setattr(cache_module.shutil, "disk_usage", lambda path: type("Usage", (), {"free": 10})())
    with pytest.raises(InputError, match="set cache: to another folder"):
        Cache(tmp_path / "cache", 8).load(tree, tree.names, "toy")


def test_the_cache_lies_beside_the_data_or_where_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder(str(tmp_path / "mine"), tmp_path) == tmp_path / "mine"
    assert cache_folder(None, tmp_path) == tmp_path / ".cache"
    # A file where the folder should be: it cannot be written, whoever asks.
    assert cache_folder(None, tmp_path / "file") == tmp_path / ".cache" / "robustmetric"
    with pytest.raises(InputError, match="cannot be written; set cache:"):
        cache_folder(str(tmp_path / "file" / "inside"), tmp_path)


def test_the_progress_bar_appears_only_when_it_takes_long(
    images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = FolderTree(images)
    with cache_module._progress(2) as bar:
        bar()
        assert not bar.progress.live.is_started
        monkeypatch.setattr(cache_module, "PATIENCE", -1.0)
        bar()
        assert bar.progress.live.is_started
    assert not bar.progress.live.is_started
    assert len(Cache(tmp_path / "cache", 8).load(tree, tree.names, "toy").images) == 4
