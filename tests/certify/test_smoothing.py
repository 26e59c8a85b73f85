"""Randomised smoothing: a linear classifier, whose smoothed radius is known, and no more errors than alpha allows."""

from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from robustmetric.certify import base, smoothing
from robustmetric.certify.smoothed_retrieval import SmoothedRetrieval
from robustmetric.certify.smoothing import Smoothing
from robustmetric.errors import InputError
from robustmetric.learn import network
from robustmetric.learn.network import fit_classifier
from robustmetric.models.classifier import mlp
from robustmetric.models.smoothed import Smoothed
from robustmetric.types import Batch, Gallery


def half_space(*weight: float) -> nn.Linear:
    """Class 1 where <weight, x> > 0; under noise the likelier class is the same, and changes at distance |<w, x>|."""
    model = nn.Linear(len(weight), 2, bias=False)
    model.weight.data = torch.stack([torch.zeros(len(weight)), torch.tensor(weight)])
    return model


class Constant(nn.Module):
    """The last class, whatever comes."""

    def forward(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, :1] * 0 + torch.tensor([0.0, 0.0, 1.0])


def test_radius_of_a_constant_classifier_by_hand() -> None:
    # 100 of 100: p >= 0.001^(1/100) = 0.933254, and 0.5 * Phi^-1(0.933254) = 0.5 * 1.5005 = 0.7502.
    found = Smoothing(sigma=0.5, samples=100, selection=10).certify(Constant(), torch.zeros(2, 4))
    assert found.label.tolist() == [2, 2] and not found.abstained.any()
    expected = 0.5 * NormalDist().inv_cdf(0.001**0.01)
    assert found.radius.tolist() == pytest.approx([expected, expected], abs=1e-9)
    assert expected == pytest.approx(0.7502, abs=1e-3)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_of_1000_radii_at_most_6_exceed_the_exact_one(seed: int) -> None:
    source = torch.Generator().manual_seed(seed)
    weight = torch.tensor([0.6, 0.0, -0.8])
    x = torch.randn(1000, 3, generator=source) * 0.5
    exact = (x @ weight).abs().double()
    found = Smoothing(sigma=0.5, samples=1000, selection=100, seed=seed).certify(half_space(0.6, 0.0, -0.8), x)
    assert (found.radius > exact).sum() <= 6
    # And they are not small: what 1,000 draws can show, away from the edge and from the largest radius they can prove.
    clear = (exact > 0.4) & (exact < 0.8)
    assert (found.radius / exact)[clear].mean() > 0.8 and clear.sum() > 250
    assert (found.label == (x @ weight > 0))[clear].all()


def test_on_the_edge_it_abstains_and_counts_as_an_error() -> None:
    edge = Batch(torch.zeros(20, 2), torch.ones(20, dtype=torch.long), torch.full((20,), -1))
    settings = Smoothing(sigma=1.0, samples=500, selection=10)
    found = settings.certify(half_space(1.0, 0.0), edge.inputs)
    assert found.abstained.all() and (found.radius == 0).all() and (found.label == -1).all()
    assert (settings.radius(half_space(1.0, 0.0), edge) == 0).all()


def test_radius_is_0_where_the_class_is_not_the_label() -> None:
    queries = Batch(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([1, 0]), torch.full((2,), -1))
    right, wrong = Smoothing(sigma=0.5, samples=500, selection=10).radius(half_space(1.0, 0.0), queries).tolist()
    assert right > 0.5 and wrong == 0


def test_parts_give_what_a_whole_does_whatever_the_batch() -> None:
    x = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
    model = half_space(1.0, 1.0)
    whole = Smoothing(sigma=1.0, samples=300, selection=10).certify(model, x)
    done: list[tuple[int, int]] = []
    part = Smoothing(sigma=1.0, samples=300, selection=10).certify(
        model, x[4:], first=4, progress=lambda *at: done.append(at)
    )
    assert torch.equal(part.radius, whole.radius[4:]) and torch.equal(part.label, whole.label[4:])
    assert done == [(1, 2), (2, 2)]
    other = Smoothing(sigma=1.0, samples=300, selection=10, seed=1).certify(model, x)
    assert not torch.equal(other.radius, whole.radius)


def test_no_more_inputs_than_a_batch_are_classified_at_a_time() -> None:
    sizes = []
    model = half_space(1.0, 0.0)
    model.register_forward_hook(lambda layer, inputs, outputs: sizes.append(len(inputs[0])))
    Smoothing(sigma=1.0, samples=250, selection=10, batch=100).certify(model, torch.ones(1, 2))
    assert sizes == [10, 100, 100, 50]


