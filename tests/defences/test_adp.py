"""Adaptive diversity promoting: entropy and volume by hand, and members that disagree on wrong classes."""

import math

import pytest
import torch
from small import CLASSES, DIM, encoder, figures, paired_batch, seeded
from torch import nn

from robustmetric.defences.adp import DiversityPromoting, entropy, log_volume
from robustmetric.errors import InputError
from robustmetric.losses.proxy_anchor import ProxyAnchor
from robustmetric.models.ensemble import Ensemble
from robustmetric.types import Batch


def losses(count: int, classes: int = CLASSES, dim: int = DIM) -> list[ProxyAnchor]:
    return [ProxyAnchor(classes, dim, seed=seed) for seed in range(count)]


def test_entropy_by_hand() -> None:
    p = torch.tensor([[0.5, 0.25, 0.25], [1.0, 0.0, 0.0]])
    # 1/2 log 2 + 2 * 1/4 log 4, and nothing where one class is certain.
    assert entropy(p).tolist() == pytest.approx([1.5 * math.log(2), 0.0])


def test_volume_by_hand() -> None:
    # True class 1. Without it: (3, 4) and (4, 3) up to length: cosine 24/25.
    p = torch.tensor([[[0.3, 0.3, 0.4]], [[0.4, 0.3, 0.3]]])
    expected = math.log((1 + 1e-6) ** 2 - (24 / 25) ** 2)
    assert log_volume(p.log(), torch.tensor([1])).tolist() == pytest.approx([expected], rel=1e-5)
    # Class 0 removed: (3, 4) and (3, 3).
    cosine = 21 / (5 * math.sqrt(18))
    assert log_volume(p.log(), torch.tensor([0])).item() == pytest.approx(
        math.log((1 + 1e-6) ** 2 - cosine**2), rel=1e-4
    )


def test_volume_is_zero_without_common_choices_and_low_where_all_agree() -> None:
    apart = torch.tensor([[[0.5, 0.5, 0.0, 0.0]], [[0.5, 0.0, 0.5, 0.0]], [[0.5, 0.0, 0.0, 0.5]]])
    assert log_volume(apart.log(), torch.tensor([0])).item() == pytest.approx(3e-6, abs=1e-6)
    alike = apart[:1].expand(3, 1, 4)
    # A matrix of ones has eigenvalues 3, 0, 0: (3 + 1e-6) * 1e-6^2.
    assert log_volume(alike.log(), torch.tensor([0])).item() == pytest.approx(
        math.log(3) + 2 * math.log(1e-6), rel=1e-5
    )


@pytest.mark.parametrize("certain", [0.0, 30.0, 100.0])
def test_volume_is_of_wrong_classes_however_certain_the_true_one_is(certain: float) -> None:
    """Probabilities of e^-100 are no less different from one another than those of 0.1."""
    wrong = torch.tensor([[0.0, 1.0], [0.0, -1.0]])
    scores = torch.cat([torch.full((2, 1), certain), wrong], dim=1)[:, None].requires_grad_()
    volume = log_volume(scores, torch.tensor([0]))
    # Rows (1, e) and (1, 1 / e): the cosine is 2 / (1 + e^2)^(1/2) / (1 + e^-2)^(1/2).
    cosine = 2 / math.sqrt((1 + math.e**2) * (1 + math.e**-2))
    assert volume.item() == pytest.approx(math.log((1 + 1e-6) ** 2 - cosine**2), rel=1e-4)
    (gradient,) = torch.autograd.grad(volume.sum(), scores)
    assert gradient[:, 0, 0].abs().max() == 0 and gradient[:, 0, 1:].abs().min() > 0.1


class Fixed(nn.Module):
    """Embeddings that are what they are."""

    dim = 2

    def __init__(self, z: torch.Tensor) -> None:
        super().__init__()
        self.z = nn.Parameter(z)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.z


def test_the_terms_by_hand() -> None:
    model = Ensemble([Fixed(torch.tensor([[1.0, 0.0]])), Fixed(torch.tensor([[0.0, 1.0]]))])
    own = losses(2, classes=3, dim=2)
    for loss in own:
        loss.proxies.data = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, 0.0]])
    batch = Batch(torch.zeros(1, 1), torch.tensor([2]), torch.arange(1))
    terms = DiversityPromoting(own, entropy_weight=3.0, diversity_weight=0.25, sharpness=math.log(2))(model, batch)
    # Cosines (1, 0, -1) and (0, 1, 0): 2^s is (2, 1, 1/2) / 3.5 and (1, 2, 1) / 4, the mean (46, 44, 22) / 112.
    mean = [46 / 112, 44 / 112, 22 / 112]
    assert terms["entropy"].item() == pytest.approx(3 * sum(p * math.log(p) for p in mean), rel=1e-5)
    # Without class 2: (2, 1) and (1, 2), cosine 4/5.
    assert terms["diversity"].item() == pytest.approx(-0.25 * math.log((1 + 1e-6) ** 2 - 0.64), rel=1e-4)
    metric = sum(loss(member.z, batch.labels) for loss, member in zip(own, model.members, strict=True))
    torch.testing.assert_close(terms["metric"], metric)


def test_training_for_diversity_spreads_the_members() -> None:
    volumes = {}
    for weight in (0.0, 5.0):
        model, batch = Ensemble([encoder(seed) for seed in range(3)]), paired_batch(4)
        defence = DiversityPromoting(losses(3), entropy_weight=0.0, diversity_weight=weight)
        optimiser = torch.optim.Adam([*model.parameters(), *defence.parameters()], lr=5e-3)
        for step in range(40):
            optimiser.zero_grad()
            torch.stack(list(defence(model, batch, seeded(step)).values())).sum().backward()
            optimiser.step()
        volumes[weight] = figures(defence)["volume"]
    assert volumes[5.0] > volumes[0.0] + 0.5


def test_bad_settings_are_refused() -> None:
    for arguments, message in (
        ({"entropy_weight": -1.0}, "entropy_weight"),
        ({"sharpness": 0.0}, "sharpness"),
        ({"diversity_weight": math.nan}, "diversity_weight"),
    ):
        with pytest.raises(InputError, match=message):
            DiversityPromoting(losses(2), **arguments)
    with pytest.raises(InputError, match="expected as many in each"):
        DiversityPromoting([ProxyAnchor(3, DIM), ProxyAnchor(4, DIM)])
    with pytest.raises(InputError, match="is no ensemble of 2"):
        DiversityPromoting(losses(2))(encoder(), paired_batch())
