"""Certified retrieval: encoders whose smoothed radius is known, sampling error, attacks, and what it refuses."""

import itertools
import math
from statistics import NormalDist
from typing import Any

import pytest
import torch
from known_encoders import AXES, POLES, Circle, Constant, Scaled, Side, batch, certifier, on_circle
from torch import Tensor, nn

from robustmetric.errors import InputError
from robustmetric.models.encoder import Encoder
from robustmetric.models.smoothed import Smoothed
from robustmetric.numerics.distances import nearest
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD
from robustmetric.types import Batch, Gallery

PHI = NormalDist()


def test_distribution_of_a_constant_encoder_by_hand() -> None:
    found = certifier(thresholds=4).certify(Constant(), batch(torch.zeros(1, 3)), AXES)
    # <e1, (e1 - e2) / sqrt 2> = 0.707 passes the edges -0.5, 0, 0.5 in 1,000 of 1,000 draws: each has p >=
    # (0.001 / (2 items * 3 edges))^(1/1000) = 0.991337; -1 + 0.5 * 3 * Phi(q - r / sigma) > 0 while Phi > 2/3.
    level = (0.001 / 6) ** 0.001
    assert level == pytest.approx(0.991338, abs=1e-5)
    expected = 0.5 * (PHI.inv_cdf(level) - PHI.inv_cdf(2 / 3))
    assert found.radius.item() == pytest.approx(expected, abs=1e-6) and expected == pytest.approx(0.9745, abs=2e-3)
    assert found.neighbour.tolist() == [0] and found.label.tolist() == [0]


def test_mean_of_a_constant_encoder_by_hand() -> None:
    found = certifier(bound="mean").certify(Constant(), batch(torch.zeros(1, 3)), AXES)
    # (1 + 0.707107) / 2 = 0.853553, less 7 ln(2 * 2 / 0.001) / (3 * 999) = 0.019372: Phi^-1(0.834181) = 0.970814.
    share = (1 + math.sqrt(0.5)) / 2 - 7 * math.log(4000) / 2997
    assert found.radius.item() == pytest.approx(0.5 * PHI.inv_cdf(share), abs=1e-5)
    assert 0.5 * PHI.inv_cdf(share) == pytest.approx(0.4854, abs=1e-3)


@pytest.mark.parametrize("bound", ["distribution", "mean"])
def test_of_400_radii_at_most_3_exceed_the_exact_one(bound: str) -> None:
    x = torch.randn(400, 2, generator=torch.Generator().manual_seed(3)) * 0.4
    # The step is the encoder for which the bound on the mean is attained, so that sampling error alone is between.
    found = certifier(bound=bound, samples=400, thresholds=40).certify(Side(), batch(x), POLES)
    exact = x[:, 0].abs().double()
    assert (found.radius > exact).sum() <= 3
    clear = (exact > 0.4) & (exact < 0.6)
    assert (found.neighbour == (x[:, 0] < 0))[clear].all()
    assert (found.radius / exact)[clear].mean() > 0.5 and clear.sum() > 40


def test_the_step_is_certified_almost_to_its_edge_with_many_draws() -> None:
    found = certifier(samples=100_000, bound="mean", batch=20_000).certify(Side(), batch(torch.tensor([[0.4]])), POLES)
    assert 0.38 < found.radius.item() < 0.4


