"""A whole set moved: alone or together, in its ball, judged as a set, and stronger together."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from robustmetric.attacks.base import Attack, Targets
from robustmetric.attacks.centroid import Centroid, PairSimilarity, Wrong
from robustmetric.attacks.embedding_shift import EmbeddingShift
from robustmetric.attacks.joint import Moved, WholeSet, move_all, transfer_all
from robustmetric.attacks.soft_kmeans import SoftKMeans
from robustmetric.attacks.vote import NeighbourMargin, PairShift, damage
from robustmetric.data.digits import Digits
from robustmetric.errors import InputError
from robustmetric.losses.proxy_anchor import ProxyAnchor
from robustmetric.metrics.clustering import cluster_metrics
from robustmetric.metrics.voting import judge
from robustmetric.models.convnet import ConvNet
from robustmetric.models.encoder import Encoder
from robustmetric.models.ensemble import Ensemble
from robustmetric.perturb import seeking
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.gradient_free import NES, Square
from robustmetric.perturb.pgd import PGD, frozen
from robustmetric.types import Batch, Gallery

RADIUS = 0.1
ENGINE = PGD(Ball(RADIUS), steps=10, step_size=RADIUS / 4)


def trained(seed: int) -> Encoder:
    """A plain model of digits 0 to 4."""
    digits = Digits().load().train
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = Encoder(ConvNet(side=8, kernel=3, widths=(4, 8), hidden=16, dim=8))
        loss = ProxyAnchor(5, 8, seed=seed)
        optimiser = torch.optim.Adam([*model.parameters(), *loss.parameters()], lr=5e-3)
        for _ in range(60):
            rows = torch.randperm(len(digits.labels))[:120]
            optimiser.zero_grad()
            loss(model(digits.inputs[rows].float() / 255), digits.labels[rows]).backward()
            optimiser.step()
        optimiser.zero_grad(set_to_none=True)
    return model


@pytest.fixture(scope="module")
def model() -> Encoder:
    return trained(0)


@pytest.fixture(scope="module")
def ensemble(model: Encoder) -> Ensemble:
    return Ensemble([model, trained(1), trained(2)])


@pytest.fixture(scope="module")
def batch() -> Batch:
    """300 digits of the unseen classes."""
    queries = Digits().load().queries
    return Batch(queries.inputs[:300].float() / 255, queries.labels[:300], torch.arange(300))


def moved(attack: Attack, model: nn.Module, batch: Batch, engine: PGD = ENGINE, seed: int = 0, **rest: object) -> Moved:
    members = len(model.members) if isinstance(model, Ensemble) else 1
    whole = WholeSet(attack, **rest)  # type: ignore[arg-type]  # as the caller says
    return move_all(whole, engine, model, batch, torch.Generator().manual_seed(seed), members=members)


def scores(found: Moved, batch: Batch, members: int = 1) -> tuple[float, float, float]:
    recall, nmi, f1 = (judge(found.embeddings, batch.labels, members, by) for by in ("R@1", "NMI", "F1"))
    return recall, nmi, f1


class Rounding(nn.Module):
    """A model whose shadow for searches is another: what was asked of either is counted."""

    def __init__(self, model: Encoder) -> None:
        super().__init__()
        self.model = model
        self.asked = 0

    def forward(self, x: Tensor) -> Tensor:
        self.asked += 1
        return self.model(x)


@pytest.mark.parametrize("bank", ["still", "moving"])
def test_a_search_in_bfloat16_climbs_a_shadow_and_is_judged_by_the_model(
    bank: str, model: Encoder, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged, shadow = Rounding(model), Rounding(trained(1))
    monkeypatch.setattr(seeking, "fast_view", lambda _: shadow)
    whole = WholeSet(EmbeddingShift() if bank == "still" else NeighbourMargin(), bank=bank)  # type: ignore[arg-type]
    found = move_all(whole, ENGINE, judged, batch, torch.Generator().manual_seed(0), chunk=300, search="bf16")
    assert shadow.asked >= ENGINE.steps and judged.asked < ENGINE.steps
    assert found.inputs is not None
    with frozen(model) as embed, torch.no_grad():
        torch.testing.assert_close(found.embeddings, embed(found.inputs))
    assert not torch.equal(found.inputs, batch.inputs)


@pytest.mark.parametrize("bank", ["still", "moving"])
def test_embeddings_are_the_same_where_moved_images_are_not_kept(bank: str, model: Encoder, batch: Batch) -> None:
    whole = WholeSet(NeighbourMargin(), bank=bank)  # type: ignore[arg-type]
    kept, dropped = (
        move_all(whole, ENGINE, model, batch, torch.Generator().manual_seed(0), keeps_inputs=keeps)
        for keeps in (True, False)
    )
    assert kept.inputs is not None and dropped.inputs is None
    assert torch.equal(kept.embeddings, dropped.embeddings) and kept.judged == dropped.judged


@pytest.mark.parametrize("bank", ["still", "moving"])
def test_whole_sets_are_not_sought_in_float16(bank: str, model: Encoder, batch: Batch) -> None:
    whole = WholeSet(NeighbourMargin(), bank=bank)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"a whole set is not sought in fp16, .*; expected bf16"):
        move_all(whole, ENGINE, model, batch, torch.Generator().manual_seed(0), search="fp16")


def test_a_shadow_without_a_gradient_is_noticed(model: Encoder, batch: Batch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seeking, "fast_view", lambda _: lambda x: 0 * x.flatten(1)[:, :8] + 1)
    found = move_all(WholeSet(EmbeddingShift()), ENGINE, model, batch, torch.Generator().manual_seed(0), search="bf16")
    assert found.flat == 100.0


def test_the_judge_is_the_metric(model: Encoder, batch: Batch) -> None:
    with frozen(model) as embed, torch.no_grad():
        z = embed(batch.inputs)
    found = cluster_metrics(z, batch.labels, seed=0)
    assert judge(z, batch.labels, 1, "NMI") == pytest.approx(found["NMI"])
    assert judge(z, batch.labels, 1, "F1") == pytest.approx(found["F1"])
    distances = torch.cdist(z, z).fill_diagonal_(torch.inf)
    hits = batch.labels[distances.argmin(dim=1)] == batch.labels
    assert judge(z, batch.labels, 1, "R@1") == pytest.approx(float(hits.float().mean()))


def test_a_no_op_would_be_noticed_and_moving_together_hurts_most(model: Encoder, batch: Batch) -> None:
    no_op = scores(moved(EmbeddingShift(), model, batch, PGD(Ball(RADIUS), 0, 0.0, random_start=False)), batch)
    alone = scores(moved(EmbeddingShift(), model, batch), batch)
    margin = scores(moved(NeighbourMargin(), model, batch, bank="moving"), batch)
    centroids = scores(moved(Centroid("random"), model, batch, bank="moving", judge="NMI"), batch)
    assert no_op[0] > 0.65 and no_op[1] > 0.2
    assert alone[0] < no_op[0] - 0.1 and alone[1] < no_op[1] - 0.1
    assert margin[0] < alone[0] - 0.1
    assert centroids[1] <= alone[1] and centroids[2] <= alone[2]


def test_moving_together_hurts_a_vote_most(ensemble: Ensemble, batch: Batch) -> None:
    alone = scores(moved(EmbeddingShift(), ensemble, batch), batch, members=3)
    margin = scores(moved(NeighbourMargin(), ensemble, batch, bank="moving"), batch, members=3)
    centroids = scores(moved(Centroid("random"), ensemble, batch, bank="moving", judge="NMI"), batch, members=3)
    assert margin[0] < alone[0] - 0.1
    assert centroids[1] < alone[1] and centroids[2] < alone[2]


@pytest.mark.parametrize("bank", ["still", "moving"])
@pytest.mark.parametrize("attack", [EmbeddingShift(), Centroid(), PairSimilarity(), PairShift(), NeighbourMargin()])
def test_all_stay_in_ball_and_bounds_as_bytes_and_seeds_repeat(
    attack: Attack, bank: str, ensemble: Ensemble, batch: Batch
) -> None:
    few = Batch(batch.inputs[:60], batch.labels[:60], batch.index[:60])
    engine = PGD(Ball(RADIUS), steps=3, step_size=RADIUS / 2)
    before = {name: value.clone() for name, value in ensemble.state_dict().items()}
    first, again, other = (moved(attack, ensemble, few, engine, seed, bank=bank) for seed in (0, 0, 1))
    assert torch.equal(first.inputs, again.inputs) and torch.equal(first.embeddings, again.embeddings)
    assert not torch.equal(first.inputs, other.inputs)
    assert (first.inputs - few.inputs).abs().max() <= RADIUS + 1e-6
    assert first.inputs.min() >= 0 and first.inputs.max() <= 1
    torch.testing.assert_close(first.inputs * 255, (first.inputs * 255).round(), atol=1e-3, rtol=0)
    with frozen(ensemble) as embed, torch.no_grad():
        torch.testing.assert_close(first.embeddings, embed(first.inputs))
        torch.testing.assert_close(first.clean, embed(few.inputs))
    torch.testing.assert_close(ensemble.state_dict(), before, atol=0, rtol=0)
    assert all(p.requires_grad and p.grad is None for p in ensemble.parameters())


@pytest.mark.parametrize("bank", ["still", "moving"])
def test_radius_zero_moves_nothing(bank: str, model: Encoder, batch: Batch) -> None:
    found = moved(Centroid(), model, batch, PGD(Ball(0.0), steps=2, step_size=0.1), bank=bank)
    torch.testing.assert_close(found.inputs, batch.inputs)
    torch.testing.assert_close(found.embeddings, found.clean)


@pytest.mark.parametrize("target", ["derangement", "random", "nearest"])
def test_chunks_change_nothing_of_a_joint_climb_without_random_start(
    target: Wrong, model: Encoder, batch: Batch
) -> None:
    engine = PGD(Ball(RADIUS), steps=2, step_size=RADIUS / 2, random_start=False)
    whole = WholeSet(Centroid(target), bank="moving")
    found = [
        move_all(whole, engine, model, batch, torch.Generator().manual_seed(0), chunk=chunk, rounded=False).inputs
        for chunk in (300, 64)
    ]
    # All aim at what the whole bank is before the step: where a chunk ends plays no part, but for rounding.
    assert (found[0] - found[1]).abs().gt(1e-5).float().mean() < 0.01


def test_the_bank_is_looked_at_once_a_step_whatever_the_chunks(
    model: Encoder, batch: Batch, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []
    choose = SoftKMeans.choose

    def counted(self: SoftKMeans, clean: Tensor, *rest: Any) -> Targets:
        seen.append(len(clean))
        return choose(self, clean, *rest)

    monkeypatch.setattr(SoftKMeans, "choose", counted)
    engine = PGD(Ball(RADIUS), steps=3, step_size=RADIUS / 2)
    whole = WholeSet(SoftKMeans(), bank="moving")
    move_all(whole, engine, model, batch, torch.Generator().manual_seed(0), chunk=64)
    assert seen == [64, 300, 300, 300]  # the first is of the check for a slope


def test_known_clean_embeddings_are_not_asked_for_again(model: Encoder, batch: Batch) -> None:
    alone = move_all(WholeSet(EmbeddingShift()), ENGINE, model, batch, torch.Generator().manual_seed(0))
    images: list[int] = []
    hook = model.register_forward_hook(lambda module, given, z: images.append(len(z)))
    told = move_all(
        WholeSet(EmbeddingShift()), ENGINE, model, batch, torch.Generator().manual_seed(0), clean=alone.clean
    )
    hook.remove()
    assert torch.equal(told.inputs, alone.inputs) and told.judged == alone.judged
    # The climb embeds each image clean (what A1 leaves), ten times, and at the end; 128 tell whether there is a slope.
    assert sum(images) == 300 * 12 + 128


def test_restarts_are_kept_by_the_metric_of_the_whole_set(model: Encoder, batch: Batch) -> None:
    gains = []
    for by in ("R@1", "NMI"):
        one, four, eight = (
            moved(Centroid("random"), model, batch, bank="moving", judge=by, restarts=n).judged for n in (1, 4, 8)
        )
        assert eight <= four <= one, "the first ones are the same"
        gains.append(one - eight)
    assert max(gains) > 0, "the first of eight would have to be the best by both"


def test_refreshing_the_bank_less_often_is_another_climb(model: Encoder, batch: Batch) -> None:
    often, seldom = (moved(NeighbourMargin(), model, batch, bank="moving", refresh=n) for n in (1, 10))
    assert not torch.equal(often.inputs, seldom.inputs)
    assert scores(often, batch)[0] < scores(seldom, batch)[0]


def test_each_image_keeps_its_most_damaging_climb(ensemble: Ensemble, batch: Batch) -> None:
    one, ten = (
        moved(Centroid("nearest", away=False, turns=turns), ensemble, batch, PGD(Ball(RADIUS), 5, RADIUS / 2))
        for turns in (1, 10)
    )
    bank = Gallery(one.clean, batch.labels)
    harm = [damage(found.embeddings, batch, bank, members=3) for found in (one, ten)]
    # The first of ten turns is that of one alone, up to its random start, which is the same.
    assert (harm[1] >= harm[0] - 1e-6).all() and (harm[1] > harm[0] + 1e-6).float().mean() > 0.2


def test_images_without_a_slope_are_counted(model: Encoder, batch: Batch) -> None:
    assert moved(EmbeddingShift(), model, batch).flat == 0
    fooled = NeighbourMargin(confidence=-2.0)  # content from the start
    assert moved(fooled, model, batch).flat == 100
    assert moved(EmbeddingShift(), model, batch, PGD(Ball(RADIUS), 2, 0.02, random_start=False)).flat == 0


def test_engines_that_cannot_step_together_are_refused(model: Encoder, batch: Batch) -> None:
    generator = torch.Generator().manual_seed(0)
    engines = [PGD(Ball(0.1), 2, 0.1, restarts=2), PGD(Ball(0.1), 2, 0.1, keep="best"), NES(Ball(0.1), 2, 0.1)]
    for engine in engines:
        with pytest.raises(InputError, match="moving bank"):
            move_all(WholeSet(Centroid(), bank="moving"), engine, model, batch, generator)


@pytest.mark.parametrize("wrong", [{"refresh": 0}, {"restarts": 0}])
def test_settings_that_mean_nothing_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(InputError, match="expected both to be 1 or more"):
        WholeSet(Centroid(), **wrong)  # type: ignore[arg-type]  # whole numbers alone


def test_mode_compat_is_refused() -> None:
    with pytest.raises(InputError, match="expected mode 'fixed'"):
        WholeSet(EmbeddingShift(mode="compat"))


def test_soft_k_means_parts_clusters_more_than_a_shift_does(ensemble: Ensemble, batch: Batch) -> None:
    shifted = moved(EmbeddingShift(), ensemble, batch)
    parted = moved(SoftKMeans(), ensemble, batch, bank="moving", judge="F1")
    assert parted.flat == 0
    assert all(a < b for a, b in zip(scores(parted, batch, 3)[1:], scores(shifted, batch, 3)[1:], strict=True))


def test_values_alone_move_a_whole_set_too(ensemble: Ensemble, batch: Batch) -> None:
    found = move_all(
        WholeSet(NeighbourMargin()), Square(Ball(RADIUS), queries=60), ensemble, batch, seeded(), members=3
    )
    assert scores(found, batch, 3)[0] < judge(found.clean, batch.labels, 3, "R@1")
    assert ((found.inputs - batch.inputs).abs() <= RADIUS + 1e-6).all()


def test_a_search_ends_for_images_whose_members_are_all_fooled(ensemble: Ensemble, batch: Batch) -> None:
    images, found = {}, {}
    for goal in (None, 1e4):  # as far as it goes, and one that nothing reaches
        engine, passed = Square(Ball(0.5), queries=100, goal=goal), list[int]()
        hook = ensemble.register_forward_hook(lambda module, given, z, passed=passed: passed.append(len(z)))
        generator = torch.Generator().manual_seed(0)
        found[goal] = move_all(WholeSet(NeighbourMargin()), engine, ensemble, batch, generator, members=3, chunk=100)
        hook.remove()
        images[goal] = sum(passed)
    assert images[1e4] > 30_000 > 20_000 > images[None]
    attack = NeighbourMargin(members=3)
    rows, still = Batch(batch.inputs, batch.labels, torch.arange(300)), Gallery(found[None].clean, batch.labels)
    aims = attack.choose(still.embeddings, rows, still, None)
    alone, whole = (attack.value(found[goal].embeddings, aims, still) for goal in (None, 1e4))
    # Rounded to bytes, a value may fall; but as many images are wholly fooled, and none beyond what is asked for.
    fooled = [float((values >= attack.ceiling).float().mean()) for values in (alone, whole)]
    assert fooled[0] > 0.5 and fooled[0] == pytest.approx(fooled[1], abs=0.05)


def test_transferred_from_the_target_itself_it_is_the_white_box_attack(ensemble: Ensemble, batch: Batch) -> None:
    whole = WholeSet(NeighbourMargin())
    white = move_all(whole, ENGINE, ensemble, batch, seeded(), members=3)
    own = transfer_all(whole, ENGINE, ensemble, ensemble, batch, seeded(), surrogate_members=3, members=3)
    assert torch.equal(own.inputs, white.inputs) and own.judged == white.judged
    torch.testing.assert_close(own.embeddings, white.embeddings)


def test_transferred_from_another_model_it_is_scored_on_the_target_and_weaker(ensemble: Ensemble, batch: Batch) -> None:
    surrogate = trained(7)
    whole = WholeSet(NeighbourMargin())
    black = transfer_all(whole, ENGINE, surrogate, ensemble, batch, seeded(), members=3)
    on_its_own = move_all(whole, ENGINE, surrogate, batch, seeded())
    assert torch.equal(black.inputs, on_its_own.inputs), "the target has no part in the climb"
    with frozen(ensemble) as embed, torch.no_grad():
        torch.testing.assert_close(black.embeddings, embed(black.inputs))
        torch.testing.assert_close(black.clean, embed(batch.inputs))
    white = move_all(whole, ENGINE, ensemble, batch, seeded(), members=3)
    assert white.judged < black.judged < judge(black.clean, batch.labels, 3, "R@1")


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(0)
