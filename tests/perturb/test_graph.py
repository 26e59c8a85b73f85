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
    return (
        nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 5)).cuda().requires_grad_(False)
    )


def images(count: int, seed: int = 0) -> Tensor:
    return torch.rand(count, 3, 8, 8, generator=torch.Generator().manual_seed(seed)).cuda()


def gradient(function: object, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.detach().requires_grad_()
    y = function(x)  # type: ignore[operator]
    # A fixed direction: the square of a vector of unit length has no gradient.
    direction = torch.linspace(-1, 1, y.shape[1], device=x.device)
    return y.detach(), torch.autograd.grad((y @ direction).sum(), x)[0]


def test_replays_equal_the_network_for_several_shapes() -> None:
    net, recorder = network(), Recorder()
    for count in (4, 2, 4, 6, 2):
        x = images(count, seed=count)
        for ours, theirs in zip(gradient(lambda x: recorder(net, x), x), gradient(net, x), strict=True):
            torch.testing.assert_close(ours, theirs)
    assert {key[0] for key in recorder.recordings} == {images(count).shape for count in (2, 4, 6)}


def test_a_backward_pass_after_a_replay_of_another_shape_is_still_right() -> None:
    net, recorder = network(), Recorder()
    for count in (4, 2):  # both recorded before they are mixed
        gradient(lambda x: recorder(net, x), images(count))
    direction = torch.linspace(-1, 1, 5, device="cuda")
    first, second = images(4, seed=1).requires_grad_(), images(2, seed=2).requires_grad_()
    total = (recorder(net, first) @ direction).sum() + (recorder(net, second) @ direction).sum()
    found = torch.autograd.grad(total, [first, second])
    for ours, x in zip(found, (first, second), strict=True):
        torch.testing.assert_close(ours, gradient(net, x)[1])


def test_a_second_backward_pass_of_one_replay_is_right_too() -> None:
    net, recorder = network(), Recorder()
    direction = torch.linspace(-1, 1, 5, device="cuda")
    x = images(4).requires_grad_()
    value = (recorder(net, x) @ direction).sum()
    (once,) = torch.autograd.grad(value, x, retain_graph=True)
    (twice,) = torch.autograd.grad(value, x)
    torch.testing.assert_close(once, gradient(net, x)[1])
    torch.testing.assert_close(twice, once)


def test_precisions_are_recorded_apart() -> None:
    net, recorder = network(), Recorder()
    for allowed in (True, False, True):
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=allowed):
            gradient(lambda x: recorder(net, x), images(4))
    assert len(recorder.recordings) == 2


def test_a_backward_pass_after_another_replay_is_still_right() -> None:
    net, recorder = network(), Recorder()
    first, second = images(4, seed=1).requires_grad_(), images(4, seed=2).requires_grad_()
    direction = torch.linspace(-1, 1, 5, device="cuda")
    total = (recorder(net, first) @ direction).sum() + (recorder(net, second) @ direction).sum()
    for ours, theirs in zip(
        torch.autograd.grad(total, [first, second]), [gradient(net, first)[1], gradient(net, second)[1]], strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_weights_changed_in_place_are_seen() -> None:
    net, recorder = network(), Recorder()
    x = images(4)
    gradient(lambda x: recorder(net, x), x)
    net[0].weight.data.mul_(-1)
    for ours, theirs in zip(gradient(lambda x: recorder(net, x), x), gradient(net, x), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_the_fast_view_records_a_shape_it_has_seen_before_and_follows_the_model() -> None:
    model = encoder("resnet18", dim=16).cuda()
    x = torch.rand(4, 3, 64, 64, generator=torch.Generator().manual_seed(0)).cuda()
    with torch.no_grad():
        for _ in range(20):  # until batch norm knows the images, all embeddings are alike
            model(x)
    model.eval()
    view, eager = FastView(model), FastView(model)
    eager._recorder = None
    for _ in range(3):
        gradient(view, x)
    assert view._recorder is not None and len(view._recorder.recordings) == 1
    before = view(x).detach()
    next(model.parameters()).data.neg_()
    view.refresh()
    assert (view(x).detach() - before).abs().max() > 0.05, "or stale weights would pass"
    eager.refresh()
    for ours, theirs in zip(gradient(view, x), gradient(eager, x), strict=True):
        torch.testing.assert_close(ours, theirs, atol=2e-2, rtol=2e-2)


def test_a_recorded_network_in_float16_scales_each_gradient_anew() -> None:
    net, x = network(), images(4).requires_grad_()
    view = FastView(net, dtype=torch.float16)
    for size in (1.0, 1e-12, 1e12, 1.0):
        sizes = size * torch.tensor([1.0, 1e-3, 1e3, 0.0], device="cuda")
        ours, theirs = (torch.autograd.grad((sizes * function(x)[:, 0]).sum(), x)[0] for function in (view, net))
        assert not ours[3].any()
        for row, other in zip(ours[:3].flatten(1).double(), theirs[:3].flatten(1).double(), strict=True):
            assert (row - other).norm() < 0.02 * other.norm()
    assert view._recorder is not None and view._recorder.recordings, "a failed recording would be given up"
