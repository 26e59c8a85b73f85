"""Several encoders as one: unit length, members recoverable, the same numbers however they are run."""

import inspect
import pickle
from copy import deepcopy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from robustmetric.errors import InputError
from robustmetric.models import ensemble as ensemble_module
from robustmetric.models.backbone import encoder
from robustmetric.models.classifier import Classifier
from robustmetric.models.convnet import ConvNet
from robustmetric.models.encoder import Encoder
from robustmetric.models.ensemble import Ensemble, Run
from robustmetric.models.mahalanobis import Mahalanobis
from robustmetric.numerics.distances import pairwise
from robustmetric.perturb.fast import FastView
from robustmetric.perturb.pgd import frozen


def member(seed: int, dim: int = 6) -> Encoder:
    torch.manual_seed(seed)
    return Encoder(ConvNet(side=8, kernel=3, hidden=16, dim=dim))


def images() -> Tensor:
    return torch.rand(5, 1, 8, 8, generator=torch.Generator().manual_seed(0))


def test_embeds_side_by_side_at_unit_length() -> None:
    members = [member(seed) for seed in range(3)]
    z = Ensemble(list(members))(images())
    assert z.shape == (5, 18) and Ensemble(list(members)).dim == 18
    torch.testing.assert_close(z.norm(dim=1), torch.ones(5))
    for part, scaled, own in zip(Ensemble(list(members)).split(z), z.chunk(3, 1), members, strict=True):
        torch.testing.assert_close(part, own(images()))
        torch.testing.assert_close(scaled * 3**0.5, own(images()))


def test_squared_distance_is_the_members_mean() -> None:
    members: list[nn.Module] = [member(seed) for seed in range(2)]
    z = Ensemble(members)(images())
    mean = sum(pairwise(m(images()), m(images())).square() for m in members) / 2
    torch.testing.assert_close(pairwise(z, z).square(), mean, atol=1e-5, rtol=1e-4)


def test_every_member_is_trained() -> None:
    ensemble = Ensemble([member(0), member(1)])
    (ensemble(images()) * torch.arange(12.0)).sum().backward()
    assert all(p.grad is not None for p in ensemble.parameters())


def test_members_of_different_size_are_refused() -> None:
    with pytest.raises(InputError, match=r"\[6, 7\]"):
        Ensemble([member(0), member(1, dim=7)])


def test_members_without_a_size_and_no_members_are_refused() -> None:
    with pytest.raises(InputError, match="Flatten has no `dim`"):
        Ensemble([nn.Flatten()])
    with pytest.raises(InputError, match="at least one"):
        Ensemble([])


def test_classifiers_are_no_members() -> None:
    member = Classifier(ConvNet(side=8, kernel=3, hidden=16, dim=6), classes=3)
    with pytest.raises(InputError, match="Classifier is a classifier: logits side by side are no logits"):
        Ensemble([member, member])


def networks(kind: str) -> list[nn.Module]:
    """Three members of one architecture, and of other weights and running statistics each."""
    torch.manual_seed(0)
    match kind:
        case "convnet":
            members: list[nn.Module] = [Encoder(ConvNet(channels=3, side=8, kernel=3, hidden=16, dim=6)) for _ in "abc"]
        case "mahalanobis":
            members = [Mahalanobis(3 * 8 * 8, rank=6) for _ in "abc"]
        case _:
            members = [encoder(kind, dim=6) for _ in "abc"]
    for one in members:
        if isinstance(one, Mahalanobis):
            nn.init.normal_(one.factor)
        with torch.no_grad():
            one(torch.rand(4, 3, 16, 16) if kind in ("resnet18", "mobilenet_v2") else torch.rand(4, 3, 8, 8))
    return members


def results(ensemble: Ensemble, inputs: Tensor) -> dict[str, Tensor]:
    """Embeddings, input gradient and every parameter's gradient."""
    inputs = inputs.clone().requires_grad_()
    ensemble.zero_grad()
    z = ensemble(inputs)
    (z * torch.arange(float(z.numel()), device=z.device).view_as(z).cos()).sum().backward()
    found = {"embeddings": z.detach(), "inputs": inputs.grad}
    found |= {name: parameter.grad for name, parameter in ensemble.named_parameters()}
    return {name: value.clone() for name, value in found.items() if value is not None}


