"""Fixtures of all tests: one thread, the command line, small trained runs and small image folders."""

import gc
import importlib
import sys
from collections.abc import Callable
from pathlib import Path

import jaxtyping
import numpy as np
import pytest
import torch
from PIL import Image

from checked import checked
from commands import PARTS, Command, Result

torch.set_num_threads(1)
jaxtyping.jaxtyped = checked
# What a module of ours is first to import is compiled anew (jaxtyping has names of its own for bytecode) and traced.
for name in ("beartype", "jinja2", "lightning.fabric", "matplotlib.figure", "scipy.stats", "sklearn.cluster", "timm"):
    importlib.import_module(name)

SUITE = """
engine: {name: pgd, ball: {name: ball, radius: 0.2}, steps: 3, step_size: 0.1}
attacks:
  ES: {attack: {name: embedding_shift}, radii: [0.1, 0.2]}
  CA+: {attack: {name: candidate, direction: up}}
"""
LONGEST = ("test_wheel.py", "test_verify_blocks.py", "test_workers.py", "test_benchmarks.py")
"""Of the files of tests, by the time they take."""


def pytest_collection() -> None:
    """Until all is imported, of which nothing is garbage."""
    gc.disable()


def pytest_collection_finish() -> None:
    """What is garbage is looked for among what tests make, not among all that was imported."""
    gc.enable()
    gc.freeze()


def pytest_sessionfinish() -> None:
    gc.unfreeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first, so that of two processes none waits for the other's last."""
    items.sort(key=lambda item: LONGEST.index(item.path.name) if item.path.name in LONGEST else len(LONGEST))


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """`robustmetric ...` in this process, working in an empty folder."""
    from robustmetric.cli import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ROBUSTMETRIC_DATA", raising=False)
    monkeypatch.syspath_prepend(str(PARTS))

    def run(*words: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["robustmetric", *map(str, words)])
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = int(stop.code or 0)
        return Result(code, *capsys.readouterr())

    return run


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A suite of three short trials."""
    path = tmp_path / "short.yaml"
    path.write_text(SUITE)
    return path


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of digits/plain, one epoch; tests that write into it copy it first."""
    from robustmetric.jobs.train import train

    return train("digits/plain", ["epochs=1"], tmp_path_factory.mktemp("runs") / "plain")


@pytest.fixture(scope="session")
def sibling(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of another seed: other weights."""
    from robustmetric.jobs.train import train

    return train("digits/plain", ["epochs=1", "seed=1"], tmp_path_factory.mktemp("runs") / "sibling")


@pytest.fixture
def pictures() -> Callable[..., Path]:
    """Class folders of small PNG images; each class has a shade of its own, with noise."""

    def make(root: Path, classes: int = 4, each: int = 3, side: int = 16, first: int = 0) -> Path:
        noise = np.random.default_rng(first)
        for number in range(first, first + classes):
            folder = root / f"class{number:02d}"
            folder.mkdir(parents=True)
            for i in range(each):
                pixels = noise.integers(0, 60, (side, side, 3)) + 40 * (number % 5)
                Image.fromarray(pixels.astype(np.uint8)).save(folder / f"{i}.png")
        return root

    return make
