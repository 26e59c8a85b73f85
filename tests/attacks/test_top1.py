"""GTM and GTT: another first answer, and the first answer gone."""

import pytest
import torch
from circle import Circle, angle, at, chord, gallery, queries, slope

from robustmetric.attacks.base import run
from robustmetric.attacks.top1 import TopOneMisranking, TopOneTranslocation
from robustmetric.errors import InputError
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD

DEGREES = [0, 20, 50, 90, 180]
GALLERY = gallery(DEGREES, [0, 0, 1, 1, 2])


def test_misranking_targets_the_nearest_item_of_another_label() -> None:
    # 0 and 20 (label 0) -> 50; 50 and 90 (label 1) -> 20; 180 (label 2) -> 90; a stranger of label 1 at 5 -> 0
    batch = queries([0, 20, 50, 90, 180, 5], [0, 0, 1, 1, 2, 1], [0, 1, 2, 3, 4, -1])
    targets = TopOneMisranking().choose(batch.inputs, batch, GALLERY, None)
    assert targets["index"].tolist() == [2, 2, 1, 1, 3, 0]
    assert (GALLERY.labels[targets["index"]] != batch.labels).all()
    assert torch.equal(targets["target"], GALLERY.embeddings[targets["index"]])


def test_misranking_in_a_gallery_of_one_class_is_refused() -> None:
    batch = queries([0, 5], [0, 1])
    with pytest.raises(InputError, match="one class"):
        TopOneMisranking().choose(batch.inputs, batch, gallery([0, 20], [0, 0]), None)


def test_misranking_value_approaches_the_target() -> None:
    z = at(20).requires_grad_()
    value = TopOneMisranking().value(z, {"target": at(50)}, GALLERY)
    assert value.item() == pytest.approx(-chord(30)) and slope(value, z).item() > 0


def test_misranking_scores_recall_in_percent() -> None:
    batch = queries([20, 20], [0, 0], [1, 1])
    # At 24 deg (itself left out) 0 is 24 away and 50 is 26; at 26 deg it is the other way round.
    assert TopOneMisranking().score(at(24, 26), {}, batch, GALLERY)["GTM"].tolist() == [100, 0]


def test_translocation_targets_the_clean_first_answer_without_the_query() -> None:
    # 0 -> 20, 20 -> 0, 50 -> 20, 90 -> 50, 180 -> 90; a stranger at 19 -> 20, whatever its label.
    batch = queries([0, 20, 50, 90, 180, 19], [0, 0, 1, 1, 2, 2], [0, 1, 2, 3, 4, -1])
    index = TopOneTranslocation().choose(batch.inputs, batch, GALLERY, None)["index"]
    assert index.tolist() == [[1], [0], [1], [2], [3], [1]]


def test_translocation_value_by_hand_and_its_direction() -> None:
    # From 30 deg the item at 20 is 10 away. After it: 50 (20), 0 (30), 90 (60), 180 (150).
    z = at(30).requires_grad_()
    value = TopOneTranslocation().value(z, {"index": torch.tensor([[1]])}, GALLERY)
    assert value.item() == pytest.approx(-(chord(20) + chord(30) + chord(60) + chord(150) - 4 * chord(10)) / 5)
    assert slope(value, z).item() > 0, "away from the first answer"


def test_translocation_scores_who_still_has_it_among_the_first() -> None:
    batch = queries([0, 0, 0], [0, 0, 0], [-1, -1, 0])
    # From 90 deg: 90, 50, 20, then 0 and 180 (both 90 away, lower index first). Item 0 is fourth.
    targets = {"index": torch.tensor([[0], [4], [4]])}
    z = at(90, 90, 90)
    assert TopOneTranslocation(keep=4).score(z, targets, batch, GALLERY)["GTT"].tolist() == [100, 0, 100]
    assert TopOneTranslocation(keep=3).score(z, targets, batch, GALLERY)["GTT"].tolist() == [0, 0, 0]


def test_translocation_in_a_gallery_of_few_keeps_all_there_are() -> None:
    few = gallery([0, 20, 50], [0, 0, 1])
    inside = queries([0, 20], [0, 0], [0, 1])
    # Two others each: both are among the first four, wherever the query goes.
    targets = {"index": torch.tensor([[1], [0]])}
    assert TopOneTranslocation(keep=4).score(at(90, 90), targets, inside, few)["GTT"].tolist() == [100, 100]
    # From 90 deg: 50, then 20 for the first; 50, then 0 for the second.
    assert TopOneTranslocation(keep=1).score(at(90, 90), targets, inside, few)["GTT"].tolist() == [0, 0]
    # Strangers have three others: a `keep` of 3 holds even the last.
    last = {"index": torch.tensor([[0]])}
    assert TopOneTranslocation(keep=3).score(at(90), last, queries([0], [0]), few)["GTT"].tolist() == [100]


def test_a_climb_reaches_the_other_class() -> None:
    engine = PGD(Ball(0.3, bounds=(-2.0, 2.0)), steps=10, step_size=0.05, random_start=False, keep="best")
    outcome = run(TopOneMisranking(), engine, Circle(), queries([20], [0], [1]), GALLERY, None, rounded=False)
    # (0.940 - 0.3, 0.342 + 0.3) is at 45.1 deg, short of 50 but nearest to it.
    assert angle(outcome.embeddings)[0] == pytest.approx(45.1, abs=0.1)
    assert outcome.scores["GTM"].tolist() == [0]
