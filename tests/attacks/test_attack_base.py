"""What every attack shares: the straight line from a batch to scores, ranks in percent, R@1, and who is drawn."""

import pytest
import torch
from circle import Circle, angle, at, chord, gallery, queries, seeded

from robustmetric.attacks.base import Attack, Engine, draw, draw_near, percentile, recall_at_1, run, to_gallery
from robustmetric.attacks.embedding_shift import EmbeddingShift
from robustmetric.attacks.misrank import LearnToMisrank
from robustmetric.attacks.top1 import TopOneMisranking
from robustmetric.errors import InputError
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD
from robustmetric.types import Batch

GALLERY = gallery([0, 20, 50, 90, 180], [0, 0, 1, 1, 2])
ENGINE = PGD(Ball(0.1, bounds=(-1.0, 1.0)), steps=5, step_size=0.05, random_start=False)


def test_percentile_counts_the_closer_items_and_half_of_the_ties() -> None:
    # Before 2: one of four. Level with 2: itself and one a rounding error away. 100 (1/4 + 2/4/2) = 50
    others = torch.tensor([[[1.0, 2.0, 2.0 + 5e-7, 4.0]]], dtype=torch.float64)
    assert percentile(torch.tensor([[2.0]], dtype=torch.float64), others).item() == pytest.approx(50)


def test_percentile_is_the_mean_over_the_chosen() -> None:
    # 1 in (1, 2, 4, 8): 100 (0 + 1/8) = 12.5; 8: 100 (3/4 + 1/8) = 87.5; per row
    others = torch.tensor([[[1.0, 2.0, 4.0, 8.0]], [[1.0, 2.0, 4.0, 8.0]]])
    chosen = torch.tensor([[1.0, 8.0], [1.0, 1.0]])
    assert percentile(chosen, others).tolist() == pytest.approx([50, 12.5])


def test_a_listed_item_does_not_count_against_itself() -> None:
    # 1, 4 and 8 in (1, 2, 4, 8): none, two, three of three others are closer; 4 in (4, 4, 8): half of one of two.
    others = torch.tensor([[[1.0, 2.0, 4.0, 8.0]]])
    for chosen, expected in [(1.0, 0), (4.0, 200 / 3), (8.0, 100)]:
        assert percentile(torch.tensor([[chosen]]), others, is_listed=True).item() == pytest.approx(expected)
    tied = torch.tensor([[[4.0, 4.0, 8.0]]])
    assert percentile(torch.tensor([[4.0]]), tied, is_listed=True).item() == pytest.approx(25)


@pytest.mark.parametrize("is_listed", [False, True])
def test_a_collapsed_gallery_scores_one_half(is_listed: bool) -> None:
    assert percentile(torch.zeros(1, 1), torch.zeros(1, 1, 7), is_listed=is_listed).item() == pytest.approx(50)


def test_a_gap_of_exactly_the_tolerance_is_a_tie() -> None:
    chosen = torch.tensor([[1e-6]], dtype=torch.float64)
    assert percentile(chosen, torch.zeros(1, 1, 1, dtype=torch.float64)).item() == pytest.approx(50)


def test_items_infinitely_far_are_no_part_of_the_list() -> None:
    # 4 in (1, -, 4, 8): one of three is closer, one level; listed itself: one of two others.
    others = torch.tensor([[[1.0, torch.inf, 4.0, 8.0]]])
    assert percentile(torch.tensor([[4.0]]), others).item() == pytest.approx(50)
    assert percentile(torch.tensor([[4.0]]), others, is_listed=True).item() == pytest.approx(50)
    # Each list has a length of its own: 4 in (1, 4, 8) and in (8): one and a half of three, none of one.
    lists = torch.tensor([[[1.0, torch.inf, 4.0, 8.0], [torch.inf, torch.inf, torch.inf, 8.0]]])
    assert percentile(torch.tensor([[4.0, 4.0]]), lists).item() == pytest.approx(25)
    # Nothing is left: nobody is before it.
    assert percentile(torch.tensor([[4.0]]), torch.full((1, 1, 2), torch.inf)).item() == 0


def test_to_gallery_measures_all_and_removes_the_excluded() -> None:
    z = at(0, 0)
    plain = to_gallery(z, GALLERY)
    expected = [chord(t) for t in (0, 20, 50, 90, 180)]
    assert plain[0].tolist() == pytest.approx(expected) and plain[1].tolist() == pytest.approx(expected)
    masked = to_gallery(z, GALLERY, torch.tensor([1, -1]))
    assert masked[0].tolist() == pytest.approx([expected[0], float("inf"), *expected[2:]])
    assert masked[1].tolist() == pytest.approx(expected)


