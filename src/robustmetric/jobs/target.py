"""What `evaluate` is pointed at: a run folder, a recipe, or a model of one's own with data of one's own."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from torch import nn

from robustmetric import records
from robustmetric.catalogue import CATALOGUE, NAMES
from robustmetric.data.base import Dataset
from robustmetric.data.folder import Folder
from robustmetric.data.manifest import Manifest
from robustmetric.data.protocols import Transform
from robustmetric.data.transforms import CentreCrop, Identity
from robustmetric.errors import InputError, nearest
from robustmetric.jobs import assemble
from robustmetric.jobs.arena import Arena
from robustmetric.jobs.evaluate import Pictures, run_suite
from robustmetric.jobs.folder import RunFolder, atomically, summarise
from robustmetric.jobs.progress import say
from robustmetric.jobs.workers import Hardware, Workers, describe
from robustmetric.models.encoder import Encoder
from robustmetric.recipe import Spec, find
from robustmetric.records import Record


@dataclass(frozen=True)
class Target:
    """A model ready to be tested, and where its results go."""

    model: nn.Module
    dataset: Dataset
    view: Transform
    folder: RunFolder
    spec: dict[str, Spec]
    name: str


def evaluate(
    name: str,
    suite: str | None = None,
    *,
    data: str | None = None,
    out: Path | None = None,
    radius: float | None = None,
    queries: int | None = None,
    seed: int = 0,
    batch_size: int = 128,
    skip_unreadable: bool = False,
    hardware: Hardware = Hardware(),  # noqa: B008  # frozen
) -> list[Record]:
    """Run a suite; each record is written as it comes, and what is already there is not run again."""
    target = find_target(name, data=data, out=out, skip_unreadable=skip_unreadable)
    chosen = assemble.load_suite(suite or str(target.spec.get("suite", "ers224")), radius)
    fabric = hardware.fabric()
    workers = Workers.of(fabric)
    context = records.context(describe(workers.device, workers.ranks))
    lead = workers.rank == 0
    if lead and not target.folder.recipe.exists():
        target.folder.begin(target.spec, summarise(target.spec, target.name, context))
    # Before the arena, whose embedding the ranks share: none may read what the first one already adds.
    finished = target.folder.finished()
    arena = Arena.prepare(
        target.model, target.dataset, target.view, workers, limit=queries, seed=seed, batch_size=batch_size
    )
    settings = {"data": target.dataset.name}
    for record, pictures in run_suite(arena, chosen, seed, context, settings, finished):
        if lead:
            records.append(target.folder.results, record)
            _save_pictures(target.folder, record, pictures)
            shown = "  ".join(
                f"{key} {value:.4g}" for key, value in record.scores.items() if key not in ("mAP@R", "AMI")
            )
            say(f"{target.name}  {_title(record)}: {shown}")
    if lead and finished and len(finished) == len(target.folder.finished()):
        say(f"{target.folder.path}: nothing to do, every trial of {chosen.name} is there")
    return records.latest(records.read(target.folder.results)) if target.folder.results.is_file() else []


def find_target(name: str, *, data: str | None, out: Path | None, skip_unreadable: bool = False) -> Target:
    """A run folder, a recipe (its model as built, untrained or pretrained), or the dotted path of a model factory."""
    path = Path(name)
    if path.is_dir():
        folder = RunFolder(path)
        spec = folder.read_recipe()
        model = assemble.load_model(spec, str(path))
        folder.load_weights(model)
        place = RunFolder(out) if out else folder
    elif path.suffix not in {"", ".yaml", ".yml"} and "/" not in name:
        if data is None:
            raise InputError(f"{name!r} brings no data; name some with --data FOLDER, FILE.csv or a data set")
        spec, model = {"model": {"name": name}}, _own_model(name)
        place = RunFolder(out or Path("runs") / f"evaluate-{name}")
    else:
        spec, where = assemble.resolve(name, [])
        model = assemble.load_model(spec, where)
        place = RunFolder(out or Path("runs") / f"evaluate-{assemble.title(where)}")
    if skip_unreadable and isinstance(spec.get("data"), dict):
        spec = {**spec, "data": {**spec["data"], "skip_unreadable": True}}
    if data is None:
        dataset, view = assemble.load_data(spec, name), assemble.load_view(spec, name)
    else:
        dataset, view = own_data(data, skip_unreadable)
        spec = {**spec, "data": {"name": data}}
    return Target(model, dataset, view, place, spec, place.path.name)


def own_data(name: str, skip_unreadable: bool = False) -> tuple[Dataset, Transform]:
    """Data named on the command line: a data set of ours, a folder or zip of class folders, or a CSV manifest.

    Every image of a folder is a query; nothing is held back for training.
    """
    path = Path(name)
    if name in CATALOGUE["data"]:
        dataset = find(name, NAMES, "--data")().load()
    elif path.suffix == ".csv":
        dataset = Manifest(str(path), skip_unreadable=skip_unreadable).load()
    elif path.exists():
        dataset = Folder(str(path), test_share=1.0, skip_unreadable=skip_unreadable).load()
    else:
        raise InputError(f"--data {name!r} is no folder, no CSV file and no data set{nearest(name, CATALOGUE['data'])}")
    side = dataset.queries.inputs.shape[-1] if dataset.queries.inputs.dim() == 4 else 0
    return dataset, CentreCrop(224) if side == 256 else Identity()


def _own_model(name: str) -> nn.Module:
    made = find(name, {}, "model")
    model = made if isinstance(made, nn.Module) else made()
    if not isinstance(model, nn.Module):
        raise InputError(
            f"{name!r} gave a {type(model).__name__}; expected a torch module or a function that makes one"
        )
    return model if isinstance(model, Encoder) else Encoder(model)


def _title(record: Record) -> str:
    radius = record.settings.get("radius")
    return record.name if radius is None else f"{record.name} at {radius * 255:.4g}/255"


def _save_pictures(folder: RunFolder, record: Record, pictures: Pictures | None) -> None:
    if pictures is None:
        return
    label = f"{record.settings['suite']}-{record.name}-{record.settings['radius'] * 255:.2f}".replace("/", "_")
    target = folder.examples / f"{label.replace('+', 'plus')}.npz"

    def write(partial: Path) -> None:
        with partial.open("wb") as file:
            np.savez_compressed(file, allow_pickle=False, **pictures)

    atomically(target, write)