def assert_agrees(run: Run, kind: str, device: str = "cpu") -> None:
    members = networks(kind)
    looped = Ensemble(members, run="loop").to(device).eval()
    side = 16 if kind in ("resnet18", "mobilenet_v2") else 8
    inputs = torch.rand(4, 3, side, side, generator=torch.Generator().manual_seed(1)).to(device)
    expected, found = results(looped, inputs), results(Ensemble(members, run=run).eval(), inputs)
    assert len(found) == len(list(looped.parameters())) + 2
    for name, value in expected.items():
        scale = float(value.abs().max())
        torch.testing.assert_close(found[name], value, atol=2e-5 * scale, rtol=1e-4, msg=lambda text, n=name: n + text)


@pytest.mark.parametrize("run", ["auto", "streams", "stacked"])
@pytest.mark.parametrize("kind", ["convnet", "mahalanobis", "resnet18", "mobilenet_v2"])
def test_every_way_to_run_gives_the_numbers_of_the_loop(run: Run, kind: str) -> None:
    assert_agrees(run, kind)


@pytest.mark.gpu
@pytest.mark.parametrize("run", ["auto", "streams", "stacked"])
@pytest.mark.parametrize("kind", ["convnet", "mahalanobis", "resnet18", "mobilenet_v2"])
def test_on_the_gpu_every_way_gives_the_numbers_of_the_loop(
    run: Run, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    assert_agrees(run, kind, device="cuda")


@pytest.mark.gpu
def test_streams_wait_for_the_inputs_and_keep_their_memory() -> None:
    """Inputs are made just before the call and dropped just after it, and their memory is asked for anew at once."""
    ensemble = Ensemble(networks("resnet18"), run="streams").cuda().eval()
    clean = torch.rand(64, 3, 128, 128, device="cuda")
    with torch.no_grad():
        expected = Ensemble(list(ensemble.members), run="loop")(clean)
        for _ in range(20):
            found = ensemble(clean * 2 - clean)
            torch.full_like(clean, 9.0)
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-3)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["resnet18", "convnet"])
def test_auto_means_streams_for_deep_members(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forked = []
    run = ensemble_module._run_on_streams
    monkeypatch.setattr(ensemble_module, "_run_on_streams", lambda *given: forked.append(kind) or run(*given))
    model = Ensemble(networks(kind)).cuda().eval()
    side = 8 if kind == "convnet" else 64
    model(torch.rand(2, 3, side, side, device="cuda"))
    assert forked == (["resnet18"] if kind == "resnet18" else [])


@pytest.mark.gpu
def test_a_recorded_ensemble_gives_the_numbers_of_the_loop() -> None:
    model = Ensemble(networks("resnet18")).cuda().eval()
    x = torch.rand(4, 3, 64, 64, device="cuda")
    with frozen(model) as embed, torch.no_grad():
        expected = embed(x)
    for _ in range(3):  # seen, recorded, replayed
        with frozen(model, "fast") as embed:
            found = embed(x.clone().requires_grad_())
    assert functional.cosine_similarity(found, expected).min() > 0.99


def test_stacked_members_are_called_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    embed = ConvNet.forward
    monkeypatch.setattr(ConvNet, "forward", lambda self, x: calls.append(self) or embed(self, x))
    for run, expected in (("loop", 3), ("auto", 3), ("stacked", 1)):
        calls.clear()
        Ensemble([member(seed) for seed in range(3)], run=run)(images())  # type: ignore[arg-type]  # str from a tuple
        assert len(calls) == expected


def test_stacked_follows_an_update_and_runs_without_a_graph() -> None:
    ensemble = Ensemble([member(0), member(1)], run="stacked")
    before = ensemble(images())
    before.square()[:, 0].sum().backward()
    torch.optim.SGD(ensemble.parameters(), lr=1.0).step()
    with torch.no_grad():
        after = ensemble(images())
    assert not after.requires_grad and not torch.allclose(after, before)
    torch.testing.assert_close(after, Ensemble(list(ensemble.members), run="loop")(images()))


def test_stacked_attack_leaves_no_parameter_gradients() -> None:
    ensemble = Ensemble([member(0), member(1)], run="stacked").requires_grad_(False)
    x = images().requires_grad_()
    (gradient,) = torch.autograd.grad(ensemble(x)[:, 0].sum(), x)
    assert gradient.abs().sum() > 0 and all(p.grad is None for p in ensemble.parameters())


@pytest.mark.parametrize("layer", [nn.BatchNorm1d(6), nn.Dropout()])
def test_stacked_refuses_layers_that_are_live(layer: nn.Module) -> None:
    trunk = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), layer)
    ensemble = Ensemble([Encoder(deepcopy(trunk), dim=6) for _ in range(2)], run="stacked")
    with pytest.raises(InputError, match=rf"trunk.2 \({type(layer).__name__}\) is in train mode.*'loop'"):
        ensemble(images())
    torch.testing.assert_close(ensemble.eval()(images()), Ensemble(list(ensemble.members))(images()))


