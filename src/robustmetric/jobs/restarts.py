"""A whole set moved by one trial, restart by restart: what is finished is kept until the trial has its records."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from robustmetric.attacks.joint import WholeSet, move_all, transfer_all
from robustmetric.attacks.suite import Trial
from robustmetric.attacks.trail import Trail
from robustmetric.errors import InputError
from robustmetric.jobs.arena import Arena
from robustmetric.jobs.crowd import Crowd
from robustmetric.jobs.folder import beside, load_arrays, save_arrays
from robustmetric.jobs.progress import say
from robustmetric.jobs.surrogate import load_surrogate
from robustmetric.jobs.workers import full_precision
from robustmetric.metrics.voting import Reading
from robustmetric.models.ensemble import Ensemble
from robustmetric.numerics.randomness import generator, repeatable
from robustmetric.records import Record
from robustmetric.report.clustering_schema import FLAT


class Restarts:
    """Embeddings that the climbs of a trial ended at, a file each; `record` is any of the trial, by whose key they go.

    Each climb draws from a seed of its own, so that one that is recalled changes nothing of the others.
    """

    def __init__(self, folder: Path, record: Record, clean: Tensor) -> None:
        self.path, self.clean = beside(folder, record), clean
        self.seconds, self.began = 0.0, time.monotonic()
        """Seconds that the climbs which were recalled took, and when the one that runs began."""

    def recall(self, number: int) -> Tensor | None:
        """What a climb that is finished made of the set."""
        arrays = load_arrays(self._file(number))
        if arrays is None or arrays.keys() != {"embeddings", "seconds"}:
            return None
        if arrays["embeddings"].shape != self.clean.shape:
            return None
        self.seconds += float(arrays["seconds"])
        return torch.from_numpy(arrays["embeddings"]).to(self.clean)

    def note(self, number: int, embeddings: Tensor) -> None:
        """Keep what a climb made of the set."""
        now = time.monotonic()
        arrays = {"embeddings": embeddings.cpu().numpy(), "seconds": np.array(now - self.began)}
        save_arrays(self._file(number), arrays)
        self.began = now

    def forget(self) -> None:
        """Leave nothing behind."""
        for path in self.path.parent.glob(f"{self.path.stem}-*.npz"):
            path.unlink(missing_ok=True)

    def _file(self, number: int) -> Path:
        return self.path.with_name(f"{self.path.stem}-{number}.npz")


def voters(model: nn.Module) -> int:
    """How many members vote; a model that is no ensemble is one."""
    return len(model.members) if isinstance(model, Ensemble) else 1


@full_precision()
def move(
    arena: Arena,
    crowd: Crowd,
    trial: Trial,
    reading: Reading,
    seed: int,
    clean: Tensor,
    memory: Restarts | None = None,
    way: Trail | None = None,
) -> tuple[Tensor, dict[str, Any]]:
    """Embeddings of all images as the trial moves them, and what is to be noted of the climb."""
    if not isinstance(trial.attack, WholeSet):
        raise InputError(
            f"trial {trial.label!r}: {trial.attack!r} moves single queries; expected whole_set, as in the others"
        )
    surrogate, randomness = load_surrogate(trial, arena), generator(arena.workers.device, seed, 6)
    rest: dict[str, Any] = {
        "members": reading.members, "chunk": arena.batch_size, "clean": clean,
        "rounded": crowd.batch.inputs.dim() > 2, "view": arena.seen, "search": arena.search,
    }  # fmt: skip
    with repeatable(arena.workers.device, seed, 6):
        if surrogate is None:
            rest |= {"memory": memory, "way": way, "keeps_inputs": False}
            moved = move_all(trial.attack, trial.engine, arena.model, crowd.batch, randomness, **rest)
        else:
            rest["surrogate_members"] = voters(surrogate)
            moved = transfer_all(trial.attack, trial.engine, surrogate, arena.model, crowd.batch, randomness, **rest)
    if moved.flat == 100:
        say(f"{trial.label}: no image has a gradient where the climb begins, so that this attack shows nothing")
    return moved.embeddings, {FLAT: moved.flat}