def test_the_model_is_in_eval_mode_while_it_is_certified_and_restored() -> None:
    model = nn.Sequential(half_space(1.0, 0.0), nn.Dropout(0.9))
    found = Smoothing(sigma=0.2, samples=200, selection=10).certify(model, torch.ones(1, 2))
    # In train mode dropout would zero both logits most of the time: class 0.
    assert found.label.item() == 1 and model.training


def test_training_with_noise_lowers_the_loss_and_raises_the_certified_radius() -> None:
    source = torch.Generator().manual_seed(0)
    labels = torch.arange(300) % 3
    x = 2 * torch.nn.functional.one_hot(labels, 3).float() + 0.2 * torch.randn(300, 3, generator=source)
    settings = Smoothing(sigma=1.0, samples=300, selection=20)
    radii = {}
    for sigma in (0.0, 1.0):
        torch.manual_seed(0)
        model = mlp(3, 3, widths=(32,))
        losses = fit_classifier(model, x, labels, sigma=sigma, epochs=20, batch=50, rate=1e-2)
        assert len(losses) == 20 and losses[-1] < 0.8 * losses[0] and not model.training
        radii[sigma] = settings.radius(model, Batch(x[:60], labels[:60], torch.arange(60))).mean()
    assert radii[1.0] > 0.4 and radii[1.0] > radii[0.0] - 0.02


def test_training_is_repeated_by_its_seed() -> None:
    x, labels = torch.randn(40, 2, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
    curves = []
    for seed in (0, 0, 1):
        torch.manual_seed(0)
        curves.append(fit_classifier(mlp(2, 2, widths=(4,)), x, labels, sigma=0.5, epochs=2, batch=8, seed=seed))
    assert curves[0] == curves[1] != curves[2]


def test_no_proof_draws_the_noise_of_training_or_of_another_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    draw, seen = torch.randn, []

    def spy(*shape: Any, generator: torch.Generator, **settings: Any) -> Tensor:
        seen.append(generator.initial_seed())
        return draw(*shape, generator=generator, **settings)

    monkeypatch.setattr(torch, "randn", spy)
    model, x, labels = half_space(1.0, 0.0), torch.zeros(3, 2), torch.tensor([0, 1, 0])
    queries = Batch(x, labels, torch.full((3,), -1))
    uses: list[Callable[[], object]] = [
        lambda: fit_classifier(model, x, labels, sigma=1.0, epochs=3, seed=0),
        lambda: Smoothing(sigma=1.0, samples=10, selection=5, seed=0).certify(model, x),
        lambda: SmoothedRetrieval(sigma=1.0, samples=10, selection=5, search="vote", seed=0).certify(
            model, queries, Gallery(torch.eye(2), torch.arange(2))
        ),
        lambda: Smoothed(model, sigma=1.0, samples=10, seed=0)(x),
    ]
    streams = []
    for use in uses:
        seen.clear()
        use()
        streams.append(set(seen))
    # One stream per epoch, input and query, and one for the encoder.
    assert [len(stream) for stream in streams] == [3, 3, 3, 1]
    assert len(set().union(*streams)) == 10


def test_whoever_reports_progress_means_the_same() -> None:
    assert network.Progress is smoothing.Progress is base.Progress


@pytest.mark.parametrize("settings", [{"sigma": -1.0}, {"samples": 0}, {"alpha": 1.0}, {"selection": 0}, {"batch": 0}])
def test_settings_that_prove_nothing_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(InputError, match="expected"):
        Smoothing(**{"sigma": 1.0, **settings})


def test_outputs_that_are_no_logits_are_refused() -> None:
    with pytest.raises(InputError, match="2 or more classes"):
        Smoothing(sigma=1.0, samples=10).certify(nn.Linear(2, 1), torch.zeros(1, 2))


def test_outputs_that_are_no_numbers_are_refused() -> None:
    with pytest.raises(InputError, match="NaN"):
        Smoothing(sigma=1.0, samples=10).certify(half_space(1.0, 0.0), torch.full((1, 2), torch.nan))


def test_training_refuses_what_it_cannot_use() -> None:
    with pytest.raises(InputError, match="as many of each"):
        fit_classifier(mlp(2, 2), torch.zeros(3, 2), torch.zeros(2, dtype=torch.long))
    with pytest.raises(InputError, match="sigma >= 0"):
        fit_classifier(mlp(2, 2), torch.zeros(2, 2), torch.zeros(2, dtype=torch.long), sigma=-1.0)
