"""The benchmarks: what their figures mean, and that every script runs at a tiny size."""

import importlib
import json
import shutil
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from robustmetric import records
from robustmetric.jobs.folder import RunFolder
from robustmetric.jobs.train import train
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD, Rowwise
from robustmetric.records import Record
from robustmetric.types import Batch

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
CPU = torch.device("cpu")
TINY = ("--size", "32", "--repeats", "1", "--architecture", "resnet18")
LATER = ("APGD-GTM", "APGD-QA+", "APGD-QA-", "APGD-CA+", "APGD-CA-", "Square", "RayS")
"""What a quick suite of the worst case goes without."""

Script = Callable[[str], ModuleType]


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    """A file of `benchmarks/`, imported as its neighbours import it; what it sets for the whole process is restored."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    tuned, threads = torch.backends.cudnn.benchmark, torch.get_num_threads()
    with torch.random.fork_rng(devices=[]):
        yield importlib.import_module
    torch.backends.cudnn.benchmark = tuned
    torch.set_num_threads(threads)


@pytest.fixture
def harness(script: Script) -> ModuleType:
    return script("harness")


def test_work_is_counted_in_forwards_of_one_image(harness: ModuleType) -> None:
    # 3 images, 4 steps, each a forward (1) and a backward to the input (1): 3 * 4 * 2.
    assert harness.attack_work(3, 4) == 24
    # With weight gradients the backward costs 2: 3 * 4 * 3.
    assert harness.attack_work(3, 4, weight_gradients=True) == 36
    assert harness.update_work(5) == 5 * (1 + 2)


def test_operations_of_a_convolution_and_a_linear_layer(harness: ModuleType) -> None:
    convolution = nn.Conv2d(3, 8, kernel_size=3, padding=1, bias=False)
    # 8 x 4 x 4 outputs, each 3 x 3 x 3 multiplications and additions.
    assert harness.flops(convolution, torch.rand(3, 4, 4)) == 2 * 8 * 4 * 4 * 27
    assert harness.flops(nn.Linear(10, 5, bias=False), torch.rand(10)) == 2 * 10 * 5


def test_figures_by_hand(harness: ModuleType) -> None:
    gauge = harness.Gauge(forward_flops=100, peak_flops=1000.0)
    # 6 forwards of 100 operations in 2 s are 300 per second, of 1000.
    assert gauge.figures(seconds=2.0, fe=6, images=4) == {
        "milliseconds": 2000.0,
        "fe": 6,
        "images_per_second": 2.0,
        "share_of_peak": 0.3,
    }
    assert [float(word.rstrip("%")) for word in harness.columns(gauge.figures(2.0, 6, 4)).split()] == [2000, 6, 2, 30]


def test_a_product_reaches_most_of_the_peak(harness: ModuleType) -> None:
    """The peak is measured by a product, so another product must come near it."""
    best = harness.peak(CPU, repeats=5)
    a = torch.randn(1024, 1024)
    taken = min(harness.measure({"product": lambda: a @ a}, CPU, 5)["product"])
    assert 0.3 < 2 * 1024**3 / taken / best < 3


def test_loops_are_timed_in_turn_after_a_warm_up(harness: ModuleType) -> None:
    calls: list[str] = []
    times = harness.measure({"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}, CPU, repeats=2)
    assert calls == ["a", "b", "a", "b", "b", "a"]
    assert [len(values) for values in times.values()] == [2, 2]


def test_a_ratio_is_the_median_over_rounds(harness: ModuleType) -> None:
    # 4/2, 9/3, 5/1: the median of 2, 3 and 5.
    assert harness.ratio({"a": [4.0, 9.0, 5.0], "b": [2.0, 3.0, 1.0]}, "a", "b") == 3.0


def test_memory_is_what_a_call_holds_beyond_what_was_there(harness: ModuleType) -> None:
    held = torch.ones(2**24)  # 64 MiB, before the call
    # 32 Mi numbers of 4 bytes.
    assert harness.memory(lambda: torch.ones(2**25), CPU) == pytest.approx(128, rel=0.1)
    del held


def test_results_hold_settings_commit_and_hardware(harness: ModuleType, tmp_path: Path) -> None:
    options = Namespace(device="cpu", weights="/somewhere/weights.pth", repeats=3, results=tmp_path / "new")
    path = harness.save("name-resnet18", options, {"ratio": 2.5})
    assert path == tmp_path / "new" / "name-resnet18-cpu.json"
    written = json.loads(path.read_text())
    assert written["settings"] == {"device": "cpu", "weights": True, "repeats": 3}
    assert written["ratio"] == 2.5
    assert written["context"]["commit"] and "CPU" in written["context"]["hardware"]


def results(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"{name}-cpu.json").read_text())
    assert found["context"]["commit"] and "CPU" in found["context"]["hardware"]
    assert "results" not in found["settings"]
    return found


def is_full(row: dict[str, Any]) -> bool:
    """Time, work, rate and share of peak are there and positive."""
    return all(row[key] > 0 for key in ("milliseconds", "fe", "images_per_second", "share_of_peak"))


def test_pgd_runs(script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = script("pgd").main([*TINY, "--batch", "2", "--steps", "1", "--results", str(tmp_path)])
    assert code in (0, 1, 2)  # as fast as expected or not, or a busy machine: then nothing is written
    assert (tmp_path / "pgd-cpu.json").exists() == (code != 2)
    assert "naive loop" in capsys.readouterr().out


def test_views_run(script: Script, tmp_path: Path) -> None:
    script("views").main([*TINY, "--batch", "6", "--steps", "2", "--results", str(tmp_path)])
    rows = results(tmp_path, "views-resnet18")["views"]
    assert set(rows) == {"plain way", "exact", "fast"} and all(map(is_full, rows.values()))
    assert rows["plain way"]["fe"] == 6 * 2 * 3 and rows["exact"]["fe"] == 6 * 2 * 2


def test_searches_run_and_say_what_they_leave(script: Script, tmp_path: Path) -> None:
    sizes = ["--size", "8", "--batch", "4", "--steps", "2", "--queries", "3", "--repeats", "1"]
    script("search").main([*sizes, "--results", str(tmp_path)])
    rows = results(tmp_path, "search")["rows"]
    names = ("PGD-2", "Square, 3 queries")
    assert set(rows) == {f"{name}, {search}" for name in names for search in ("fp32", "tf32", "fp16")}
    assert all(map(is_full, rows.values())) and all(0 <= row["left"] <= 100 for row in rows.values())
    assert rows["PGD-2, fp16"]["fe"] == 4 * 2 * 2 and rows["Square, 3 queries, tf32"]["fe"] == 4 * 3
    assert all(rows[f"{name}, fp32"]["agree"] == 100 and rows[f"{name}, fp32"]["faster"] == 1 for name in names)


def test_the_suite_runs_and_states_what_fast_changes(script: Script, tmp_path: Path) -> None:
    sizes = ("--queries", "4", "--gallery", "120", "--steps", "1", "--fast")
    assert script("suite").main([*TINY, *sizes, "--results", str(tmp_path)]) == 0
    found = results(tmp_path, "suite-resnet18")
    assert set(found["attacks"]) == {"CA+", "CA-", "QA+", "QA-", "TMA", "ES", "LTM", "GTM", "GTT"}
    sides = found["attacks"]["ES"]
    assert set(sides) == {"plain way", "exact", "folded", "fast"} and all(map(is_full, sides.values()))
    # A share of 4 images of the gallery, 4 + 4 embedded, 4 climbing a step; ours embeds the gallery once for all 9.
    assert sides["plain way"]["fe"] == 4 + 8 + 4 * 3
    assert sides["exact"]["fe"] == pytest.approx(4 / 9 + 8 + 4 * 2, abs=0.01)
    fp32, fast = (found["scores"]["ES"][view]["ES:D"] for view in ("exact", "fast"))
    assert found["exact_minus_view"]["ES"]["fast"]["ES:D"] == fp32 - fast
    assert found["total"]["exact"]["milliseconds"] == pytest.approx(
        sum(sides["exact"]["milliseconds"] for sides in found["attacks"].values())
    )
    assert "published_ratio" not in found["total"]["exact"], "other sizes than those published"


def test_a_suite_that_is_too_slow_is_named(script: Script) -> None:
    suite = script("suite")
    quick = {"ratio": 4.5, "published_ratio": 4.1}
    assert suite.shortfalls({"exact": quick, "fast": {"ratio": 12.0, "published_ratio": 13.0}}) == []
    # The faster of two views of one precision counts.
    assert suite.shortfalls({"exact": {"ratio": 3.0, "published_ratio": 3.0}, "folded": quick}) == []
    (line,) = suite.shortfalls({"exact": quick, "fast": {"ratio": 11.0, "published_ratio": 13.0}})
    assert "11.00" in line and "plain way" in line
    assert sum(suite.published(name) for name in suite_labels()) == pytest.approx(suite.PUBLISHED_TOTAL, abs=0.15)


def suite_labels() -> list[str]:
    return ["CA+", "CA-", "QA+", "QA-", "TMA", "ES", "LTM", "GTM", "GTT"]


def test_images_are_counted_as_they_pass(script: Script) -> None:
    engine = PGD(Ball(0.1), steps=3, step_size=0.05, random_start=False)
    counting = script("suite").Counting(engine)
    clean = torch.full((5, 2), 0.5)
    value = Rowwise(lambda x: x.sum(dim=1))
    assert torch.equal(counting(value, clean), engine(value, clean))
    assert counting.images == 5 * 3 and counting.ball == engine.ball


def test_scaling_runs(script: Script, tmp_path: Path) -> None:
    assert script("scaling").main([*TINY, "--tiny", "--results", str(tmp_path)]) == 0
    found = results(tmp_path, "scaling-resnet18")
    rows = found["rows"]
    assert {kind: list(sizes) for kind, sizes in rows.items()} == {
        "batch": ["2", "4"],
        "steps": ["1", "2"],
        "gallery": ["100", "1000"],
        "nearest": ["100", "1000"],
        "members": ["1", "2"],
    }
    every = [row for sizes in rows.values() for row in sizes.values()]
    assert all(row["ratio"] > 0 and row["mebibytes"] >= 0 and row["milliseconds"] > 0 for row in every)
    assert rows["batch"]["4"]["fe"] == 4 * 2 * 2 and rows["members"]["2"]["fe"] == 2 * 4 * 2 * 2


def test_the_plain_way_is_left_out_where_it_takes_too_long(script: Script, tmp_path: Path) -> None:
    limited = ("--tiny", "--kinds", "gallery", "nearest", "--limit-seconds", "0", "--results", str(tmp_path))
    assert script("scaling").main([*TINY, *limited]) == 0
    for rows in results(tmp_path, "scaling-resnet18")["rows"].values():
        # How long it takes is known from the size before, so the first is measured.
        assert rows["100"]["ratio"] > 0 and rows["1000"]["ratio"] is None


def test_training_steps_run(script: Script, tmp_path: Path) -> None:
    sizes = ("--pairs", "4", "--steps", "2", "--tf32", "--rows", "plain", "hm_ics")
    assert script("train_step").main([*TINY, *sizes, "--results", str(tmp_path)]) == 0
    found = results(tmp_path, "train_step-resnet18")
    assert set(found["rows"]["plain"]) == {"plain way", "plain way, TF32", "32-true exact"}
    sides = found["rows"]["hm_ics"]
    assert set(sides) == {"plain way", "plain way, TF32", "32-true exact", "32-true fast"}
    assert all(is_full(side) and side["ratio"] > 0 for side in sides.values())
    assert found["published_seconds"]["hm_ics"] == {"tf32_off": 0.887, "tf32_on": 0.759}


class Passes:
    """Counts the fe that a model is put through, by what each forward is for."""

    def __init__(self, model: nn.Module, attack_backward: int) -> None:
        self.fe, self.attack_backward = 0, attack_backward
        model.register_forward_hook(self.count)

    def count(self, model: nn.Module, inputs: tuple[Tensor, ...], _: Tensor) -> None:
        backward = 2 if model.training else self.attack_backward
        self.fe += len(inputs[0]) * (1 + (backward if torch.is_grad_enabled() else 0))


@pytest.mark.parametrize("row", ["plain", "est", "act", "hm", "hm_ics", "madry"])
def test_the_work_of_a_step_is_what_passes_through_the_network(row: str, script: Script, harness: ModuleType) -> None:
    train_step = script("train_step")
    torch.manual_seed(0)
    images = torch.rand(8, 3, 32, 32)
    batch = Batch(images, torch.arange(8) // 2, torch.arange(8))
    ours, theirs = (harness.settled("resnet18", None, images) for _ in range(2))
    passes = Passes(ours, attack_backward=1), Passes(theirs, attack_backward=2)
    train_step.our_step(row, ours, batch, 3, "32-true", "exact")()
    train_step.plain_way(row, theirs, batch, 3)()
    assert passes[0].fe == train_step.work(row, 8, 3, weight_gradients=False)
    assert passes[1].fe == train_step.work(row, 8, 3, weight_gradients=True)


def test_the_work_of_a_hardness_step_by_hand(script: Script) -> None:
    # 112 embedded; 168 in 8 steps of 2; 168 adversarial and 112 clean images trained on, 3 each.
    assert script("train_step").work("hm_ics", 112, 8, weight_gradients=False) == 112 + 168 * 8 * 2 + 280 * 3


def test_a_step_that_is_too_slow_is_named(script: Script) -> None:
    shortfall = script("train_step").shortfall
    sides = {"plain way": {"milliseconds": 900.0}, "a": {"milliseconds": 130.0}, "b": {"milliseconds": 120.0}}
    assert shortfall({"hm_ics": sides}) is None and shortfall({}) is None
    assert "130.0 ms" in shortfall({"hm_ics": {"plain way": {"milliseconds": 900.0}, "a": {"milliseconds": 130.0}}})


def test_tf32_is_on_inside_alone(script: Script) -> None:
    seen: list[tuple[str, bool]] = []

    def note() -> None:
        seen.append((torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32))

    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    script("train_step").with_tf32(note)()
    note()
    assert seen == [("high", True), before]


@pytest.mark.slow
def test_autoattack_runs_beside_the_authors_code(script: Script, tmp_path: Path) -> None:
    sizes = ("--images", "60", "--epochs", "10", "--radius", "0.1", "--queries", "100", "--models", "madry")
    assert script("autoattack").main([*sizes, "--results", str(tmp_path)]) in (0, 1)  # as fast as expected or not
    row = results(tmp_path, "autoattack")["models"]["madry"]
    for name in ("APGD-CE", "APGD-T", "FAB-T", "AutoAttack"):  # Square differs by design
        assert row["attacks"][name]["agreement"] >= 95 and 5 < row["attacks"][name]["ours"] < row["clean"] - 5
    assert set(row["attacks"]) == {"APGD-CE", "APGD-T", "FAB-T", "Square", "AutoAttack"}
    for found in row["attacks"].values():
        assert 0 <= found["ours"] <= row["clean"] and found["ratio"] > 0
    assert row["attacks"]["AutoAttack"]["ours"] <= min(found["ours"] for found in row["attacks"].values())


def test_autoattack_asks_a_run_by_the_attacks_that_are_named(script: Script, tmp_path: Path) -> None:
    folder = train("digits/classifier", ["epochs=1"], tmp_path / "little")
    sizes = ("--images", "9999", "--radius", "0.1", "--attacks", "APGD-CE")
    traced = sys.gettrace()
    assert script("autoattack").main(["--run", str(folder), *sizes, "--results", str(tmp_path)]) in (0, 1)
    assert sys.gettrace() is traced, "what measures these tests goes on"
    found = results(tmp_path, "autoattack-little")
    assert list(found["models"]) == ["little"] and found["models"]["little"]["images"] == 540
    assert list(found["models"]["little"]["attacks"]) == ["APGD-CE"], "one of the four is not AutoAttack"
    assert found["models"]["little"]["attacks"]["APGD-CE"]["agreement"] >= 95
    assert found["settings"]["run"] == "little" and not {"models", "epochs"} & set(found["settings"])


def test_what_differs_from_the_authors_code_is_named(script: Script) -> None:
    autoattack = script("autoattack")
    side = autoattack.Side
    # Of four images one survives ours and two theirs, one of them the same: three of four agree.
    ours, theirs = torch.tensor([True, False, False, False]), torch.tensor([True, True, False, False])
    row = autoattack.figures([(side(ours, 1.0), side(theirs, 2.0))])
    assert row == {
        "ours": 25.0, "theirs": 50.0, "agreement": 75.0, "seconds": 1.0, "their_seconds": 2.0, "ratio": 0.5,
    }  # fmt: skip
    fine = {**row, "theirs": 25.5, "agreement": 95.0}
    assert autoattack.shortfalls("plain", {"Square": row, "AutoAttack": fine}) == []
    assert len(autoattack.shortfalls("plain", {"AutoAttack": row})) == 2
    (line,) = autoattack.shortfalls("plain", {"AutoAttack": {**fine, "ratio": 1.2}})
    assert "1.2 of their time" in line
    (line,) = autoattack.shortfalls("plain", {"Square": {**fine, "ours": 26.5}, "AutoAttack": fine})
    assert "Square: 26.5 % survive" in line


def test_without_the_authors_code_it_says_so(
    script: Script, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    autoattack = script("autoattack")
    monkeypatch.setattr(autoattack.importlib.util, "find_spec", lambda name: None)
    assert autoattack.main([]) == 2 and "pyautoattack is not installed" in capsys.readouterr().err


def test_scripts_find_the_timer_where_it_was(script: Script, harness: ModuleType) -> None:
    pgd = script("pgd")
    for name in ("RESULTS", "Loop", "measure", "ratio", "seconds"):
        assert getattr(pgd, name) is getattr(harness, name)


def test_ensemble_steps_run_both_ways(script: Script, tmp_path: Path) -> None:
    sizes = ("--members", "3", "--batch", "6", "--steps", "2", "--views", "exact", "fast")
    assert script("ensemble").main([*TINY, *sizes, "--results", str(tmp_path)]) == 0
    rows = results(tmp_path, "ensemble-resnet18")["rows"]
    assert set(rows) == {"32-true exact", "32-true fast"}
    for ways in rows.values():
        assert set(ways) == {"literal", "shared"} and all(map(is_full, ways.values()))
        assert ways["literal"]["ratio"] == 1 and ways["shared"]["ratio"] > 0
        assert ways["shared"]["work_ratio"] == pytest.approx(ways["literal"]["fe"] / ways["shared"]["fe"], abs=1e-3)


def test_the_work_of_an_ensemble_step_by_hand(script: Script) -> None:
    work = script("ensemble").work
    # Of 168 images each of 3 members keeps 112. Clean 168; 10 steps of 2; 112 clean and 112 perturbed at 3: each x 3.
    assert work(3, 168, 10, shared=True) == 3 * (168 + 168 * 20 + 224 * 3) == 75 * 168
    # To the letter, 3 x 112 = 336 images climb against all three.
    assert work(3, 168, 10, shared=False) == 3 * (168 + 336 * 20 + 224 * 3) == 135 * 168


@pytest.mark.parametrize("shared", [True, False])
def test_the_work_of_an_ensemble_step_is_what_passes_through_its_members(shared: bool, script: Script) -> None:
    benchmark = script("ensemble")
    options = benchmark.parse([*TINY, "--batch", "6"])
    batch = benchmark.images(options)
    model = benchmark.ensemble(options, batch.inputs)
    passes = [Passes(member, attack_backward=1) for member in model.members]
    benchmark.step(model, batch, 2, shared, "32-true", "exact")()
    assert sum(one.fe for one in passes) == benchmark.work(3, 6, 2, shared)


def test_the_time_that_both_ways_of_an_ensemble_step_spend_by_hand(script: Script) -> None:
    # Climbs of 300 ms once or, of three members, twice; and 200 ms for the rest.
    assert script("ensemble").alike(800, 500, members=3) == 200
    # Of five members once or four times.
    assert script("ensemble").alike(1400, 500, members=5) == 200
    assert script("ensemble").alike(500, 500, members=2) == 500


@pytest.mark.parametrize("compiled", [True, False])
def test_an_ensemble_step_has_its_members_compiled_where_it_is_asked_for(compiled: bool, script: Script) -> None:
    benchmark = script("ensemble")
    options = benchmark.parse([*TINY, "--batch", "6"])
    batch = benchmark.images(options)
    model = benchmark.ensemble(options, batch.inputs)
    benchmark.step(model, batch, 2, True, "32-true", "exact", compiled)
    assert all((member._compiled_call_impl is not None) == compiled for member in model.members)


def test_an_ensemble_step_that_gains_too_little_is_named(script: Script) -> None:
    rows = {"a": {"shared": {"ratio": 1.75}}, "b": {"shared": {"ratio": 1.5}}}
    (line,) = script("ensemble").shortfalls(rows)
    assert line.startswith("b: sharing is 1.50 times faster")
    with pytest.raises(SystemExit):
        script("ensemble").parse(["--batch", "7"])


def test_detector_judges_exhibits_by_a_truth_that_is_measured(script: Script, tmp_path: Path) -> None:
    few = ["--effort", "small", "--epochs", "10", "--images", "20", "--half", "tuning", "--results", str(tmp_path)]
    assert script("detector").main([*few, "--only", "plain", "quantised to 5 levels"]) == 0
    plain, quantised = results(tmp_path, "detector_small")["exhibits"]
    # Rounding has no gradient: PGD-20 does nothing, a straight-through gradient as much as to the plain model.
    assert (quantised["truth"], quantised["verdict"]) == ("masked", "masked")
    assert quantised["PGD-20"] - quantised["adaptive"] >= 10 and "zero_gradients" in quantised["failed"]
    assert plain["truth"] == "honest" and plain["verdict"] != "masked" and plain["is_right"]


def test_detector_counts_a_doubt_as_no_flag(script: Script) -> None:
    said = [
        ("honest", "honest"),
        ("honest", "unclear"),
        ("honest", "masked"),
        ("masked", "masked"),
        ("masked", "unclear"),
    ]
    rows = [{"truth": t, "verdict": v, "is_right": (t == "masked") == (v == "masked")} for t, v in said]
    table = script("detector").confusion(rows)
    assert table["honest"] == {"honest": 1, "unclear": 1, "masked": 1}
    assert table["masked"] == {"honest": 0, "unclear": 1, "masked": 1}
    assert (table["right"], table["of"]) == (3, 5)
    assert table["strictly"] == 2, "neither doubt is right then"


def test_the_certified_figure_has_a_curve_per_run(script: Script, tmp_path: Path) -> None:
    for name in ("a-arml-seed0", "a-crown-seed0"):
        curve = {"curve": {"radii": [0.0, 1.0], "error": [5.0, 100.0]}}
        for certificate in ("1-NN exact", "11-NN bound"):
            record = Record("certified", certificate, {"error@0": 5.0}, context=curve)
            records.append(tmp_path / name / "results.jsonl", record)
    runs = [str(path) for path in sorted(tmp_path.iterdir())]
    assert script("certified_figure").main([*runs, "-o", str(tmp_path / "figure")]) == 0
    drawn = (tmp_path / "figure.svg").read_text()
    assert "<!-- a-arml, 1-NN exact -->" in drawn and "<!-- a-crown, 1-NN exact -->" in drawn and "11-NN" not in drawn
    with pytest.raises(SystemExit):
        (tmp_path / "empty").mkdir()
        (tmp_path / "empty" / "results.jsonl").touch()
        script("certified_figure").main([str(tmp_path / "empty"), "-o", str(tmp_path / "figure")])


def test_fewer_near_positives_prove_less(script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    near = script("near_positives")
    x, y = load_digits(return_X_y=True)
    table = script("certify").Table(x[:600] / 16, y[:600], x[600:640] / 16, y[600:640])
    monkeypatch.setattr(near, "tabular", lambda name, points: table)
    assert near.main(["--sets", "digits", "--counts", "1", "5", "--results", str(tmp_path)]) == 0
    curves = json.loads((tmp_path / "near_positives-cpu.json").read_text())["sets"]["digits"]
    assert curves["exact"][-1] | {"seconds": 0} == {
        "positives": "all", "mean_radius": pytest.approx(curves["exact"][-1]["mean_radius"]), "seconds": 0,
        "share_of_exact": 1.0,
    }  # fmt: skip
    assert curves["exact"][0]["share_of_exact"] < 1 and (tmp_path / "near_positives-cpu.svg").is_file()
    falling = {method: curve[::-1] for method, curve in curves.items()}
    assert near.is_sound(curves) and not near.is_sound(falling)


def test_objectives_of_square_are_counted_by_query(
    script: Script, trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(trained), "--radius", "0.2", "--queries", "12", "--questions", "12", "--results", str(tmp_path)]
    code = script("rank_objectives").main(words)
    found = json.loads((tmp_path / "rank_objectives-cpu.json").read_text())
    run = found["runs"]["plain"]
    assert found["settings"]["runs"] == ["plain"] and "plain: " in capsys.readouterr().out
    assert list(run["objectives"]) == ["ES", "margin", "GTM", "QA+", "QA-", "CA+", "CA-"]
    longer, twice = run["margin, longer"], run["margin, twice"]
    assert run["auto_rank"] <= run["clean"] and twice <= run["margin"] < run["clean"] and code == int(twice == 0)
    for found in run["objectives"].values():
        assert found["beyond longer"] <= longer and found["beyond twice"] <= twice
        assert found["after"] <= run["auto_rank"]
        assert found["with margin"] <= min(found["alone"], run["margin"]) and found["alone"] <= run["clean"]


def test_copies_are_unpacked_attacked_and_told_by_row(
    script: Script, trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = script("copies")
    monkeypatch.setattr(copies, "unpack", lambda row, out: shutil.copytree(trained, out))
    quick = tmp_path / "quick.yaml"
    quick.write_text(
        "base: auto_rank\nsurvivors: {AutoRank: [APGD-ES, APGD-margin]}\n"
        f"attacks: {{{', '.join(f'{name}: null' for name in LATER)}}}\n"
    )
    words = ["results/x/row.json", "--queries", "12", "--runs", str(tmp_path / "runs"), "--results", str(tmp_path)]
    assert copies.main([*words, "--suite", str(quick)]) == 0
    (path,) = tmp_path.glob("copies-*.json")
    found = json.loads(path.read_text())
    row = found["rows"]["row"]
    assert found["settings"]["rows"] == ["row"] and list(row["left"]) == ["APGD-ES", "APGD-margin"]
    right = [row["clean"]["R@1"], *(one["R@1"] for one in row["left"].values())]
    assert [one["of"] for one in row["left"].values()] == [round(12 * share / 100) for share in right[:-1]]
    assert row["AutoRank"]["R@1"] == right[-1] < right[0] and row["AutoRank"]["interval"][1] >= right[-1]
    assert sum(row["AutoRank"]["lost_first_to"].values()) == round(12 * (right[0] - right[-1]) / 100)


def test_smoothings_are_trained_and_attacked_once(
    script: Script, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    few = ["--smoothings", "0", "0.8", "--seeds", "1", "--defences", "madry", "--settings", "epochs=1"]
    few += ["defence.attack.steps=1", "--images", "20", "--runs", str(tmp_path / "runs"), "--results", str(tmp_path)]
    smoothing = script("smoothing")
    assert smoothing.main(few) == 0
    rows = results(tmp_path, "smoothing")["rows"]
    assert [(row["defence"], row["smoothing"], row["seed"], row["images"]) for row in rows] == [
        ("madry", 0.0, 0, 20), ("madry", 0.8, 0, 20),
    ]  # fmt: skip
    assert all(0 <= row["AutoAttack"] <= row["PGD-100"] < row["clean"] for row in rows)
    loss = RunFolder(tmp_path / "runs" / "digits-madry-s0.8-seed0").read_recipe()["defence"]
    assert loss["loss"]["smoothing"] == 0.8 and "smoothing" not in loss["climbed"], "hard labels in the ascent"
    made = {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/*.jsonl")}
    assert smoothing.main(few) == 0 and results(tmp_path, "smoothing")["rows"] == rows
    assert made == {path: path.stat().st_mtime_ns for path in tmp_path.glob("runs/*/*.jsonl")}


def test_siblings_are_of_other_seeds_and_trained_once(script: Script, tmp_path: Path) -> None:
    few = ["--seeds", "2", "--settings", "epochs=1", "--images", "20"]
    few += ["--runs", str(tmp_path / "runs"), "--results", str(tmp_path)]
    assert script("siblings").main(few) == 0
    rows = results(tmp_path, "siblings")["rows"]
    assert [(row["defence"], row["found_on"], row["seed"]) for row in rows] == [
        (defence, source, seed)
        for defence in ("scattering", "madry") for source in ("undefended", "sibling") for seed in (0, 1)
    ]  # fmt: skip
    assert all(0 <= row[attack] <= 100 and row["images"] == 20 for row in rows for attack in ("PGD-20", "CW-100"))
    names = {path.name for path in (tmp_path / "runs").iterdir()}
    kinds = ("scattering-s0.5", "madry-s0", "plain-s0")
    assert names == {f"digits-{kind}-seed{seed}" for kind in kinds for seed in (0, 1)}
    there = records.read(tmp_path / "runs" / "digits-madry-s0-seed0" / "results.jsonl")
    sources = {one.name.partition(" from ")[2] for one in there if one.kind == "attack"}
    assert sources == {"digits-plain-s0-seed0", "digits-madry-s0-seed1"}


def test_a_smoothing_is_told_of_the_images_asked_for_whatever_else_its_folder_holds(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smoothing, suite = script("smoothing"), {"suite": "autoattack_pgd100"}
    held = [
        Record(kind, name, {"accuracy": accuracy}, {**suite, "queries": count}, count=count, context={"commit": "here"})
        for count, scores in ((540, (90.0, 60.0)), (20, (85.0, 55.0)))
        for (kind, name), accuracy in zip((("clean", "clean"), ("attack", "PGD-100")), scores, strict=True)
    ]
    monkeypatch.setattr(smoothing, "is_finished", lambda folder: True)
    monkeypatch.setattr(smoothing, "evaluate", lambda *_, **__: held)
    for images, expected in ((None, (540, 90.0, 60.0)), (20, (20, 85.0, 55.0))):
        options = Namespace(runs=tmp_path, device="cpu", settings=[], images=images)
        row = smoothing.measured("madry", 0.5, 0, options)
        assert (row["images"], row["clean"], row["PGD-100"]) == expected


def test_copies_are_examined_for_masking_and_asked_no_more_than_there_is(
    script: Script, trained: Path, sibling: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies = script("copies")

    runs = {"row": trained, "other": sibling}  # a model is refused as its own surrogate
    monkeypatch.setattr(copies, "unpack", lambda row, out: shutil.copytree(runs[row.stem], out))
    quick = tmp_path / "quick.yaml"
    quick.write_text(
        "engine: {name: pgd, ball: {name: ball, radius: 0.15}, steps: 2, step_size: 0.08}\n"
        "attacks: {masking: {attack: {name: masking, surrogates: $surrogates, images: 12, restarts: 2, starts: 2, "
        "start_steps: 2, counts: [1, 4], sizes: [0.5, 1.0], apgd_steps: 2, queries: 5}}}\n"
    )
    words = ["results/x/row.json", "--queries", "99999", "--runs", str(tmp_path / "runs"), "--results", str(tmp_path)]
    for options, surrogate in (([], None), (["--surrogate", "results/x/other.json"], "other")):
        assert copies.main([*words, "--suite", str(quick), *options]) == 0
        found = results(tmp_path, "copies-quick")
        row = found["rows"]["row"]
        assert found["settings"]["surrogate"] == surrogate and list(found["rows"]) == ["row"]
        assert row.keys() == {"commit", "seconds", "masking"} and len(row["masking"]["checks"]) == 13
        assert (row["masking"]["checks"]["black_box"] == "not run") is (surrogate is None)
        numbers = row["masking"]["numbers"]
        asked = {name for name, word in row["masking"]["checks"].items() if word != "not run"}
        assert numbers.keys() >= asked and 0 <= numbers["restarts"]["lowest"] <= 100
        assert ("other" in numbers.get("black_box", ())) is (surrogate is not None)


def test_a_copy_of_a_classifier_is_told_by_its_accuracy(script: Script) -> None:
    one = Record("attack", "RayS", {"accuracy": 12.346}, {}, intervals={"accuracy": (10.0, 14.689)})
    assert script("copies").shown(one) == {"accuracy": 12.35, "interval": [10.0, 14.69]}


def test_the_seconds_of_a_verdict_are_those_of_its_checks(script: Script) -> None:
    told = {"commit": "here", "verdict": "pass", "said": "little"}
    checks = [Record("masking", name, {}, {}, seconds=2.0, context=told) for name in ("steps", "restarts")]
    last = Record("masking", "verdict", {}, {}, seconds=4.0, context={**told, "checks": {}, "said": {}})
    assert script("copies").figures([*checks, last])["seconds"] == 4
