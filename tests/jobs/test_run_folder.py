"""The run folder: every file whole or not at all, weights tied to records by a fingerprint."""

import errno
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import SafetensorError
from torch import nn

from robustmetric import recipe, records
from robustmetric.errors import InputError
from robustmetric.jobs.folder import RunFolder, atomically, fingerprint, load_arrays, save_arrays, summarise
from robustmetric.records import Record

CPU = torch.device("cpu")


def test_what_is_saved_is_loaded(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "new" / "run")
    model, other = nn.Linear(2, 3), nn.Linear(2, 3)
    folder.save_weights(model)
    with pytest.raises(InputError, match="is not a run folder"):
        folder.read_recipe()
    folder.load_weights(other)
    assert torch.equal(model.weight, other.weight)
    folder.save_state({"epoch": 3, "model": model.state_dict()})
    assert folder.load_state(CPU)["epoch"] == 3
    folder.begin({"seed": 1}, {"name": "run"})
    assert folder.read_recipe() == {"seed": 1}
    assert not list(folder.path.glob("*.part"))


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "the disk is full; the previous one is intact; free some"),
        (RuntimeError("enforce\n  fail"), "could not be saved: enforce fail; the previous one is intact"),
        (SafetensorError("broken"), "could not be saved: broken"),
        (InputError("needs the extra"), "^needs the extra$"),
    ],
)
def test_a_failure_half_way_leaves_the_old_file_as_it_was(tmp_path: Path, failure: Exception, message: str) -> None:
    path = tmp_path / "state.pt"
    path.write_bytes(b"old")

    def write(partial: Path) -> None:
        partial.write_bytes(b"ne")
        raise failure

    with pytest.raises(InputError, match=message):
        atomically(path, write)
    assert path.read_bytes() == b"old"
    assert [p.name for p in tmp_path.iterdir()] == ["state.pt"]


@pytest.mark.parametrize("kind", ["state", "weights"])
def test_a_full_disk_is_called_by_its_name(tmp_path: Path, kind: str) -> None:
    folder, model = RunFolder(tmp_path), nn.Linear(300, 300)

    def save() -> None:
        folder.save_state({"model": model.state_dict()}) if kind == "state" else folder.save_weights(model)

    save()
    path = folder.state if kind == "state" else folder.weights
    before = path.read_bytes()
    # Every write to this device fails for want of space.
    path.with_suffix(path.suffix + ".part").symlink_to("/dev/full")
    with pytest.raises(InputError, match="the disk is full; the previous one is intact"):
        save()
    assert path.read_bytes() == before
    save()


def test_a_failing_torch_save_keeps_the_old_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder(tmp_path)
    folder.save_state({"epoch": 1})

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(InputError, match="the disk is full"):
        folder.save_state({"epoch": 2})
    assert folder.load_state(CPU) == {"epoch": 1}


def test_a_missing_state_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no training state to resume"):
        RunFolder(tmp_path).load_state(CPU)


def test_the_fingerprint_sees_names_and_values() -> None:
    torch.manual_seed(0)
    model = nn.Linear(2, 2)
    before = fingerprint(model)
    assert fingerprint(model) == before
    assert fingerprint(nn.Sequential(model)) != before
    with torch.no_grad():
        model.bias[0] += 1e-6
    assert fingerprint(model) != before


def test_a_summary_names_the_inner_architecture() -> None:
    context = {"commit": "abc", "hardware": "CPU", "versions": {}}
    spec = {
        "data": {"name": "cub"},
        "model": {"name": "backbone", "architecture": "resnet18"},
        "defence": {"name": "est"},
    }
    found = summarise(spec, "run", context)
    assert (found["data"], found["model"], found["defence"], found["seed"]) == ("cub", "resnet18", "est", 0)
    assert summarise({"model": {"name": "encoder", "trunk": {"name": "convnet"}}}, "run", context)["model"] == "convnet"
    assert summarise({"model": "own"}, "run", context)["data"] == "-"


def test_a_record_of_work_that_was_done_before_stays(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    first = Record("certified", "1-NN", {"area": 0.5}, {"points": 10})
    assert folder.keep(first) == first
    assert folder.keep(replace(first, scores={"area": 0.7})) == first, "the same work"
    other = replace(first, settings={"points": 20})
    assert folder.keep(other) == other
    assert list(folder.finished().values()) == [first, other]
    again = replace(first, scores={"area": 0.7})
    assert folder.keep(again, anew=True) == again
    assert list(folder.finished().values()) == [again, other]


def test_arrays_that_two_write_at_once_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, save = tmp_path / "a.npz", np.savez_compressed

    def meanwhile(file, **arrays):  # type: ignore[no-untyped-def]  # as it is
        monkeypatch.setattr(np, "savez_compressed", save)
        with monkeypatch.context() as patch:
            patch.setattr(os, "getpid", lambda: -1)
            save_arrays(path, {"a": np.arange(3)})
        save(file, **arrays)

    monkeypatch.setattr(np, "savez_compressed", meanwhile)
    save_arrays(path, {"a": np.arange(3)})
    found = load_arrays(path)
    assert found is not None and found["a"].tolist() == [0, 1, 2]
    assert [one.name for one in tmp_path.iterdir()] == ["a.npz"]


def test_a_folder_that_was_not_begun_to_the_end_has_no_recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A training that goes on where there is one ends by marking the summary, and would fail after its last epoch."""
    folder = RunFolder(tmp_path / "run")
    for module, name in ((records, "write_json"), (recipe, "save")):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(module, name, killed)
            folder.begin({"seed": 1}, {"name": "run"})
        assert not folder.recipe.exists()


def killed(*_: object) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("name", ["model.safetensors", "state.pt", "certified", "results.jsonl"])
def test_a_folder_is_nobodys_until_something_was_made_there(name: str, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    assert folder.is_nobodys and not folder.path.exists()
    folder.begin({"seed": 1}, {"name": "run"})
    (folder.path / "results.jsonl").write_text('{"kind": "cle')  # cut short
    assert folder.is_nobodys
    if name == "results.jsonl":
        folder.keep(Record("clean", "clean", {}))
    else:
        (folder.path / name).touch()
    assert not folder.is_nobodys


def test_a_folder_in_which_a_training_has_saved_nothing_yet_is_the_trainings(tmp_path: Path) -> None:
    folder, begun = RunFolder(tmp_path / "run"), []
    folder.begin({"seed": 1}, {"name": "run"})
    with folder.held():
        assert not folder.is_nobodys
        folder.keep(Record("clean", "clean", {}), begin=lambda: begun.append(1))
    assert not begun and folder.finished()
