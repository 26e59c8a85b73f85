"""Export: a trained run as files other programs read: safetensors with its recipe, and ONNX."""

import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import nn
from torch.onnx import OnnxExporterError

from robustmetric.errors import InputError
from robustmetric.jobs import assemble
from robustmetric.jobs.folder import RunFolder, atomically
from robustmetric.jobs.progress import say
from robustmetric.jobs.workers import quiet
from robustmetric.recipe import Spec


def export(run: Path, out: Path | None = None, onnx: Path | None = None) -> list[Path]:
    """Copy weights and recipe to `out`; write an ONNX graph to `onnx` (pixels in [0, 1] in, embeddings out)."""
    folder = RunFolder(run)
    model, spec = assemble.load_run(run)
    written = []
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for source in (folder.weights, folder.recipe):
            atomically(out / source.name, lambda partial, source=source: shutil.copyfile(source, partial))  # type: ignore[misc]  # default binds the loop variable
            written.append(out / source.name)
    if onnx is not None:
        say("tracing the model into an ONNX graph")
        sample = torch.zeros(2, *_input_shape(folder, spec))
        atomically(onnx, lambda partial: write_onnx(model, sample, partial))
        written.append(onnx)
    return written


def _input_shape(folder: RunFolder, spec: Mapping[str, Spec]) -> tuple[int, ...]:
    """What the model sees of one input, as training noted it; a run without the note needs its data once more."""
    try:
        facts = json.loads(folder.summary.read_text())
    except (OSError, ValueError):
        facts = {}
    shape = facts.get("input_shape") if isinstance(facts, dict) else None
    if isinstance(shape, list) and shape and all(isinstance(size, int) and size > 0 for size in shape):
        return tuple(shape)
    queries = assemble.load_data(spec, str(folder.path)).queries
    if queries.inputs.dtype != torch.uint8:
        return queries.shape
    view = assemble.load_view(spec, str(folder.path))
    return tuple(view(queries.inputs[:1], queries.sizes[:1], None).shape[1:])


def write_onnx(model: nn.Module, sample: torch.Tensor, path: Path) -> None:
    """One ONNX file, weights inside, any batch size."""
    try:
        import onnx
        import onnxscript  # noqa: F401  # torch's exporter needs it
    except ImportError as error:
        raise InputError("--onnx needs the extra: pip install 'robustmetric[onnx]'") from error
    onnx.save(_traced(model, sample).model_proto, str(path))


def _traced(model: nn.Module, sample: torch.Tensor) -> torch.onnx.ONNXProgram:
    """The model as a graph, or in one line what of it cannot be one."""
    try:
        with quiet(), torch.no_grad():
            program = torch.onnx.export(
                model.eval(),
                (sample,),
                input_names=["images"],
                output_names=["embeddings"],
                dynamic_shapes=({0: torch.export.Dim("batch")},),
                dynamo=True,
                verbose=False,
            )
    except OnnxExporterError as error:
        cause = error.__cause__ or error
        told = next((line.strip() for line in str(cause).splitlines() if line.strip()), type(cause).__name__)
        place = re.search(r'File "([^"]+)", line (\d+), in (\w+)', str(cause))
        where = f", at {Path(place[1]).name}:{place[2]} ({place[3]})" if place else ""
        raise InputError(
            f"this model cannot be an ONNX graph: {told[:200]}{where}; expected no branch that depends on values "
            "(torchvision's Normalize has one: let `Encoder(network, mean=..., std=...)` do its work)"
        ) from error
    if program is None:
        raise InputError("torch could not export this model to ONNX")
    return program
