"""Batch norm in eval mode, multiplied into the convolution before it: found by torch.fx, redone as weights move."""

import inspect
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


@dataclass(frozen=True)
class Fold:
    """A convolution and the norm behind it, by name; the tensors that hold their product; constants, per channel."""

    convolution: str
    norm: str
    weight: Tensor
    bias: Tensor
    eps: Tensor
    ones: Tensor
    zeros: Tensor


def fold_norms(shadow: nn.Module, prefix: str, region: nn.Module) -> list[Fold]:
    """Take the batch norms that stand right behind a convolution out of `region`; the convolution gets a bias."""
    folds = []
    for convolution_name, norm_name in list(_pairs(shadow, region)):
        convolution, norm = region.get_submodule(convolution_name), region.get_submodule(norm_name)
        assert isinstance(convolution, _ConvNd) and isinstance(norm, _BatchNorm)
        # Parameters of its own: the old ones may be tied to another layer's.
        convolution.weight = nn.Parameter(torch.empty_like(convolution.weight), requires_grad=False)
        zeros = convolution.weight.new_zeros(convolution.out_channels)
        convolution.bias = nn.Parameter(zeros.clone(), requires_grad=False)
        parent, _, child = norm_name.rpartition(".")
        region.get_submodule(parent).register_module(child, _rest(norm))
        constants = torch.full_like(zeros, norm.eps), torch.ones_like(zeros), zeros
        names = prefix + convolution_name, prefix + norm_name
        folds.append(Fold(*names, convolution.weight, convolution.bias, *constants))
    return folds


def write_folded(folds: Sequence[Fold], present: dict[str, Tensor]) -> None:
    """w' = w * g / sqrt(v + eps), b' = beta + (b - mean) * g / sqrt(v + eps): a kernel per weight, few for the rest."""
    gain = torch.cat([present.get(f"{fold.norm}.weight", fold.ones) for fold in folds])
    offset = torch.cat([present.get(f"{fold.norm}.bias", fold.zeros) for fold in folds])
    mean = torch.cat([present[f"{fold.norm}.running_mean"] for fold in folds])
    variance = torch.cat([present[f"{fold.norm}.running_var"] for fold in folds])
    before = torch.cat([present.get(f"{fold.convolution}.bias", fold.zeros) for fold in folds])
    scale = gain / (variance + torch.cat([fold.eps for fold in folds])).sqrt()
    sizes = [len(fold.bias) for fold in folds]
    torch._foreach_copy_([fold.bias for fold in folds], list((offset + (before - mean) * scale).split(sizes)))
    for fold, factor in zip(folds, scale.split(sizes), strict=True):
        weight = present[f"{fold.convolution}.weight"]
        torch.mul(weight, factor.view(-1, *[1] * (weight.dim() - 1)), out=fold.weight)


class PairTracer(fx.Tracer):
    """Follows calls only as far as batch norms lie inside, so that other layers may branch on shapes as they like."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, _BatchNorm) or not any(isinstance(layer, _BatchNorm) for layer in m.modules())

    def call_module(self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # Without decorators: a run-time type check would refuse the symbolic input.
        return super().call_module(m, partial(inspect.unwrap(type(m).forward), m), args, kwargs)


def _pairs(shadow: nn.Module, region: nn.Module) -> Iterator[tuple[str, str]]:
    """Names of (convolution, norm) where nothing else reads the convolution, and both are called once."""
    # Inside a Sequential, the region itself is called the way its parts are.
    root = nn.Sequential(region)
    nodes = PairTracer().trace(root).nodes
    # How often each layer is called, or has its weight read by name.
    uses = Counter(str(node.target) for node in nodes if node.op == "call_module")
    uses.update(str(node.target).rpartition(".")[0] for node in nodes if node.op == "get_attr")
    places = Counter(id(layer) for _, layer in shadow.named_modules(remove_duplicate=False))
    for node in nodes:
        before = node.args[0] if node.op == "call_module" and len(node.args) == 1 else None
        if not isinstance(before, fx.Node) or before.op != "call_module" or len(before.users) > 1:
            continue
        names = str(before.target), str(node.target)
        convolution, norm = map(root.get_submodule, names)
        once = all(uses[name] == 1 for name in names) and places[id(convolution)] == places[id(norm)] == 1
        if (
            once
            and not is_watched(convolution)
            and not is_watched(norm)
            and _is_plain_convolution(convolution)
            and _is_fixed_norm(norm)
        ):
            yield names[0].removeprefix("0."), names[1].removeprefix("0.")


def is_watched(layer: nn.Module) -> bool:
    """Whether a hook would notice that the layer is gone or computes something else."""
    return bool(layer._forward_hooks or layer._forward_pre_hooks)


def _is_plain_convolution(layer: nn.Module) -> bool:
    """No subclass, which may rework its weight, and no weight that is computed from others."""
    return type(layer) in CONVOLUTIONS and "weight" in dict(layer.named_parameters(recurse=False))


def _is_fixed_norm(layer: nn.Module) -> bool:
    """In eval mode a fixed affine map, since it has running statistics; timm's applies an activation behind it."""
    has_statistics = isinstance(layer, _BatchNorm) and layer.running_mean is not None
    if not has_statistics or type(layer) in BATCH_NORMS:
        return has_statistics
    from timm.layers.norm_act import BatchNormAct2d  # here: few models need it, and timm is slow to import

    return type(layer) is BatchNormAct2d


def _rest(norm: _BatchNorm) -> nn.Module:
    """What a batch norm does besides normalising."""
    return nn.Identity() if type(norm) in BATCH_NORMS else nn.Sequential(*norm.children())