@pytest.mark.parametrize("goal", ["label", "neighbour"])
@pytest.mark.parametrize("lengths", [(1.0, 1.0, 1.0), (0.9, 0.5, 0.8)])
def test_radii_on_a_circle_stay_below_the_exact_ones(goal: str, lengths: tuple[float, ...]) -> None:
    encoder = Circle(1.0, 0.5)
    sigma, slope = 0.4, math.hypot(1.0, 0.5)
    items = torch.tensor(lengths)[:, None] * on_circle(torch.tensor([0.0, 0.9, 2.5]))
    gallery = Gallery(items, torch.tensor([0, 1, 1]))
    x = torch.rand(60, 2, generator=torch.Generator().manual_seed(0)) * 3 - 0.5
    found = certifier(sigma=sigma, goal=goal).certify(encoder, batch(x), gallery)
    # The mean is exp(-sigma^2 |a|^2 / 2) (cos t, sin t): answers change with t, by at most |a| |delta|.
    turns = torch.linspace(-2, 2, 4001)
    angles = (x @ encoder.slope)[:, None] + turns
    means = math.exp(-((sigma * slope) ** 2) / 2) * on_circle(angles.flatten())
    answers = nearest(means, items, 1)[1].view(angles.shape)
    answers = gallery.labels[answers] if goal == "label" else answers
    differs = answers != answers[:, 2000:2001]
    exact = turns.abs().expand_as(differs).masked_fill(~differs, math.inf).amin(dim=1) / slope
    given = found.label if goal == "label" else found.neighbour
    assert (given == answers[:, 2000])[~found.abstained].all()
    assert (found.radius <= exact).all()
    assert (~found.abstained).float().mean() > 0.5 and (found.radius / exact)[~found.abstained].mean() > 0.3


def test_a_label_of_several_items_has_a_larger_radius_than_each() -> None:
    # Between two items of one label the nearest is doubtful, the label is not.
    gallery = Gallery(on_circle(torch.tensor([-0.3, 0.3, 3.0])), torch.tensor([4, 4, 7]))
    queries = batch(torch.zeros(1, 1), torch.tensor([4]))
    by_label = certifier(sigma=0.2).certify(Circle(1.0), queries, gallery)
    by_item = certifier(sigma=0.2, goal="neighbour").certify(Circle(1.0), queries, gallery)
    assert by_label.radius.item() > 0.3 and by_label.label.item() == 4
    assert by_item.abstained.item() and by_item.radius.item() == 0


def test_a_rival_is_compared_with_the_item_whose_border_to_it_is_farthest() -> None:
    # From -0.2 the border of the rival at 0.8 with the nearest item lies at 0.3; with the one at 0.3, at 0.55.
    gallery = Gallery(on_circle(torch.tensor([-0.2, 0.3, 0.8])), torch.tensor([0, 0, 1]))
    queries = batch(torch.full((1, 1), -0.2))
    nearest_only, best = (
        certifier(sigma=0.2, candidates=count).certify(Circle(1.0), queries, gallery).radius.item() for count in (1, 2)
    )
    assert 0.2 < nearest_only < 0.5 and nearest_only + 0.05 < best < 0.75


def test_radius_grows_with_the_margin() -> None:
    x = torch.linspace(0.7, 0.0, 8)[:, None]
    gallery = Gallery(on_circle(torch.tensor([0.0, 1.5])), torch.tensor([0, 1]))
    # The same noise for each: every query is the first of its own call.
    radii = [certifier(sigma=0.25).certify(Circle(1.0), batch(row[None]), gallery).radius.item() for row in x]
    assert radii[0] < 0.05 and radii[-1] > 0.3
    assert all(before <= after for before, after in itertools.pairwise(radii))


def test_doubt_and_error_have_radius_0() -> None:
    doubt = certifier().certify(Side(), batch(torch.zeros(5, 1)), POLES)
    assert doubt.abstained.all() and (doubt.radius == 0).all() and (doubt.label == -1).all()
    references = Batch(torch.tensor([[1.0], [-1.0]]), torch.tensor([0, 1]), torch.arange(2))
    queries = batch(torch.tensor([[0.5], [0.5]]), torch.tensor([0, 1]))
    right, wrong = certifier().radius(Side(), queries, references).tolist()
    assert right > 0.3 and wrong == 0


def test_parts_give_what_a_whole_does_whatever_the_batch() -> None:
    x = torch.randn(6, 2, generator=torch.Generator().manual_seed(0))
    gallery = Gallery(on_circle(torch.arange(8.0)), torch.arange(8) % 3)
    encoder = Circle(1.0, 0.5)
    whole = certifier().certify(encoder, batch(x), gallery)
    done: list[tuple[int, int]] = []
    part = certifier(batch=37).certify(encoder, batch(x[4:]), gallery, first=4, progress=lambda *at: done.append(at))
    torch.testing.assert_close(part.radius, whole.radius[4:])
    assert torch.equal(part.neighbour, whole.neighbour[4:]) and done == [(1, 2), (2, 2)]
    assert not torch.equal(certifier(seed=1).certify(encoder, batch(x), gallery).radius, whole.radius)


