"""Certified R@1 of a trained encoder on real digits: it is not trivial, and no attack contradicts it."""

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from robustmetric.certify.smoothed_retrieval import SmoothedRetrieval
from robustmetric.data.digits import Digits
from robustmetric.data.sampler import Pairs
from robustmetric.defences.noise import Noise
from robustmetric.losses.mining import SemiHard
from robustmetric.losses.triplet import Triplet
from robustmetric.models.convnet import ConvNet
from robustmetric.models.encoder import Encoder
from robustmetric.models.smoothed import Smoothed
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD
from robustmetric.types import Batch, Gallery

SIGMA, QUERIES = 0.1, 40

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def trained() -> Iterator[tuple[Encoder, Batch, Gallery]]:
    """An encoder trained under noise on digits 0-4, and queries of digits 5-9 that search all the others."""
    dataset = Digits().load()
    inputs, labels = dataset.train.inputs.float() / 255, dataset.train.labels
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Encoder(ConvNet(side=8, kernel=3, widths=(16, 32), hidden=64, dim=32))
    defence = Noise(Triplet(SemiHard()), SIGMA)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    for epoch in range(20):
        for step, rows in enumerate(Pairs(112).batches(labels, epoch, seed=0)):
            source = torch.Generator().manual_seed(1000 * epoch + step)
            optimiser.zero_grad()
            defence(model, Batch(inputs[rows], labels[rows], rows), source)["metric"].backward()
            optimiser.step()
    items = dataset.queries.inputs.float() / 255
    picked = torch.randperm(len(items), generator=torch.Generator().manual_seed(0))[:QUERIES]
    with torch.no_grad():
        gallery = Gallery(Smoothed(model.eval(), SIGMA, samples=500)(items), dataset.queries.labels)
    yield model, Batch(items[picked], dataset.queries.labels[picked], picked), gallery


@pytest.mark.parametrize(("settings", "at"), [({}, 0.05), ({"search": "vote"}, 0.1)])
def test_certified_recall_is_not_trivial(
    settings: dict[str, str], at: float, trained: tuple[Encoder, Batch, Gallery]
) -> None:
    model, queries, gallery = trained
    found = SmoothedRetrieval(SIGMA, samples=3000, **settings).certify(model, queries, gallery)
    radii = found.radius_if_right(queries.labels)
    assert (radii > 0).float().mean() > 0.6 and (radii > at).float().mean() > 0.3


def test_distribution_proves_more_than_the_mean(trained: tuple[Encoder, Batch, Gallery]) -> None:
    model, queries, gallery = trained
    by_levels, by_mean = (
        SmoothedRetrieval(SIGMA, samples=3000, bound=bound).certify(model, queries, gallery).radius
        for bound in ("distribution", "mean")
    )
    assert by_levels.mean() > 3 * by_mean.mean()


def test_no_attack_on_the_smoothed_encoder_contradicts_it(trained: tuple[Encoder, Batch, Gallery]) -> None:
    model, queries, gallery = trained
    found = SmoothedRetrieval(SIGMA, samples=3000).certify(model, queries, gallery)
    smoothed = Smoothed(model, SIGMA, samples=300, seed=5)
    for row in (found.radius > 0.02).nonzero()[:12, 0].tolist():
        own = torch.arange(len(gallery)) == queries.index[row]
        good = (gallery.labels == found.label[row]) & ~own
        bad = (gallery.labels != found.label[row]) & ~own

        def value(x: Tensor, good: Tensor = good, bad: Tensor = bad) -> Tensor:
            away = torch.cdist(smoothed(x), gallery.embeddings)
            return away[:, good].amin(dim=1) - away[:, bad].amin(dim=1)

        reach = found.radius[row].item()
        engine = PGD(Ball(reach, norm="l2"), steps=8, step_size=reach / 3, random_start=False, keep="best")
        with torch.no_grad():
            assert value(engine(value, queries.inputs[row : row + 1])).item() < 0
