"""The zoo: small copies that say whose they are, each beside its row, and none that is not as it was written."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from robustmetric.errors import InputError
from robustmetric.jobs import zoo
from robustmetric.jobs.folder import state_fingerprint
from robustmetric.jobs.zoo import LARGEST, TOTAL, weights_for, write_copy

ROOT = Path(__file__).parents[2]
COPIES = sorted((ROOT / "zoo").glob("*.safetensors"))
STATE = {"weight": torch.tensor([1.0, 1 / 3]), "count": torch.tensor(7)}


def row(state: dict[str, torch.Tensor] | None = None) -> dict[str, Any]:
    return {"id": "digits-convnet-plain-seed0", "weights_sha256": state_fingerprint(state or STATE)}


@pytest.mark.parametrize("path", COPIES, ids=lambda path: path.stem)
def test_a_committed_copy_is_small_and_of_its_row(path: Path) -> None:
    assert path.stat().st_size <= LARGEST
    (file,) = (ROOT / "results").glob(f"*/{path.stem}.json")
    state = weights_for(json.loads(file.read_text()), path)
    assert {value.dtype for value in state.values()} <= {torch.float16, torch.int64}
    assert f"`{path.stem}`" in (ROOT / "zoo" / "README.md").read_text()


def test_the_committed_copies_are_few() -> None:
    assert COPIES and sum(path.stat().st_size for path in COPIES) <= TOTAL
    assert [path.name for path in (ROOT / "zoo").iterdir() if path not in COPIES] == ["README.md"]


def test_the_same_weights_make_the_same_file_in_half_precision(tmp_path: Path) -> None:
    path = write_copy(STATE, row(), tmp_path / "one")
    assert path.name == "digits-convnet-plain-seed0.safetensors"
    assert len({write_copy(STATE, row(), tmp_path / str(i)).read_bytes() for i in range(8)} | {path.read_bytes()}) == 1
    found = weights_for(row(), path)
    # 1/3 in half precision: 1365 / 4096, which has the 11 binary digits there are.
    assert found["weight"].tolist() == [1.0, 1365 / 4096] and found["count"].tolist() == 7


def test_weights_of_another_row_and_changed_copies_are_refused(tmp_path: Path) -> None:
    path = write_copy(STATE, row(), tmp_path)
    other = row({"weight": torch.zeros(2)})
    with pytest.raises(InputError, match="has other weights"):
        weights_for(other, path)
    from safetensors import safe_open

    with safe_open(path, framework="pt") as file:
        told = file.metadata()
    save_file({**load_file(path), "count": torch.tensor(8)}, path, told)
    with pytest.raises(InputError, match="is not as it was written"):
        weights_for(row(), path)


def test_the_weights_themselves_are_the_rows_too(tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "model.safetensors")
    assert torch.equal(weights_for(row(), tmp_path / "model.safetensors")["weight"], STATE["weight"])
    save_file({**STATE, "weight": STATE["weight"].half()}, tmp_path / "nameless.safetensors")
    with pytest.raises(InputError, match="has other weights"):
        weights_for(row(), tmp_path / "nameless.safetensors")


def test_what_half_precision_or_the_zoo_cannot_hold_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="'weight' has numbers beyond the 65504"):
        write_copy({"weight": torch.tensor([70000.0])}, row(), tmp_path)
    size = write_copy(STATE, row(), tmp_path).stat().st_size
    monkeypatch.setattr(zoo, "TOTAL", 2 * size - 1)
    write_copy(STATE, row(), tmp_path)  # over its old self
    with pytest.raises(InputError, match="remove one"):
        write_copy(STATE, {**row(), "id": "digits-convnet-plain-seed1"}, tmp_path)
    monkeypatch.setattr(zoo, "LARGEST", size - 1)
    with pytest.raises(InputError, match="keep a smaller model"):
        write_copy(STATE, row(), tmp_path)
