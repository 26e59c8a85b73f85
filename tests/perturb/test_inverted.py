import os
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn
from torchvision.models.mobilenetv2 import InvertedResidual
from torchvision.ops.misc import Conv2dNormActivation

from robustmetric.errors import InputError
from robustmetric.models.backbone import encoder
from robustmetric.perturb import inverted
from robustmetric.perturb.fast import FastView
from robustmetric.perturb.inverted import can_fuse, fuse, fused_in, unfuse


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton comes with torch on Linux")
def test_kernels_agree_with_torch_by_the_interpreter() -> None:
    words = [sys.executable, "-m", "pytest", "-o", "addopts=", "-q", "-p", "no:cacheprovider", "-W", "ignore"]
    done = subprocess.run(
        [*words, str(Path(__file__).with_name("interpreted.py"))],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert "32 passed" in done.stdout


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton comes with torch on Linux")
@pytest.mark.parametrize("dtype", ["bf16", "fp32"])
@pytest.mark.parametrize("name", ["multiply", "filter_same", "filter_down", "filter_up"])
def test_kernels_compile_for_a_gpu_that_is_not_there(name: str, dtype: str) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from robustmetric.perturb import kernels

    kernel = getattr(kernels, name)
    settings = {"ROWS": 64, "COLUMNS": 32, "DEPTH": 32, "HIGH": 7, "WIDE": 8, "DEEP": 16}
    fixed = {word: settings.get(word, True) for word in kernel.arg_names if word.isupper()}
    if name == "multiply":
        fixed |= {"ADDED": False, "CLIPPED": False}
    words = {word: f"*{dtype}" if word.endswith("_of") else "i32" for word in kernel.arg_names}
    source = ASTSource(
        fn=kernel,
        signature=words | dict.fromkeys(fixed, "constexpr"),
        constexprs={(kernel.arg_names.index(word),): value for word, value in fixed.items()},
    )
    made = triton.compile(source, target=GPUTarget("cuda", 80, 32), options={"enable_fp_fusion": True})
    assert ".target sm_80" in made.asm["ptx"]


def shadow() -> nn.Module:
    return FastView(encoder("mobilenet_v2", dim=8))._shadow


def test_layers_are_fused_and_made_their_old_selves_again() -> None:
    network = shadow()
    before = [type(layer) for layer in network.modules()]
    assert not unfuse(network)
    fuse(network)
    assert sum(type(layer) is inverted.FusedResidual for layer in fused_in(network)) == 17
    assert unfuse(network) and [type(layer) for layer in network.modules()] == before


def block(**changes: nn.Module) -> InvertedResidual:
    """One inverted residual as a shadow has it, with some of its layers changed, by their names."""
    made = InvertedResidual(16, 24, 1, 6, norm_layer=nn.Identity)
    for layer in made.modules():
        if isinstance(layer, nn.Conv2d):
            layer.bias = nn.Parameter(torch.zeros(layer.out_channels))
    for name, layer in changes.items():
        made.conv.add_module(name, layer)
    return made


def is_fused(layer: nn.Module) -> bool:
    fuse(layer)
    return type(layer) in (inverted.FusedResidual, inverted.FusedPointwise)


class Scaled(nn.Conv2d):
    """A convolution that reworks its weight."""


def test_what_is_no_plain_inverted_residual_is_left_alone() -> None:
    assert is_fused(block())
    assert not is_fused(block(**{"4": nn.ReLU6()}))  # a clip behind the projection
    assert not is_fused(block(**{"4": nn.Conv2d(24, 24, 1)}))
    assert not is_fused(block(**{"2": Scaled(96, 24, 1)}))
    reflecting = nn.Sequential(nn.Conv2d(96, 96, 3, padding=1, groups=96, padding_mode="reflect"), nn.ReLU6())
    assert not is_fused(block(**{"1": reflecting}))
    assert not is_fused(block(**{"0": nn.Conv2d(16, 96, 1)}))  # no clip behind the expansion
    assert not is_fused(InvertedResidual(12, 24, 1, 6, norm_layer=nn.Identity))  # 12 channels are no block of eight
    for size, stride, activation in ((1, 1, nn.ReLU), (3, 1, nn.ReLU6), (1, 2, nn.ReLU6)):
        layer = Conv2dNormActivation(8, 16, size, stride, norm_layer=None, activation_layer=activation)
        assert not is_fused(layer)
    assert is_fused(Conv2dNormActivation(8, 16, 1, norm_layer=None, activation_layer=nn.ReLU6))
    watched = block()
    watched.conv[0].register_forward_hook(lambda *_: None)
    assert not is_fused(watched)
    live = encoder("mobilenet_v2", dim=8)  # its norms are not folded
    fuse(live)
    assert not fused_in(live)


def test_without_a_gpu_nothing_is_fused_whatever_a_call_meets() -> None:
    view = FastView(encoder("mobilenet_v2", dim=8))
    assert not can_fuse(view._shadow) and not fused_in(view._shadow)
    with pytest.raises(InputError, match="channels"):
        view(torch.rand(2, 1, 32, 32))
    assert not fused_in(view._shadow)


def no_compiler(_: torch.Tensor) -> None:
    raise RuntimeError("no compiler")


def fails_forward(self: inverted.FusedResidual, x: torch.Tensor) -> torch.Tensor:
    no_compiler(x)
    return x


def fails_backward(self: inverted.FusedResidual, x: torch.Tensor) -> torch.Tensor:
    y = self.ordinary.forward(self, x)
    if y.requires_grad:
        y.register_hook(no_compiler)
    return y


@pytest.mark.parametrize("forward", [fails_forward, fails_backward])
@pytest.mark.parametrize("with_gradient", [False, True])
def test_kernels_that_fail_are_done_without(
    forward: Callable[..., torch.Tensor], with_gradient: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = encoder("mobilenet_v2", dim=8).eval(), torch.rand(2, 3, 32, 32)
    monkeypatch.setattr("robustmetric.perturb.fast.can_fuse", lambda _: True)
    monkeypatch.setattr(inverted.FusedResidual, "forward", forward)
    monkeypatch.setattr(inverted.FusedPointwise, "forward", lambda self, x: nn.Sequential(*self.children())(x))
    view = FastView(model)
    assert fused_in(view._shadow)
    with pytest.raises(InputError, match="channels"):
        view(torch.rand(2, 1, 32, 32))  # the input's fault, not the kernels'
    assert fused_in(view._shadow)
    with (
        pytest.warns(UserWarning, match="inverted residuals failed.*no compiler"),
        torch.set_grad_enabled(with_gradient),
    ):
        z = view(x)
    torch.testing.assert_close(z, model(x), atol=1e-5, rtol=0)
    assert not fused_in(view._shadow)
    torch.testing.assert_close(view(x), z)  # without a word


def test_what_is_computed_by_kernels_is_compiled_where_they_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("robustmetric.perturb.fast.can_fuse", lambda _: True)
    monkeypatch.setattr(inverted.FusedResidual, "forward", fails_forward)
    view = FastView(encoder("mobilenet_v2", dim=8), compiled=True)
    assert view._compiled is None
    with pytest.warns(UserWarning, match="no compiler"), torch.no_grad():
        view(torch.rand(2, 3, 32, 32))
    assert view._compiled is not None


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.05)])
def test_a_gpu_computes_what_the_library_does(dtype: torch.dtype, tolerance: float) -> None:
    model = encoder("mobilenet_v2", dim=8).cuda().train()
    for norm in model.modules():
        if isinstance(norm, nn.BatchNorm2d):
            norm.momentum = 1.0  # statistics of the next batch
    model(torch.rand(16, 3, 96, 96, device="cuda"))
    model.eval()
    for size in (96, 75):
        x = torch.rand(4, 3, size, size, device="cuda", requires_grad=True)
        view, library = (FastView(model, dtype=dtype, kernels=kernels) for kernels in (True, False))
        for _ in range(3):  # eager, recorded, replayed
            z, expected = view(x), library(x)
            (dx,), (dx_expected,) = (torch.autograd.grad(each[:, 0].sum(), x) for each in (z, expected))
            assert fused_in(view._shadow) and not fused_in(library._shadow)
            torch.testing.assert_close(z, expected, atol=tolerance, rtol=0)
            assert torch.cosine_similarity(dx.flatten(), dx_expected.flatten(), dim=0) > 1 - 2 * tolerance
