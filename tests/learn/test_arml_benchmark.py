"""The benchmark of the metric learners: that it runs at a tiny size, and that its plain loop learns the same."""

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from robustmetric.learn import ARML

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        yield importlib.import_module("arml")
    torch.set_num_threads(threads)


def rows(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Three classes apart in the first feature; the others are noise."""
    rng = np.random.RandomState(seed)
    y = np.arange(n) % 3
    return np.concatenate([y[:, None] + 0.2 * rng.standard_normal((n, 1)), rng.standard_normal((n, 3))], axis=1), y


def test_the_benchmark_writes_its_figures(script: ModuleType, tmp_path: Path) -> None:
    (x, y), (x_test, y_test) = rows(120, seed=0), rows(30, seed=1)
    np.savez(tmp_path / "tiny.npz", x_train=x, y_train=y, x_test=x_test, y_test=y_test)
    words = ["--data", str(tmp_path / "tiny.npz"), "--iterations", "3", "--trials", "1", "--nca-trials", "1"]
    script.main([*words, "--results", str(tmp_path)])  # its code depends on the times
    figures = json.loads((tmp_path / "arml-cpu.json").read_text())
    assert set(figures["loop_over_ours"]) == {"seconds", "cpu_seconds"}
    assert min(figures["loop_over_ours"].values()) > 0
    assert set(figures["running_times"]) == {"ARML", "LMNN", "ITML", "NCA", "NCA, ours"}
    for errors in figures["certified_error"].values():
        assert len(errors) == len(script.RADII)
        assert errors == sorted(errors)
        assert 0 <= errors[0] <= errors[-1] <= 1


def test_the_plain_loop_learns_what_the_released_settings_do(script: ModuleType) -> None:
    x, y = rows(120, seed=0)
    loop = script.plain_loop(torch.from_numpy(x).float(), torch.from_numpy(y), iterations=200, rate=1e-2).numpy()
    ours = ARML.released(lr=1e-2, max_iter=200, random_state=0).fit(x, y).get_mahalanobis_matrix()
    loop *= np.trace(ours) / np.trace(loop)
    # Other random triplets, the same metric but for that noise.
    np.testing.assert_allclose(loop, ours, atol=0.15)
    assert loop[0, 0] > 1.5
