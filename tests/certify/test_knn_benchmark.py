"""The benchmark of certificates at a tiny size."""

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    threads = torch.get_num_threads()
    yield importlib.import_module("certify")
    torch.set_num_threads(threads)


def test_both_sides_give_the_same_radii(benchmark: ModuleType) -> None:
    data = benchmark.clusters(120, 6, 8)
    row = benchmark.compare(data, benchmark.parse(["--repeats", "1"]))
    assert row["largest_difference"] < 1e-6 and row["points_differing"] == 0 and row["programs"] > 0
    assert row["ratio"] == pytest.approx(
        row["milliseconds_per_point"]["clarabel"] / row["milliseconds_per_point"]["ours"], rel=0.1, abs=1
    )
    assert row["train"] == 120 and row["features"] == 6 and row["points"] == {"ours": 8, "clarabel": 8}
    short = benchmark.compare(data, benchmark.parse(["--repeats", "1", "--reference-seconds", "0"]))
    assert short["points"] == {"ours": 8, "clarabel": 1}


def test_the_careful_version_by_hand(benchmark: ModuleType) -> None:
    # Own 0 and 4, foreign 10 and 20, from 1: the border of 4 and 10 is 7; 20, whose bound is 9, is never solved.
    radius, programs = benchmark.clarabel_radius(np.array([1.0]), np.array([[0.0], [4.0]]), np.array([[10.0], [20.0]]))
    assert radius == pytest.approx(6) and programs == 1
    assert benchmark.clarabel_radius(np.array([9.0]), np.array([[0.0]]), np.array([[10.0]])) == (0.0, 0)


def test_sizes_and_the_large_set_are_written(benchmark: ModuleType, tmp_path: Path) -> None:
    tiny = ("--points", "5", "--size-points", "4", "--counts", "50", "100", "--dims", "2", "3", "--large", "60", "4")
    code = benchmark.main(["--parts", "sizes", "large", *tiny, "--repeats", "1", "--results", str(tmp_path)])
    found = json.loads((tmp_path / "certify_sizes_large-cpu.json").read_text())
    assert code == 0 and (tmp_path / "certify_sizes_large-cpu.svg").stat().st_size > 1000
    assert list(found["sizes"]["train, 64 features"]) == ["50", "100"]
    (large,) = found["large"]
    assert large["data"] == "synthetic clusters" and large["seconds"] > 0
    assert found["settings"]["fashion"] is False and "results" not in found["settings"] and found["context"]["commit"]


def test_shortfalls_are_named(benchmark: ModuleType) -> None:
    row = {"ratio": 120.0, "points_differing": 0, "largest_difference": 1e-9}
    assert benchmark.shortfalls({"sets": {"usps": row}}) == []
    (line,) = benchmark.shortfalls({"sets": {"usps": row | {"ratio": 80.0}}})
    assert "80.0 times" in line
    (line,) = benchmark.shortfalls({"sets": {"usps": row | {"points_differing": 2}}})
    assert "2 radii differ" in line
    (line,) = benchmark.shortfalls({"large": [{"data": "mnist", "seconds": 70.0, "expected_seconds": 60.0}]})
    assert "mnist took 70.0 s" in line
