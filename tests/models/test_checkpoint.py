"""Weights are read without executing code, and what does not fit is said in one line."""

import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from robustmetric.errors import InputError
from robustmetric.models.checkpoint import find_weights, load_weights, read_state


def network(width: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width))


@pytest.mark.parametrize("name", ["w.safetensors", "w.pth"])
@pytest.mark.parametrize("wrapper", [None, "state_dict", "model"])
def test_what_is_saved_is_read_and_loaded(tmp_path: Path, name: str, wrapper: str | None) -> None:
    state = network().state_dict()
    if name.endswith("pth"):
        torch.save(state if wrapper is None else {wrapper: state, "epoch": 3}, tmp_path / name)
    else:
        save_file(state, tmp_path / name)
    other = network()
    load_weights(other, read_state(tmp_path / name), source=name)
    assert all(torch.equal(value, state[key]) for key, value in other.state_dict().items())


@pytest.mark.parametrize("name", ["w.safetensors", "w.pth"])
@pytest.mark.parametrize("kept", [0, 10, 300])
def test_a_truncated_file_is_refused(tmp_path: Path, name: str, kept: int) -> None:
    path = tmp_path / name
    if name.endswith("pth"):
        torch.save(network(50).state_dict(), path)
    else:
        save_file(network(50).state_dict(), path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(InputError, match=r"truncated|damaged") as error:
        read_state(path)
    assert "\n" not in str(error.value)


class Trap:
    """Would run code when unpickled."""

    def __reduce__(self) -> tuple:
        return (pytest.fail, ("code in the checkpoint was executed",))


def test_code_in_a_checkpoint_is_never_run(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    torch.save({"weight": Trap()}, path)
    with pytest.raises(InputError, match="never loaded"):
        read_state(path)
    path.write_bytes(pickle.dumps(Trap(), protocol=2))
    with pytest.raises(InputError):
        read_state(path)


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    torch.save([torch.zeros(1)], tmp_path / "w.pth")
    with pytest.raises(InputError, match="expected a state_dict"):
        read_state(tmp_path / "w.pth")
    with pytest.raises(InputError, match="does not exist"):
        read_state(tmp_path / "absent.pth")


def test_another_architecture_is_described_in_one_line() -> None:
    state = {"0.weight": torch.zeros(3, 2), "0.bias": torch.zeros(4), "2.weight": torch.zeros(1)}
    with pytest.raises(InputError) as error:
        load_weights(network(), state, source="w.pth")
    text = str(error.value)
    # Seven tensors of ours: weight and bias, then weight, bias, mean, variance and the counter, which is never missed.
    assert "4 of 7 tensors missing, such as '1.weight'" in text
    assert "1 unexpected, such as '2.weight'" in text
    assert "1 of another shape, such as '0.bias': (4,) where (3,) is expected" in text
    assert text.startswith("w.pth belongs to another architecture") and "\n" not in text


def test_a_refused_checkpoint_changes_nothing() -> None:
    module = network()
    before = {key: value.clone() for key, value in module.state_dict().items()}
    with pytest.raises(InputError):
        load_weights(module, {"0.weight": torch.full((3, 2), 7.0)}, source="w.pth")
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())


def test_a_classifier_may_be_left_over_and_counters_may_be_missing() -> None:
    module = network()
    state = {k: v + 1 for k, v in module.state_dict().items() if not k.endswith("num_batches_tracked")}
    load_weights(module, {**state, "fc.weight": torch.zeros(9)}, source="w.pth", ignore=("fc.",))
    assert torch.equal(module.state_dict()["0.bias"], state["0.bias"])
    with pytest.raises(InputError, match=r"1 unexpected, such as 'fc.weight'"):
        load_weights(module, {**state, "fc.weight": torch.zeros(9)}, source="w.pth")


def test_weights_are_found_here_and_under_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weights").mkdir()
    file = tmp_path / "weights" / "w.pth"
    file.touch()
    assert find_weights(str(file)) == file
    monkeypatch.setenv("ROBUSTMETRIC_DATA", str(tmp_path))
    assert find_weights("weights/w.pth") == file
    with pytest.raises(InputError, match="ROBUSTMETRIC_DATA"):
        find_weights("weights/absent.pth")
