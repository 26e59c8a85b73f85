"""`fixed` against `compat` on galleries made by hand: each fault of the reference code, and its absence."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from circle import Circle, at, chord, gallery, queries, seeded

from robustmetric.attacks.base import run
from robustmetric.attacks.candidate import Candidate
from robustmetric.attacks.embedding_shift import EmbeddingShift
from robustmetric.attacks.mismatch import TargetedMismatch
from robustmetric.attacks.misrank import LearnToMisrank
from robustmetric.attacks.modes import check_mode, guess_places, mode_of, strict_percentile
from robustmetric.attacks.order import Order
from robustmetric.attacks.query import Query
from robustmetric.attacks.semantics import SemanticsPreservingQuery
from robustmetric.attacks.top1 import TopOneMisranking, TopOneTranslocation
from robustmetric.errors import InputError
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD
from robustmetric.types import Gallery

DEGREES = [0, 20, 50, 90, 180]
GALLERY = gallery(DEGREES, [0, 0, 1, 1, 2])
EVERYONE = queries(DEGREES, [0, 0, 1, 1, 2], [0, 1, 2, 3, 4])
WIDE = Ball(0.3, bounds=(-2.0, 2.0))
STILL = PGD(Ball(0.0, bounds=(-2.0, 2.0)), steps=1, step_size=0.0, random_start=False)

ERS: list[Callable[..., Any]] = [
    lambda **mode: Candidate("up", **mode),
    lambda **mode: Candidate("down", **mode),
    lambda **mode: Query("up", **mode),
    lambda **mode: Query("down", **mode),
    TargetedMismatch,
    EmbeddingShift,
    LearnToMisrank,
    TopOneMisranking,
    TopOneTranslocation,
]


@pytest.mark.parametrize("attack", ERS)
def test_fixed_is_the_default(attack: Callable[..., Any]) -> None:
    assert mode_of(attack()) == "fixed" and mode_of(attack(mode="compat")) == "compat"
    assert attack() == attack(mode="fixed") != attack(mode="compat")


def test_another_word_is_no_mode() -> None:
    with pytest.raises(InputError, match="mode 'compact' is not known; did you mean 'compat'"):
        check_mode("compact")


def test_an_attack_without_modes_is_as_its_paper_means_it() -> None:
    assert mode_of(object()) == "fixed"


def test_ranks_count_the_items_strictly_closer_of_all() -> None:
    # 2 in (1, 2, 2, 4): one of four; 8: all four; their mean.
    others = torch.tensor([[[1.0, 2.0, 2.0, 4.0]]])
    assert strict_percentile(torch.tensor([[2.0]]), others).item() == pytest.approx(25)
    assert strict_percentile(torch.tensor([[2.0, 8.0]]), others).item() == pytest.approx(62.5)


def test_rank_of_an_item_in_the_list_of_the_query() -> None:
    # From 10 deg the items at 0 and 20 are nearer than the one at 50: two of the four others, two of all five.
    target = {"index": torch.tensor([[2]]), "exclude": torch.tensor([-1])}
    batch = queries([10], [0])
    assert Query("up").score(at(10), target, batch, GALLERY)["QA+"].item() == pytest.approx(50)
    assert Query("up", mode="compat").score(at(10), target, batch, GALLERY)["QA+"].item() == pytest.approx(40)


def test_rank_of_a_candidate_in_the_list_of_its_query() -> None:
    # One of four items is nearer to the query than the candidate, one is level with it.
    level = (at(60) - at(20)).norm()
    lists = torch.stack([level / 2, level, 2 * level, 3 * level]).view(1, 1, 4)
    targets = {"queries": at(20).view(1, 1, 2), "lists": lists}
    scores = [Candidate("up", mode=m).score(at(60), targets, queries([60], [1]), GALLERY) for m in ("fixed", "compat")]
    assert [score["CA+"].item() for score in scores] == pytest.approx([37.5, 25])


def test_a_collapsed_gallery_is_half_way_in_fixed_and_all_the_way_up_in_compat() -> None:
    same = gallery([30, 30, 30, 30], [0, 0, 1, 1])
    batch = queries([30], [0], [0])
    scores = [run(Query("up", mode=m), STILL, Circle(), batch, same, seeded(0), rounded=False).scores["QA+"].item()
              for m in ("fixed", "compat")]  # fmt: skip
    assert scores == pytest.approx([50, 0])


def test_down_draws_from_the_k_nearest_with_replacement_for_candidates_and_without_for_queries() -> None:
    # 0.4 of five items: of the three nearest to 0 deg the first, itself, is dropped; 20 and 50 are left.
    batch = queries([0] * 200, [0] * 200, [0] * 200)
    again = Candidate("down", queries=2, pool=0.4, mode="compat").choose(batch.inputs, batch, GALLERY, seeded(0))
    once = Query("down", candidates=2, pool=0.4, mode="compat").choose(batch.inputs, batch, GALLERY, seeded(0))
    assert set(again["index"].flatten().tolist()) == set(once["index"].flatten().tolist()) == {1, 2}
    assert 0.4 < (again["index"][:, 0] == again["index"][:, 1]).double().mean() < 0.6
    assert (once["index"][:, 0] != once["index"][:, 1]).all()
    # With replacement five queries can be had of four others; without it they cannot.
    assert (
        Candidate("down", 5, mode="compat").choose(at(0), queries([0], [0], [0]), GALLERY, None)["index"].numel() == 5
    )
    with pytest.raises(InputError, match="gallery of 5"):
        Candidate("down", 5).choose(at(0), queries([0], [0], [0]), GALLERY, None)


def test_own_place_is_that_of_the_nearest_item() -> None:
    guessed = guess_places(EVERYONE, EVERYONE.inputs, GALLERY)
    assert guessed.index.tolist() == [0, 1, 2, 3, 4]
    # The second of two duplicates is taken for the first; one that is no part of the gallery stays a stranger.
    twins = gallery([0, 0, 50], [1, 0, 0])
    batch = queries([0, 0, 50, 0], [1, 0, 0, 0], [0, 1, 2, -1])
    assert guess_places(batch, batch.inputs, twins).index.tolist() == [0, 0, 2, -1]


@pytest.mark.parametrize(
    ("attack", "score"),
    [(EmbeddingShift, "ES:R"), (LearnToMisrank, "LTM"), (TopOneMisranking, "GTM")],
)
def test_a_duplicate_is_left_out_instead_of_the_query(attack: Callable[..., Any], score: str) -> None:
    # The query is item 1; item 0 is the same picture with another label. Left out is item 1, or (compat) item 0: then
    # the query finds its own copy, of its own label.
    twins = gallery([0, 0, 50], [1, 0, 0])
    batch = queries([0], [0], [1])
    found = [run(attack(mode=m), STILL, Circle(), batch, twins, seeded(0), rounded=False) for m in ("fixed", "compat")]
    assert [outcome.scores[score].item() for outcome in found] == [0, 100]


def test_misranking_leaves_the_query_out_of_its_class_only_in_fixed() -> None:
    # Farthest other: 180 deg. Nearest own: 20 deg; in compat the query's own copy, 0 deg away.
    batch = queries([0], [0], [0])
    fixed, compat = (
        attack.value(at(0), attack.choose(at(0), batch, GALLERY, None), GALLERY).item()
        for attack in (LearnToMisrank(), LearnToMisrank(mode="compat"))
    )
    assert fixed == pytest.approx(-(chord(180) - chord(20))) and compat == pytest.approx(-chord(180))


def test_misranking_of_the_first_answer_has_two_faults_in_compat() -> None:
    fixed = TopOneMisranking().choose(EVERYONE.inputs, EVERYONE, GALLERY, None)["index"]
    assert (GALLERY.labels[fixed] != EVERYONE.labels).all()
    assert fixed.tolist() == [2, 2, 1, 1, 3]
    # First answers: 20, 0, 20, 50, 90 deg. Nearest item of another label than theirs (not the query): 50, 50, 90 (the
    # query's own label!), 20, 20 deg, items 2, 2, 3, 1, 1. Their places among the items of other labels:
    # first of (2, 3, 4), the same, second of (2, 3, 4), second of (0, 1, 4), second of (0, 1, 4).
    compat = TopOneMisranking(mode="compat").choose(EVERYONE.inputs, EVERYONE, GALLERY, None)
    assert compat["index"].tolist() == [0, 0, 1, 1, 1]
    assert torch.equal(compat["target"], GALLERY.embeddings[compat["index"]])
    assert (GALLERY.labels[compat["index"]] == EVERYONE.labels).tolist() == [True, True, False, False, False]


def test_misranking_towards_nobody_but_itself_takes_the_first_item() -> None:
    # The first answer's label is all but the query's own: the query is the only other, first of (2,).
    small = gallery([0, 20, 50], [0, 0, 1])
    batch = queries([50], [1], [2])
    assert TopOneMisranking(mode="compat").choose(batch.inputs, batch, small, None)["index"].tolist() == [0]


def test_shift_is_measured_on_the_final_image_and_one_step_before_it_in_compat() -> None:
    batch = queries([0, 100, 200], [0, 1, 2], [-1, -1, -1])
    engine = PGD(WIDE, steps=4, step_size=0.05, random_start=False)
    fixed, compat, shorter = (
        run(EmbeddingShift(mode=mode), climber, Circle(), batch, GALLERY, seeded(0), rounded=False)
        for mode, climber in (("fixed", engine), ("compat", engine), ("compat", replace(engine, steps=3)))
    )
    for outcome in (fixed, compat):
        moved = (outcome.embeddings - at(0, 100, 200)).norm(dim=1)
        if outcome is fixed:
            torch.testing.assert_close(outcome.scores["ES:D"], moved)
        else:
            assert (moved - outcome.scores["ES:D"] > 0.01).all()
    before = (shorter.embeddings - at(0, 100, 200)).norm(dim=1)
    torch.testing.assert_close(compat.scores["ES:D"], before)
    # ES:R is that of the last image in both.
    again = EmbeddingShift().score(compat.embeddings, {"clean": at(0, 100, 200)}, batch, GALLERY)
    assert torch.equal(compat.scores["ES:R"], again["ES:R"])


def test_the_climb_of_all_steps_but_one_and_then_one_is_the_whole_climb() -> None:
    batch = queries([0, 100, 200], [0, 1, 2])
    engine = PGD(WIDE, steps=6, step_size=0.07, random_start=False)
    attack = EmbeddingShift(mode="compat")
    targets = attack.choose(batch.inputs, batch, GALLERY, None)
    whole = engine(lambda x: attack.value(Circle()(x), targets, GALLERY), batch.inputs)
    outcome = run(attack, engine, Circle(), batch, GALLERY, seeded(0), rounded=False)
    torch.testing.assert_close(outcome.inputs, whole, atol=0, rtol=0)


def test_the_first_step_of_the_shift_is_along_ones_in_compat() -> None:
    # Towards (1, 1): up at 0 and 180 deg, right at 90 and 270; whatever the seed.
    batch = queries([0, 180, 90, 270], [0] * 4)
    engine = PGD(WIDE, steps=1, step_size=0.1, random_start=False)
    for seed in range(5):
        moved = run(EmbeddingShift(mode="compat"), engine, Circle(), batch, GALLERY, seeded(seed), rounded=False).inputs
        across = (moved - batch.inputs)[torch.arange(4), torch.tensor([1, 1, 0, 0])]
        torch.testing.assert_close(across, torch.full((4,), 0.1, dtype=torch.float64))


@pytest.mark.parametrize("settings", [{"steps": 0}, {"random_start": True, "restarts": 2}, {"keep": "best"}])
def test_an_engine_without_a_last_step_cannot_be_scored_before_it(settings: dict[str, Any]) -> None:
    engine = replace(PGD(WIDE, steps=4, step_size=0.05, random_start=False), **settings)
    batch = queries([0], [0], [0])
    with pytest.raises(InputError, match="expected pgd with steps >= 1, restarts: 1 and keep: last"):
        run(EmbeddingShift(mode="compat"), engine, Circle(), batch, GALLERY, seeded(0), rounded=False)
    assert run(EmbeddingShift(), engine, Circle(), batch, GALLERY, seeded(0), rounded=False).scores


# --- galleries that lack something ----------------------------------------------------------------------------------

ALL = [*ERS, Order, lambda **mode: Order(items=3, **mode)]
ALL += [lambda **mode: SemanticsPreservingQuery("down", kept=1, **mode)]
POOR: dict[str, tuple[Gallery, list[int]]] = {
    "fewer items than the pool": (gallery([0, 20, 50, 90], [0, 0, 1, 1]), [0, 0, 1, 1]),
    "classes of size one": (gallery([0, 20, 50, 90], [0, 1, 2, 3]), [0, 1, 2, 3]),
    "duplicates": (gallery([0, 0, 0, 50, 50, 50], [0, 0, 1, 1, 1, 0]), [0, 0, 1, 1, 1, 0]),
    "all alike": (gallery([30] * 5, [0, 0, 1, 1, 1]), [0, 0, 1, 1, 1]),
}


@pytest.mark.parametrize("mode", ["fixed", "compat"])
@pytest.mark.parametrize("attack", ALL)
@pytest.mark.parametrize("poor", list(POOR))
def test_a_poor_gallery_gives_finite_scores(attack: Callable[..., Any], poor: str, mode: str) -> None:
    items, labels = POOR[poor]
    places = torch.arange(len(labels))
    batch = replace(queries([0.0] * len(labels), labels), inputs=items.embeddings, index=places)
    engine = PGD(WIDE, steps=3, step_size=0.1, random_start=False)
    outcome = run(attack(mode=mode), engine, Circle(), batch, items, seeded(0), rounded=False)
    assert outcome.inputs.isfinite().all() and outcome.embeddings.isfinite().all()
    assert all(values.shape == (len(labels),) and values.isfinite().all() for values in outcome.scores.values())


@pytest.mark.parametrize("mode", ["fixed", "compat"])
@pytest.mark.parametrize("attack", ALL)
def test_a_gallery_of_one_class_is_attacked_or_refused_in_one_line(attack: Callable[..., Any], mode: str) -> None:
    items = gallery([0, 20, 50, 90], [0] * 4)
    batch = queries([0, 20], [0, 0], [0, 1])
    engine = PGD(WIDE, steps=3, step_size=0.1, random_start=False)
    made = attack(mode=mode)
    if isinstance(made, TopOneMisranking):
        with pytest.raises(InputError, match="the gallery holds one class only"):
            run(made, engine, Circle(), batch, items, seeded(0), rounded=False)
        return
    scores = run(made, engine, Circle(), batch, items, seeded(0), rounded=False).scores
    assert all(values.isfinite().all() for values in scores.values())
    assert all(scores[name].tolist() == [100, 100] for name in ("ES:R", "LTM") if name in scores)


@pytest.mark.parametrize("mode", ["fixed", "compat"])
@pytest.mark.parametrize("attack", ALL)
def test_a_gallery_of_the_query_alone_is_refused_or_has_nothing_to_move(attack: Callable[..., Any], mode: str) -> None:
    items, batch = gallery([0], [0]), queries([0], [0], [0])
    try:
        scores = run(attack(mode=mode), STILL, Circle(), batch, items, seeded(0), rounded=False).scores
    except InputError as error:
        assert "\n" not in str(error) and "expected" in str(error)
    else:
        assert all(values.isfinite().all() for values in scores.values())
