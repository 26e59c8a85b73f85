"""Suites with turns and repeats on a classifier and on an encoder: what they leave, and what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from robustmetric.api import attack, evaluate
from robustmetric.attacks.embedding_shift import EmbeddingShift
from robustmetric.attacks.feature_match import FeatureMatch
from robustmetric.attacks.margin import WON, Misclassify, MisclassifyTowards
from robustmetric.attacks.misretrieve import Misretrieve
from robustmetric.attacks.suite import Suite, Trial
from robustmetric.attacks.transfer import Transfer
from robustmetric.attacks.vote import NeighbourMargin
from robustmetric.data.base import Dataset, keep_classes
from robustmetric.data.digits import Digits
from robustmetric.data.transforms import Identity
from robustmetric.errors import InputError
from robustmetric.jobs import attacked
from robustmetric.jobs.arena import Arena
from robustmetric.jobs.evaluate import measure_clean, measure_trial, run_suite
from robustmetric.jobs.workers import Workers
from robustmetric.jobs.worst_case import LOWEST, SPREAD, WORST, fitted
from robustmetric.models.classifier import Classifier
from robustmetric.models.convnet import ConvNet
from robustmetric.models.encoder import Encoder
from robustmetric.perturb.apgd import APGD
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.hard_label import RayS
from robustmetric.perturb.pgd import PGD

BALL = Ball(0.06)
STEADY = PGD(BALL, steps=4, step_size=0.02, random_start=False)
"""Nothing is drawn at random, so a row's outcome does not depend on the others."""


@pytest.fixture(scope="module")
def digits() -> Dataset:
    return Digits(closed=True).load()


def prepared(model: nn.Module, dataset: Dataset, limit: int = 40) -> Arena:
    return Arena.prepare(model, dataset, Identity(), Workers(torch.device("cpu")), limit=limit, batch_size=16)


