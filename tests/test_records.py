"""Records: one JSON line each, whole after a crash, light to import."""

import json
import multiprocessing
import subprocess
import sys
import threading
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from commands import environment
from robustmetric import records
from robustmetric.errors import InputError
from robustmetric.records import Record

RECORD = Record("attack", "ES", {"ES:R": 12.5}, {"radius": 8 / 255}, {"ES:R": (10.0, 15.0)}, count=8, seed=1)
numbers = st.floats(allow_nan=False, allow_infinity=False)


@given(st.dictionaries(st.text(max_size=4), numbers, max_size=4), st.integers(0, 9))
def test_what_is_written_reads_back(scores: dict[str, float], seed: int) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "new" / "results.jsonl"
        written = [replace(RECORD, scores=scores, seed=seed), RECORD]
        for record in written:
            records.append(path, record)
        assert records.read(path) == written


def test_a_key_is_name_settings_and_seed_only() -> None:
    assert replace(RECORD, scores={}, count=0, seconds=3.0, context={"a": 1}).key == RECORD.key
    for changed in (
        replace(RECORD, seed=2),
        replace(RECORD, name="CA+"),
        replace(RECORD, kind="clean"),
        replace(RECORD, settings={"radius": 0.1}),
    ):
        assert changed.key != RECORD.key
    turned = replace(RECORD, settings={"a": 1, "b": 2}), replace(RECORD, settings={"b": 2, "a": 1})
    assert turned[0].key == turned[1].key


def test_the_latest_of_each_key_in_order_of_first_appearance() -> None:
    other = replace(RECORD, name="CA+")
    newer = replace(RECORD, scores={"ES:R": 1.0})
    assert records.latest([RECORD, other, newer]) == [newer, other]


@pytest.mark.parametrize("left", [b'{"kind": "att', b"\0\0\0\0", b"\xff\xfe\x80"], ids=["half", "zeros", "no text"])
def test_a_last_line_that_a_crash_spoilt_is_passed_over_and_never_grown_onto(tmp_path: Path, left: bytes) -> None:
    path = tmp_path / "results.jsonl"
    records.append(path, RECORD)
    whole = path.read_bytes()
    path.write_bytes(whole + left)
    assert records.read(path) == [RECORD]
    records.append(path, replace(RECORD, seed=2))
    assert [record.seed for record in records.read(path)] == [1, 2]
    assert path.read_bytes().startswith(whole)


def test_a_last_line_that_lacks_its_end_only_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "results.jsonl"
    records.append(path, RECORD)
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    records.append(path, replace(RECORD, seed=2))
    assert [record.seed for record in records.read(path)] == [1, 2]


def add(path: Path, seed: int) -> None:
    """So many long records, whose lines take a while to write and to read."""
    for place in range(25):
        records.append(path, replace(RECORD, name=str(place), settings={"long": "x" * 300_000}, seed=seed))


def test_processes_that_add_at_once_lose_no_record_and_tear_none(tmp_path: Path) -> None:
    path, spawning = tmp_path / "results.jsonl", multiprocessing.get_context("spawn")
    adding = [spawning.Process(target=add, args=(path, seed)) for seed in range(3)]
    for process in adding:
        process.start()
    for process in adding:
        process.join(timeout=120)
    found = [(record.seed, record.name) for record in records.read(path)]
    assert sorted(found) == sorted((seed, str(place)) for seed in range(3) for place in range(25))


def test_half_a_line_of_a_process_that_lives_is_waited_for(tmp_path: Path) -> None:
    path, line = tmp_path / "results.jsonl", json.dumps(asdict(RECORD)).encode() + b"\n"
    other = threading.Thread(target=records.append, args=(path, replace(RECORD, seed=2)))
    with records.held(path) as file:
        file.write(line[:40])
        file.flush()
        other.start()
        other.join(timeout=0.2)
        assert other.is_alive() and records.read(path) == []
        file.write(line[40:])
    other.join(timeout=60)
    assert [record.seed for record in records.read(path)] == [1, 2]


def test_where_files_cannot_be_locked_records_are_added_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)  # as on Windows
    records.append(tmp_path / "results.jsonl", RECORD)
    assert records.read(tmp_path / "results.jsonl") == [RECORD]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"\xff\xfe", "line 1: not a JSON record"),
        (b"{half", "line 1: not a JSON record"),
        (b"3", "line 1: not a record of this version"),
        (b'{"kind": "clean", "colour": 1}', "line 1: not a record of this version"),
    ],
)
def test_a_line_that_is_no_record_is_named(tmp_path: Path, line: bytes, message: str) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(line + b"\n")
    records.append(path, RECORD)
    with pytest.raises(InputError, match=message):
        records.read(path)


def test_no_results_say_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="run `robustmetric evaluate`"):
        records.read(tmp_path / "results.jsonl")


def test_the_context_says_what_it_takes_to_repeat_a_result() -> None:
    context = records.context("2 CPU cores")
    assert context["hardware"] == "2 CPU cores"
    assert {"torch", "numpy", "robustmetric"} <= set(context["versions"])
    assert context["commit"].startswith("release") or len(context["commit"].rstrip("+")) == 40
    assert context["python"] == ".".join(map(str, sys.version_info[:3]))


def test_a_small_json_file_is_written_whole(tmp_path: Path) -> None:
    records.write_json(tmp_path / "run.json", {"a": 1})
    assert json.loads((tmp_path / "run.json").read_text()) == {"a": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_importing_the_package_and_its_records_leaves_torch_out() -> None:
    code = "import sys, robustmetric, robustmetric.records; assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_package_offers_its_names_and_refuses_others() -> None:
    import robustmetric

    assert robustmetric.InputError is InputError
    assert {"evaluate", "attack", "Encoder"} <= set(dir(robustmetric))
    with pytest.raises(AttributeError, match="nothing_like_it"):
        robustmetric.nothing_like_it  # noqa: B018  # asking is the test