def test_no_more_inputs_than_a_batch_are_embedded_at_a_time() -> None:
    sizes = []
    encoder = Circle(1.0)
    encoder.register_forward_hook(lambda layer, inputs, outputs: sizes.append(len(inputs[0])))
    certifier(samples=250, batch=100).certify(encoder, batch(torch.zeros(1, 1)), AXES)
    assert sizes == [20, 100, 100, 50]


def test_an_item_does_not_retrieve_itself() -> None:
    gallery = Gallery(on_circle(torch.tensor([0.0, 0.5, 2.5])), torch.tensor([0, 1, 0]))
    queries = batch(torch.zeros(2, 1), index=torch.tensor([0, -1]))
    found = certifier(sigma=0.1).certify(Circle(1.0), queries, gallery)
    assert found.neighbour.tolist() == [1, 0] and found.label.tolist() == [1, 0]


def test_copies_of_an_item() -> None:
    items = on_circle(torch.tensor([0.0, 0.0, 2.0]))
    query = batch(torch.zeros(1, 1))
    # Another label at the same place, and nothing else of the first label: nothing is proved.
    assert certifier().certify(Circle(1.0), query, Gallery(items, torch.tensor([0, 1, 2]))).abstained.item()
    # The same label at the same place is no rival of the label, but it is one of the item.
    same = Gallery(items, torch.tensor([0, 0, 2]))
    assert certifier().certify(Circle(1.0), query, same).radius.item() > 0.1
    assert certifier(goal="neighbour").certify(Circle(1.0), query, same).abstained.item()


@pytest.mark.parametrize("bound", ["distribution", "mean"])
def test_long_items_are_told_apart_by_more_than_their_squares(bound: str) -> None:
    # The border of (1e8, 5.56) and (1e8, -4.44) is at 0.56. Their squares in float64, multiples of 2, are 1e16 + 30 and
    # 1e16 + 20, which would put it at 10 / 2 / 10 = 0.5.
    items = torch.tensor([[1e8, 5.56], [1e8, -4.44]], dtype=torch.float64)
    settings = certifier(bound=bound, goal="neighbour", samples=10_000)
    query, gallery = batch(torch.zeros(1, 1)), Gallery(items, torch.tensor([0, 1]))
    assert settings.certify(Constant(0.0, 0.53), query, gallery).abstained.item()
    found = settings.certify(Constant(0.0, 0.59), query, gallery)
    assert found.neighbour.item() == 0 and 0 < found.radius.item() < math.inf


def test_items_that_only_rounding_tells_apart_are_abstained_from() -> None:
    source = torch.Generator().manual_seed(0)
    near = 0
    for _ in range(40):
        a, step = torch.randn(2, 3, generator=source, dtype=torch.float64)
        a = a / a.norm()
        b = a + 4e-16 * step
        if torch.equal(a, b):
            continue
        # An encoder 0.06 on b's side of the border.
        w = (a - b) / (a - b).norm()
        side = float(w @ (a + b)) / 2 - 0.06
        if abs(side) > 0.9:
            continue
        gallery = Gallery(torch.stack([a, b]), torch.tensor([0, 1]))
        near += 1
        for goal in ("label", "neighbour"):
            found = certifier(goal=goal, samples=3000, selection=5).certify(
                Constant(*(side * w).tolist()), batch(torch.zeros(1, 3)), gallery
            )
            assert found.abstained.item() and found.radius.item() == 0
    assert near > 20


def test_one_label_alone_is_certain() -> None:
    gallery = Gallery(on_circle(torch.tensor([0.0, 1.0])), torch.tensor([3, 3]))
    found = certifier().certify(Circle(1.0), batch(torch.zeros(1, 1)), gallery)
    assert found.radius.item() == math.inf and found.label.item() == 3


