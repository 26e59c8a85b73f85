"""Input transforms: worked by hand, JPEG against a real encoder, and both ways back through them."""

import inspect
import io
import math
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_sample_image
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from robustmetric.errors import InputError
from robustmetric.models.classifier import Classifier, Classifies
from robustmetric.models.convnet import ConvNet
from robustmetric.models.encoder import Encoder
from robustmetric.models.input_transforms import Barrage, BitDepth, Jpeg, ResizeAndPad, Transformed, _blurred
from robustmetric.perturb.fast import FastView
from robustmetric.perturb.gradient import value_and_gradient


def photograph() -> np.ndarray:
    """37 x 45 pixels: no whole number of blocks either way."""
    return np.ascontiguousarray(load_sample_image("china.jpg")[100:137, 200:245])


def as_images(pixels: np.ndarray) -> Tensor:
    return torch.from_numpy(pixels).float().permute(2, 0, 1)[None] / 255


def classifier() -> Classifier:
    torch.manual_seed(0)
    return Classifier(ConvNet(side=8, kernel=3, widths=(4,), hidden=8, dim=6), 10)


def test_bit_depth_by_hand() -> None:
    # One bit: 0 or 1; two bits: 0, 1/3, 2/3, 1.
    x = torch.tensor([0.0, 0.3, 0.55, 0.8, 1.0]).view(1, 1, 1, 5)
    assert BitDepth(1)(x).flatten().tolist() == [0, 0, 1, 1, 1]
    torch.testing.assert_close(BitDepth(2)(x).flatten(), torch.tensor([0, 1, 2, 2, 3]) / 3)
    bytes_ = torch.arange(256).view(1, 1, 16, 16) / 255
    torch.testing.assert_close(BitDepth(8)(bytes_), bytes_)


@pytest.mark.parametrize("quality", [20, 50, 75, 95])
@pytest.mark.parametrize("grey", [False, True])
def test_jpeg_is_what_a_real_encoder_makes_of_a_photograph(quality: int, grey: bool) -> None:
    pixels = photograph()[..., :1] if grey else photograph()
    file = io.BytesIO()
    Image.fromarray(pixels[..., 0] if grey else pixels).save(file, "JPEG", quality=quality, subsampling=0)
    theirs = np.asarray(Image.open(file), dtype=np.float32).reshape(pixels.shape)
    ours = (Jpeg(quality)(as_images(pixels)) * 255)[0].permute(1, 2, 0).numpy()
    lost, apart = np.abs(theirs - pixels).mean(), np.abs(ours - theirs).mean()
    # Whole-number cosines round a few coefficients to the other side.
    assert apart < 0.7 and apart < 0.3 * lost
    assert np.abs(ours - theirs).max() <= 20


@pytest.mark.parametrize("channels", [1, 3])
def test_constants_are_made_at_the_first_call_alone(channels: int) -> None:
    images = torch.rand(2, channels, 8, 8)
    with torch.inference_mode():
        first = Jpeg()(images)
    with Operations() as seen:
        assert torch.equal(Jpeg()(images), first)
        _blurred(images)
        seen.names.clear()
        _blurred(images.requires_grad_()).sum().backward()
        Jpeg()(images)
    assert seen.names and not seen.names & {"lift_fresh", "linalg_inv_ex", "_to_copy"}


