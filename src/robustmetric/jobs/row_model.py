"""The model behind a row of the ledger: its recipe with the weights of the zoo, or of a file that has the row's."""

import json
from dataclasses import dataclass
from pathlib import Path

from torch import nn

from robustmetric.errors import InputError
from robustmetric.jobs import assemble
from robustmetric.jobs.folder import RunFolder, state_fingerprint
from robustmetric.jobs.origin import Typed, typed
from robustmetric.jobs.zoo import weights_for
from robustmetric.models.checkpoint import load_weights
from robustmetric.recipe import Spec
from robustmetric.report.certified_schema import faults as certified_faults
from robustmetric.report.ledger import Row, faults


@dataclass(frozen=True)
class RowModel:
    """A row's model, and the recipe that it was trained by."""

    network: nn.Module
    spec: dict[str, Spec]
    where: str
    is_copy: bool
    """Whether the weights were rounded to 16 bits."""

    @staticmethod
    def of(row: Row, file: Path) -> "RowModel":
        """The model of the row's recipe, with the weights of a file, which must be the row's."""
        commands = (one for one in typed(row["command"]) if one.job == "train")
        train = next(commands, Typed("train", row["recipe"], [], {}))
        weights = weights_for(row, file)
        spec, where = assemble.resolve(train.target, train.words)
        network = assemble.load_model(assemble.without_pretrained(spec), where)
        load_weights(network, weights, str(file))
        return RowModel(network, spec, where, state_fingerprint(weights) != row["weights_sha256"])


def read(path: Path) -> Row:
    """One row, in whose file nothing is amiss."""
    if not path.is_file():
        fault = "is a folder" if path.is_dir() else "does not exist"
        raise InputError(f"{path} {fault}; expected a row of the ledger, results/.../ID.json")
    try:
        row = json.loads(path.read_text())
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{path} cannot be read as JSON; expected a row of the ledger, results/.../ID.json") from error
    wrong = certified_faults(row) if isinstance(row, dict) and "learner" in row else faults(row)
    if not wrong and row["id"] != path.stem:
        wrong = [f"id {row['id']!r} is not the name of the file"]
    if wrong:
        raise InputError(f"{path}: {'; '.join(wrong)}")
    return dict(row)


def weights_file(path: Path, given: Path | None = None) -> Path:
    """Where a row's weights are: a file or run folder that was given, else the zoo that lies beside its results."""
    if given is not None:
        return RunFolder(given).weights if given.is_dir() else given
    place = (path.resolve().parent / ".." / ".." / "zoo" / f"{path.stem}.safetensors").resolve()
    if not place.is_file():
        raise InputError(
            f"{place} does not exist; expected a copy of the row's weights there, or --model with a file or run folder"
        )
    return place
