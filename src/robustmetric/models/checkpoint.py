"""Weights from files: read without executing code, loaded with an error that says what does not fit."""

import os
import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from robustmetric.errors import InputError

WRAPPERS = ("state_dict", "model")
"""Keys under which training scripts commonly put the tensors."""


def read_state(path: Path) -> dict[str, Tensor]:
    """The named tensors of a `.safetensors` file, or of a `.pth` read with `weights_only`."""
    if not path.is_file():
        raise InputError(f"{path} does not exist; expected a file of weights (.safetensors or .pth)")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise InputError(
            f"{path} is damaged, or holds more than tensors, which is never loaded; save a state_dict"
        ) from error
    except (SafetensorError, RuntimeError, EOFError, ValueError, OSError, KeyError) as error:
        raise InputError(f"{path} cannot be read as weights; it is truncated or of another format") from error
    for wrapper in WRAPPERS:
        if isinstance(state, dict) and isinstance(state.get(wrapper), dict):
            state = state[wrapper]
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise InputError(f"{path} does not hold named tensors; expected a state_dict")
    return dict(state)


def find_weights(name: str) -> Path:
    """The file a recipe means: a path as it stands, or one relative to ROBUSTMETRIC_DATA."""
    places = [Path(name).expanduser(), Path(os.environ.get("ROBUSTMETRIC_DATA", ".")) / name]
    for place in places:
        if place.is_file():
            return place
    raise InputError(
        f"weights {name!r} are neither a file here nor under ROBUSTMETRIC_DATA; expected a path, or 'download'"
    )


def load_weights(module: nn.Module, state: Mapping[str, Tensor], source: str, ignore: tuple[str, ...] = ()) -> None:
    """Copy `state` into `module`, every tensor or none.

    Keys that start with one of `ignore` may be left over (a classifier we do not have). Batch norm's batch counters may
    be missing: files from before they existed lack them, and they play no part in the result.
    """
    own = module.state_dict()
    missing = [key for key in own if key not in state and not key.endswith("num_batches_tracked")]
    unexpected = [key for key in state if key not in own and not key.startswith(ignore)]
    reshaped = [key for key in own if key in state and own[key].shape != state[key].shape]
    if not (missing or unexpected or reshaped):
        module.load_state_dict({key: value for key, value in state.items() if key in own}, strict=False)
        return
    faults = []
    if missing:
        faults.append(f"{len(missing)} of {len(own)} tensors missing, such as {missing[0]!r}")
    if unexpected:
        faults.append(f"{len(unexpected)} unexpected, such as {unexpected[0]!r}")
    if reshaped:
        key = reshaped[0]
        shapes = f"{tuple(state[key].shape)} where {tuple(own[key].shape)} is expected"
        faults.append(f"{len(reshaped)} of another shape, such as {key!r}: {shapes}")
    raise InputError(f"{source} belongs to another architecture than this {type(module).__name__}: {'; '.join(faults)}")
