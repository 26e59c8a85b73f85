"""CA-TRIDE: two adversaries that take turns, look at the collapse of the batch, and grow with the training."""

import inspect
import math
from typing import Any

import pytest
import torch
from small import LINE, Watched, encoder, figures, paired_batch, pgd, quarters, seeded
from torch import Tensor, nn

from robustmetric.defences.ca_tride import CollapseAwareTriplet, nearer_half, weighted_mean
from robustmetric.defences.plain import Plain
from robustmetric.errors import InputError
from robustmetric.losses.mining import Hardest, Random, SemiHard, anchors_of
from robustmetric.losses.triplet import Triplet, triplet_values
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD
from robustmetric.types import Batch, Triplets


def line(*points: float) -> Batch:
    """Pairs of classes 0, 1, 0, 1, ..."""
    labels = torch.arange(len(points)) // 2 % 2
    return Batch(torch.tensor(points)[:, None], labels, torch.arange(len(points)))


def farthest(z: Tensor, labels: Tensor, generator: torch.Generator | None = None) -> Triplets:
    """The easiest triplets: their batch is far from collapse, also for an encoder that has learnt nothing."""
    anchors = anchors_of(z, labels)
    return Triplets(anchors.index, anchors.partner, anchors.distance.masked_fill(~anchors.negative, -1).argmax(dim=1))


def images_of(defence: CollapseAwareTriplet, batch: Batch, seed: int = 0) -> list[float]:
    """The triplets that were trained on: anchors, positives, negatives."""
    seen: list[Tensor] = []
    model = nn.Identity()
    model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    defence(model, batch, seeded(seed))
    return seen[-1].flatten().tolist()


def defence_on_a_line(steps: int = 2, sharpness: float = 0.0, **settings: Any) -> CollapseAwareTriplet:
    return CollapseAwareTriplet(Hardest(), quarters(steps).engine, sharpness=sharpness, **settings)


def test_the_weighted_mean_leans_to_the_largest() -> None:
    # Weights 3^-1 and 1: (1/3 + 2) / (4/3).
    assert weighted_mean(torch.tensor([1.0, 2.0]), math.log(3)).item() == pytest.approx(1.75)
    assert weighted_mean(torch.tensor([1.0, 2.0]), 0.0).item() == 1.5
    assert weighted_mean(torch.tensor([1.0, 2.0]), 1e4).item() == 2


def test_the_nearer_half_is_of_whole_distances() -> None:
    assert nearer_half(torch.tensor([4.0, 1.0, 3.0, 2.0])).item() == 1.5
    assert nearer_half(torch.tensor([4.0, 1.0, 3.0])).item() == 1
    assert nearer_half(torch.tensor([5.0])).item() == 5


def test_candidates_go_on_until_the_weighted_distances_meet() -> None:
    # Plain means: C = 0.75 - 2.5, and a step is 0.25 for each of p and n: -1.25, -0.75, -0.25, 0.25.
    assert images_of(defence_on_a_line(2), LINE) == [0, 3, 1.5, 4, 2.5, 1.5]
    for steps in (4, 9):
        defence = defence_on_a_line(steps, margin=1.0)
        assert images_of(defence, LINE) == [0, 3, 2, 4.5, 2, 2]
        # 2 - 2 and 1.5 - 1.
        assert figures(defence) == {"before": -1.75, "after": 0.25}


def test_sharp_weights_look_at_the_largest_distances_only() -> None:
    # C = 1 - 3: of the first triplet alone, which meets in four steps of 0.5; the second has almost no weight, but a
    # step goes by sign.
    assert images_of(defence_on_a_line(9, sharpness=20.0), LINE)[0:2] == [0, 3]
    defence = defence_on_a_line(3, sharpness=20.0)
    images_of(defence, LINE)
    assert figures(defence)["after"] > figures(defence)["before"]


def test_anchors_go_to_the_nearer_half_of_the_negatives_and_away_from_themselves() -> None:
    defence = defence_on_a_line(2, margin=1.5)
    images_of(defence, LINE)
    # C < 0, and the nearer half is the second anchor's d(3, 1) alone. The first goes away from 0, one way or the other.
    first, *others = images_of(defence, LINE)
    assert abs(first) == 0.5 and others == [2.5, 1, 3.5, 3, 1]
    # The second: 1 - 1.5. The first has p and n on one side: 1 - 3 as before.
    assert figures(defence) == {"before": -1.75, "after": -1.25}
    again = defence_on_a_line(2, margin=1.5)
    again.turns = 1
    assert again(nn.Identity(), LINE, seeded())["triplet"].item() == (0 + 1) / 2


def test_a_collapsed_batch_is_drawn_apart_by_anchors_and_left_alone_by_candidates() -> None:
    # (0, 3, 0.5) and (2, 0.5, 3): C = 2.25 - 0.75 > 0.
    batch = line(0.0, 3.0, 2.0, 0.5)
    defence = defence_on_a_line(1)
    defence.turns = 1
    # The first anchor has p and n on one side, dC/da = 0, and goes to its n, the nearer half; the second goes from n
    # to p, which lowers C by 2 / 2. The pull away from themselves is 1 / 2.
    assert images_of(defence, batch)[:2] == [0.25, 1.75]
    assert images_of(defence_on_a_line(3), batch) == [0, 2, 3, 0.5, 0.5, 3]


