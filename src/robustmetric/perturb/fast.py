"""The fast view: a model's shadow for training attacks, with batch norm folded away, bfloat16 and channels_last."""

import warnings
import weakref
from collections import Counter
from collections.abc import Callable, Iterator
from copy import deepcopy
from typing import final

import torch
from torch import Tensor, nn

from robustmetric.errors import InputError
from robustmetric.perturb.cast import Cast
from robustmetric.perturb.folding import BATCH_NORMS, Fold, fold_norms, write_folded
from robustmetric.perturb.graph import Recorder
from robustmetric.perturb.inverted import can_fuse, fuse, fused_in, unfuse
from robustmetric.perturb.rewrite import rewrite
from robustmetric.types import Embeddings, Inputs

SHAPES = 64
"""Different input shapes that may be compiled in one process, over all models."""
Copies = tuple[list[str], list[Tensor]]
"""Names of the model's tensors, and the shadow's that take them over."""


@final
class FastView:
    """`model(x)` in eval mode, computed fast: fp32 in and out, differentiable in x alone, weights as of `refresh`.

    The shadow is a copy: the model, its modes and its gradients are never touched. `fold` multiplies batch norm into
    the convolution before it where torch.fx can follow the model, which is exact up to rounding. `dtype` None is
    bfloat16 on a GPU and float32 elsewhere; an Encoder's pixel normalisation and unit length stay in fp32.
    `channels_last` also rewrites layers (perturb/rewrite.py). On a GPU, a shape seen twice is recorded as a CUDA graph.
    `kernels` computes inverted residuals there by kernels of our own (perturb/kernels.py). `compiled` compiles forward
    and input gradient of the largest batch, unless they are computed so. What fails, the view says and goes on without.
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
        kernels: bool = True,
    ) -> None:
        self._compiled: Callable[[Tensor], Tensor] | None
        self._recorder: Recorder | None
        self._largest: int
        self.fold, self.dtype, self.channels_last, self.compiled = fold, dtype, channels_last, compiled
        self.kernels = kernels and channels_last
        # Weak, so that a cache of views does not keep its models alive.
        self._model = weakref.ref(model)
        self._build(model)
        self.refresh()

    def __call__(self, x: Inputs) -> Embeddings:
        # Weights already have their dtype: an autocast around the call would only cast again.
        with torch.autocast(x.device.type, enabled=False):
            if self._untried:
                self._try_kernels(x)
            # Without a gradient, compiling and recording would gain little and cost as much again.
            if not torch.is_grad_enabled():
                return self._shadow(x)
            try:
                return self._fastest(x)
            except Exception as error:
                # Without its traceback, which would hold the memory that the eager call may need.
                failure = error.with_traceback(None)
            # Eager before giving up: what is the input's fault raises here, as it would from the model.
            embeddings = self._shadow(x)
            self._give_up(failure)
            return embeddings

    def _try_kernels(self, x: Inputs) -> None:
        """There and back on one row, so that kernels that fail are met here; the library then computes their layers."""
        with torch.enable_grad():
            probe = x[:1].detach().requires_grad_()
            try:
                torch.autograd.grad(self._shadow(probe).sum(), probe)
            except Exception as error:
                failure = error.with_traceback(None)
            else:
                self._untried = False
                return
            unfuse(self._shadow)
            try:
                self._shadow(probe)
            except Exception:
                fuse(self._shadow)  # the input's fault
                raise
        self._untried = False
        self._compiled = _compile(self._shadow) if self.compiled else None
        _warn("kernels for inverted residuals failed, so the fast view runs without", failure)

    def _fastest(self, x: Inputs) -> Embeddings:
        """Recorded where this shape has been seen before, compiled where no larger batch has."""
        self._seen[x.shape] += 1
        network = self._network(x)
        if self._recorder is None or not x.is_cuda or self._seen[x.shape] < 2:
            return network(x)
        return self._recorder(network, x)

    def _network(self, x: Inputs) -> Callable[[Tensor], Tensor]:
        """The compiled shadow for the largest batch seen: compiling takes long, and most work is of that size."""
        if self._compiled is None or len(x) < self._largest:
            return self._shadow
        if len(x) > self._largest:
            # The gradient is compiled when it is first asked for: here, so that a failure is met here.
            probe = x.detach().requires_grad_()
            torch.autograd.grad(self._compiled(probe).sum(), probe)
            self._largest = len(x)
        return self._compiled

    def _give_up(self, error: Exception) -> None:
        """Go on without what failed."""
        if self._recorder is not None and self._recorder.tried:
            self._recorder = None
            _warn("recording a CUDA graph failed, so the fast view runs without", error)
        elif self._compiled is not None:
            self._compiled = None
            _warn("torch.compile failed, so the fast view runs without it", error)
        else:
            raise error

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
            write_folded(self._folds, present)

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
                    self._folds += fold_norms(shadow, prefix, region)
                except Exception as error:  # whatever the model's own forward makes of a symbolic input
                    failures.append(error)
            _convert(region, self._dtype(region), self.channels_last)
            if self.channels_last:
                rewrite(region)
            if self.kernels and can_fuse(region):
                fuse(region)
        if failures:
            _warn(f"batch norm of {type(model).__name__} stays unfolded: torch.fx cannot trace it", failures[0])
        self.folded = len(self._folds)
        written = {id(tensor) for fold in self._folds for tensor in (fold.weight, fold.bias)}
        self._copies = _copies(_tensors(shadow), sources, written)
        for (_, owner), (_, trunk) in zip(owners, regions, strict=True):
            owner.register_module("trunk", Cast(trunk, self._dtype(trunk), self.channels_last))
        self._shadow: nn.Module = shadow if owners else Cast(shadow, self._dtype(shadow), self.channels_last)
        self._untried = bool(fused_in(shadow))
        # Measured: our kernels are faster than what a compiler makes of the same layers, and are there at once.
        self._compiled = _compile(self._shadow) if self.compiled and not self._untried else None
        self._seen: Counter[torch.Size] = Counter()
        self._largest = 0
        self._recorder = Recorder()

    def _dtype(self, region: nn.Module) -> torch.dtype:
        on_gpu = any(parameter.is_cuda for parameter in region.parameters())
        return self.dtype or (torch.bfloat16 if on_gpu else torch.float32)


_views: weakref.WeakKeyDictionary[nn.Module, dict[tuple[object, ...], FastView]] = weakref.WeakKeyDictionary()

_unfoldable: weakref.WeakSet[nn.Module] = weakref.WeakSet()


def fast_view(
    model: nn.Module,
    *,
    fold: bool = True,
    dtype: torch.dtype | None = None,
    channels_last: bool = True,
    compiled: bool = False,
    kernels: bool = True,
) -> FastView:
    """The model's fast view with its present weights: made at the first call, refreshed at later ones.

    On a CPU that is training in another precision, `dtype` None is that precision.
    """
    # Measured: through depthwise convolutions a CPU is faster in fp32.
    if dtype is None and torch.is_autocast_enabled("cpu") and not _is_depthwise(model):
        dtype = torch.get_autocast_dtype("cpu")
    views = _views.setdefault(model, {})
    options = (fold, dtype, channels_last, compiled, kernels)
    if options in views:
        views[options].refresh()
    else:
        views[options] = FastView(
            model, fold=fold, dtype=dtype, channels_last=channels_last, compiled=compiled, kernels=kernels
        )
    return views[options]


def folded_view(model: nn.Module, *, channels_last: bool = False) -> FastView | None:
    """The model in fp32 with batch norm folded away; None where there is none that can be."""
    if model not in _unfoldable:
        # Measured: without depthwise convolutions fp32 prefers the usual memory format.
        depthwise = _is_depthwise(model)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the model itself will do
                view = fast_view(model, dtype=torch.float32, channels_last=channels_last or depthwise)
            if view.folded:
                return view
        except torch.OutOfMemoryError:
            raise
        except (TypeError, RuntimeError, AttributeError):  # whatever a model makes of being copied
            pass
        _unfoldable.add(model)
    return None


def _is_depthwise(model: nn.Module) -> bool:
    """Whether it has depthwise convolutions, as MobileNets do."""
    return any(isinstance(layer, nn.Conv2d) and layer.groups > 1 for layer in model.modules())


def _compile(shadow: nn.Module) -> Callable[[Tensor], Tensor]:
    """Compiled once per shape; torch keeps the code on disk, so that the next run finds it."""
    # All models share a forward's code, and so its limit: eight shapes of any of them, the rest in silence uncompiled.
    torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, SHAPES)
    return torch.compile(shadow, dynamic=False)


def _encoders(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Modules that put pixel statistics before a `trunk` (models.encoder.Encoder), innermost ones only."""
    for name, module in model.named_modules():
        if _normalises_pixels(module) and not any(map(_normalises_pixels, module.get_submodule("trunk").modules())):
            yield name, module


def _normalises_pixels(module: nn.Module) -> bool:
    statistics = {name for name, _ in module.named_buffers(recurse=False)}
    return {"mean", "std"} <= statistics and "trunk" in dict(module.named_children())


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
