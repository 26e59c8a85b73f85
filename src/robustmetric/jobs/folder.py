"""The run folder: recipe, records, weights and training state, each written whole or not at all."""

import errno
import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from safetensors import SafetensorError
from safetensors.torch import save
from torch import Tensor, nn

from robustmetric import recipe, records
from robustmetric.errors import InputError
from robustmetric.models.checkpoint import load_weights, read_state
from robustmetric.recipe import Spec


class RunFolder:
    """One training or evaluation on disk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.recipe = path / "recipe.yaml"
        self.results = path / "results.jsonl"
        self.weights = path / "model.safetensors"
        self.state = path / "state.pt"
        self.summary = path / "run.json"
        self.examples = path / "examples"
        self.answers = path / "answers.npz"
        self.certified = path / "certified"

    def begin(self, spec: Mapping[str, Spec], summary: Mapping[str, Any]) -> None:
        """Create the folder with its resolved recipe and summary."""
        self.path.mkdir(parents=True, exist_ok=True)
        records.write_json(self.summary, summary)
        recipe.save(spec, self.recipe)  # last: a folder that has it is taken to have been begun

    @contextmanager
    def held(self) -> Iterator[bool]:
        """Whether this folder, made if need be, is ours to write for as long: no other process that lives holds it.

        Nothing is left of a hold when its process ends, however that ends. Where folders cannot be held, as on Windows
        and some network disks, each is ours.
        """
        self.path.mkdir(parents=True, exist_ok=True)
        descriptor = _opened(self.path)
        try:
            yield descriptor is None or _lock(descriptor)
        finally:
            if descriptor is not None:
                os.close(descriptor)

    @property
    def is_nobodys(self) -> bool:
        """Whether nothing was trained, measured or proved here: what lies there is of a job that was killed before."""
        if any(path.exists() for path in (self.state, self.weights, self.certified)) or self.finished():
            return False
        if not self.path.is_dir():
            return True
        with self.held() as is_free:  # else somebody trains here, and has saved nothing yet
            return is_free

    @contextmanager
    def left_free_by_failure(self, begun: bool) -> Iterator[None]:
        """A job that fails before it saved anything leaves nothing that would refuse the next try."""
        try:
            yield
        except Exception:
            if begun and not any(path.exists() for path in (self.state, self.weights, self.results)):
                self.recipe.unlink(missing_ok=True)
                self.summary.unlink(missing_ok=True)
                self.answers.unlink(missing_ok=True)
                with suppress(OSError):  # something else lies there
                    self.path.rmdir()
            raise

    def read_recipe(self) -> dict[str, Spec]:
        """The resolved recipe of this run."""
        if not self.recipe.is_file():
            raise InputError(f"{self.path} is not a run folder: it has no recipe.yaml; expected one made by `train`")
        return recipe.load(self.recipe)

    def load_weights(self, model: nn.Module) -> None:
        """Put this run's weights into a model of the same architecture."""
        self.check_weights()
        load_weights(model, read_state(self.weights), str(self.weights))

    def check_weights(self) -> None:
        """Refuse a folder without weights, before anything is loaded."""
        if not self.weights.is_file():
            raise InputError(f"{self.path} has no model.safetensors; {self._how_to_have_weights()}")

    def _how_to_have_weights(self) -> str:
        if self.recipe.is_file() and "defence" not in recipe.load(self.recipe):
            return "it holds what was measured of a model, not the model; name that, or a folder made by `train`"
        return "finish it with `robustmetric train ... --resume`"

    def save_weights(self, model: nn.Module) -> None:
        """Write the model's weights as safetensors."""
        tensors = {name: value.detach().cpu().contiguous() for name, value in model.state_dict().items()}
        atomically(self.weights, lambda partial: partial.write_bytes(save(tensors)))

    def save_state(self, state: Mapping[str, Any]) -> None:
        """Write the training state; the old one stays intact until the new one is whole."""

        def write(partial: Path) -> None:
            # Through a Python file: given a path, torch reports a full disk as an "enforce fail" of its own.
            with partial.open("wb") as file:
                torch.save(dict(state), file)

        atomically(self.state, write)

    def load_state(self, device: torch.device) -> dict[str, Any]:
        """The saved training state; reading it runs no code."""
        try:
            return dict(torch.load(self.state, map_location=device, weights_only=True))
        except FileNotFoundError as error:
            raise InputError(f"{self.path} has no training state to resume; start without --resume") from error
        except Exception as error:  # torch reports damage as RuntimeError, EOFError, UnpicklingError, ...
            raise InputError(
                f"{self.state} is damaged, or holds more than numbers, which is never loaded ({type(error).__name__}); "
                "restore a copy, or delete it and train again"
            ) from error

    def finished(self) -> dict[str, records.Record]:
        """Records written so far, by key."""
        return {r.key: r for r in records.read(self.results)} if self.results.is_file() else {}

    def keep(
        self, record: records.Record, *, anew: bool = False, begin: Callable[[], object] | None = None
    ) -> records.Record:
        """Write a record down; one of the same work that is there already stays, and is given back.

        So of two that do the same work at once the first counts. `anew`: it was there before, and was done again.
        `begin` writes what a folder that is nobody's has beside its first record.
        """
        with records.held(self.results) as file:
            if begin is not None and (self.is_nobodys or not self.recipe.exists()):
                begin()
            there = None if anew else self.finished().get(record.key)
            if there is None:
                records.write(file, record)
        return there or record


