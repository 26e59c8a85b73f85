"""The encoder: pixel normalisation before, unit length after, batch norm as asked."""

import inspect

import pytest
import torch
from torch import Tensor, nn

from robustmetric.errors import InputError
from robustmetric.models.convnet import ConvNet
from robustmetric.models.encoder import Encoder


def images(count: int = 4, channels: int = 3, side: int = 8) -> Tensor:
    return torch.rand(count, channels, side, side, generator=torch.Generator().manual_seed(0))


class Small(nn.Module):
    """A user's own module, that knows nothing of us: convolution, batch norm, pooling to (batch, 5, 1, 1)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(3, 5, 3), nn.BatchNorm2d(5), nn.ReLU(), nn.AdaptiveAvgPool2d(1))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x)


def test_any_module_gives_unit_length_embeddings() -> None:
    embeddings = Encoder(Small())(images())
    assert embeddings.shape == (4, 5)
    torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(4))


def test_pixels_are_normalised_per_channel() -> None:
    encoder = Encoder(nn.Flatten(), mean=(0.5, 0.25), std=(0.5, 0.25), normalise=False)
    # (1 - 0.5) / 0.5 = 1 and (0 - 0.25) / 0.25 = -1
    torch.testing.assert_close(encoder(torch.tensor([[[[1.0]], [[0.0]]]])), torch.tensor([[1.0, -1.0]]))


def test_the_gradient_goes_through_the_normalisation() -> None:
    encoder = Encoder(nn.Flatten(), mean=(0.5,), std=(0.25,), normalise=False)
    x = images(channels=1).requires_grad_()
    encoder(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.full_like(x, 1 / 0.25))


def test_normalise_false_keeps_the_length() -> None:
    x = images()
    torch.testing.assert_close(Encoder(nn.Flatten(), normalise=False)(x), x.flatten(1))
    torch.testing.assert_close(Encoder(nn.Flatten())(3 * x), Encoder(nn.Flatten())(x))


def test_a_zero_embedding_has_finite_gradients() -> None:
    x = torch.zeros(2, 3, requires_grad=True)
    Encoder(nn.Flatten())(x).sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()


def test_half_precision_is_normalised_in_fp32() -> None:
    encoder = Encoder(Small())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        embeddings = encoder(images())
    assert embeddings.dtype == torch.float32
    torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(4))


@pytest.mark.parametrize(("batch_norm", "moves", "trains"), [("live", 1, 1), ("statistics", 0, 1), ("whole", 0, 0)])
def test_batch_norm_is_frozen_as_asked(batch_norm: str, moves: int, trains: int) -> None:
    encoder = Encoder(Small(), batch_norm=batch_norm)
    encoder.train()
    layer = encoder.get_submodule("trunk.layers.1")
    before = layer.running_mean.clone()
    (encoder(images()) * torch.arange(5.0)).sum().backward()
    assert (not torch.equal(layer.running_mean, before)) == bool(moves)
    assert (layer.weight.grad is not None) == bool(trains)
    assert layer.weight.requires_grad == layer.bias.requires_grad == bool(trains)
    assert layer.training == bool(moves)
    assert encoder.training and encoder.get_submodule("trunk.layers.0").weight.grad is not None


def test_eval_puts_everything_in_eval_mode() -> None:
    for batch_norm in ("live", "statistics", "whole"):
        encoder = Encoder(Small(), batch_norm=batch_norm).eval()
        assert not any(module.training for module in encoder.modules())


def test_fixed_batch_norm_embeds_each_image_alone() -> None:
    encoder = Encoder(Small(), batch_norm="statistics").train()
    torch.testing.assert_close(encoder(images())[:1], encoder(images()[:1]))


def test_dim_is_the_trunks_own_or_given_or_measured() -> None:
    assert Encoder(ConvNet(side=8, kernel=3, dim=7)).dim == 7
    assert Encoder(Small(), dim=5).dim == 5
    assert Encoder(Small(), shape=(3, 8, 8)).dim == 5


def test_measuring_leaves_no_trace() -> None:
    encoder = Encoder(Small(), shape=(3, 8, 8))
    assert all(module.training for module in encoder.modules())
    assert encoder.get_submodule("trunk.layers.1").num_batches_tracked == 0


def test_unknown_dim_says_what_to_give() -> None:
    with pytest.raises(InputError, match="Small is not known; give Encoder"):
        _ = Encoder(Small()).dim


@pytest.mark.parametrize("pixels", [{}, {"mean": (0.5,) * 3, "std": (0.5,) * 3}])
def test_wrong_number_of_channels_is_said(pixels: dict) -> None:
    with pytest.raises(InputError, match="have 1 channels; this encoder expects 3"):
        Encoder(Small(), **pixels)(images(channels=1))


def test_other_failures_of_a_trunk_stay_as_they_are() -> None:
    with pytest.raises(RuntimeError, match=r"[Kk]ernel size"):
        Encoder(Small())(images(side=2))


def test_a_checkpoint_does_not_carry_pixel_statistics() -> None:
    assert not any(key in ("mean", "std") for key in Encoder(Small(), mean=(0.5,) * 3, std=(1.0,) * 3).state_dict())


@pytest.mark.parametrize(
    "settings", [{"mean": (0.5,)}, {"mean": (0.5,), "std": (0.0,)}, {"batch_norm": "statistic"}], ids=str
)
def test_wrong_settings_are_refused(settings: dict) -> None:
    # Unwrapped: the type checker that runs in tests only would refuse an unknown word first.
    with pytest.raises(InputError, match=r"do not fit|did you mean 'statistics'"):
        inspect.unwrap(Encoder.__init__)(Encoder.__new__(Encoder), Small(), **settings)