def test_collapse_is_that_of_a_group() -> None:
    # The second group has collapsed already, the first has not.
    batch = line(0.0, 1.0, 3.0, 3.5, 0.0, 3.0, 1.0, 4.0)
    apart, together = (images_of(defence_on_a_line(2, groups=groups), batch) for groups in (2, 1))
    assert apart[4:8] == [1.5, 4, 3, 4] and apart[8:] == [2.5, 1.5, 1, 0]
    assert together != apart


def test_the_adversaries_take_turns_also_after_save_and_load() -> None:
    defence = defence_on_a_line(2)
    anchors = [images_of(defence, LINE)[1] for _ in range(3)]
    other = defence_on_a_line(2)
    other.load_state_dict(defence.state_dict())
    anchors.append(images_of(other, LINE)[1])
    assert anchors == [3, 2.5, 3, 2.5]


@pytest.mark.parametrize(("progress", "gone"), [(0.0, 0.0), (0.5, 0.25), (1.0, 0.5)])
def test_the_adversary_grows_with_the_training(progress: float, gone: float) -> None:
    for turn, place, start, sign in ((0, 2, 1, 1), (1, 1, 3, -1)):
        defence = defence_on_a_line(2)
        defence.turns, defence.progress = turn, progress
        assert images_of(defence, LINE)[place] == start + sign * gone


def test_a_gradual_source_has_a_margin_that_falls_to_a_quarter() -> None:
    # Anchor 0, positive 1: the negatives 1.02 and 1.15 are semi-hard within 0.2, and only the first within 0.05.
    batch, chosen = line(0.0, 1.0, 1.02, 1.15), {}
    for progress in (0.0, 1.0):
        defence = CollapseAwareTriplet(SemiHard(), quarters(0).engine, gradual=True)
        defence.progress = progress
        chosen[progress] = {round(images_of(defence, batch, seed)[4], 2) for seed in range(20)}
    assert chosen == {0.0: {1.02, 1.15}, 1.0: {1.02}}


def test_the_nearer_halves_are_one_more_triplet_loss() -> None:
    defence = defence_on_a_line(0, half_weight=0.5)
    terms = defence(nn.Identity(), line(0.0, 3.0, 1.0, 4.0), seeded())
    # Distances 3, 3 to positives and 1, 1 to negatives: 0.5 * (3 - 1 + 0.04).
    assert terms["halves"].item() == pytest.approx(1.02) and terms["triplet"].item() == pytest.approx(2.2)
    assert list(defence_on_a_line(0)(nn.Identity(), LINE, seeded())) == ["triplet"]


@pytest.mark.parametrize("turn", [0, 1])
def test_digits_are_climbed_in_the_ball_and_trained_on(turn: int) -> None:
    attack, model, batch = PGD(Ball(0.2), steps=6, step_size=0.05, random_start=False), encoder(), paired_batch(4)
    defence = CollapseAwareTriplet(farthest, attack)
    defence.turns = turn
    seen: list[Tensor] = []
    hook = model.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].detach()))
    terms = defence(model, batch, seeded())
    hook.remove()
    clean = torch.cat(farthest(model(batch.inputs).detach(), batch.labels).of(batch.inputs))
    moved = (seen[-1] - clean).abs().flatten(1).amax(dim=1).view(3, -1)
    assert moved.max() <= 0.2 + 1e-6
    assert ((moved > 0).all(dim=1)).tolist() == ([False, True, True] if turn == 0 else [True, False, False])
    torch.testing.assert_close(terms["triplet"], triplet_values(*model(seen[-1]).chunk(3), margin=0.2).mean())
    terms["triplet"].backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in model.parameters())


@pytest.mark.parametrize("keep", ["last", "best"])
def test_engines_with_restarts_work_on_coupled_rows(keep: str) -> None:
    attack = PGD(Ball(0.1), steps=3, step_size=0.05, restarts=2, keep=keep)
    defence = CollapseAwareTriplet(Hardest(), attack, groups=2)
    for seed in range(2):
        assert defence(encoder(), paired_batch(), seeded(seed))["triplet"].isfinite()


def test_radius_zero_is_plain_training_on_both_turns() -> None:
    model, batch = encoder(), paired_batch()
    defence = CollapseAwareTriplet(Random(), pgd(0.0))
    for seed in range(2):
        expected = Plain(Triplet(Random()))(model, batch, seeded(seed))["metric"]
        torch.testing.assert_close(defence(model, batch, seeded(seed))["triplet"], expected)


def build(**changes: Any) -> None:
    """Unwrapped: the type checker that runs in tests only would refuse the value first."""
    kind = CollapseAwareTriplet
    inspect.unwrap(kind.__init__)(kind.__new__(kind), **{"source": Random(), "attack": pgd(0.1), **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": "softhard"}, "source 'softhard' chooses no triplets"),
        ({"attack": "pgd"}, r"attack 'pgd' is a word; write \{name: pgd\}"),
        ({"attack": Watched(pgd(0.1))}, "attack: Watched is not of the kind PGD"),
        ({"sharpness": math.nan}, "sharpness nan, half_weight 0.0; expected numbers >= 0"),
        ({"half_weight": -1.0}, "sharpness 10.0, half_weight -1.0; expected numbers >= 0"),
        ({"gradual": True}, r"gradual is for a semi-hard source, not Random\(\)"),
        ({"groups": 0}, "groups 0, margin 0.2; expected groups >= 1"),
    ],
)
def test_parts_of_another_kind_are_refused_when_it_is_built(changes: dict[str, Any], message: str) -> None:
    build()
    with pytest.raises(InputError, match=message):
        build(**changes)