class Operations(TorchDispatchMode):
    """The names of all operations; `lift_fresh` makes a tensor of Python numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


def test_a_flat_block_passes_jpeg_and_a_fine_pattern_of_low_contrast_does_not() -> None:
    flat = torch.full((1, 1, 8, 8), 128 / 255)
    torch.testing.assert_close(Jpeg(10)(flat), flat)
    # A chequered pattern of +-4 levels is its cosine (7, 7), about 8 * 4 * 0.82 = 26; its step at quality 50 is 99.
    chequered = flat + (torch.arange(8)[:, None] + torch.arange(8)) % 2 * 8 / 255 - 4 / 255
    assert Jpeg(50)(chequered).std() < 0.3 * chequered.std()


def test_an_image_is_resized_and_put_whole_among_zeros() -> None:
    x = 0.1 + 0.9 * torch.rand(64, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    torch.manual_seed(0)
    # As wide as it is: one of 3 x 3 places, pixel for pixel.
    places = set()
    for image, moved in zip(x, ResizeAndPad(8, 8)(x), strict=True):
        torch.testing.assert_close(moved, image)
    for image, moved in zip(x[:20], ResizeAndPad(8, 10)(x[:20]), strict=True):
        rows, columns = (moved[0] > 0).any(dim=1).nonzero(), (moved[0] > 0).any(dim=0).nonzero()
        side = int(rows.max() - rows.min()) + 1
        assert moved.shape == (1, 10, 10) and side == int(columns.max() - columns.min()) + 1
        places.add((side, int(rows.min()), int(columns.min())))
        if side == 8:
            top, left = int(rows.min()), int(columns.min())
            torch.testing.assert_close(moved[:, top : top + 8, left : left + 8], image)
    assert {place[0] for place in places} == {8, 9, 10} and len(places) > 6


def test_a_barrage_differs_from_image_to_image_and_call_to_call() -> None:
    x = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(0)).expand(16, -1, -1, -1)
    torch.manual_seed(0)
    first, second = Barrage()(x), Barrage()(x)
    assert len({tuple(image.flatten().tolist()) for image in first}) > 12 and not torch.equal(first, second)
    changed = (Barrage(0.01)(x) - x).abs().flatten(1).amax(dim=1) > 0
    assert changed.float().mean() < 0.3 < ((first - x).abs().flatten(1).amax(dim=1) > 0).float().mean()


def test_rounding_has_no_gradient_of_its_own_and_the_model_s_straight_through() -> None:
    model, x = classifier(), torch.rand(2, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    for transform in (BitDepth(3), Jpeg(60)):
        own, straight = (Transformed(model, [transform], gradient=way) for way in ("own", "straight"))
        torch.testing.assert_close(own(x), model(transform(x)))
        torch.testing.assert_close(straight(x), own(x))
        _, none = value_and_gradient(lambda x: own(x)[:, 0], x)  # noqa: B023  # called at once
        assert not none.any()
        _, passed = value_and_gradient(lambda x: straight(x)[:, 0], x)  # noqa: B023  # called at once
        _, expected = value_and_gradient(lambda x: model(x)[:, 0], transform(x))
        torch.testing.assert_close(passed, expected)


def test_a_wrapper_is_a_classifier_where_its_model_is_one() -> None:
    model = classifier()
    wrapped = Transformed(model, [BitDepth(2), BitDepth(3)])
    x = torch.rand(3, 1, 8, 8)
    assert isinstance(wrapped, Classifies) and wrapped.classes == wrapped.dim == 10
    seen = BitDepth(3)(BitDepth(2)(x))
    torch.testing.assert_close(wrapped.features(x), model.features(seen))
    torch.testing.assert_close(wrapped.logits(wrapped.features(x)), model(seen))
    twice = Transformed(wrapped, [BitDepth(1)])
    torch.testing.assert_close(twice.features(x), wrapped.features(BitDepth(1)(x)))
    encoder = Transformed(Encoder(ConvNet(side=8, kernel=3, dim=6)), [BitDepth()])
    assert not isinstance(encoder, Classifies) and encoder.dim == 6
    for ask in (encoder.features, encoder.logits):
        with pytest.raises(InputError, match="expected a classifier"):
            ask(torch.rand(2, 1, 8, 8) if ask == encoder.features else torch.rand(2, 6))


def test_the_fast_view_of_a_wrapper_transforms_too_and_anew() -> None:
    model, x = classifier(), torch.rand(8, 1, 8, 8)
    torch.testing.assert_close(FastView(Transformed(model, [BitDepth(1)]))(x), model(BitDepth(1)(x)))
    view = FastView(Transformed(model, [Barrage()]))
    assert not torch.equal(view(x), view(x))


def test_what_cannot_be_is_refused() -> None:
    model = classifier()
    for transforms in ([], ["jpeg"], "jpeg"):
        with pytest.raises(InputError, match="change no input"):
            inspect.unwrap(Transformed.__init__)(Transformed.__new__(Transformed), model, transforms)
    with pytest.raises(InputError, match="'straigt' is not known; did you mean 'straight'"):
        inspect.unwrap(Transformed.__init__)(Transformed.__new__(Transformed), model, [BitDepth()], "straigt")
    with pytest.raises(InputError, match="no gradient can pass straight"):
        Transformed(model, [ResizeAndPad(8, 9)], gradient="straight")(torch.rand(1, 1, 8, 8))
    with pytest.raises(InputError, match="are no images"):
        Transformed(model, [BitDepth()])(torch.rand(2, 64))
    with pytest.raises(InputError, match="are not square"):
        ResizeAndPad(4, 8)(torch.rand(1, 1, 4, 8))
    with pytest.raises(InputError, match="does not say its `dim`"):
        _ = Transformed(nn.Flatten(), [BitDepth()]).dim
    for make in (lambda: BitDepth(0), lambda: Jpeg(0), lambda: ResizeAndPad(9, 8), lambda: Barrage(math.nan)):
        with pytest.raises(InputError, match="expected"):
            make()
