"""Unpack: a row of the ledger + its weights -> a run folder, which every command takes as if it was trained here."""

from pathlib import Path

from torch import nn

from robustmetric.data.transforms import CentreCrop
from robustmetric.errors import InputError
from robustmetric.jobs import assemble
from robustmetric.jobs.folder import RunFolder, summarise
from robustmetric.jobs.row_model import RowModel, read, weights_file
from robustmetric.report.ledger import Row


def unpack(path: Path, out: Path | None = None, model: Path | None = None) -> Path:
    """The run folder of a row, by default `runs/<id>`; its numbers stay in the row."""
    row = _trained(path)
    folder = RunFolder(out or Path("runs") / row["id"])
    if folder.path.exists():
        raise InputError(f"{folder.path} is there already; expected a new folder: name one with -o, or remove it")
    found = RowModel.of(row, weights_file(path, model))
    # Without the weights that training began from, so that nobody needs them to load those it ended with.
    spec = assemble.without_pretrained(found.spec)
    view = assemble.load_view(spec, found.where)
    # What other views show depends on the data, which is asked for where it matters.
    shape = [3, view.size, view.size] if isinstance(view, CentreCrop) else None
    facts = summarise(spec, folder.path.name, {**row, "versions": {}}, shape)
    told = {key: row.get(key) for key in ("collapsed", "weights_sha256")}
    # The folder it was trained in, which stands last, is not this one.
    command = row["command"].partition(" && ")[0].partition(" --out ")[0]
    trained = {"recipe_file": row["recipe"], "command": command}
    folder.begin(spec, {**facts, **trained, **told, "unpacked": row["id"]})
    folder.save_weights(found.network)
    return folder.path


def load(path: Path) -> nn.Module:
    """The model of a run folder, or of a row whose weights are in the zoo, in evaluation mode."""
    if path.is_dir():
        return assemble.load_run(path)[0].eval()
    return RowModel.of(_trained(path), weights_file(path)).network.eval()


def _trained(path: Path) -> Row:
    row = read(path)
    if "learner" in row:
        raise InputError(f"{path.stem} was fitted, not trained, and has no weights; fit it anew: {row['command']}")
    return row
