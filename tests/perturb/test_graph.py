"""CUDA graphs: replays equal the network, also when they overlap, when weights change, and for several shapes."""

import pytest
import torch
from torch import Tensor, nn

from robustmetric.models.backbone import encoder
from robustmetric.perturb.fast import FastView
from robustmetric.perturb.graph import Recorder

pytestmark = pytest.mark.gpu


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.LazyLinear(5)).cuda().requires_grad_(False)


def images(count: int, seed: int = 0) -> Tensor:
    return torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed)).cuda()


def gradient(function: object, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.detach().requires_grad_()
    y = function(x)  # type: ignore[operator]
    return y.detach(), torch.autograd.grad(y.square().sum(), x)[0]


def test_replays_equal_the_network_for_several_shapes() -> None:
    net, recorder = network(), Recorder()
    net(images(1))
    for count in (4, 2, 4, 6, 2):
        x = images(count, seed=count)
        for ours, theirs in zip(gradient(lambda x: recorder(net, x), x), gradient(net, x), strict=True):
            torch.testing.assert_close(ours, theirs)
    assert set(recorder.recordings) == {images(count).shape for count in (2, 4, 6)}


def test_a_backward_pass_after_another_replay_is_still_right() -> None:
    net, recorder = network(), Recorder()
    net(images(1))
    first, second = images(4, seed=1).requires_grad_(), images(4, seed=2).requires_grad_()
    total = recorder(net, first).square().sum() + recorder(net, second).square().sum()
    for ours, theirs in zip(
        torch.autograd.grad(total, [first, second]), [gradient(net, first)[1], gradient(net, second)[1]], strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_weights_changed_in_place_are_seen() -> None:
    net, recorder = network(), Recorder()
    net(images(1))
    x = images(4)
    gradient(lambda x: recorder(net, x), x)
    net[0].weight.data.mul_(-1)
    for ours, theirs in zip(gradient(lambda x: recorder(net, x), x), gradient(net, x), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_fast_view_records_a_shape_it_has_seen_before_and_follows_the_model() -> None:
    model = encoder("mobilenet_v2", dim=16).cuda().eval()
    view, eager = FastView(model), FastView(model)
    eager._recorder = None
    x = torch.rand(4, 3, 64, 64, generator=torch.Generator().manual_seed(0)).cuda()
    for _ in range(3):
        gradient(view, x)
    assert view._recorder is not None and len(view._recorder.recordings) == 1
    for parameter in model.parameters():
        parameter.data.mul_(1.1)
    view.refresh()
    eager.refresh()
    for ours, theirs in zip(gradient(view, x), gradient(eager, x), strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-2, rtol=2e-2)
