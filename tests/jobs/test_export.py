"""Export: weights and recipe as they were, and an ONNX graph that computes what torch computes."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from commands import Command
from robustmetric.errors import InputError
from robustmetric.jobs import assemble
from robustmetric.jobs.export import export, write_onnx
from robustmetric.jobs.folder import RunFolder


def test_weights_and_recipe_are_copied(trained: Path, command: Command, tmp_path: Path) -> None:
    done = command("export", trained, "--out", "deep/out")
    assert done.code == 0 and done.out.split() == ["deep/out/model.safetensors", "deep/out/recipe.yaml"]
    for name in ("model.safetensors", "recipe.yaml"):
        assert (tmp_path / "deep" / "out" / name).read_bytes() == (trained / name).read_bytes()


def test_a_model_that_is_no_graph_is_told_in_a_line_with_its_place(tmp_path: Path) -> None:
    from torchvision.transforms import Normalize

    with pytest.raises(InputError, match=r"no branch that depends on values .*Encoder") as told:
        write_onnx(
            torch.nn.Sequential(Normalize((0.4, 0.5, 0.6), (0.2, 0.2, 0.2))),
            torch.zeros(2, 3, 8, 8),
            tmp_path / "a.onnx",
        )
    assert "_functional_tensor.py:" in str(told.value) and "(normalize)" in str(told.value)
    assert "\n" not in str(told.value) and len(str(told.value)) < 500


def test_onnx_computes_what_torch_computes_for_any_batch(trained: Path, tmp_path: Path) -> None:
    import onnxruntime

    path = tmp_path / "encoder.onnx"
    assert export(trained, onnx=path) == [path]
    folder = RunFolder(trained)
    spec = folder.read_recipe()
    model = assemble.load_model(spec, "run")
    folder.load_weights(model)
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for batch in (1, 2, 7):
        images = torch.rand(batch, 1, 8, 8, generator=torch.Generator().manual_seed(batch))
        (found,) = session.run(None, {session.get_inputs()[0].name: images.numpy()})
        with torch.no_grad():
            expected = model.eval()(images).numpy()
        assert found.shape == expected.shape == (batch, 64)
        assert np.abs(found - expected).max() < 1e-5
    assert [p.name for p in tmp_path.iterdir()] == ["encoder.onnx"], "one file, weights inside"


def test_the_input_shape_of_a_run_spares_its_data(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = shutil.copytree(trained, tmp_path / "run")
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**facts, "input_shape": [1, 8, 8]}))
    with monkeypatch.context() as patch:
        patch.setattr(assemble, "load_data", lambda *_: pytest.fail("the data were loaded"))
        export(run, onnx=tmp_path / "noted.onnx")
    for text in (json.dumps({k: v for k, v in facts.items() if k != "input_shape"}), "cut sho"):
        (run / "run.json").write_text(text)
        export(run, onnx=tmp_path / "found.onnx")
        assert (tmp_path / "found.onnx").read_bytes() == (tmp_path / "noted.onnx").read_bytes()


def test_nothing_to_export_is_said(trained: Path, command: Command) -> None:
    assert "nothing to export was named" in command("export", trained).error


def test_a_folder_that_is_no_run_is_not_exported(tmp_path: Path, command: Command) -> None:
    assert "is not a run folder" in command("export", tmp_path, "--out", "out").error


def test_a_missing_extra_is_named(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(InputError, match=r"^--onnx needs the extra: pip install 'robustmetric\[onnx\]'$"):
        export(trained, onnx=tmp_path / "encoder.onnx")
    assert not list(tmp_path.iterdir())
