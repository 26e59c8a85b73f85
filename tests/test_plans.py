"""Plans of rows: every line of every plan can be made, and `benchmarks/rows.py` makes it, interrupted or not."""

import importlib
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Thread
from types import ModuleType
from typing import Any, ClassVar

import pytest
import typer

from robustmetric import recipe
from robustmetric.catalogue import NAMES
from robustmetric.cli import app
from robustmetric.errors import InputError
from robustmetric.jobs.assemble import resolve, without_pretrained
from robustmetric.jobs.clustering import check_search, is_clustering
from robustmetric.jobs.evaluations import SUITES
from robustmetric.jobs.suites import load_suite
from robustmetric.report.ledger import protocol

BENCHMARKS = Path(__file__).parents[1] / "benchmarks"
PLANS = sorted((BENCHMARKS / "plans").glob("*.txt"))
GOOD = "plain; digits/plain epochs=1; demo --queries 16"


@pytest.fixture(scope="module")
def rows() -> Iterator[ModuleType]:
    """`benchmarks/rows.py`, which is no part of the package."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield importlib.import_module("rows")


@pytest.fixture
def home(tmp_path: Path, trained: Path) -> Path:
    """Where a training of `GOOD` has come to its end."""
    shutil.copytree(trained, tmp_path / "runs" / "plain")
    return tmp_path / "runs"


def parsed(job: str, *words: str) -> dict[str, Any]:
    """What the command line makes of these words; it refuses options it does not have."""
    made: Any = typer.main.get_command(app)
    return dict(made.commands[job].make_context(job, [*words]).params)


def plan(folder: Path, *lines: str) -> Path:
    path = folder / "plan.txt"
    path.write_text("\n".join(lines))
    return path


def test_a_plan_is_read_line_by_line(rows: ModuleType, tmp_path: Path) -> None:
    found = rows.read_plan(
        plan(tmp_path, "# a comment", "", GOOD, "a; digits/est 'x={name: b}'; demo; masking --batch 8")
    )
    assert found == [
        rows.Row("plain", ["digits/plain", "epochs=1"], [["demo", "--queries", "16"]]),
        rows.Row("a", ["digits/est", "x={name: b}"], [["demo"], ["masking", "--batch", "8"]]),
    ]


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ([GOOD, "digits/plain"], "line 2: 'digits/plain' is no row; expected 'folder; RECIPE ...; SUITE ...'"),
        (["; digits/plain; demo"], "line 1: '; digits/plain; demo' is no row"),
        (["a; digits/plain;; demo"], "line 1: 'a; digits/plain;; demo' is no row"),
        (["a b; digits/plain; demo"], "line 1: 'a b; digits/plain; demo' is no row"),
        (["a; digits/plain 'x; demo"], "cannot be read: No closing quotation"),
        ([GOOD, GOOD.replace("=1", "=2")], "line 2: plain stands above with another training; expected the same"),
        (["a/b; digits/plain; demo"], "line 1: 'a/b' is no name of a folder"),
        (["..; digits/plain; demo"], "line 1: '..' is no name of a folder"),
        ([GOOD, "a; digits/plain; demo --surrogate=plain"], "line 2: '--surrogate=plain' cannot stand in a row"),
        (["a; digits/plain --out b; demo"], "line 1: '--out' cannot stand in a row"),
        (["a; digits/plain; demo --surrogate plain", GOOD], "line 1: 'plain' is no row above"),
    ],
)
def test_a_bad_line_is_refused_in_one_line(rows: ModuleType, tmp_path: Path, lines: list[str], said: str) -> None:
    with pytest.raises(InputError) as error:
        rows.read_plan(plan(tmp_path, *lines))
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_a_row_is_trained_evaluated_and_written_down(rows: ModuleType, tmp_path: Path, trained: Path) -> None:
    (row,) = rows.read_plan(plan(tmp_path, GOOD))
    home, ledger = tmp_path / "runs", tmp_path / "results"
    left = rows.commands(row, home, ledger)
    folder = str(home / "plain")
    assert next(left) == ["train", "digits/plain", "epochs=1", "--out", folder]
    shutil.copytree(trained, folder)
    assert next(left) == ["evaluate", folder, "demo", "--queries", "16"]
    assert list(left) == [["ledger", folder, "--out", str(ledger)]]


def test_what_is_finished_is_left_out_and_what_was_begun_goes_on(rows: ModuleType, home: Path) -> None:
    (row,) = rows.read_plan(plan(home, GOOD))
    first = rows.commands(row, home, home)
    assert next(first)[0] == "evaluate"
    first.close()  # it failed
    assert [command[0] for command in rows.commands(row, home, home)] == ["evaluate", "ledger"]
    assert [command[0] for command in rows.commands(row, home, home)] == ["ledger"]
    (home / "plain" / "model.safetensors").unlink()
    assert next(rows.commands(row, home, None))[-1] == "--resume"


def test_a_finished_run_of_another_line_is_refused(rows: ModuleType, home: Path) -> None:
    (row,) = rows.read_plan(plan(home, GOOD.replace("epochs=1", "epochs=2")))
    with pytest.raises(InputError, match="plain was made with other settings for 'epochs'"):
        list(rows.commands(row, home, None))
    (row,) = rows.read_plan(plan(home, GOOD.replace("epochs=1", "epochs=1 attack_view=fast --precision bf16-mixed")))
    with pytest.raises(InputError, match="other settings for 'attack_view', 'precision'"):
        list(rows.commands(row, home, None))
    (same,) = rows.read_plan(plan(home, GOOD.replace("epochs=1", "epochs=1 --fast")))
    assert next(rows.commands(same, home, None))[0] == "evaluate", "what --fast changes depends on the hardware"


def test_a_surrogate_is_the_folder_of_another_row_and_waited_for(
    rows: ModuleType, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = rows.read_plan(plan(home, "a; digits/plain", "plain; digits/plain epochs=1; transfer --surrogate a"))
    assert next(rows.commands(found[1], home, None))[-2:] == ["--surrogate", str(home / "a")]
    assert rows.Pool(home, None, time.monotonic()).run(found, width=1) == [False, False]
    assert "a: no time is left for train" in (said := capsys.readouterr().out)
    assert "plain: a, to climb on, is not trained" in said


def test_a_process_is_interrupted_when_the_time_is_up_and_a_second_call_goes_on(
    rows: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    found = rows.read_plan(plan(tmp_path, "long; digits/plain epochs=6", "bad; digits/plain --nosuch"))
    home = tmp_path / "runs"
    pool, made = rows.Pool(home, None, time.monotonic() + 60), []
    thread = Thread(target=lambda: made.extend(pool.run(found, width=2)))
    thread.start()
    while thread.is_alive() and not (home / "long" / "results.jsonl").is_file():  # of the first epoch
        time.sleep(0.05)
    pool.until = time.monotonic()
    thread.join()
    assert made == [False, False]
    said = capsys.readouterr().out
    assert "long: train digits/plain epochs=6: " in said and "exit code 130: stopped; the state is saved" in said
    assert "bad: train digits/plain --nosuch: " in said and "exit code 2: error: '--nosuch' is not an option of" in said
    assert rows.Pool(home, None, time.monotonic() + 60).run(found[:1], width=1) == [True]
    typed = [line for line in (home / "long.log").read_text().splitlines() if line.startswith("$")]
    assert [line.endswith(" --resume") for line in typed] == [False, True]
    assert len((home / "long" / "results.jsonl").read_text().split('"kind": "train"')) == 1 + 6


def test_the_row_of_a_finished_run_is_written_though_the_time_is_up(
    rows: ModuleType, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = rows.read_plan(plan(home, GOOD))
    (home / "plain" / "evaluated.txt").write_text(f"evaluate {home / 'plain'} demo --queries 16\n")
    pool = rows.Pool(home, home / "results", time.monotonic())
    pool.run(found, width=1)
    assert "plain: ledger " in capsys.readouterr().out
    pool.stop()
    assert pool.run(found, width=1) == [False]
    assert "plain: no time is left for ledger" in capsys.readouterr().out


def test_the_row_is_written_of_a_suite_that_was_cut(rows: ModuleType, home: Path) -> None:
    class Cut(rows.Pool):  # type: ignore[misc]
        said: ClassVar[list[str]] = []

        def call(self, row: Any, command: list[str]) -> int:
            self.said.append(command[0])
            self._log(row).touch()
            return 130 if command[0] == "evaluate" else 0

    found = rows.read_plan(plan(home, GOOD))
    assert Cut(home, home / "results", time.monotonic() + 60).run(found, width=1) == [False]
    assert Cut.said == ["evaluate", "ledger"], "and the row counts as one that is left"
    Cut.said.clear()
    Cut(home, None, time.monotonic() + 60).run(found, width=1)
    assert Cut.said == ["evaluate"]


def test_a_folder_that_stands_twice_is_left_by_one_line_before_the_next(rows: ModuleType, home: Path) -> None:
    class Watched(rows.Pool):  # type: ignore[misc]
        now: ClassVar[set[str]] = set()
        said: ClassVar[list[str]] = []

        def call(self, row: Any, command: list[str]) -> int:
            assert row.name not in self.now, "two processes write to one folder"
            self.now.add(row.name)
            time.sleep(0.1)
            self.now.remove(row.name)
            self.said.append(command[2])
            return 0

    found = rows.read_plan(plan(home, GOOD, "plain; digits/plain epochs=1; masking; ers28"))
    assert Watched(home, None, time.monotonic() + 60).run(found, width=2) == [True, True]
    assert sorted(Watched.said) == ["demo", "ers28", "masking"] and Watched.said[-1] != "masking"
    assert [row.suites for row in rows.choose(found, ["plain"])[0]] == [
        [["demo", "--queries", "16"]],
        [["masking"], ["ers28"]],
    ]


def crowded(rows: ModuleType, home: Path, room: int) -> Any:
    """A pool whose commands find no memory beside `room` others, as they would on a GPU; the most that ever ran."""

    class Crowded(rows.Pool):  # type: ignore[misc]
        crowd = most = 0

        def call(self, row: Any, command: list[str]) -> int:
            with self.room:
                self.crowd += 1
                self.most = max(self.most, self.crowd)
                full = self.crowd > room
            time.sleep(0.3)  # so that the others begin beside it
            with self.room:
                self.crowd -= 1
            said = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 MiB" if full else "made"
            with self._log(row).open("a") as log:
                log.write(f"$ robustmetric {' '.join(command)}\n{said}\n")
            return int(full)

    return Crowded(home, None, time.monotonic() + 60)


def test_a_row_without_room_in_memory_is_made_when_another_has_ended(
    rows: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = rows.read_plan(plan(tmp_path, *(f"{name}; digits/plain" for name in "abcdef")))
    (tmp_path / "runs" / "d").mkdir(parents=True)
    (tmp_path / "runs" / "d" / "recipe.yaml").touch()  # of a training that was begun
    pool = crowded(rows, tmp_path / "runs", room=2)
    assert pool.run(found, width=4) == [True] * 6
    assert pool.most == 4 and pool.places in (1, 2)
    said = capsys.readouterr().out
    assert re.search("the memory is full with [34]: [123] at a time from here on", said)
    tries = [line for line in (tmp_path / "runs" / "d.log").read_text().splitlines() if line.startswith("$")]
    assert tries and all(line.count("--resume") == 1 for line in tries)


def test_a_row_that_finds_no_room_by_itself_fails(rows: ModuleType, tmp_path: Path) -> None:
    found = rows.read_plan(plan(tmp_path, "a; digits/plain", "b; digits/plain"))
    pool = crowded(rows, tmp_path / "runs", room=0)
    assert pool.run(found, width=2) == [False, False]
    assert pool.places == 1


def test_the_ledger_that_is_refused_says_why(rows: ModuleType, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = rows.read_plan(plan(home, GOOD))
    (home / "plain" / "evaluated.txt").write_text(f"evaluate {home / 'plain'} demo --queries 16\n")
    assert rows.Pool(home, home / "results", time.monotonic() + 60).run(found, width=1) == [False]
    assert "exit code 2: " in (said := capsys.readouterr().out)
    assert "holds no evaluation of its weights by an ers" in said
    assert "plain SUITE`, as ers28" in said, (
        "a bare `evaluate` would run the recipe's own suite, which is none of these"
    )


@pytest.fixture
def call(rows: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., int]]:
    """The exit code of `rows.py` called with these words in an empty folder."""
    monkeypatch.chdir(tmp_path)
    kept = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def called(*words: str) -> int:
        monkeypatch.setattr("sys.argv", ["rows.py", *words])
        return int(rows.main())

    yield called
    for number, handler in kept.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("lines", "options", "code"), [([GOOD], ["--seconds", "0"], 1), (["a"], [], 2), ([], [], 0)])
def test_the_exit_code_says_whether_rows_are_left(
    call: Callable[..., int], tmp_path: Path, lines: list[str], options: list[str], code: int
) -> None:
    assert call(str(plan(tmp_path, *lines)), *options) == code


def test_rows_that_are_left_out_are_not_made_nor_waited_for(
    rows: ModuleType, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = rows.read_plan(plan(home, "a; digits/plain", GOOD, "b; digits/plain; transfer --surrogate a"))
    chosen, others = rows.choose(found, ["b", "plain"])
    assert [row.name for row in chosen] == ["plain", "b"] and others == [found[0]]
    pool = rows.Pool(home, None, time.monotonic() + 60)
    pool.run([], 1, others)
    assert not pool._has(home / "a")  # at once, though there is time
    assert time.monotonic() < pool.start + 30 and rows.choose(found, None) == (found, [])


def test_a_row_that_is_not_in_the_plan_is_refused(
    call: Callable[..., int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(str(plan(tmp_path, GOOD)), "--only", "plane") == 2
    assert capsys.readouterr().err == "--only 'plane' is no row of the plan; expected one of plain\n"


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_no_plan_is_refused_before_its_first_row(
    call: Callable[..., int], path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(str(path), "--seconds", "0") == 1, capsys.readouterr().err


@pytest.fixture
def control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for NVIDIA's program on the path, which writes down what it is told, and takes and fails as asked."""
    path, told = tmp_path / "bin" / "nvidia-cuda-mps-control", tmp_path / "told.txt"
    path.parent.mkdir()
    wrote = '{ echo "$CUDA_MPS_PIPE_DIRECTORY $*"; [ -n "$1" ] || cat; }'
    path.write_text(f"#!/bin/sh\n{wrote} >> {told}\nsleep $TAKES\nexit $FAILS\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", str(path.parent), prepend=os.pathsep)
    for name, value in (("FAILS", "0"), ("TAKES", "0"), ("CUDA_MPS_LOG_DIRECTORY", "logs")):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_MPS_PIPE_DIRECTORY", raising=False)
    return told