def test_recall_at_1_leaves_the_query_itself_out() -> None:
    z = at(0, 50, 89)
    # 0 deg (item 0, label 0): next is 20, label 0. 50 (item 2, label 1): next is 20, label 0. 89, not in: 90, label 1.
    batch = queries([0, 50, 89], [0, 1, 1], [0, 2, -1])
    assert recall_at_1(z, batch, GALLERY).tolist() == [100, 0, 100]
    # Not known to be in the gallery, the item at 50 finds itself.
    assert recall_at_1(z, queries([0, 50, 89], [0, 1, 1]), GALLERY).tolist() == [100, 100, 100]


def test_draw_is_uniform_over_all_items() -> None:
    drawn = draw(3, 2000, 2, torch.device("cpu"), seeded(0))
    assert drawn.shape == (2000, 2)
    shares = torch.bincount(drawn.flatten(), minlength=3) / 4000
    assert shares.tolist() == pytest.approx([1 / 3] * 3, abs=0.03)


def test_draw_is_uniform_over_the_others_and_the_same_where_the_excluded_was_not_drawn() -> None:
    exclude = torch.tensor([0, 1, 2, -1]).repeat(1000)
    every = draw(3, 4000, 2, torch.device("cpu"), seeded(0))
    drawn = draw(3, 4000, 2, torch.device("cpu"), seeded(0), exclude=exclude)
    for place, expected in [(0, [0, 0.5, 0.5]), (1, [0.5, 0, 0.5]), (2, [0.5, 0.5, 0]), (-1, [1 / 3] * 3)]:
        shares = torch.bincount(drawn[exclude == place].flatten(), minlength=3) / 2000
        assert shares.tolist() == pytest.approx(expected, abs=0.04)
    untouched = every != exclude[:, None]
    assert torch.equal(drawn[untouched], every[untouched])


def test_a_gallery_of_the_excluded_item_alone_has_nothing_to_draw() -> None:
    with pytest.raises(InputError, match="gallery of 1 item, the query itself; expected at least 2"):
        draw(1, 2, 1, torch.device("cpu"), seeded(0), exclude=torch.tensor([-1, 0]))
    assert draw(1, 2, 1, torch.device("cpu"), seeded(0), exclude=torch.tensor([-1, -1])).tolist() == [[0], [0]]


def test_draw_near_takes_the_nearest_share_without_the_item_itself() -> None:
    # 0.4 of 5 items: two. Nearest of 0 deg but itself: 20 and 50; of 90: 50 and 20; of 10, not in: 0 and 20.
    z = at(0, 90, 10)
    drawn = draw_near(z, torch.tensor([0, 3, -1]), GALLERY, 0.4, 2, seeded(0))
    assert drawn.sort(dim=1).values.tolist() == [[1, 2], [1, 2], [0, 1]]


def test_draw_near_draws_evenly() -> None:
    z = at(0).expand(2000, 2)
    drawn = draw_near(z, torch.zeros(2000, dtype=torch.long), GALLERY, 0.4, 1, seeded(0))
    assert set(drawn.flatten().tolist()) == {1, 2}
    assert (drawn == 1).double().mean().item() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(
    ("share", "width", "pool"),
    # A share of 2 items but 3 asked; a share of no item; a share that would hold the item itself.
    [(0.4, 3, {1, 2, 3}), (0.1, 1, {1}), (1.0, 1, {1, 2, 3, 4}), (1.0, 4, {1, 2, 3, 4})],
)
def test_a_pool_grows_to_what_is_asked_and_ends_with_the_gallery(share: float, width: int, pool: set[int]) -> None:
    drawn = draw_near(at(0).expand(200, 2), torch.zeros(200, dtype=torch.long), GALLERY, share, width, seeded(0))
    assert drawn.shape == (200, width) and set(drawn.flatten().tolist()) == pool


def test_more_neighbours_than_there_are_is_refused() -> None:
    with pytest.raises(InputError, match="5 neighbours cannot be drawn from a gallery of 5; expected at least 6"):
        draw_near(at(0), torch.tensor([0]), GALLERY, 0.4, 5, seeded(0))


