"""Export: a trained run as files other programs read: safetensors with its recipe, and ONNX."""

import shutil
from pathlib import Path

import torch
from torch import nn

from robustmetric.errors import InputError
from robustmetric.jobs import assemble
from robustmetric.jobs.folder import RunFolder, atomically
from robustmetric.jobs.workers import quiet


def export(run: Path, out: Path | None = None, onnx: Path | None = None) -> list[Path]:
    """Copy weights and recipe to `out`; write an ONNX graph to `onnx` (pixels in [0, 1] in, embeddings out)."""
    folder = RunFolder(run)
    spec = folder.read_recipe()
    model = assemble.load_model(spec, str(run))
    folder.load_weights(model)
    written = []
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        for source in (folder.weights, folder.recipe):
            atomically(out / source.name, lambda partial, source=source: shutil.copyfile(source, partial))  # type: ignore[misc]  # default binds the loop variable
            written.append(out / source.name)
    if onnx is not None:
        dataset = assemble.load_data(spec, str(run))
        rows = torch.arange(min(2, len(dataset.queries.labels)))
        view = assemble.load_view(spec, str(run))
        sample = view(dataset.queries.inputs[rows], dataset.queries.sizes[rows], None)
        atomically(onnx, lambda partial: write_onnx(model, sample, partial))
        written.append(onnx)
    return written


def write_onnx(model: nn.Module, sample: torch.Tensor, path: Path) -> None:
    """One ONNX file, weights inside, any batch size."""
    try:
        import onnx
        import onnxscript  # noqa: F401  # torch's exporter needs it
    except ImportError as error:
        raise InputError("--onnx needs the extra: pip install 'robustmetric[onnx]'") from error
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
    if program is None:
        raise InputError("torch could not export this model to ONNX")
    onnx.save(program.model_proto, str(path))