def test_a_service_shares_the_gpu_as_long_as_the_rows_run(rows: ModuleType, control: Path) -> None:
    with rows.at_the_same_time() as said:
        folder = os.environ["CUDA_MPS_PIPE_DIRECTORY"]
        assert said == "the GPU is shared" and os.environ["CUDA_MPS_LOG_DIRECTORY"] == folder
        with rows.at_the_same_time() as again:
            assert again == f"the service at {folder} is used"
        assert control.read_text() == f"{folder} -d\n", "and it goes on"
    assert control.read_text() == f"{folder} -d\n{folder} \nquit -t 10\n" and not Path(folder).exists()
    assert "CUDA_MPS_PIPE_DIRECTORY" not in os.environ and os.environ["CUDA_MPS_LOG_DIRECTORY"] == "logs"


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        ("FAILS", "3", "nvidia-cuda-mps-control failed (exit code 3): processes take turns on the GPU"),
        ("TAKES", "3", "nvidia-cuda-mps-control failed (no answer in 0.2 s): processes take turns on the GPU"),
        ("PATH", "", "nvidia-cuda-mps-control is not here: processes take turns on the GPU"),
    ],
)
def test_without_the_service_rows_take_turns(
    rows: ModuleType, control: Path, monkeypatch: pytest.MonkeyPatch, setting: str, value: str, words: str
) -> None:
    monkeypatch.setattr("mps.SECONDS", 0.2 if setting == "TAKES" else 20)
    monkeypatch.setenv(setting, value)
    with rows.at_the_same_time() as said:
        assert words in said and "CUDA_MPS_PIPE_DIRECTORY" not in os.environ
    assert os.environ["CUDA_MPS_LOG_DIRECTORY"] == "logs"