@pytest.fixture(scope="module")
def crowd() -> tuple[Encoder, Batch, Gallery]:
    """A random network, its gallery, and queries near some of its items."""
    torch.manual_seed(0)
    encoder = Encoder(nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 3)), dim=3)
    items = torch.randn(30, 4, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        gallery = Gallery(Smoothed(encoder, sigma=0.3, samples=2000)(items), torch.arange(30) % 6)
    return encoder, batch(items[:12] + 0.05), gallery


@pytest.mark.parametrize("goal", ["label", "neighbour"])
def test_no_attack_on_the_smoothed_encoder_succeeds_within_the_radius(
    goal: str, crowd: tuple[Encoder, Batch, Gallery]
) -> None:
    encoder, queries, gallery = crowd
    found = certifier(sigma=0.3, samples=4000, goal=goal).certify(encoder, queries, gallery)
    assert (found.radius > 0).sum() >= 4
    smoothed = Smoothed(encoder, sigma=0.3, samples=1500, seed=7)
    attacked = 0
    for row in (found.radius > 0).nonzero()[:, 0].tolist():
        answer, radius = int(found.neighbour[row]), found.radius[row].item()
        rival = gallery.labels != gallery.labels[answer] if goal == "label" else torch.arange(30) != answer
        good = ~rival

        def value(x: Tensor, rival: Tensor = rival, good: Tensor = good) -> Tensor:
            away = torch.cdist(smoothed(x), gallery.embeddings)
            return away[:, good].amin(dim=1) - away[:, rival].amin(dim=1)

        for reach, succeeds in ((radius, False), (5.0, True)):
            ball = Ball(reach, norm="l2", bounds=(-50.0, 50.0))
            engine = PGD(ball, steps=8, step_size=reach / 3, random_start=False, keep="best")
            moved = engine(value, queries.inputs[row : row + 1])
            with torch.no_grad():
                changed = value(moved).item() > 0
            assert not changed or succeeds
            attacked += changed
    # The attack is one: with room it changes most answers.
    assert attacked >= 4


def test_embeddings_that_are_too_long_are_refused() -> None:
    with pytest.raises(InputError, match="length up to 3"):
        certifier().certify(Scaled(), batch(torch.zeros(1, 1)), AXES)


def test_what_cannot_be_certified_is_refused() -> None:
    query = batch(torch.zeros(1, 1))
    with pytest.raises(InputError, match="NaN"):
        certifier().certify(Circle(1.0), query, Gallery(torch.tensor([[math.nan, 0.0]]), torch.tensor([0])))
    for search in ("mean", "vote"):
        with pytest.raises(InputError, match="NaN"):
            certifier(search=search).certify(Circle(1.0), batch(torch.full((1, 1), math.nan)), AXES)
    with pytest.raises(InputError, match="at least 2 items"):
        own = batch(torch.zeros(1, 1), index=torch.tensor([0]))
        certifier().certify(Circle(1.0), own, Gallery(torch.ones(1, 2), torch.tensor([0])))
    with pytest.raises(InputError, match="below 2"):
        certifier().certify(Circle(1.0), batch(torch.zeros(1, 1), index=torch.tensor([2])), AXES)


@pytest.mark.parametrize(
    "settings",
    [{"sigma": 0.0}, {"samples": 1}, {"selection": 0}, {"alpha": 0.0}, {"thresholds": 1}, {"candidates": 0}],
)
def test_settings_that_prove_nothing_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="expected"):
        certifier(**settings)


@pytest.mark.parametrize(("name", "word"), [("goal", "labels"), ("bound", "means"), ("search", "votes")])
def test_unknown_words_are_refused(name: str, word: str) -> None:
    # Set behind the constructor's back: in tests, the run-time type check would speak first.
    settings = certifier()
    object.__setattr__(settings, name, word)
    with pytest.raises(InputError, match=f"{name} '{word}' is not known; did you mean '{word[:-1]}'"):
        settings.__post_init__()
