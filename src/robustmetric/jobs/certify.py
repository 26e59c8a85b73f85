"""Certify: recipe -> data -> learner -> [points -> radii] -> records, resumed over points."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from sklearn.utils import shuffle
from torch import nn

from robustmetric import recipe, records
from robustmetric.catalogue import NAMES
from robustmetric.certify.crown import Crown
from robustmetric.certify.knn import RobustKNN
from robustmetric.certify.nearest import KNearest
from robustmetric.certify.smoothing import Smoothing
from robustmetric.data.base import Dataset, Split
from robustmetric.data.protocols import Source
from robustmetric.errors import InputError, nearest
from robustmetric.jobs import assemble
from robustmetric.jobs.arena import data_fingerprint
from robustmetric.jobs.folder import RunFolder, atomically, summarise
from robustmetric.jobs.origin import origin
from robustmetric.jobs.progress import say
from robustmetric.jobs.proofs import Question, Radii, proved
from robustmetric.jobs.workers import describe
from robustmetric.learn import Network
from robustmetric.learn.base import device_of
from robustmetric.recipe import Spec
from robustmetric.records import Record
from robustmetric.report.certified import draw_curves

Rows = npt.NDArray[np.float64]
Certificate = KNearest | Crown | Smoothing
DEFAULT = ({"name": "knn_certificate"}, {"name": "knn_certificate", "neighbours": 11, "method": "bound"})
"""What a recipe is certified by when it names nothing: 1-NN exactly, 11-NN by the bound."""


@runtime_checkable
class Learner(Protocol):
    """Anything that is fitted to rows and labels: a metric, or a network."""

    def fit(self, X: Any, y: Any) -> Any: ...


@dataclass(frozen=True)
class Plan:
    """What a certification is made of. Its fields are the recipe's top-level keys."""

    data: Source
    learner: Learner
    certificates: Sequence[Certificate] = ()
    points: int = 1000
    """Test points, the first so many after a shuffle; fewer where there are fewer."""
    shuffle: int = 42
    """Seed of that shuffle (scikit-learn's; 42 is the published one)."""
    radii: Sequence[float | int] = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5)
    """Where records state the error, in the unit of the rows as the learner sees them."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.points < 1:
            raise InputError(f"points={self.points} certify nothing; expected 1 or more")
        if not self.radii or not all(isinstance(r, int | float) and r >= 0 for r in self.radii):
            raise InputError(f"radii {self.radii!r} are no list of distances, such as [0, 0.1, 0.2]")


@dataclass(frozen=True)
class Table:
    """Rows and labels to learn from, and those to certify."""

    x: Rows
    y: npt.NDArray[np.int64]
    test_x: Rows
    test_y: npt.NDArray[np.int64]
    shape: tuple[int, ...]
    """Of one row before it was flattened."""

    @classmethod
    def of(cls, dataset: Dataset, points: int, seed: int) -> "Table":
        x, test_x = _rows(dataset.train), _rows(dataset.queries)
        chosen, labels = shuffle(test_x, dataset.queries.labels.numpy(), random_state=seed)
        return cls(x, dataset.train.labels.numpy(), chosen[:points], labels[:points], dataset.train.shape)


def certify(
    name: str,
    out: Path | None = None,
    overrides: list[str] | None = None,
    *,
    device: str = "cpu",
    points: int | None = None,
) -> list[Record]:
    """Fit a recipe's learner, or load it where that was done, and certify; returns the records."""
    spec, where = resolve(name, [*(overrides or []), *([] if points is None else [f"points={points}"])])
    plan = load(spec, where)
    folder = RunFolder(out or Path("runs") / f"{assemble.title(where)}-seed{plan.seed}")
    dataset = plan.data.load()
    table = Table.of(dataset, plan.points, plan.shuffle)
    context = records.context(describe(device_of(device)))
    words = [*(overrides or []), *([] if points is None else ["--points", str(points)])]
    _begin(folder, spec, {**summarise(spec, folder.path.name, context), **origin(where, words, "certify")})
    finished = folder.finished()
    fitted = _fitted(plan, table, folder, finished, context)
    base = {"data": dataset.name, "data_fingerprint": data_fingerprint(dataset), "learner": _described(spec["learner"])}
    found = [record for record in finished.values() if record.kind == "train"] or [fitted.record]
    for certificate in plan.certificates:
        question = _question(certificate, fitted, table, base, device)
        record, _ = proved(question, [float(r) for r in plan.radii], folder.path / "certified", plan.seed, context)
        record = finished.get(record.key, record)
        if record.key not in finished:
            records.append(folder.results, record)
        found.append(record)
        say(f"{folder.path.name}  {record.name}: " + "  ".join(f"{k} {v:.4g}" for k, v in record.scores.items()))
    draw_curves({folder.path.name: [r for r in found if r.kind == "certified"]}, folder.path / "certified")
    return found