def test_a_service_that_does_not_end_costs_no_row(
    rows: ModuleType, control: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rows.at_the_same_time():
        monkeypatch.setattr("mps.SECONDS", 0.2)
        monkeypatch.setenv("TAKES", "3")
    assert "quit" in control.read_text() and "CUDA_MPS_PIPE_DIRECTORY" not in os.environ


def test_rows_say_whether_they_share_the_gpu(
    call: Callable[..., int], tmp_path: Path, control: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for more, said in (([], False), (["--mps"], True)):
        assert call(str(plan(tmp_path, GOOD)), "--seconds", "0", *more) == 1, "no time is left"
        assert ("the GPU is shared" in capsys.readouterr().out) == control.is_file() == said


def protocol_of(spec: dict[str, Any], asked: dict[str, Any]) -> str:
    """The protocol of a row that is evaluated so; refused where it is none."""
    replays = 4 if spec["defence"]["name"] == "free_hm" else 1
    clustered = is_clustering(load_suite(asked["suite"]))
    queries, whole = asked["queries"] or 0, asked["queries"] is None
    rate, epochs = spec["optimiser"]["rate"], spec["epochs"]
    return protocol(spec["data"]["name"], epochs, rate, queries, whole, replays=replays, clustered=clustered)


@pytest.mark.parametrize("path", PLANS, ids=lambda path: path.stem)
def test_every_line_of_a_plan_can_be_made(rows: ModuleType, path: Path) -> None:
    assert path.read_text().startswith("# "), "expected a header that says what the plan makes"
    for row in rows.read_plan(path):
        typed = parsed("train", *row.train)
        spec, where = resolve(typed["recipe"], typed["overrides"] or [])
        defence = without_pretrained({"model": spec["defence"]})["model"]  # the models in one may begin from a file
        recipe.build(defence, NAMES, f"{where}.defence", {"classes": 10, "dim": 16})
        found = set()
        for words in row.suites:
            asked = parsed("evaluate", row.name, *words)
            check_search(load_suite(asked["suite"], surrogate=asked["surrogate"]), asked["search"])
            if asked["suite"].startswith((*SUITES, "clustering")):
                found.add(protocol_of(spec, asked))
        assert len(found) == bool(row.suites), f"{row.name} is of protocols {found}"
        for name in found - {"full", "scaled"}:
            assert row.name.endswith(f"-{name}")


def test_a_folder_is_trained_alike_in_all_plans(rows: ModuleType) -> None:
    seen: dict[str, list[str]] = {}
    for path in PLANS:
        for row in rows.read_plan(path):
            assert seen.setdefault(row.name, row.train) == row.train, row.name
    assert len(seen) > len(PLANS)


def test_options_are_no_settings(rows: ModuleType) -> None:
    row = rows.Row("a", ["digits/plain", "epochs=2", "--precision", "bf16-mixed", "seed=3"], [])
    assert row.resolve() == resolve("digits/plain", ["epochs=2", "seed=3"])[0]
