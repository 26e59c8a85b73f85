"""The zoo: `zoo/<id>.safetensors`, copies in half precision of the weights behind rows of the ledger."""

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.jobs.folder import RunFolder, atomically, state_fingerprint
from robustmetric.jobs.ledger import read_row
from robustmetric.models.checkpoint import read_state
from robustmetric.report.ledger import Row

LARGEST = 8 * 2**20
"""Bytes of one copy, at most."""
TOTAL = 48 * 2**20
"""Of all of them, at most."""
KEY = "robustmetric"
"""Where a copy says whose it is. One entry: several are written in no fixed order."""


def keep(run: Path, zoo: Path) -> Path:
    """The copy of an evaluated run's weights, under the id of its row."""
    return write_copy(read_state(RunFolder(run).weights), read_row(run), zoo)


def write_copy(state: Mapping[str, Tensor], row: Row, zoo: Path) -> Path:
    """Round the weights of a row to 16 bits; the same weights always make the same file."""
    halves = {name: (value.half() if value.is_floating_point() else value) for name, value in state.items()}
    lost = next((name for name, value in halves.items() if not bool(value.isfinite().all())), None)
    if lost is not None:
        raise InputError(f"{lost!r} has numbers beyond the 65504 of half precision; this row cannot be in the zoo")
    told = {"id": row["id"], "weights_sha256": row["weights_sha256"], "copy_sha256": state_fingerprint(halves)}
    content = save(halves, {KEY: json.dumps(told)})
    path = zoo / f"{row['id']}.safetensors"
    others = sum(other.stat().st_size for other in zoo.glob("*.safetensors") if other != path)
    if len(content) > LARGEST or others + len(content) > TOTAL:
        raise InputError(
            f"{path} would have {len(content) / 2**20:.1f} MiB beside {others / 2**20:.1f} of others; expected at most "
            f"{LARGEST // 2**20}, and {TOTAL // 2**20} in all: keep a smaller model, or remove one"
        )
    atomically(path, lambda partial: partial.write_bytes(content))
    return path


def weights_for(row: Row, path: Path) -> dict[str, Tensor]:
    """The weights in a file, which must be the row's: its own, or a copy of the zoo, whole and of no other row."""
    state = read_state(path)
    found, told = state_fingerprint(state), _told(path)
    if told and told.get("copy_sha256") != found:
        raise InputError(
            f"{path} is not as it was written: its weights are {found[:16]}, it says {told.get('copy_sha256')!s:.16}; "
            "expected equal ones: write it again with `robustmetric export RUN --zoo zoo`"
        )
    origin = told.get("weights_sha256", found)
    wanted = row.get("weights_sha256", "none")
    if origin != wanted:
        raise InputError(
            f"{path} has other weights ({origin:.16}) than row {row['id']} ({wanted:.16}); expected the run's "
            "model.safetensors, or the copy that `robustmetric export RUN --zoo zoo` makes of it"
        )
    return state


def _told(path: Path) -> dict[str, str]:
    """What a copy says of itself; nothing for weights that are no copy."""
    if path.suffix != ".safetensors":
        return {}
    with safe_open(path, framework="pt") as file:
        return dict(json.loads((file.metadata() or {}).get(KEY, "{}")))
