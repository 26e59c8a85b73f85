import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn
from torchvision.models.mobilenetv2 import InvertedResidual
from torchvision.ops.misc import Conv2dNormActivation

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
    assert "31 passed" in done.stdout


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


def test_what_is_no_plain_inverted_residual_is_left_alone() -> None:
    live = encoder("mobilenet_v2", dim=8)  # its norms are not folded
    fuse(live)
    assert not fused_in(live)
    odd = nn.Sequential(
        InvertedResidual(12, 24, 1, 6, norm_layer=nn.Identity),  # 12 channels are no block of eight
        Conv2dNormActivation(8, 16, 1, norm_layer=None, activation_layer=nn.ReLU),
        Conv2dNormActivation(8, 16, 3, norm_layer=None, activation_layer=nn.ReLU6),
        Conv2dNormActivation(8, 16, 1, stride=2, norm_layer=None, activation_layer=nn.ReLU6),
    )
    fuse(odd)
    assert not fused_in(odd)
    watched = shadow()
    block = next(layer for layer in watched.modules() if isinstance(layer, InvertedResidual))
    block.register_forward_hook(lambda *_: None)
    fuse(watched)
    assert type(block) is InvertedResidual and fused_in(watched)


def test_without_a_gpu_nothing_is_fused() -> None:
    network = shadow()
    assert not can_fuse(network) and not fused_in(network)


def test_kernels_that_fail_are_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> torch.Tensor:
        raise RuntimeError("no compiler")

    model, x = encoder("mobilenet_v2", dim=8).eval(), torch.rand(2, 3, 32, 32)
    monkeypatch.setattr("robustmetric.perturb.fast.can_fuse", lambda _: True)
    monkeypatch.setattr(inverted._Residual, "apply", fails)
    view = FastView(model, compiled=True)
    assert fused_in(view._shadow) and view._compiled is None
    with pytest.raises(Exception, match="channels"):
        view(torch.rand(2, 1, 32, 32))  # the input's fault, not the kernels'
    assert fused_in(view._shadow)
    with pytest.warns(UserWarning, match="inverted residuals failed.*no compiler"), torch.no_grad():
        z = view(x)
    torch.testing.assert_close(z, model(x), atol=1e-5, rtol=0)
    assert not fused_in(view._shadow)
    torch.testing.assert_close(view(x), z)
