"""Rows of the ledger as run folders again, and as encoders: the zoo's own, as anybody would use them."""

import json
import shutil
from pathlib import Path

import onnx
import pytest
import torch
from safetensors.torch import load_file

import robustmetric
from commands import Command
from robustmetric import recipe
from robustmetric.errors import InputError
from robustmetric.jobs.export import export
from robustmetric.jobs.folder import RunFolder
from robustmetric.jobs.ledger import write_rows
from robustmetric.jobs.unpack import unpack
from robustmetric.jobs.zoo import keep

ROOT = Path(__file__).parents[2]
NAME = "cub-mobilenet_v2-act-eta8-short-seed0"
ROW = ROOT / "results" / "cub" / f"{NAME}.json"
COPY = ROOT / "zoo" / f"{NAME}.safetensors"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(ROW, tmp_path_factory.mktemp("runs") / "act")


def test_a_run_folder_has_the_rows_recipe_weights_and_facts(run: Path) -> None:
    folder, row = RunFolder(run), json.loads(ROW.read_text())
    spec, facts = folder.read_recipe(), json.loads(folder.summary.read_text())
    assert (spec["defence"]["name"], spec["epochs"], spec["optimiser"]["rate"]) == ("act", 15, 3e-5)
    assert "weights" not in spec["model"], "nobody needs what training began from"
    assert {key: facts[key] for key in ("commit", "hardware", "collapsed")} == {
        key: row[key] for key in ("commit", "hardware", "collapsed")
    }
    assert facts["unpacked"] == NAME and facts["name"] == "act"
    assert row["command"].startswith(f"{facts['command']} && robustmetric evaluate ")
    found, copied = load_file(folder.weights), load_file(COPY)
    assert found.keys() == copied.keys()
    for name, value in copied.items():
        torch.testing.assert_close(found[name], value.to(found[name].dtype), rtol=0, atol=0)


def test_the_folder_it_was_trained_in_is_forgotten(tmp_path: Path) -> None:
    row = ROW.with_name("cub-mobilenet_v2-act-eta8-full_3e-5-seed0.json")
    assert " --out runs/act-full_3e-5 && " in json.loads(row.read_text())["command"]
    facts = json.loads(RunFolder(unpack(row, tmp_path / "new")).summary.read_text())
    assert facts["command"].endswith("optimiser.rate=3e-5 --precision bf16-mixed") and facts["name"] == "new"


def test_the_row_and_its_folder_are_one_encoder_that_can_be_attacked(run: Path) -> None:
    torch.manual_seed(0)
    images, labels = torch.randint(256, (4, 3, 64, 64)) / 255, torch.tensor([0, 0, 1, 1])
    encoder, again = robustmetric.load(ROW), robustmetric.load(run)
    with torch.no_grad():
        embeddings = encoder(images)
        torch.testing.assert_close(again(images), embeddings, rtol=0, atol=0)
    assert not encoder.training and embeddings.shape == (4, 512)
    torch.testing.assert_close(embeddings.norm(dim=1), torch.ones(4))
    moved = robustmetric.attack(encoder, images, labels, "ES", radius=8 / 255)
    with torch.no_grad():
        shift = (encoder(moved) - embeddings).norm(dim=1)
    assert (shift > 0.05).all() and float((moved - images).abs().max()) <= 8 / 255 + 1e-6


def test_it_is_exported_without_the_data(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROBUSTMETRIC_DATA", raising=False)
    (path,) = export(run, onnx=tmp_path / "encoder.onnx")
    graph = onnx.load(path).graph
    assert [size.dim_value for size in graph.input[0].type.tensor_type.shape.dim][1:] == [3, 224, 224]


def test_a_run_is_loaded_where_the_file_it_began_from_is_not(run: Path, tmp_path: Path) -> None:
    moved = RunFolder(shutil.copytree(run, tmp_path / "elsewhere"))
    spec = moved.read_recipe()
    spec["model"] = {**spec["model"], "weights": "gone.pth"}
    recipe.save(spec, moved.recipe)
    (path, _) = export(moved.path, out=tmp_path / "exported")
    assert load_file(path).keys() == load_file(COPY).keys()


def test_numbers_of_a_copy_make_no_row_of_the_original(run: Path, tmp_path: Path) -> None:
    for job in (lambda: write_rows([run], tmp_path / "cub"), lambda: keep(run, tmp_path / "zoo")):
        with pytest.raises(InputError, match=f"other weights than those of row {NAME}"):
            job()
    assert not any(tmp_path.iterdir())


def test_what_cannot_be_unpacked_is_said_in_a_line(run: Path, tmp_path: Path, command: Command) -> None:
    with pytest.raises(InputError, match="is there already"):
        unpack(ROW, run)
    fitted = ROOT / "results" / "tabular" / "digits-arml-seed0.json"
    for job in (unpack, robustmetric.load):
        with pytest.raises(InputError, match="was fitted, not trained"):
            job(fitted)
        with pytest.raises(InputError, match=r"none\.json does not exist; expected a row of the ledger"):
            job(tmp_path / "none.json")
    lonely = tmp_path / "results" / "cub" / ROW.name
    lonely.parent.mkdir(parents=True)
    shutil.copy(ROW, lonely)
    result = command("unpack", str(lonely), "-o", str(tmp_path / "new"))
    assert result.code == 2 and "or --model with a file or run folder" in result.error
    other = ROOT / "zoo" / "cub-mobilenet_v2-plain-short-seed0.safetensors"
    result = command("unpack", str(lonely), "-o", str(tmp_path / "new"), "--model", str(other))
    assert result.code == 2 and "has other weights" in result.error
    assert not (tmp_path / "new").exists()
    result = command("unpack", str(lonely), "-o", str(tmp_path / "new"), "--model", str(COPY))
    assert result.code == 0 and (tmp_path / "new" / "model.safetensors").is_file()
