import base64
import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from sample_runs import examples

from robustmetric.errors import InputError
from robustmetric.report.gallery import data_address, difference, magnification, read_gallery


def save(tmp_path: Path, **changes: Any) -> Path:
    path = tmp_path / "ES.npz"
    np.savez(path, **examples(**changes))
    return path


def decoded(address: str) -> np.ndarray:
    head, data = address.split(",")
    assert head == "data:image/png;base64"
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(data))))


def test_the_difference_is_magnified_and_centred_on_grey():
    query = np.array([[[100, 100, 100]]], np.uint8)
    perturbed = np.array([[[110, 100, 80]]], np.uint8)
    # Largest change 20: 127 // 20 = 6; 128 + 6 * (10, 0, -20) = 188, 128, 8.
    factor = magnification(query[None], perturbed[None])
    assert factor == 6
    assert difference(query, perturbed, factor).tolist() == [[[188, 128, 8]]]


def test_no_change_is_plain_grey():
    query = np.full((1, 1, 2, 2), 7, np.uint8)
    assert magnification(query, query) == 1
    assert (difference(query[0], query[0], 1) == 128).all()


def test_a_change_beyond_half_the_range_is_clipped_and_not_wrapped():
    black, white = np.zeros((1, 1, 1), np.uint8), np.full((1, 1, 1), 255, np.uint8)
    assert magnification(black[None], white[None]) == 1
    assert difference(black, white, 1).item() == 255
    assert difference(white, black, 1).item() == 0


def test_small_images_are_enlarged_by_whole_pixels():
    image = np.arange(64, dtype=np.uint8).reshape(1, 8, 8)
    assert (decoded(data_address(image, largest=112)) == image[0].repeat(12, 0).repeat(12, 1)).all()


def test_large_images_are_reduced_and_keep_their_colours():
    image = np.empty((3, 224, 448), np.uint8)
    image[:] = np.array([200, 100, 50], np.uint8)[:, None, None]
    pixels = decoded(data_address(image, largest=112))
    assert pixels.shape == (56, 112, 3)
    assert (pixels == [200, 100, 50]).all()


def test_a_gallery_shows_the_first_examples_and_says_how_many_there_are(tmp_path: Path):
    gallery = read_gallery(save(tmp_path, n=6), limit=4)
    assert (len(gallery.examples), gallery.total, gallery.attack, gallery.radius) == (4, 6, "ES", "0.1")
    assert gallery.factor == 6 and gallery.pixelated


def test_results_are_marked_by_class(tmp_path: Path):
    example = read_gallery(save(tmp_path)).examples[0]
    assert [p.same for p in example.before] == [True] * 5
    assert [p.same for p in example.after] == [False, False, False, False, True]
    assert [p.caption for p in example.after] == ["six", "six", "six", "six", "five"]
    assert example.trio[0].caption == "query: five"
    assert example.summary == "5 of the first 5 results were of the query's class before, 1 after."


def test_colour_images_and_unnamed_classes_are_fine(tmp_path: Path):
    gallery = read_gallery(save(tmp_path, channels=3, side=120, query_label=np.full(3, 9)))
    assert not gallery.pixelated
    assert gallery.examples[0].trio[0].caption == "query: class 9"


def test_a_file_without_attack_and_radius_is_named_after_itself(tmp_path: Path):
    arrays = examples()
    del arrays["attack"], arrays["radius"]
    np.savez(tmp_path / "CA+.npz", **arrays)
    gallery = read_gallery(tmp_path / "CA+.npz")
    assert (gallery.attack, gallery.radius) == ("CA+", "")


def test_no_examples_make_an_empty_gallery(tmp_path: Path):
    assert read_gallery(save(tmp_path, n=0)).examples == ()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"channels": 2}, "expected \\(n, 1 or 3, height, width\\)"),
        ({"perturbed": np.zeros((3, 1, 8, 7), np.uint8)}, "perturbed has shape"),
        ({"after": np.zeros((3, 4, 1, 8, 8), np.uint8)}, "after has shape"),
        ({"query": np.zeros((3, 1, 8, 8))}, "query holds float64; expected uint8"),
        ({"class_names": np.array([object()])}, "not a whole .npz of examples"),
    ],
)
def test_arrays_that_do_not_fit_are_named(tmp_path: Path, changes: dict[str, Any], message: str):
    with pytest.raises(InputError, match=message):
        read_gallery(save(tmp_path, **changes))


def test_a_missing_array_is_named(tmp_path: Path):
    arrays = examples()
    del arrays["before"]
    np.savez(tmp_path / "ES.npz", **arrays)
    with pytest.raises(InputError, match="lacks before"):
        read_gallery(tmp_path / "ES.npz")


def test_a_truncated_file_is_refused(tmp_path: Path):
    path = save(tmp_path)
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(InputError, match="not a whole"):
        read_gallery(path)
