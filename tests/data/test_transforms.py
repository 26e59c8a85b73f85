import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from torch import Tensor
from torchvision.transforms import v2

from robustmetric.data.protocols import Transform
from robustmetric.data.transforms import (
    AspectCentreCrop,
    CentreCrop,
    Identity,
    RandomCrop,
    RandomResizedCrop,
    crop,
)
from robustmetric.errors import InputError


def smooth(height: int, width: int) -> Image.Image:
    """Slow waves: resizing twice changes next to nothing."""
    y, x = np.mgrid[0:height, 0:width] / max(height, width)
    waves = [np.sin(5 * x + 3 * y), np.cos(6 * y - x), np.sin(4 * x * y + 1)]
    return Image.fromarray((np.stack(waves, 2) * 100 + 128).round().astype(np.uint8))


def squashed(image: Image.Image, side: int = 256) -> Tensor:
    return torch.from_numpy(np.asarray(image.resize((side, side), Image.Resampling.BILINEAR)).transpose(2, 0, 1).copy())


def as_float(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.asarray(image).transpose(2, 0, 1) / 255).float()


def noise(n: int, side: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (n, 3, side, side), generator=generator, dtype=torch.uint8)
    return images, torch.full((n, 2), side)


def test_identity_divides_bytes_and_passes_floats() -> None:
    images = torch.tensor([[[[0, 51, 255]]]], dtype=torch.uint8)
    sizes = torch.tensor([[1, 3]])
    assert torch.allclose(Identity()(images, sizes), torch.tensor([[[[0, 0.2, 1]]]]))
    rows = torch.tensor([[5.0, -1.0]])
    assert torch.equal(Identity()(rows, sizes), rows)


@pytest.mark.parametrize("side", [8, 9, 11])
def test_the_centre_crop_is_torchvisions_pixel_for_pixel(side: int) -> None:
    images, sizes = noise(2, side)
    assert torch.equal(CentreCrop(6)(images, sizes), v2.functional.center_crop(images, [6, 6]) / 255)


def test_a_random_crop_is_a_window_of_its_image_or_the_mirror_of_one() -> None:
    images, sizes = noise(40, 6)
    crops = RandomCrop(4)(images, sizes, torch.Generator().manual_seed(1))
    places = set()
    for image, cut in zip(images, crops, strict=True):
        straight = {(i, j, False): image[:, i : i + 4, j : j + 4] for i in range(3) for j in range(3)}
        windows = straight | {(i, j, True): window.flip(-1) for (i, j, _), window in straight.items()}
        found = [place for place, window in windows.items() if torch.equal(window / 255, cut)]
        assert len(found) == 1
        places.add(found[0])
    # 40 draws from 18 places: every row, column and orientation turns up.
    assert {p[0] for p in places} == {p[1] for p in places} == {0, 1, 2}
    assert {p[2] for p in places} == {False, True}


def test_a_padded_crop_is_a_window_of_the_image_among_black_pixels() -> None:
    images, sizes = noise(60, 4)
    images = images.clamp_min(1)
    crops = RandomCrop(4, flip=False, padding=2)(images, sizes, torch.Generator().manual_seed(1))
    padded = v2.functional.pad(images, [2, 2, 2, 2])
    corners = set()
    for image, cut in zip(padded, crops, strict=True):
        windows = {(i, j): image[:, i : i + 4, j : j + 4] for i in range(5) for j in range(5)}
        (found,) = [place for place, window in windows.items() if torch.equal(window / 255, cut)]
        corners.add(found)
    assert {i for i, _ in corners} == {j for _, j in corners} == {0, 1, 2, 3, 4}
    with pytest.raises(InputError, match="padding -1 is no number of pixels"):
        RandomCrop(4, padding=-1)


def test_without_flip_and_room_a_random_crop_is_the_image() -> None:
    images, sizes = noise(5, 4)
    assert torch.equal(RandomCrop(4, flip=False)(images, sizes), images / 255)


def test_half_of_the_crops_are_mirrored() -> None:
    images, sizes = noise(1, 2)
    many = images.expand(2000, -1, -1, -1)
    crops = RandomCrop(2)(many, sizes.expand(2000, 2), torch.Generator().manual_seed(0))
    share = (crops == images / 255).flatten(1).all(1).float().mean()
    assert abs(share - 0.5) < 0.04  # 3.6 standard deviations