# The learner, fitted once.


@dataclass(frozen=True)
class Fitted:
    """A learner's result: a metric's matrix (and the rows it kept), or a network."""

    record: Record
    matrix: Rows | None = None
    kept: npt.NDArray[np.int64] | None = None
    network: nn.Module | None = None


def _fitted(
    plan: Plan, table: Table, folder: RunFolder, finished: Mapping[str, Record], context: Mapping[str, Any]
) -> Fitted:
    """What the learner learned: read back where the folder has it, else fitted and saved."""
    earlier = next((record for record in finished.values() if record.kind == "train"), None)
    path = folder.path / "learned.npz"
    learner: Any = plan.learner
    is_network = isinstance(learner, Network)
    if earlier is None or not path.is_file():
        began = time.monotonic()
        learner.fit(table.x.reshape(-1, *table.shape) if is_network else table.x, table.y)
        iterations = getattr(learner, "n_iter_", None)
        scores = {"seconds": time.monotonic() - began, **({} if iterations is None else {"iterations": iterations})}
        earlier = Record("train", "fit", scores, {"rows": len(table.x)}, count=len(table.x), seed=plan.seed)
        earlier = Record(**{**vars(earlier), "seconds": scores["seconds"], "context": dict(context)})
        _save(path, learner, is_network)
        records.append(folder.results, earlier)
        say(f"{folder.path.name}  fitted in {scores['seconds']:.1f} s")
    with path.open("rb") as file, np.load(file, allow_pickle=False) as arrays:
        saved = {key: arrays[key] for key in arrays.files}
    if is_network:
        network = learner.build(table.shape, int(table.y.max()) + 1)
        network.load_state_dict({key: torch.from_numpy(value) for key, value in saved.items()})
        return Fitted(earlier, network=network.eval())
    return Fitted(earlier, matrix=saved["matrix"], kept=saved.get("kept"))


def _save(path: Path, learner: Any, is_network: bool) -> None:
    if is_network:
        arrays = {key: value.cpu().numpy() for key, value in learner.network_.state_dict().items()}
    else:
        kept = getattr(learner, "kept_", None)
        arrays = {"matrix": learner.get_mahalanobis_matrix(), **({} if kept is None else {"kept": kept})}

    def write(partial: Path) -> None:
        with partial.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)

    atomically(path, write)


# What is asked of it.


def _question(certificate: Certificate, fitted: Fitted, table: Table, base: Mapping[str, Any], device: str) -> Question:
    settings = {**base, "certificate": repr(certificate), "points": len(table.test_x), "rows": len(table.x)}
    if isinstance(certificate, KNearest):
        prove, chunk, name = _by_neighbours(certificate, fitted, table, device), 250, certificate.name
    else:
        prove, chunk, name = _by_network(certificate, fitted, table, device), 10, type(certificate).__name__.lower()
    return Question(name, len(table.test_x), settings, prove, chunk)


def _by_neighbours(certificate: KNearest, fitted: Fitted, table: Table, device: str) -> Callable[[slice], Radii]:
    kept = slice(None) if fitted.kept is None else fitted.kept

    @cache
    def classifier() -> RobustKNN:
        return certificate.fit(fitted.matrix, table.x[kept], table.y[kept], device)

    def prove(part: slice) -> Radii:
        radii = classifier().certify(
            table.test_x[part], table.test_y[part], certificate.method, positives=certificate.positives
        )
        assert not isinstance(radii, tuple)  # no perturbation was asked for
        return radii

    return prove