def test_stacked_runs_batch_norm_whose_statistics_are_fixed() -> None:
    trunk = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.BatchNorm1d(6))
    members: list[nn.Module] = [Encoder(deepcopy(trunk), dim=6, batch_norm="statistics") for _ in range(2)]
    torch.testing.assert_close(Ensemble(members, run="stacked").train()(images()), Ensemble(members)(images()))


def different(kind: str) -> list[nn.Module]:
    """Two members; all but those of the first kind have tensors of equal shapes."""
    first = nn.Sequential(nn.Flatten(), nn.Linear(64, 6), nn.ReLU())
    second = deepcopy(first)
    match kind:
        case "their layers":
            second = nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.ReLU(), nn.Linear(9, 6))
        case "`trunk.2`":
            second[2] = nn.LeakyReLU()
        case "`trunk.1.weight`":
            second[1].double()
        case "kind or settings":
            return [Encoder(first, dim=6), Encoder(second, dim=6, normalise=False)]
        case _:
            second[1].register_forward_hook(lambda layer, inputs, output: 2 * output)
    return [Encoder(first, dim=6), Encoder(second, dim=6)]


@pytest.mark.parametrize(
    "kind", ["their layers", "`trunk.2`", "`trunk.1.weight`", "kind or settings", "member 1 has hooks"]
)
def test_stacked_refuses_members_that_compute_otherwise(kind: str) -> None:
    with pytest.raises(InputError, match=f"{kind}; expected run: 'auto' or 'loop'"):
        Ensemble(different(kind), run="stacked")(images())


def test_members_of_different_architecture_run_by_themselves() -> None:
    members = different("their layers")
    torch.testing.assert_close(Ensemble(members)(images()).chunk(2, 1)[1] * 2**0.5, members[1](images()))


def test_an_unknown_way_to_run_is_refused() -> None:
    # Unwrapped: the type checker that runs in tests only would refuse an unknown word first.
    with pytest.raises(InputError, match="'stack' is not known; did you mean 'stacked'"):
        inspect.unwrap(Ensemble.__init__)(Ensemble.__new__(Ensemble), [member(0)], run="stack")


@pytest.mark.parametrize("run", ["auto", "streams", "stacked"])
def test_a_run_ensemble_holds_its_members_alone(run: Run) -> None:
    members: list[nn.Module] = [member(0), member(1)]
    ensemble = Ensemble(members, run=run)
    z = ensemble(images())
    assert list(ensemble.state_dict()) == list(Ensemble(members, run="loop").state_dict())
    for copy in (deepcopy(ensemble), pickle.loads(pickle.dumps(ensemble))):
        torch.testing.assert_close(copy(images()), z)


@pytest.mark.parametrize("run", ["auto", "streams", "stacked"])
def test_the_fast_view_of_a_run_ensemble_agrees(run: Run) -> None:
    ensemble = Ensemble(networks("resnet18"), run=run).eval()
    inputs = torch.rand(4, 3, 16, 16)
    view = FastView(ensemble)
    assert view.folded == 60  # 20 in each ResNet-18
    torch.testing.assert_close(view(inputs), ensemble(inputs), atol=1e-5, rtol=0)