def test_a_crop_larger_than_the_image_is_refused() -> None:
    images, sizes = noise(1, 32)
    for transform in (RandomCrop(), CentreCrop()):
        with pytest.raises(InputError, match="a 224 x 224 crop does not fit images of 32 x 32"):
            transform(images, sizes)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(InputError, match="crop size 0"):
        CentreCrop(0)
    with pytest.raises(InputError, match="scale"):
        RandomResizedCrop(scale=(1.0, 0.5))
    with pytest.raises(InputError, match="ratio"):
        RandomResizedCrop(ratio=(0.0, 1.0))
    with pytest.raises(InputError, match="resize 200 is smaller"):
        AspectCentreCrop(224, resize=200)


@pytest.mark.parametrize(("height", "width"), [(300, 400), (500, 333), (256, 256), (375, 500)])
def test_the_aspect_true_centre_crop_is_torchvisions_on_smooth_images(height: int, width: int) -> None:
    image = smooth(height, width)
    ours = AspectCentreCrop()(squashed(image)[None], torch.tensor([[height, width]]))[0]
    theirs = as_float(v2.CenterCrop(224)(v2.Resize(256)(image)))
    assert (ours - theirs).abs().max() <= 2.01 / 255


@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize("box", [(0, 0, 300, 400), (10, 200, 90, 120), (150, 30, 140, 110), (299, 399, 1, 1)])
def test_a_box_read_from_the_copy_is_torchvisions_resized_crop(box: tuple[int, int, int, int], mirrored: bool) -> None:
    image = smooth(300, 400)
    boxes, sizes = torch.tensor([box]).float(), torch.tensor([[300, 400]])
    ours = crop(squashed(image)[None], boxes, sizes, 224, torch.tensor([mirrored]))[0]
    theirs = as_float(v2.functional.resized_crop(image, *box, [224, 224], antialias=True))
    assert (ours - (theirs.flip(-1) if mirrored else theirs)).abs().max() <= 3.01 / 255


@given(height=st.integers(1, 600), width=st.integers(1, 600), seed=st.integers(0, 100))
def test_boxes_lie_in_the_image_with_the_area_and_ratio_asked_for(height: int, width: int, seed: int) -> None:
    transform = RandomResizedCrop(scale=(0.3, 0.9))
    draws = torch.rand(4, 10, 4, generator=torch.Generator().manual_seed(seed))
    top, left, h, w = transform.boxes(torch.tensor([[height, width]]).expand(4, 2), draws).unbind(1)
    assert (top >= 0).all() and (left >= 0).all() and (h > 0).all() and (w > 0).all()
    assert (top + h <= height).all() and (left + w <= width).all()
    for values in (top, left, h, w):
        assert torch.equal(values, values.round())
    if 2 / 3 < height / width < 3 / 2 and min(height, width) > 100:
        # Such images always leave room: some candidate of ten fits, and rounding moves an area by little.
        assert ((h * w) / (height * width) > 0.28).all() and ((h * w) / (height * width) < 0.93).all()
        assert (w / h > 0.72).all() and (w / h < 1.38).all()


def test_the_first_box_that_fits_is_taken_by_hand() -> None:
    # 100 x 100, scale (0.25, 1), ratio (1/4, 4). Candidate 0: area 1, aspect 4 -> 200 wide: does not fit.
    # Candidate 1: area 0.25 + 0.75 * 0 = 2500, aspect exp(0) = 1 (draw 0.5) -> 50 x 50; top floor(0.5 * 51) = 25,
    # left floor(0.999 * 51) = 50. Candidate 2 would fit too.
    transform = RandomResizedCrop(scale=(0.25, 1.0), ratio=(0.25, 4.0))
    draws = torch.tensor([[[0.999, 0.999, 0, 0], [0, 0.5, 0.5, 0.999], [0, 0.5, 0, 0]]])
    assert transform.boxes(torch.tensor([[100, 100]]), draws).tolist() == [[25, 50, 50, 50]]


