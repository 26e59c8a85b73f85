"""Trials at another radius, and the suites they make."""

import json
import math

import pytest
import torch

from robustmetric.api import evaluate
from robustmetric.attacks.candidate import Candidate
from robustmetric.attacks.embedding_shift import EmbeddingShift
from robustmetric.attacks.suite import Suite, Trial
from robustmetric.data.digits import Digits
from robustmetric.errors import InputError
from robustmetric.models.convnet import ConvNet
from robustmetric.models.encoder import Encoder
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.expectation import Expectation
from robustmetric.perturb.gradient_free import Square
from robustmetric.perturb.pgd import PGD


def trial(label: str = "ES", radius: float = 0.08, step_size: float = 0.01, steps: int = 8) -> Trial:
    return Trial(label, EmbeddingShift(), PGD(Ball(radius, norm="l2"), steps, step_size, keep="best"))


def test_step_size_scales_with_the_radius_and_all_else_stays() -> None:
    moved = trial().at(0.04)
    assert moved.engine.ball == Ball(0.04, norm="l2")
    assert moved.engine.step_size == pytest.approx(0.005)
    assert (moved.engine.steps, moved.engine.keep, moved.label) == (8, "best", "ES")
    assert trial().at(0.08) == trial()


def test_radius_zero_can_be_reached_but_not_left() -> None:
    still = trial().at(0.0)
    assert still.engine.ball.radius == 0 and still.engine.step_size == 0
    with pytest.raises(InputError, match="cannot be scaled"):
        still.at(0.1)


def test_a_suite_at_one_radius_merges_trials_that_differed_in_radius_only() -> None:
    up = Trial("CA+", Candidate("up"), trial().engine)
    wider = Trial("CA+", Candidate("up", queries=2), trial().engine)
    suite = Suite("mine", [trial(radius=0.04, step_size=0.005), trial(), up, wider])
    moved = suite.at(0.02)
    assert [(t.label, t.attack) for t in moved.trials] == [
        ("ES", EmbeddingShift()),
        ("CA+", Candidate("up")),
        ("CA+", Candidate("up", queries=2)),
    ]
    assert {t.engine.ball.radius for t in moved.trials} == {0.02}
    assert moved.trials[0].engine.step_size == pytest.approx(0.0025)
    assert moved.name == "mine" and len(suite.trials) == 4


def test_a_gallery_of_thirty_images_finishes_the_ten_numbers() -> None:
    digits = Digits().load().queries
    images, labels = digits.inputs[:30].float() / 255, digits.labels[:30]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = Encoder(ConvNet(side=8, kernel=3, widths=(4, 8), hidden=16, dim=8))
    records = evaluate(model, images, labels, suite="ers224")
    for mode in ("fixed", "compat"):
        scores = {name: value for r in records if r.settings.get("mode") == mode for name, value in r.scores.items()}
        assert set(scores) == {"CA+", "CA-", "QA+", "QA-", "TMA", "ES:D", "ES:R", "LTM", "GTM", "GTT", "ERS"}
        assert all(math.isfinite(value) for value in scores.values())


def test_a_trial_in_another_mode_keeps_all_else() -> None:
    moved = trial().in_mode("compat")
    assert moved.attack == EmbeddingShift(mode="compat") and moved.mode == "compat" and trial().mode == "fixed"
    assert (moved.label, moved.engine) == (trial().label, trial().engine)
    assert moved.settings() == {**trial().settings(), "mode": "compat"}
    assert trial().in_mode("fixed") == trial() == moved.in_mode("fixed")


def test_a_suite_runs_the_modes_of_a_trial_next_to_one_another() -> None:
    trials = [trial(), Trial("CA+", Candidate("up"), trial().engine)]
    found = [(t.label, t.mode) for t in Suite("mine", trials, ("fixed", "compat")).runs()]
    assert found == [("ES", "fixed"), ("ES", "compat"), ("CA+", "fixed"), ("CA+", "compat")]
    own = Suite("mine", [trials[0], trials[1].in_mode("compat")])
    assert [t.mode for t in own.runs()] == ["fixed", "compat"]
    assert Suite("mine", trials, ("compat",)).at(0.02).modes == ("compat",)
    both = Suite("mine", [trials[0], trials[0].in_mode("compat")])
    assert [t.mode for t in both.at(0.02).runs()] == ["fixed", "compat"]


def test_an_attack_without_modes_has_no_compat() -> None:
    class Own:
        role = "query"

        def choose(self, clean, batch, gallery, generator):  # type: ignore[no-untyped-def]  # never called
            return {}

        value = score = choose

    own = Trial("own", Own(), trial().engine)
    assert own.in_mode("fixed") is own
    with pytest.raises(InputError, match=r"trial 'own'.* has no mode 'compat'; leave it out of `modes`"):
        own.in_mode("compat")


def test_an_engine_without_steps_is_a_trial_too() -> None:
    square = Trial("ES", EmbeddingShift(), Square(Ball(0.1), queries=7))
    assert square.at(0.05).engine == Square(Ball(0.05), queries=7)
    settings = square.settings()
    assert (settings["engine"], settings["questions_per_image"], settings["radius"]) == ("Square", 7, 0.1)
    assert "queries" not in settings, "which are the images attacked"
    # Written only where it is not the usual: records from before there was a choice are known again.
    fixed = Trial("ES", EmbeddingShift(), Square(Ball(0.1), queries=7, rescaled=False)).settings()
    assert "rescaled" not in settings and fixed == {**settings, "rescaled": False}


def test_of_an_engine_that_runs_another_both_names_are_kept() -> None:
    inner = PGD(Ball(0.1), steps=3, step_size=0.02)
    one, two = (
        Trial("ES", EmbeddingShift(), Expectation(Ball(0.2), engine, draws=4)).settings()
        for engine in (inner, Square(Ball(0.1), queries=7))
    )
    assert one["engine"] == two["engine"] == "Expectation" and one["draws"] == 4 and one["radius"] == 0.2
    # In the larger ball the step is twice as long.
    assert one["runs"]["engine"] == "PGD" and one["runs"]["step_size"] == pytest.approx(0.04)
    assert two["runs"]["engine"] == "Square" and two["runs"]["questions_per_image"] == 7
    assert one == json.loads(json.dumps(one))


def test_settings_are_plain_values_that_tell_trials_apart() -> None:
    settings = trial().settings()
    assert settings == {
        "radius": 0.08,
        "norm": "l2",
        "bounds": [0.0, 1.0],
        "steps": 8,
        "step_size": 0.01,
        "random_start": True,
        "restarts": 1,
        "keep": "best",
        "attack": "EmbeddingShift()",
        "mode": "fixed",
    }
