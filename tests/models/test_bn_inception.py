"""BN-Inception: published size, published layer names, and the pixels its weights read."""

import pytest
import torch

from robustmetric.models.bn_inception import MEAN, STD, BNInception
from robustmetric.models.encoder import Encoder


@pytest.fixture(scope="module")
def classifier() -> BNInception:
    torch.manual_seed(0)
    return BNInception(dim=1000).eval()


def test_the_classifier_has_the_published_number_of_parameters(classifier: BNInception) -> None:
    assert sum(p.numel() for p in classifier.parameters()) == 11_295_240


def test_every_stage_has_the_published_shape(classifier: BNInception) -> None:
    with torch.no_grad():
        shapes = {name: tuple(x.shape[1:]) for name, x in classifier.stages(torch.rand(1, 3, 224, 224)).items()}
    assert shapes == {
        "stem": (192, 28, 28),
        **{"3a": (256, 28, 28), "3b": (320, 28, 28), "3c": (576, 14, 14)},
        **{"4a": (576, 14, 14), "4b": (576, 14, 14), "4c": (608, 14, 14), "4d": (608, 14, 14), "4e": (1056, 7, 7)},
        **{"5a": (1024, 7, 7), "5b": (1024, 7, 7)},
    }


def test_layers_have_the_public_weights_names(classifier: BNInception) -> None:
    shapes = {name: tuple(value.shape) for name, value in classifier.state_dict().items()}
    assert shapes["conv1_7x7_s2.weight"] == (64, 3, 7, 7) and shapes["conv1_7x7_s2.bias"] == (64,)
    assert shapes["inception_3a_double_3x3_reduce_bn.running_var"] == (64,)
    assert shapes["inception_4e_double_3x3_2.weight"] == (256, 256, 3, 3)
    assert shapes["inception_5b_pool_proj.weight"] == (128, 1024, 1, 1)
    assert shapes["last_linear.weight"] == (1000, 1024)
    assert "inception_3c_1x1.weight" not in shapes and "inception_4e_pool_proj.weight" not in shapes
    # 69 convolutions (2 and 7) each followed by batch norm (5), and the classifier (2).
    assert len(shapes) == 69 * 7 + 2


def test_the_head_and_its_absence() -> None:
    x = torch.rand(2, 3, 64, 64)
    assert BNInception(dim=16).eval()(x).shape == (2, 16)
    assert BNInception(dim=None).eval()(x).shape == (2, 1024, 2, 2) and BNInception(dim=None).dim == 1024


def test_the_first_layer_reads_bgr_in_0_to_255_less_the_caffe_mean() -> None:
    trunk = BNInception(dim=4).eval()
    seen: list[torch.Tensor] = []
    trunk.conv1_7x7_s2.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    rgb = torch.tensor([1.0, 0.5, 0.0]).view(1, 3, 1, 1).expand(1, 3, 32, 32)
    Encoder(trunk, MEAN, STD).eval()(rgb)
    # Blue 0 - 104, green 127.5 - 117, red 255 - 128.
    torch.testing.assert_close(seen[0][0, :, 0, 0], torch.tensor([-104.0, 10.5, 127.0]))


def test_reverse_only_swaps_red_and_blue() -> None:
    trunk, x = BNInception(dim=4).eval(), torch.rand(1, 3, 32, 32)
    reversed_output = trunk(x)
    trunk.reverse = False
    torch.testing.assert_close(trunk(x.flip(1)), reversed_output)


def test_weights_fill_the_trunk_and_leave_the_head(tmp_path):
    torch.manual_seed(0)
    public = BNInception(dim=1000)
    torch.save(public.state_dict(), tmp_path / "public.pth")
    ours = BNInception(dim=8, weights=str(tmp_path / "public.pth"))
    assert torch.equal(ours.conv1_7x7_s2.weight, public.conv1_7x7_s2.weight)
    assert ours.last_linear.weight.shape == (8, 1024)