def test_where_no_box_fits_the_centre_is_taken_as_torchvision_does() -> None:
    # Very flat: 10 x 4/3 = 13 wide, left (1000 - 13) // 2 = 493. Very tall: 10 / (3/4) = 13 high. Near square: all.
    transform = RandomResizedCrop()
    central = transform.central(torch.tensor([[10, 1000], [1000, 10], [90, 100]]))
    assert central.tolist() == [[0, 493, 10, 13], [493, 0, 13, 10], [0, 0, 90, 100]]
    draws = torch.full((1, 10, 4), 0.999)
    assert transform.boxes(torch.tensor([[10, 1000]]), draws).tolist() == [[0, 493, 10, 13]]


def test_box_sizes_are_distributed_as_torchvisions() -> None:
    n, height, width = 4000, 300, 400
    transform = RandomResizedCrop(scale=(0.08, 1.0))
    draws = torch.rand(n, 10, 4, generator=torch.Generator().manual_seed(3))
    ours = transform.boxes(torch.tensor([[height, width]]).expand(n, 2), draws)
    with torch.random.fork_rng():
        torch.manual_seed(4)
        image = torch.zeros(3, height, width)
        reference = v2.RandomResizedCrop(224)
        params = [reference.make_params([image]) for _ in range(n)]
    theirs = torch.tensor([[p["top"], p["left"], p["height"], p["width"]] for p in params]).float()
    # Means agree within 5 standard errors; torchvision draws candidates one by one, the law is the same.
    error = 5 * (ours.std(0) ** 2 / n + theirs.std(0) ** 2 / n).sqrt()
    assert ((ours.mean(0) - theirs.mean(0)).abs() < error).all()


TRANSFORMS: list[Transform] = [
    Identity(),
    CentreCrop(24),
    RandomCrop(24),
    RandomResizedCrop(24),
    AspectCentreCrop(24, 32),
]


@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda t: type(t).__name__)
def test_outputs_are_bytes_over_255_and_repeat_with_the_seed(transform: Transform) -> None:
    images, _ = noise(6, 32)
    sizes = torch.tensor([[32, 32], [20, 60], [60, 20], [1, 1], [300, 400], [32, 40]])
    one = transform(images, sizes, torch.Generator().manual_seed(5))
    assert one.dtype == torch.float32
    levels = one * 255
    assert (levels - levels.round()).abs().max() < 1e-4 and one.min() >= 0 and one.max() <= 1
    assert torch.equal(one, transform(images, sizes, torch.Generator().manual_seed(5)))
    if isinstance(transform, RandomCrop | RandomResizedCrop):
        assert not torch.equal(one, transform(images, sizes, torch.Generator().manual_seed(6)))


def test_random_resized_crops_are_not_mirrored_without_flip() -> None:
    # Brightness grows to the right, so in every unmirrored crop it does.
    ramp = torch.arange(64, dtype=torch.uint8).mul(3).expand(50, 3, 64, 64)
    sizes = torch.full((50, 2), 64)
    plain = RandomResizedCrop(16, flip=False)(ramp, sizes, torch.Generator().manual_seed(0))
    assert (plain[..., -1] > plain[..., 0]).all()
    flipped = RandomResizedCrop(16)(ramp, sizes, torch.Generator().manual_seed(0))
    share = (flipped[:, 0, 0, -1] > flipped[:, 0, 0, 0]).float().mean()
    assert 0.2 < share < 0.8


def test_recipes_may_give_ranges_as_lists() -> None:
    transform = RandomResizedCrop(scale=[0.5, 1], ratio=[1, 1])
    assert transform.scale == (0.5, 1.0) and transform.ratio == (1.0, 1.0)
    assert math.isclose(
        float(transform.boxes(torch.tensor([[8, 8]]), torch.zeros(1, 10, 4))[0, 2]), round(8 * 0.5**0.5)
    )


@pytest.mark.gpu
@pytest.mark.parametrize("transform", TRANSFORMS, ids=lambda t: type(t).__name__)
def test_the_gpu_gives_what_the_cpu_gives(transform: Transform) -> None:
    images, _ = noise(6, 32)
    sizes = torch.tensor([[32, 32], [20, 60], [60, 20], [1, 1], [300, 400], [32, 40]])
    on_cpu = transform(images, sizes, torch.Generator().manual_seed(5))
    on_gpu = transform(images.cuda(), sizes.cuda(), torch.Generator().manual_seed(5))
    assert on_gpu.device.type == "cuda"
    # Interpolation may round one byte either way.
    assert (on_gpu.cpu() - on_cpu).abs().max() <= 1.01 / 255
