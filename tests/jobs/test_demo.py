"""The demo's parts. The whole of it is run once, from the installed wheel, by tests/test_wheel.py."""

import shutil
from pathlib import Path

import pytest

from commands import Command
from robustmetric import recipe
from robustmetric.jobs import demo as job
from robustmetric.jobs.suites import load_suite


def test_the_recipes_and_the_suite_it_names_are_shipped() -> None:
    assert set(job.RECIPES) <= set(recipe.listing())
    suite = load_suite(job.SUITE)
    shifts = [trial for trial in suite.trials if trial.label == "ES"]
    assert len(shifts) == 5
    assert all(trial.engine.steps == 32 and trial.engine.restarts == 3 for trial in shifts)
    assert {"CA+", "CA-"} <= {trial.label for trial in suite.trials}


def test_finished_parts_are_not_run_again_and_the_page_is_written(
    trained: Path, suite: Path, command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "SUITE", str(suite))
    for name in ("plain", "hm"):
        shutil.copytree(trained, tmp_path / "demo" / name)
    weights = (tmp_path / "demo" / "hm" / "model.safetensors").read_bytes()
    done = command("demo", "-o", "demo")
    assert done.code == 0, done.err
    assert "training" not in done.err
    assert (tmp_path / "demo" / "hm" / "model.safetensors").read_bytes() == weights
    assert "ES:R" in done.out and "The page: demo/index.html" in done.out
    page = (tmp_path / "demo" / "index.html").read_text()
    assert "plain" in page and "hm" in page
