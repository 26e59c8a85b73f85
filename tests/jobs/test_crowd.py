"""The crowd of a clustering attack: its chance level, its sample, and what is kept of it for pictures."""

from pathlib import Path

import numpy as np
import pytest
import torch

from commands import Command
from robustmetric import records
from robustmetric.errors import InputError
from robustmetric.jobs.arena import Arena
from robustmetric.jobs.clustering import run_clustering
from robustmetric.jobs.crowd import CLASSES, EACH, Crowd, sampled
from robustmetric.jobs.suites import asking_for_surrogate, load_suite
from robustmetric.jobs.target import find_target
from robustmetric.jobs.workers import Workers
from robustmetric.perturb.gradient_free import Square
from robustmetric.types import Batch

SUITE = (
    "engine: {name: pgd, ball: {name: ball, radius: 0.2}, steps: 1, step_size: 0.1}\n"
    "attacks:\n"
    "  A1: {attack: {name: whole_set, attack: {name: embedding_shift}}}\n"
    "  found elsewhere: {attack: {name: whole_set, surrogate: $surrogate, attack: {name: embedding_shift}}}\n"
)


def crowd(labels: list[int], queries: int | None = None) -> Crowd:
    """Images that search one another; or, with `queries`, that many of them search the others."""
    numbers = torch.tensor(labels)
    rows = torch.arange(len(labels))
    batch = Batch(torch.zeros(len(labels), 1), numbers, rows)
    if queries is None:
        return Crowd(batch, rows, rows, rows)
    return Crowd(batch, rows[:queries], rows[queries:], torch.full((queries,), -1))


def test_chance_by_hand() -> None:
    # Of 4 others, 2 are of the own class for three of the images, 1 for two: (3 x 2/4 + 2 x 1/4) / 5 = 40 %.
    assert crowd([7, 7, 7, 3, 3]).chance == pytest.approx(40)
    # Two queries, of classes 7 and 3, against items 7, 3, 3: 1/3 and 2/3.
    assert crowd([7, 3, 7, 3, 3], queries=2).chance == pytest.approx(50)


def test_a_sample_is_of_few_images_of_few_classes_spread_over_all() -> None:
    labels = [number for number in range(25) for _ in range(60)]
    found = crowd(labels).sample
    assert len(found) == CLASSES * EACH and len(found.unique()) == len(found)
    classes = torch.tensor(labels)[found]
    assert classes.unique().tolist() == [0, 2, 5, 7, 10, 12, 15, 17, 20, 22]
    assert torch.bincount(classes).max() == EACH
    # Fewer than asked for: all, and of items alone.
    assert crowd([0, 1, 1, 0, 2], queries=2).sample.tolist() == [3, 2, 4]


def test_what_is_kept_of_a_sample() -> None:
    few = crowd([0, 1, 2])
    clean, moved = torch.eye(3), 2 * torch.eye(3)
    kept = sampled(few, clean, moved, ("jay", "owl"))
    assert kept["clean"].dtype == np.float16 and kept["moved"].tolist() == moved.tolist()
    assert kept["classes"].tolist() == ["jay", "owl", "2"], "a class of the gallery alone has no name"


def test_embeddings_are_kept_in_the_run_and_a_surrogate_is_climbed_on(
    command: Command, trained: Path, sibling: Path, tmp_path: Path
) -> None:
    suite, out = tmp_path / "small.yaml", tmp_path / "run"
    suite.write_text(SUITE)
    first = command("evaluate", trained, suite, "--out", out)
    assert first.code == 0 and "left out without --surrogate RUN: found elsewhere" in first.err
    names = sorted(path.name for path in (out / "embeddings").iterdir())
    assert names == ["small-A1-51.00.npz"]
    with np.load(out / "embeddings" / names[0]) as kept:
        assert kept["clean"].shape == kept["moved"].shape and not np.array_equal(kept["clean"], kept["moved"])
        assert len(kept["classes"]) == len(kept["clean"]) <= CLASSES * EACH
        assert (str(kept["suite"]), str(kept["attack"]), float(kept["radius"])) == ("small", "A1", 0.2)
    again = command("evaluate", trained, suite, "--out", out, "--surrogate", sibling)
    assert again.code == 0, again.err
    found = {r.name: r for r in records.latest(records.read(out / "results.jsonl")) if r.kind == "clustering"}
    white, black = (found[f"{name}, both sides, alone"] for name in ("A1", f"found elsewhere from {sibling.name}"))
    assert black.scores != white.scores
    assert black.settings["surrogate_weights"] != black.settings["weights"] == white.settings["weights"]
    assert "surrogate_weights" not in white.settings
    assert white.context["chance"] == pytest.approx(20, abs=1)