@pytest.mark.parametrize("budget", [0, 5, 14, 15])
def test_a_batch_over_the_budget_gives_the_same_in_parts(budget: int) -> None:
    # 7 rows x 5 items: one row at a time, one, two and three.
    degrees, labels = [0.0, 20.0, 50.0, 90.0, 180.0, 5.0, 70.0], [0, 0, 1, 1, 2, 0, 1]
    batch = queries(degrees, labels, [0, 1, 2, 3, 4, -1, -1])
    whole = run(LearnToMisrank(), ENGINE, Circle(), batch, GALLERY, rounded=False)
    parts = run(LearnToMisrank(), ENGINE, Circle(), batch, GALLERY, rounded=False, budget=budget)
    torch.testing.assert_close(parts.inputs, whole.inputs)
    torch.testing.assert_close(parts.embeddings, whole.embeddings)
    assert torch.equal(parts.scores["LTM"], whole.scores["LTM"])
    assert (whole.inputs - batch.inputs).abs().max() > 0.05


def test_parts_hold_no_more_than_the_budget_and_a_batch_that_fits_is_one() -> None:
    seen: list[int] = []

    class Watched(EmbeddingShift):
        def choose(self, clean, batch, gallery, generator):  # type: ignore[no-untyped-def]  # as in EmbeddingShift
            seen.append(len(batch))
            return super().choose(clean, batch, gallery, generator)

    batch = queries([0.0, 20, 50, 90, 180, 5, 70], [0, 0, 1, 1, 2, 0, 1])
    engine = PGD(Ball(0.1, bounds=(-1.0, 1.0)), steps=2, step_size=0.001)
    for budget, expected in [(15, [3, 3, 1]), (34, [6, 1]), (35, [7]), (1, [1] * 7)]:
        seen.clear()
        outcome = run(Watched(), engine, Circle(), batch, GALLERY, seeded(0), rounded=False, budget=budget)
        assert seen == expected
        assert outcome.inputs.shape == (7, 2) and outcome.embeddings.shape == (7, 2)
        assert {name: len(row) for name, row in outcome.scores.items()} == {"ES:D": 7, "ES:R": 7}
        assert (outcome.inputs - batch.inputs).abs().max() <= 0.1 + 1e-9
        assert len({tuple(row) for row in (outcome.inputs - batch.inputs).tolist()}) == 7, "one generator for all"


def test_run_moves_embeds_and_scores() -> None:
    model = Circle()
    batch = queries([20], [0], [1])
    outcome = run(TopOneMisranking(), ENGINE, model, batch, GALLERY, seeded(0), rounded=False)
    # The target is 50 deg: x falls and y rises by 0.1 each.
    expected = at(20) + torch.tensor([[-0.1, 0.1]])
    torch.testing.assert_close(outcome.inputs, expected)
    torch.testing.assert_close(outcome.embeddings, torch.nn.functional.normalize(expected, dim=1))
    # (0.940 - 0.1, 0.342 + 0.1): atan(0.442 / 0.840) = 27.8 deg, nearer to 50 (label 1) than to 0 (label 0).
    assert angle(outcome.embeddings)[0] == pytest.approx(27.8, abs=0.1)
    assert outcome.scores["GTM"].tolist() == [0]
    assert model.matrix.grad is None and model.matrix.requires_grad and model.training


def test_run_scores_what_eight_bits_hold() -> None:
    clean = torch.tensor([[200.0, 60.0]], dtype=torch.float64) / 255
    batch = Batch(clean, torch.tensor([0]), torch.tensor([-1]))
    engine = PGD(Ball(0.01), steps=3, step_size=0.004, random_start=False)
    exact = run(EmbeddingShift(), engine, Circle(), batch, GALLERY, seeded(0), rounded=False)
    rounded = run(EmbeddingShift(), engine, Circle(), batch, GALLERY, seeded(0))
    # 0.01 = 2.55 levels: two of them survive.
    levels = (rounded.inputs - clean) * 255
    torch.testing.assert_close(levels.abs(), torch.full((1, 2), 2.0, dtype=torch.float64))
    torch.testing.assert_close((exact.inputs - clean).abs(), torch.full((1, 2), 0.01, dtype=torch.float64))
    torch.testing.assert_close(rounded.embeddings, Circle()(rounded.inputs).detach())
    assert 0 < rounded.scores["ES:D"].item() < exact.scores["ES:D"].item()


def test_the_engine_and_every_attack_meet_their_protocols() -> None:
    assert isinstance(ENGINE, Engine)
    assert isinstance(EmbeddingShift(), Attack)
