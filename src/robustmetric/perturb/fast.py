"""The fast view: a model's shadow for training attacks, with batch norm folded away, bfloat16 and channels_last."""

import inspect
import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from typing import Any, final

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from robustmetric.errors import InputError
from robustmetric.types import Embeddings, Inputs

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
Copies = tuple[list[str], list[Tensor]]
"""Names of the model's tensors, and the shadow's that take them over."""


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


@final
class FastView:
    """`model(x)` in eval mode, computed fast: fp32 in and out, differentiable in x alone, weights as of `refresh`.

    The shadow is a copy: the model, its modes and its gradients are never touched. `fold` multiplies batch norm into
    the convolution before it where torch.fx can follow the model, which is exact up to rounding. `dtype` None is
    bfloat16 on a GPU and float32 elsewhere; an Encoder's pixel normalisation and unit length stay in fp32. `compiled`
    compiles forward and input gradient once per input shape; where that fails, the view says so and goes on without.
    `folded` counts the batch norms folded away.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        fold: bool = True,
        dtype: torch.dtype | None = None,
        channels_last: bool = True,
        compiled: bool = False,
    ) -> None:
        self._compiled: Callable[[Tensor], Tensor] | None
        self.fold, self.dtype, self.channels_last, self.compiled = fold, dtype, channels_last, compiled
        # Weak, so that a cache of views does not keep its models alive.
        self._model = weakref.ref(model)
        self._build(model)
        self.refresh()

    def __call__(self, x: Inputs) -> Embeddings:
        # Weights already have their dtype: an autocast around the call would only cast again.
        with torch.autocast(x.device.type, enabled=False):
            if self._compiled is None:
                return self._shadow(x)
            try:
                return self._compiled(x)
            except Exception as error:
                # Eager first: what is the input's fault raises here, as it would from the model.
                embeddings = self._shadow(x)
                self._compiled = None
                _warn("torch.compile failed, so the fast view runs without it", error)
                return embeddings

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over the model's present weights: in place, a few kernels, no host synchronisation."""
        if (model := self._model()) is None:
            raise InputError("the model of this fast view no longer exists; keep a reference to it")
        present = _tensors(model)
        if _layout(present) != self._layout:
            self._build(model)  # moved to another device, or a layer was replaced
        for names, targets in self._copies:
            torch._foreach_copy_(targets, [present[name] for name in names])
        if self._folds:
            _write_folded(self._folds, present)

    def _build(self, model: nn.Module) -> None:
        """The shadow, and which of its tensors are copied and which are folded."""
        sources = _tensors(model)
        self._layout = _layout(sources)
        shadow = deepcopy(model).eval().requires_grad_(False)
        owners = list(_encoders(shadow))
        regions = [(f"{name}.trunk.".lstrip("."), owner.get_submodule("trunk")) for name, owner in owners]
        self._folds: list[Fold] = []
        failures = []
        for prefix, region in regions or [("", shadow)]:
            if self.fold:
                try:
                    self._folds += _fold(shadow, prefix, region)
                except Exception as error:  # whatever the model's own forward makes of a symbolic input
                    failures.append(error)
            _convert(region, self._dtype(region), self.channels_last)
        if failures:
            _warn(f"batch norm of {type(model).__name__} stays unfolded: torch.fx cannot trace it", failures[0])
        self.folded = len(self._folds)
        written = {id(tensor) for fold in self._folds for tensor in (fold.weight, fold.bias)}
        self._copies = _copies(_tensors(shadow), sources, written)
        for (_, owner), (_, trunk) in zip(owners, regions, strict=True):
            owner.register_module("trunk", Cast(trunk, self._dtype(trunk), self.channels_last))
        self._shadow: nn.Module = shadow if owners else Cast(shadow, self._dtype(shadow), self.channels_last)
        self._compiled = torch.compile(self._shadow, dynamic=False) if self.compiled else None

    def _dtype(self, region: nn.Module) -> torch.dtype:
        on_gpu = any(parameter.is_cuda for parameter in region.parameters())
        return self.dtype or (torch.bfloat16 if on_gpu else torch.float32)


