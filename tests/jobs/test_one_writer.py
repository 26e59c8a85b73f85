"""A run folder has one writer: who comes second is refused, and a writer that is gone is in nobody's way."""

import importlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from commands import Command, environment, finish, start
from robustmetric.jobs.folder import RunFolder

LONG = ("train", "digits/plain", "epochs=5000", "checkpoint_seconds=0", "--out", "run")
BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


def wait_for(path: Path, seconds: float = 120) -> None:
    ends = time.monotonic() + seconds
    while not path.exists():
        assert time.monotonic() < ends, f"{path} did not come"
        time.sleep(0.02)


def is_free(path: Path) -> bool:
    with RunFolder(path).held() as is_ours:
        return is_ours


def test_a_second_training_in_one_folder_is_refused_while_the_first_lives(tmp_path: Path, command: Command) -> None:
    first = start(tmp_path, *LONG)
    try:
        wait_for(tmp_path / "run" / "state.pt")
        assert "run is being written by another process that still runs" in command(*LONG, "--resume").error
    finally:
        first.send_signal(signal.SIGKILL)
        finish(first)
    assert is_free(tmp_path / "run"), "of one that was killed nothing is left in the way"


def test_a_folder_is_held_once_and_left_as_it_was(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "a" / "run")
    with folder.held() as first, folder.held() as second:
        assert first and not second
    assert is_free(folder.path) and list(folder.path.iterdir()) == []


def test_a_folder_that_cannot_be_held_is_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)  # as on Windows
    with RunFolder(tmp_path / "run").held() as first, RunFolder(tmp_path / "run").held() as second:
        assert first and second
    monkeypatch.setattr(os, "open", refuses)
    assert is_free(tmp_path / "run")


def refuses(*_: object) -> int:
    raise PermissionError("folders are no files here")


@pytest.mark.skipif(sys.platform != "linux", reason="no such signal elsewhere")
def test_a_training_ends_when_the_plan_that_began_it_is_killed(tmp_path: Path) -> None:
    (tmp_path / "plan.txt").write_text("run; digits/plain epochs=5000 checkpoint_seconds=0")
    words = [sys.executable, str(BENCHMARKS / "rows.py"), "plan.txt", "--out", "runs", "--width", "1"]
    with subprocess.Popen(words, cwd=tmp_path, env=environment(), stdout=subprocess.DEVNULL) as plan:
        wait_for(tmp_path / "runs" / "run" / "state.pt")
        assert not is_free(tmp_path / "runs" / "run")
        plan.kill()
    ends, log = time.monotonic() + 60, tmp_path / "runs" / "run.log"
    while "the state is saved" not in log.read_text():
        assert time.monotonic() < ends, "it goes on, or was not interrupted"
        time.sleep(0.05)
    assert is_free(tmp_path / "runs" / "run")


def test_elsewhere_a_command_runs_unbound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    bound = importlib.import_module("bound")
    monkeypatch.setattr(sys, "platform", "darwin")
    assert bound.bound(["-m", "robustmetric"]) == [sys.executable, "-m", "robustmetric"]