@pytest.fixture(scope="module")
def arena(digits: Dataset) -> Arena:
    """A classifier that was trained a little."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Classifier(ConvNet(side=8, kernel=3, widths=(4, 8), hidden=16, dim=8), 10)
    optimiser = torch.optim.Adam(model.parameters(), lr=5e-3)
    inputs, labels = digits.train.inputs.float() / 255, digits.train.labels
    for _ in range(80):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        optimiser.step()
    return prepared(model, digits)


def of(label: str, attack: object = None, engine: object = STEADY, **settings: object) -> Trial:
    return Trial(label, attack or Misclassify("cross_entropy"), engine, rounded=False, **settings)  # type: ignore[arg-type]


def test_clean_accuracy_is_that_of_the_model(arena: Arena, digits: Dataset) -> None:
    record, per_query = measure_clean(arena, {}, 0, {})
    inputs, labels = digits.queries.inputs[arena.rows].float() / 255, digits.queries.labels[arena.rows]
    expected = 100.0 * (arena.model.eval()(inputs).argmax(dim=1) == labels).float()
    assert per_query["accuracy"].tolist() == expected.tolist()
    assert record.scores == {"accuracy": pytest.approx(float(expected.mean()))}
    assert record.settings["queries"] == 40 and record.settings["images"] == 540 and "gallery" not in record.settings
    assert len(arena.gallery) == 0 and arena.gallery.embeddings.shape == (0, 10)
    assert record.settings["chance"] == pytest.approx(100 * int(torch.bincount(labels).max()) / 40)


def test_taking_turns_changes_nothing_but_the_work(arena: Arena) -> None:
    trials = [of("CE"), of("CW", Misclassify("margin")), of("T", MisclassifyTowards("margin", targets=3))]
    turns = Suite("s", trials, survivors={"all": ["CE", "CW", "T"]})
    alone = Suite("s", [replace(t, on_all=True) for t in trials], survivors={"all": ["CE", "CW", "T"]})
    first, second = ({r.name: r for r, _ in run_suite(arena, suite, 0, {})} for suite in (turns, alone))
    assert first["all"].scores == second["all"].scores == first[WORST].scores
    right_now = round(first["clean"].scores["accuracy"] * 40 / 100)
    assert first["CE"].settings["standing"] == right_now and "standing" not in second["CE"].settings
    assert first["CW"].settings["standing"] == round(first["CE"].scores["accuracy"] * 40 / 100) < right_now
    assert first["T"].scores == first["all"].scores, "the last turn ends where all end"
    assert [first[name].context["after"] for name in ("CE", "CW", "T")] == [[], ["CE"], ["CE", "CW"]]
    assert not any("after" in record.context for record in (*second.values(), first["all"], first[WORST]))
    assert 0 < first["all"].scores["accuracy"] < first["clean"].scores["accuracy"]
    assert sum(first["all"].context["lost_first_to"].values()) == right_now - first["T"].scores["accuracy"] * 40 / 100


def test_nobody_left_means_nothing_to_do(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    bars: list[tuple[int, bool]] = []
    made = attacked.Bar
    monkeypatch.setattr(
        attacked, "Bar", lambda title, total, shown: bars.append((total, shown)) or made(title, total, shown=False)
    )
    strong = PGD(Ball(1.0), steps=20, step_size=0.2, keep="best")
    trials = [of("first", engine=strong), of("second", engine=_Fails(Ball(1.0)))]
    found = [r for r, _ in run_suite(arena, Suite("s", trials, survivors={"all": ["first", "second"]}), 0, {})]
    assert [r.scores["accuracy"] for r in found[1:]] == [0.0] * 4 and found[2].settings["standing"] == 0
    assert bars == [(found[1].settings["standing"], True), (0, False)], "no bar of 0/0"
    assert [len(batch) for _, _, batch in arena.batches(torch.tensor([], dtype=torch.long))] == []
    assert [(first, p.tolist()) for first, p, _ in arena.batches(torch.tensor([3, 30]))] == [(3, [3, 30])]


class _Fails(PGD):
    """An engine that must not be asked."""

    def __init__(self, ball: Ball) -> None:
        super().__init__(ball, steps=1, step_size=0.1)

    def __call__(self, *_: object) -> Tensor:  # type: ignore[override]
        raise AssertionError("nobody is left to attack")


def test_repeats_draw_other_starts(arena: Arena) -> None:
    random = of("PGD", engine=replace(STEADY, random_start=True, steps=1), repeats=3)
    record, values, _ = measure_trial(arena, random, {}, 0, {})
    assert len(record.context["runs"]) == 3 and record.scores[SPREAD] > 0
    assert record.scores["accuracy"] <= record.scores[LOWEST] == min(record.context["runs"])
    once, _, _ = measure_trial(arena, replace(random, repeats=1), {}, 0, {})
    assert record.context["runs"][0] == once.scores["accuracy"], "the first run is that of an attack run once"
    assert float(values["accuracy"].mean()) == record.scores["accuracy"]
    still, _, _ = measure_trial(arena, of("PGD", repeats=2), {}, 0, {})
    assert still.scores[SPREAD] == 0 and still.scores["accuracy"] == still.scores[LOWEST]


def test_feature_matching_sees_all_test_images_and_gets_stronger_with_targets(arena: Arena) -> None:
    engine = PGD(BALL, steps=4, step_size=0.05, keep="best")
    suite = fitted(
        Suite("s", [of("1", FeatureMatch(targets=1), engine), of("8", FeatureMatch(targets=8), engine)]), arena
    )
    one, eight = (measure_trial(arena, trial, {}, 0, {}) for trial in suite.trials)
    clean, per_query = measure_clean(arena, {}, 0, {})
    assert eight[0].scores["accuracy"] < one[0].scores["accuracy"] < clean.scores["accuracy"]
    assert not (eight[1]["accuracy"] > per_query["accuracy"]).any()
    assert one[2] is None, "a classifier has no neighbours to picture"
    assert one[0].settings["weights"] == clean.settings["weights"] and "classes=10" in one[0].settings["attack"]


def test_auto_rank_of_retrieval_is_below_every_attack_and_scored_on_bytes(digits: Dataset) -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        encoder = Encoder(ConvNet(side=8, kernel=3, widths=(4, 8), hidden=16, dim=8))
    arena = prepared(encoder, digits)
    engine = APGD(Ball(4 / 255), steps=8, goal=WON)
    attacks = {"ES": Misretrieve(EmbeddingShift()), "margin": Misretrieve(NeighbourMargin(confidence=2.0))}
    trials = [Trial(label, attack, engine) for label, attack in attacks.items()]
    found = {r.name: r for r, _ in run_suite(arena, Suite("s", trials, survivors={"AutoRank": list(attacks)}), 0, {})}
    assert found["AutoRank"].scores["R@1"] == found["margin"].scores["R@1"] <= found["ES"].scores["R@1"]
    assert found["AutoRank"].scores["R@1"] < found["clean"].scores["R@1"]
    # Bytes cost RayS next to nothing: it leaves what it leaves among floats, but for one query of forty.
    trial = replace(trials[1], engine=RayS(Ball(4 / 255), queries=100, goal=WON))
    among_floats = measure_trial(arena, replace(trial, rounded=False), {}, 0, {})[0].scores["R@1"]
    in_turn = Suite("s", [trial], survivors={"AutoRank": ["margin"]})
    through = {r.name: r for r, _ in run_suite(arena, in_turn, 0, {})}["margin"].scores["R@1"]
    assert through <= among_floats + 2.5 < found["clean"].scores["R@1"] - 10


@pytest.mark.parametrize(
    ("attack", "of_classes", "words"),
    [
        (
            EmbeddingShift(),
            True,
            "the model is a classifier, and 'x' attacks rankings; use a suite such as classification",
        ),
        (
            Misclassify("margin"),
            False,
            "'x' attacks classifiers.* if it gives logits, set model.classes = K.* a suite such as ers224",
        ),
        (Transfer(EmbeddingShift(), "runs/x"), True, "the model is a classifier"),
    ],
)
def test_attacks_on_the_wrong_kind_of_model_are_refused_at_once(
    attack: object, of_classes: bool, words: str, arena: Arena, digits: Dataset
) -> None:
    encoder = Encoder(ConvNet(side=8, kernel=3, widths=(4, 8), hidden=16, dim=8))
    place = arena if of_classes else prepared(encoder, digits, limit=4)
    with pytest.raises(InputError, match=words):
        next(run_suite(place, Suite("s", [of("x", attack)]), 0, {}))


class _Head(nn.Module):
    """Ten outputs that are no logits."""

    classes = 10

    def __init__(self, number: float | None = None) -> None:
        super().__init__()
        self.number = number

    def forward(self, x: Tensor) -> Tensor:
        pixels = x.flatten(1)[:, :10]
        return pixels.softmax(dim=1) if self.number is None else torch.full_like(pixels, self.number)


@pytest.mark.parametrize(("head", "words"), [(_Head(), "returns probabilities"), (_Head(float("nan")), "NaN")])
def test_models_that_give_no_logits_are_refused_at_the_clean_pass(head: nn.Module, words: str, digits: Dataset) -> None:
    with pytest.raises(InputError, match=words):
        next(run_suite(prepared(head, digits, limit=4), Suite("s", [of("x")]), 0, {}))


def test_fewer_classes_than_a_loss_needs_are_refused_before_any_attack(digits: Dataset) -> None:
    few = keep_classes(digits.queries, torch.arange(3))
    model = Classifier(ConvNet(side=8, kernel=3, widths=(4, 8), hidden=16, dim=8), 3)
    place = prepared(model, Dataset("digits", train=few, queries=few), limit=6)
    with pytest.raises(InputError, match="the model tells 3 apart; use loss: margin"):
        next(run_suite(place, Suite("s", [of("a"), of("T", MisclassifyTowards("dlr"))]), 0, {}))
    with pytest.raises(InputError, match="digits has 10 classes and the model tells 3 apart"):
        prepared(model, digits)
    with_margin = Suite("s", [of("T", MisclassifyTowards("margin"))])
    assert "targets=2" in [r for r, _ in run_suite(place, with_margin, 0, {})][1].settings["attack"]


@pytest.mark.parametrize(
    ("group", "words"), [(["a", "b"], "'b' is no attack of the suite"), (["a", "a"], "named twice")]
)
def test_groups_of_unknown_attacks_are_refused(group: list[str], words: str) -> None:
    with pytest.raises(InputError, match=words):
        Suite("s", [of("a")], survivors={"g": group})


def test_a_classifier_of_ones_own_is_evaluated_on_tensors(arena: Arena, digits: Dataset, tmp_path: Path) -> None:
    suite = tmp_path / "short.yaml"
    suite.write_text(
        "engine: {name: pgd, ball: {name: ball, radius: 0.06}, steps: 4, step_size: 0.02, random_start: false}\n"
        "attacks: {CE: {attack: {name: misclassify, loss: cross_entropy}}}\nrounded: false\n"
    )
    images, labels = digits.queries.inputs[arena.rows].float() / 255, digits.queries.labels[arena.rows]
    assert len(labels.unique()) == 9, "one class is absent, and the labels of the others stay what they are"
    clean, attacked = evaluate(arena.model, images, labels, str(suite))
    assert clean.scores == measure_clean(arena, {}, 0, {})[0].scores
    assert attacked.scores == measure_trial(arena, of("CE"), {}, 0, {})[0].scores


@pytest.mark.parametrize("name", ["T", "F"])
def test_the_images_of_an_attack_are_those_of_all_its_climbs(
    name: str, arena: Arena, digits: Dataset, tmp_path: Path
) -> None:
    suite = tmp_path / "short.yaml"
    suite.write_text(
        "engine: {name: pgd, ball: {name: ball, radius: 0.06}, steps: 4, step_size: 0.02, keep: best}\n"
        "attacks:\n  T: {attack: {name: misclassify_towards, loss: margin}}\n"
        "  F: {attack: {name: feature_match, targets: 8}}\nrounded: false\n"
    )
    images, labels = digits.queries.inputs[arena.rows].float() / 255, digits.queries.labels[arena.rows]
    moved = attack(arena.model, images, labels, name, str(suite))
    assert ((moved - images).abs() <= 0.06 + 1e-6).all()
    found = {record.name: record.scores["accuracy"] for record in evaluate(arena.model, images, labels, str(suite))}
    named = arena.model.eval()(moved).argmax(dim=1)
    assert 100 * float((named == labels).float().mean()) == pytest.approx(found[name]) and found[name] < found["clean"]