def test_climbed_on_the_model_itself_it_is_the_attack_on_the_model(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(SUITE)
    target = find_target(str(trained), data=None, out=tmp_path / "run")
    arena = Arena.prepare(target.model, target.dataset, target.view, Workers(torch.device("cpu")))
    # Below the command, which refuses that.
    suite = load_suite(str(tmp_path / "small.yaml"), surrogate=str(trained))
    found = {record.name: record for record in run_clustering(arena, suite, 0, {})}
    white, black = (found[f"{name}, both sides, alone"] for name in ("A1", f"found elsewhere from {trained.name}"))
    # The surrogate is the model itself, and the seed the same.
    assert black.scores == white.scores
    assert black.settings["surrogate_weights"] == black.settings["weights"]


def test_k_means_is_chosen_on_the_command_line_or_in_the_recipe(
    command: Command, trained: Path, tmp_path: Path
) -> None:
    pytest.importorskip("faiss")
    suite = tmp_path / "small.yaml"
    suite.write_text(SUITE)
    found = {}
    for name, words in {"torch": (), "faiss": ("--kmeans", "faiss")}.items():
        done = command("evaluate", trained, suite, "--out", tmp_path / name, *words)
        assert done.code == 0, done.err
        clean = records.read(tmp_path / name / "results.jsonl")[0]
        assert clean.settings["reading_rules"]["backend"] == name
        found[name] = clean.scores
    assert found["torch"]["R@1"] == found["faiss"]["R@1"] and found["torch"]["NMI"] != found["faiss"]["NMI"]
    assert found["torch"]["NMI"] == pytest.approx(found["faiss"]["NMI"], abs=5)
    assert "backend 'scipy' is not known" in command("evaluate", trained, suite, "--kmeans", "scipy").error
    assert "'demo' is none" in command("evaluate", trained, "demo", "--kmeans", "faiss").error
    spec = tmp_path / "own"
    spec.mkdir()
    for file in ("recipe.yaml", "model.safetensors", "run.json"):
        (spec / file).write_bytes((trained / file).read_bytes())
    (spec / "recipe.yaml").write_text((spec / "recipe.yaml").read_text() + "kmeans: faiss\n")
    assert command("evaluate", spec, suite).code == 0
    by_recipe = next(r for r in records.read(spec / "results.jsonl") if r.kind == "clustering")
    assert by_recipe.scores == found["faiss"]


def test_a_recipe_with_an_unknown_k_means_is_refused(command: Command) -> None:
    assert "kmeans 'scipy' is not known" in command("train", "digits/plain", "kmeans=scipy").error


def test_a_k_means_that_is_not_installed_is_refused_only_where_it_clusters(
    command: Command, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("robustmetric.numerics.kmeans.find_spec", lambda _: None)
    for file in ("recipe.yaml", "model.safetensors", "run.json"):
        (tmp_path / file).write_bytes((trained / file).read_bytes())
    with (tmp_path / "recipe.yaml").open("a") as file:
        file.write("kmeans: faiss\n")
    assert "'faiss' is not installed" in command("evaluate", tmp_path, "clustering").error
    suite = tmp_path / "one.yaml"
    suite.write_text(
        "engine: {name: pgd, ball: {name: ball, radius: 0.2}, steps: 1, step_size: 0.1}\n"
        "attacks:\n  ES: {attack: {name: embedding_shift}}\n"
    )
    done = command("evaluate", tmp_path, suite, "--queries", 4)
    assert done.code == 0, done.err


def test_suites_that_ask_for_a_surrogate(tmp_path: Path) -> None:
    suite = tmp_path / "small.yaml"
    suite.write_text(SUITE)
    assert asking_for_surrogate(str(suite)) == ["found elsewhere"]
    assert [trial.label for trial in load_suite(str(suite)).trials] == ["A1"]
    assert [trial.label for trial in load_suite(str(suite), surrogate="runs/x").trials] == [
        "A1",
        "found elsewhere from x",
    ]
    suite.write_text(SUITE.replace("  A1: {attack: {name: whole_set, attack: {name: embedding_shift}}}\n", ""))
    with pytest.raises(InputError, match="every attack asks for a surrogate"):
        load_suite(str(suite))
    with pytest.raises(InputError, match=r"no attack asks for a surrogate; .* run transfer .* or clustering_adaptive"):
        load_suite("clustering", surrogate="runs/x")


def test_another_engine_climbs_in_the_same_ball_without_the_old_ones_settings() -> None:
    suite = load_suite("clustering_adaptive", surrogate="runs/x")
    (square,) = [trial for trial in suite.trials if isinstance(trial.engine, Square)]
    assert square.engine.ball.radius == pytest.approx(8 / 255) and square.engine.queries == 1000
    assert asking_for_surrogate("clustering_adaptive") == ["transferred shift", "transferred margin"]
