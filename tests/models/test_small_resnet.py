"""ResNets for images of 32 px: their known sizes, the size of their maps, and what they share with torchvision's."""

import pytest
import torch
import torchvision
from torch import nn

from robustmetric.errors import InputError
from robustmetric.models.classifier import Classifier
from robustmetric.models.small_resnet import SmallResNet


@pytest.mark.parametrize(("depth", "parameters"), [(18, 11_173_962), (34, 21_282_122)])
def test_parameters_with_ten_classes_are_the_known_ones(depth: int, parameters: int) -> None:
    """From the shapes by hand: torchvision's, with a first layer of 3 x 3 and a head of ten."""
    with torch.device("meta"):
        model = Classifier(SmallResNet(depth), 10)
        usual = getattr(torchvision.models, f"resnet{depth}")()
    count = sum(p.numel() for p in model.parameters())
    assert count == parameters
    changed = 64 * 3 * (7 * 7 - 3 * 3) + (512 + 1) * (1000 - 10)
    assert sum(p.numel() for p in usual.parameters()) - changed == count


def test_the_side_is_halved_three_times_and_no_more() -> None:
    model = SmallResNet().eval()
    sides: list[int] = []
    for stage in (model.net.layer1, model.net.layer2, model.net.layer3, model.net.layer4):
        stage.register_forward_hook(lambda _module, _inputs, maps: sides.append(maps.shape[-1]))
    features = model(torch.rand(2, 3, 32, 32))
    assert sides == [32, 16, 8, 4] and features.shape == (2, model.dim) == (2, 512)
    assert (features >= 0).all(), "behind a ReLU"


def test_with_the_same_weights_it_is_torchvisions_behind_its_first_layer() -> None:
    torch.manual_seed(0)
    model, usual = SmallResNet(channels=1).eval(), torchvision.models.resnet18().eval()
    usual.conv1, usual.maxpool, usual.fc = nn.Conv2d(1, 64, 3, padding=1, bias=False), nn.Identity(), nn.Identity()
    usual.load_state_dict(model.net.state_dict())
    x = torch.rand(2, 1, 16, 16)
    torch.testing.assert_close(model(x), usual(x))


@pytest.mark.parametrize("settings", [{"depth": 50}, {"channels": 0}])
def test_sizes_that_are_none_are_refused(settings: dict[str, int]) -> None:
    with pytest.raises(InputError, match="expected"):
        SmallResNet(**settings)