class Cast(nn.Module):
    """A network of another dtype and memory format, used from fp32."""

    def __init__(self, network: nn.Module, dtype: torch.dtype, channels_last: bool) -> None:
        super().__init__()
        self.network, self.dtype, self.channels_last = network, dtype, channels_last

    def forward(self, inputs: Tensor) -> Tensor:
        if self.channels_last and inputs.dim() == 4:
            inputs = inputs.to(self.dtype, memory_format=torch.channels_last)
        return self.network(inputs.to(self.dtype)).float()


_views: weakref.WeakKeyDictionary[nn.Module, dict[tuple[object, ...], FastView]] = weakref.WeakKeyDictionary()


def fast_view(
    model: nn.Module,
    *,
    fold: bool = True,
    dtype: torch.dtype | None = None,
    channels_last: bool = True,
    compiled: bool = False,
) -> FastView:
    """The model's fast view with its present weights: made at the first call, refreshed at later ones."""
    views = _views.setdefault(model, {})
    options = (fold, dtype, channels_last, compiled)
    if options in views:
        views[options].refresh()
    else:
        views[options] = FastView(model, fold=fold, dtype=dtype, channels_last=channels_last, compiled=compiled)
    return views[options]


class PairTracer(fx.Tracer):
    """Follows calls only as far as batch norms lie inside, so that other layers may branch on shapes as they like."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, _BatchNorm) or not any(isinstance(layer, _BatchNorm) for layer in m.modules())

    def call_module(self, m: nn.Module, forward: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        # Without decorators: a run-time type check would refuse the symbolic input.
        return super().call_module(m, partial(inspect.unwrap(type(m).forward), m), args, kwargs)


def _encoders(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules that put pixel statistics before a `trunk` (models.encoder.Encoder), innermost ones only."""
    for name, module in model.named_modules():
        if _normalises_pixels(module) and not any(map(_normalises_pixels, module.get_submodule("trunk").modules())):
            yield name, module


def _normalises_pixels(module: nn.Module) -> bool:
    statistics = {name for name, _ in module.named_buffers(recurse=False)}
    return {"mean", "std"} <= statistics and "trunk" in dict(module.named_children())


def _fold(shadow: nn.Module, prefix: str, region: nn.Module) -> list[Fold]:
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
        watched = any(layer._forward_hooks or layer._forward_pre_hooks for layer in (convolution, norm))
        if once and not watched and _is_plain_convolution(convolution) and _is_fixed_norm(norm):
            yield names[0].removeprefix("0."), names[1].removeprefix("0.")


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


def _write_folded(folds: Sequence[Fold], present: dict[str, Tensor]) -> None:
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


def _convert(region: nn.Module, dtype: torch.dtype, channels_last: bool) -> None:
    """In place, so that tensors recorded by a fold stay the ones in use. A batch norm that remains stays in fp32."""
    region.to(dtype)
    for layer in region.modules():
        if type(layer) in BATCH_NORMS:
            layer.float()
    for parameter in region.parameters():
        if channels_last and parameter.dim() == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)


def _copies(targets: dict[str, Tensor], sources: dict[str, Tensor], written: set[int]) -> list[Copies]:
    """All that is copied as it is, grouped so that one kernel serves a group."""
    groups: dict[object, Copies] = {}
    for name, target in targets.items():
        if id(target) not in written:
            source = sources[name]
            kind = source.dtype, target.dtype, source.stride() == target.stride()
            group = groups.setdefault(kind, ([], []))
            group[0].append(name)
            group[1].append(target)
    return list(groups.values())


def _tensors(model: nn.Module) -> dict[str, Tensor]:
    """Parameters and buffers by name; those tied between layers under each layer's name."""
    # One walk of our own: named_parameters and named_buffers take twice as long, which every refresh would pay.
    return {
        f"{prefix}.{name}": tensor
        for prefix, module in model.named_modules()
        for name, tensor in (*module._parameters.items(), *module._buffers.items())
        if tensor is not None
    }


def _layout(tensors: dict[str, Tensor]) -> list[tuple[str, torch.Size, torch.device]]:
    return [(name, tensor.shape, tensor.device) for name, tensor in tensors.items()]


def _warn(message: str, error: Exception) -> None:
    reason = f"{type(error).__name__}: {error}".splitlines()[0]
    warnings.warn(f"{message} ({reason})", stacklevel=3)
