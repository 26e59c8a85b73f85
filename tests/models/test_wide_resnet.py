"""Wide ResNets: their published sizes, their shape, and a block worked by hand."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from robustmetric.errors import InputError
from robustmetric.models.classifier import Classifier
from robustmetric.models.wide_resnet import Block, WideResNet


@pytest.mark.parametrize(
    ("depth", "width", "millions"),
    [(28, 10, 36.5), (16, 8, 11.0), (40, 4, 8.9), (22, 8, 17.2), (40, 1, 0.6)],
)
def test_parameters_with_ten_classes_are_those_of_the_paper(depth: int, width: int, millions: float) -> None:
    with torch.device("meta"):
        model = Classifier(WideResNet(depth, width), 10)
    assert round(sum(p.numel() for p in model.parameters()) / 1e6, 1) == millions
    # Depth counts the 3 x 3 convolutions and the head; three more, of 1 x 1, are shortcuts.
    convolutions = [layer for layer in model.modules() if isinstance(layer, nn.Conv2d)]
    wide = [layer for layer in convolutions if layer.kernel_size == (3, 3)]
    assert len(wide) + 3 == depth, "depth - 4 in blocks, the first, and by the paper's count the three shortcuts"
    assert len(convolutions) - len(wide) == (3 if width > 1 else 2)


def test_features_are_the_mean_of_a_map_of_a_quarter_of_the_side() -> None:
    model = WideResNet(16, 2).eval()
    x = torch.rand(2, 3, 32, 32)
    maps = model.blocks(model.first(x))
    assert maps.shape == (2, 128, 8, 8) and model.dim == 128
    torch.testing.assert_close(model(x), model.last(maps).mean(dim=(2, 3)))
    assert (model(x) >= 0).all(), "behind a ReLU"


def test_a_block_by_its_formula() -> None:
    torch.manual_seed(0)
    x = torch.randn(2, 4, 6, 6)
    for block in (Block(4, 4, stride=1).eval(), Block(4, 8, stride=2).eval()):
        first, norm, _ = block.widen
        entered = functional.relu(block.enter[0](x))
        inner = functional.relu(norm(functional.conv2d(entered, first.weight, None, first.stride, padding=1)))
        moved = functional.conv2d(inner, block.leave.weight, padding=1)
        kept = x if block.shortcut is None else functional.conv2d(entered, block.shortcut.weight, None, first.stride)
        torch.testing.assert_close(block(x), kept + moved)
    assert Block(4, 4, stride=1).shortcut is None


def test_weights_begin_with_the_deviation_of_the_paper() -> None:
    torch.manual_seed(0)
    model = WideResNet(10, 4)
    last = model.blocks[-1].leave
    # sqrt(2 / (9 * 256)) = 0.0295
    assert last.weight.std().item() == pytest.approx(0.02946, rel=0.01) and last.bias is None


def test_depths_that_make_no_stages_are_refused() -> None:
    for depth in (4, 18, 27):
        with pytest.raises(InputError, match=r"expected 6 n \+ 4"):
            WideResNet(depth)
    with pytest.raises(InputError, match="expected both at least 1"):
        WideResNet(16, 0)