def _opened(path: Path) -> int | None:
    """A folder, opened to be locked; None where folders are not files."""
    try:
        return os.open(path, os.O_RDONLY)
    except OSError:
        return None


def _lock(descriptor: int) -> bool:
    """Whether no other process has the lock, which is ours then; also where there are no locks."""
    try:
        import fcntl

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):
        return True
    return True


def atomically(path: Path, write: Callable[[Path], object], *, is_shared: bool = False) -> None:
    """Write through a temporary file, so that a crash or a full disk leaves the old file as it was.

    One that is shared may be written by several processes at once; of one that is not, a crash leaves one such file.
    """
    partial = path.with_name(f"{path.name}.{os.getpid()}.part" if is_shared else f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(partial)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        partial.replace(path)
    except InputError:
        partial.unlink(missing_ok=True)
        raise
    except (OSError, RuntimeError, ValueError, SafetensorError) as error:
        partial.unlink(missing_ok=True)
        full = isinstance(error, OSError) and error.errno == errno.ENOSPC
        reason = "the disk is full" if full else " ".join(str(error).split())
        kept = "; the previous one is intact" if path.is_file() else ""
        advice = "; free some space and go on from there" if full else ""
        raise InputError(f"{path} could not be saved: {reason}{kept}{advice}") from error


def save_arrays(path: Path, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    """Write arrays as one .npz, whole or not at all, whoever else writes it."""

    def write(partial: Path) -> None:
        with partial.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **arrays)

    atomically(path, write, is_shared=True)


def load_arrays(path: Path) -> dict[str, npt.NDArray[Any]] | None:
    """The arrays of a .npz; None where it is gone or damaged."""
    try:
        # A file of our own: numpy leaves one that it cannot read open.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in arrays.files}
    except (OSError, ValueError, EOFError, AttributeError, zipfile.BadZipFile, zlib.error):
        return None


def beside(folder: Path, record: records.Record) -> Path:
    """The file of the arrays that a record was made of."""
    return folder / f"{hashlib.sha256(record.key.encode()).hexdigest()[:16]}.npz"


def digest(*arrays: npt.NDArray[Any]) -> str:
    """16 hex digits of a SHA-256 of their shapes and bytes."""
    found = hashlib.sha256()
    for array in arrays:
        found.update(f"{array.shape} {array.dtype}".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()[:16]


def fingerprint(model: nn.Module) -> str:
    """SHA-256 of a model's weights: ties a record to the model it speaks of."""
    return state_fingerprint(model.state_dict())


def state_fingerprint(state: Mapping[str, Tensor]) -> str:
    """The same of named tensors."""
    digest = hashlib.sha256()
    for name, value in sorted(state.items()):
        digest.update(name.encode())
        digest.update(_bytes(value))
    return digest.hexdigest()


def _bytes(value: Tensor) -> bytes:
    return value.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes()


def summarise(
    spec: Mapping[str, Spec], name: str, context: Mapping[str, Any], input_shape: list[int] | None = None
) -> dict[str, Any]:
    """What the report says of a run without opening anything else; `input_shape` is what the model sees of one."""

    def title(key: str) -> str:
        value = spec.get(key)
        if not isinstance(value, dict):
            return str(value) if value is not None else "-"
        return str(value.get("architecture") or _inner(value) or value.get("name", "-"))

    return {
        "name": name,
        "data": title("data"),
        "defence": title("defence"),
        "model": title("model"),
        "seed": spec.get("seed", 0),
        **{key: context[key] for key in ("commit", "hardware", "versions")},
        **({} if input_shape is None else {"input_shape": input_shape}),
        "recipe": json.loads(json.dumps(spec)),
    }


def _inner(value: Mapping[str, Spec]) -> str | None:
    trunk = value.get("trunk")
    return str(trunk.get("architecture") or trunk.get("name")) if isinstance(trunk, dict) else None
