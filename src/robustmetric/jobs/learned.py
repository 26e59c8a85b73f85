"""A learner, fitted once: what it learned is kept in the run folder, and fitted anew where the rows have changed."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from robustmetric import records
from robustmetric.errors import InputError
from robustmetric.jobs.folder import RunFolder, digest, load_arrays, save_arrays
from robustmetric.jobs.progress import say, told
from robustmetric.learn import Network
from robustmetric.learn.base import MetricLearner
from robustmetric.records import Record

Rows = npt.NDArray[np.float64]
Arrays = dict[str, npt.NDArray[Any]]
CLASSES = "classes"
"""Beside the weights of a network: the labels of its outputs."""


@runtime_checkable
class Metric(Protocol):
    """A learner of a metric."""

    def fit(self, X: Any, y: Any) -> Any: ...

    def get_mahalanobis_matrix(self) -> Any: ...


Learner = Metric | Network


@dataclass(frozen=True)
class Table:
    """Rows and labels to learn from, and those to certify."""

    x: Rows
    y: npt.NDArray[np.int64]
    test_x: Rows
    test_y: npt.NDArray[np.int64]
    shape: tuple[int, ...]
    """Of one row before it was flattened."""
    ids: tuple[str, ...] = ()
    """What the rows to certify are called."""


@dataclass(frozen=True)
class Fitted:
    """A learner's result: a metric's matrix (and the rows it kept), or a network and its classes."""

    record: Record
    learned: str
    """A digest of it."""
    matrix: Rows | None = None
    kept: npt.NDArray[np.int64] | None = None
    network: nn.Module | None = None
    classes: npt.NDArray[np.int64] | None = None


def fitted(learner: Learner, table: Table, folder: RunFolder, seed: int, context: Mapping[str, Any]) -> Fitted:
    """What the learner learned of these rows: read back where the folder has it, else fitted and saved."""
    path = folder.path / "learned.npz"
    settings = {"rows": len(table.x), "rows_digest": digest(table.x, table.y)}
    wanted = Record("train", "fit", {}, settings, seed=seed)
    earlier, saved = folder.finished().get(wanted.key), load_arrays(path)
    if earlier is None or saved is None:
        earlier, saved = _fit(learner, table, replace(wanted, context=dict(context)))
        save_arrays(path, saved)
        records.append(folder.results, earlier)
        say(f"{folder.path.name}  fitted in {earlier.seconds:.1f} s")
    learned = digest(*(saved[name] for name in sorted(saved)))
    if not isinstance(learner, Network):
        return Fitted(earlier, learned, matrix=saved["matrix"], kept=saved.get("kept"))
    classes = saved[CLASSES]
    network = learner.build(table.shape, len(classes))
    network.load_state_dict({key: torch.from_numpy(value) for key, value in saved.items() if key != CLASSES})
    return Fitted(earlier, learned, network=network.eval(), classes=classes)


def _fit(learner: Learner, table: Table, record: Record) -> tuple[Record, Arrays]:
    began = time.monotonic()
    with told("fit") as progress:
        if isinstance(learner, Network | MetricLearner):
            learner.progress = progress
        try:
            learner.fit(table.x.reshape(-1, *table.shape) if isinstance(learner, Network) else table.x, table.y)
        except InputError:
            raise
        except (TypeError, ValueError) as error:  # a learner of somebody else's, which has errors of its own
            raise InputError(f"{learner!r} could not be fitted: {' '.join(str(error).split())}") from error
    taken = time.monotonic() - began
    iterations, kept = getattr(learner, "n_iter_", None), getattr(learner, "kept_", None)
    scores = {"seconds": taken, **({} if iterations is None else {"iterations": float(iterations)})}
    scores |= {} if kept is None else {"kept": float(len(kept))}
    record = replace(record, scores=scores, seconds=taken, count=len(table.x))
    if isinstance(learner, Network):
        weights = {key: value.cpu().numpy() for key, value in learner.network_.state_dict().items()}
        return record, {**weights, CLASSES: learner.classes_}
    return record, {"matrix": learner.get_mahalanobis_matrix(), **({} if kept is None else {"kept": kept})}