def _by_network(certificate: Crown | Smoothing, fitted: Fitted, table: Table, device: str) -> Callable[[slice], Radii]:
    def prove(part: slice) -> Radii:
        assert fitted.network is not None  # checked when the recipe was read
        network = fitted.network.to(device)
        x = torch.from_numpy(table.test_x[part]).float().view(-1, *table.shape).to(device)
        y = torch.from_numpy(table.test_y[part]).to(device)
        if isinstance(certificate, Crown):
            return certificate.certify(network.double(), x, y).cpu().numpy()
        found = certificate.certify(network.float(), x, first=part.start)
        return found.radius.where(found.label == y, torch.zeros_like(found.radius)).cpu().numpy()

    return prove


# The recipe.


def recipe_of(name: str, out: Path | None) -> tuple[str, Path | None] | None:
    """The recipe with a learner that `name` or a folder of that name holds, and its folder; None: it is an encoder."""
    folder = Path(name)
    if folder.is_dir():
        path = folder / "recipe.yaml"
        return (str(path), out or folder) if path.is_file() and "learner" in recipe.load(path) else None
    try:
        path = recipe.locate(name)
    except InputError:
        return None
    return (str(path), out) if "learner" in recipe.load(path) else None


def resolve(name: str, overrides: list[str]) -> tuple[dict[str, Spec], str]:
    """The plain settings of a recipe with a learner, its base and overrides applied, and the name for errors."""
    path = recipe.locate(name)
    spec = recipe.override(recipe.load(path), overrides)
    known = [field.name for field in fields(Plan)]
    for key in spec:
        if key not in known:
            raise InputError(f"{path}: {key!r} is not a setting of a certified recipe{nearest(str(key), known)}")
    for key in ("data", "learner"):
        if key not in spec:
            raise InputError(f"{path}: the recipe has no {key!r}; expected one such as tabular/digits-arml")
    return {**spec, "certificates": spec.get("certificates", [dict(one) for one in DEFAULT])}, str(path)


def load(spec: Mapping[str, Spec], where: str) -> Plan:
    """Everything a certification needs, but for the data itself."""
    parts = {key: recipe.build(value, NAMES, f"{where}.{key}") for key, value in spec.items()}
    if not isinstance(parts["data"], Source) or not isinstance(parts["learner"], Learner):
        raise InputError(f"{where}: data needs load() and learner needs fit(); see recipes/tabular")
    is_network = isinstance(parts["learner"], Network)
    for certificate in parts["certificates"]:
        if isinstance(certificate, Certificate) and isinstance(certificate, KNearest) == is_network:
            wanted = "a metric, such as learner: {name: arml}" if is_network else "learner: {name: network}"
            raise InputError(f"{where}: {certificate!r} does not certify {parts['learner']!r}; expected {wanted}")
        if not isinstance(certificate, Certificate):
            raise InputError(
                f"{where}.certificates: {certificate!r} is no certificate; see `robustmetric list certificates`"
            )
    plan: Plan = recipe.call(Plan, parts, where)
    return plan


def _begin(folder: RunFolder, spec: Mapping[str, Spec], summary: Mapping[str, Any]) -> None:
    """The folder with its recipe; one that holds another recipe is not added to."""
    if not folder.recipe.exists():
        folder.begin(spec, summary)
        return
    before = folder.read_recipe()
    if {**before, "certificates": None, "radii": None} != {**spec, "certificates": None, "radii": None}:
        raise InputError(f"{folder.path} holds another recipe; name another folder with --out")


def _rows(split: Split) -> Rows:
    """Flat rows in float64; pixels in [0, 1]."""
    values = split.inputs.flatten(1)
    return (values.double() / 255 if values.dtype == torch.uint8 else values.double()).numpy()


def _described(spec: Spec) -> str:
    return f"{spec['name']}({', '.join(f'{key}={value}' for key, value in spec.items() if key != 'name')})"
