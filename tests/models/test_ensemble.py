"""Several encoders as one: unit length, members recoverable."""

import pytest
import torch
from torch import Tensor, nn

from robustmetric.errors import InputError
from robustmetric.models.convnet import ConvNet
from robustmetric.models.encoder import Encoder
from robustmetric.models.ensemble import Ensemble
from robustmetric.numerics.distances import pairwise


def member(seed: int, dim: int = 6) -> Encoder:
    torch.manual_seed(seed)
    return Encoder(ConvNet(side=8, kernel=3, hidden=16, dim=dim))


def images() -> Tensor:
    return torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def test_embeds_side_by_side_at_unit_length() -> None:
    members = [member(seed) for seed in range(3)]
    z = Ensemble(list(members))(images())
    assert z.shape == (5, 18) and Ensemble(list(members)).dim == 18
    torch.testing.assert_close(z.norm(dim=1), torch.ones(5))
    for part, scaled, encoder in zip(Ensemble(list(members)).split(z), z.chunk(3, 1), members, strict=True):
        torch.testing.assert_close(part, encoder(images()))
        torch.testing.assert_close(scaled * 3**0.5, encoder(images()))


def test_squared_distance_is_the_members_mean() -> None:
    members: list[nn.Module] = [member(seed) for seed in range(2)]
    z = Ensemble(members)(images())
    mean = sum(pairwise(m(images()), m(images())).square() for m in members) / 2
    torch.testing.assert_close(pairwise(z, z).square(), mean, atol=1e-5, rtol=1e-4)


def test_every_member_is_trained() -> None:
    ensemble = Ensemble([member(0), member(1)])
    (ensemble(images()) * torch.arange(12.0)).sum().backward()
    assert all(p.grad is not None for p in ensemble.parameters())


def test_members_of_different_size_are_refused() -> None:
    with pytest.raises(InputError, match=r"\[6, 7\]"):
        Ensemble([member(0), member(1, dim=7)])


def test_members_without_a_size_and_no_members_are_refused() -> None:
    with pytest.raises(InputError, match="Flatten has no `dim`"):
        Ensemble([nn.Flatten()])
    with pytest.raises(InputError, match="at least one"):
        Ensemble([])
