"""What an evaluation says in plain words: how long it may take, and how many searches were fooled."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from commands import Command
from robustmetric import records
from robustmetric.attacks.embedding_shift import EmbeddingShift
from robustmetric.attacks.suite import Trial
from robustmetric.jobs.closing import closing, estimator, in_words, passes
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.gradient_free import Square
from robustmetric.perturb.pgd import PGD
from robustmetric.records import Record
from robustmetric.report.gallery import read_gallery

SHIFT = Trial("ES", EmbeddingShift(), PGD(Ball(0.1), steps=10, step_size=0.01, restarts=3))


def measured(kind: str, name: str, scores: dict[str, float], radius: float | None = None, **more: object) -> Record:
    place = {} if radius is None else {"radius": radius}
    return Record(kind, name, scores, {"suite": "demo", "queries": 200, **place, **more}, count=200)


def _under(clipped: bool) -> dict[str, object]:
    """Settings of a local search that runs under an expectation."""
    return {"draws": 3, "runs": {"clipped": clipped}}


def test_passes_are_steps_there_and_back_or_questions() -> None:
    assert passes(SHIFT) == 2 * 10 * 3
    assert passes(replace(SHIFT, repeats=5)) == 5 * 60
    assert passes(replace(SHIFT, engine=Square(Ball(0.1), queries=500))) == 500


def test_the_first_batch_tells_how_long_all_trials_may_take(capsys: pytest.CaptureFixture[str]) -> None:
    trials = [SHIFT, replace(SHIFT, engine=replace(SHIFT.engine, restarts=6))]
    tell = estimator([(trial, 100) for trial in trials])
    tell(1.9, 10)  # 0.19 s a query, three times that for both: 57 s are not worth a word
    assert capsys.readouterr().err == ""
    tell(10.0, 10)
    assert "up to about 5 min for 2 attacks on 100 queries; each is kept" in capsys.readouterr().err


def test_attacks_in_turn_are_said_to_take_less(capsys: pytest.CaptureFixture[str]) -> None:
    estimator([(SHIFT, 100), (SHIFT, 20)], in_turn=True)(10.0, 10)  # 1 s a query
    said = capsys.readouterr().err
    assert "up to about 2 min for 2 attacks on 100 queries, much less where they succeed; each is kept" in said


def test_hours_are_said_as_hours() -> None:
    assert (in_words(170.0), in_words(9000.0)) == ("3 min", "2.5 h")


def test_the_closing_sentence_counts_searches_at_the_middle_radius() -> None:
    found = [
        measured("clean", "clean", {"R@1": 54.0, "NMI": 3.0}),
        measured("attack", "ES", {"ES:D": 0.1, "ES:R": 40.0}, 0.05),
        measured("attack", "ES", {"ES:D": 0.4, "ES:R": 10.0}, 0.1),
        measured("attack", "GTM", {"GTM": 1.5}, 0.1),
        measured("attack", "GTM", {"GTM": 0.0}, 0.1, mode="compat"),
        measured("attack", "CA+", {"CA+": 0.0}, 0.1),
        measured("attack", "ES", {"ES:D": 2.0, "ES:R": 0.0}, 0.8),
    ]
    said = closing(found, "demo", {"queries": 200}, seed=0)
    assert (
        said == "of 200 searches 108 find the right class first, and 3 under the strongest attack (GTM) at radius 0.1"
    )
    unbounded = [measured("attack", "LS", {"R@1": 0.0}, 0.1, **more) for more in ({"clipped": False}, _under(False))]
    assert closing([*found, *unbounded], "demo", {"queries": 200}, seed=0) == said, "they do not keep to a radius"
    bounded = [measured("attack", "LS", {"R@1": 0.0}, 0.1, **more) for more in ({"clipped": True}, _under(True))]
    for one in bounded:
        assert "and 0 under the strongest attack (LS)" in closing([*found, one], "demo", {"queries": 200}, seed=0)
    worst = [*found, measured("worst_case", "worst case", {"R@1": 1.5}, 0.1)]
    assert "and 3 under the worst of all attacks for each at radius 0.1" in closing(
        worst, "demo", {"queries": 200}, seed=0
    )
    assert closing(found, "ers224", {"queries": 200}, seed=0) == ""
    assert closing(found, "demo", {"queries": 50}, seed=0) == ""
    assert closing(found[:1], "demo", {"queries": 200}, seed=0) == ""


def test_of_a_classifier_images_are_counted() -> None:
    found = [
        measured("clean", "clean", {"accuracy": 90.0}),
        measured("attack", "PGD-20", {"accuracy": 5.0, "lowest run": 6.0}, 8 / 255),
    ]
    said = closing(found, "demo", {}, seed=0)
    assert said == "of 200 images 180 are named rightly, and 10 under the strongest attack (PGD-20) at radius 8/255"


def test_an_evaluation_ends_with_the_sentence(trained: Path, suite: Path, tmp_path: Path, command: Command) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    shown = command("evaluate", run, suite, "--queries", "20")
    assert shown.code == 0, shown.err
    assert shown.err.splitlines()[-1].startswith("run: of 20 searches ")
    assert "under the strongest attack (ES) at radius 0.2" in shown.err


def test_an_attack_without_a_bound_says_so_in_its_line_and_its_pictures(
    trained: Path, tmp_path: Path, command: Command
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    engine = "{name: local_search, ball: {name: ball, radius: 8/255}, rounds: 1, probes: 4, clipped: false}"
    suite = tmp_path / "free.yaml"
    suite.write_text(f"engine: {engine}\nattacks:\n  Few pixels: {{attack: {{name: embedding_shift}}}}\n")
    shown = command("evaluate", run, suite, "--queries", "20")
    assert shown.code == 0, shown.err
    assert "Few pixels without a bound: " in shown.err and "at 8/255" not in shown.err
    (found,) = [one for one in records.read(run / "results.jsonl") if one.name == "Few pixels"]
    assert found.settings["radius"] == pytest.approx(8 / 255) and found.settings["clipped"] is False
    told = [read_gallery(path) for path in (run / "examples").glob("*.npz")]
    assert [one.radius for one in told if one.attack == "Few pixels without a bound"] == [""]
