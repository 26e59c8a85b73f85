"""What `evaluate` is pointed at: a run folder, a recipe, or a model of one's own with data of one's own."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, cast

import numpy as np
from torch import nn

from robustmetric import recipe, records
from robustmetric.attacks.suite import Suite
from robustmetric.catalogue import NAMES
from robustmetric.data.base import Dataset
from robustmetric.data.protocols import Transform
from robustmetric.errors import InputError
from robustmetric.jobs import assemble
from robustmetric.jobs.arena import Arena
from robustmetric.jobs.closing import closing
from robustmetric.jobs.clustering import check_search, is_clustering, run_any_suite
from robustmetric.jobs.folder import RunFolder, save_arrays, summarise
from robustmetric.jobs.named import refuse_unknown, refuse_unknown_data, view_of
from robustmetric.jobs.own import OWN_MODEL, check_searchable, is_own, own_data, own_model, refuse_file, skipping
from robustmetric.jobs.pictures import Pictures
from robustmetric.jobs.progress import say
from robustmetric.jobs.suites import asking_for_surrogate, load_suite
from robustmetric.jobs.surrogate import named_surrogate, refuse_itself
from robustmetric.jobs.telling import Teller
from robustmetric.jobs.workers import Hardware, Workers, describe
from robustmetric.models.classifier import Classifies
from robustmetric.numerics.kmeans import Backend, check_backend
from robustmetric.recipe import Spec
from robustmetric.records import Record
from robustmetric.report.data_names import NOTE

NumPy = np.ndarray[Any, np.dtype[Any]]
ANSWERS = "answers"
"""In their file, a row for each of some images."""
OF_MODEL = ("model", "defence", "seed")
"""What a recipe says of the model that it made; each record says on what data, and how, it was tested."""


@dataclass(frozen=True)
class Target:
    """A model ready to be tested, and where its results go."""

    model: nn.Module
    dataset: Dataset
    view: Transform
    folder: RunFolder
    spec: dict[str, Spec]
    name: str
    is_as_built: bool = False
    """Whether the model is a recipe's own, on which nothing was trained yet."""
    answers: NumPy | None = field(default=None, compare=False, repr=False)
    """To some images, by which a model at hand is known again."""

    def say_if_as_built(self) -> None:
        if self.is_as_built:
            say(f"{self.name}: the model as its recipe builds it, not trained; a run folder has trained weights")

    def begin(self, context: Mapping[str, Any]) -> None:
        """Write what the folder is of, over what a job of another model left that was killed before any record."""
        self.folder.begin(self.spec, summarise(self.spec, self.name, context))
        if self.answers is None:
            self.folder.answers.unlink(missing_ok=True)
        else:
            save_arrays(self.folder.answers, {ANSWERS: self.answers})


def evaluate(
    name: str,
    suite: str | None = None,
    *,
    data: str | None = None,
    out: Path | None = None,
    radius: float | None = None,
    modes: list[str] | None = None,
    queries: int | None = None,
    seed: int = 0,
    batch_size: int = 128,
    fast: bool = False,
    search: str = "fp32",
    skip_unreadable: bool = False,
    view: str | None = None,
    surrogate: str | None = None,
    kmeans: str | None = None,
    hardware: Hardware = Hardware(),  # noqa: B008  # frozen
) -> list[Record]:
    """Run a suite; each record is written as it comes, and what is already there is not run again.

    `view` is for a model of one's own (`find_target`); `surrogate`, for a suite's attacks that ask for one, is a run
    folder or a model of one's own too; `kmeans` replaces the recipe's.
    """
    refuse_unknown(modes, search, kmeans, hardware)
    source = named_surrogate(surrogate)
    # A suite that was named is read before the model and its data: a misspelt one costs nothing.
    named = load_suite(suite, radius, modes, source) if suite else None
    target = find_target(name, data=data, out=out, skip_unreadable=skip_unreadable, view=view)
    suite = suite or str(target.spec.get("suite", "ers224"))
    chosen = named or load_suite(suite, radius, modes, source)
    check_search(chosen, search)
    _refuse_folder_of_another(target)
    refuse_itself(chosen, target.model)
    backend = _backend(target.spec, kmeans, chosen)
    workers = Workers.of(hardware.fabric())
    lead, context = workers.rank == 0, records.context(describe(workers.device, workers.ranks))
    context |= {NOTE: target.dataset.note} if target.dataset.note else {}
    # Before the arena, whose embedding the ranks share: none may read what the first one already adds.
    finished = target.folder.finished()
    arena = Arena.prepare(
        target.model, target.dataset, target.view, workers,
        limit=queries, seed=seed, batch_size=batch_size, fast=fast, search=search, shown=lead,
    )  # fmt: skip
    if lead:
        _say_first(target, suite, surrogate)
    record_suite(target, chosen, arena, seed, context, finished, backend)
    return list(target.folder.finished().values())


def record_suite(
    target: Target,
    suite: Suite,
    arena: Arena,
    seed: int,
    context: Mapping[str, Any],
    finished: Mapping[str, Record],
    kmeans: Backend = "torch",
) -> None:
    """Run what is not `finished` of a suite; each record is written into the target's folder, and told, as it comes."""
    lead, folder = arena.workers.rank == 0, target.folder
    with folder.left_free_by_failure(lead and not folder.path.exists()):
        if lead:  # a place that nothing can be written to is told before anything is measured
            folder.path.mkdir(parents=True, exist_ok=True)
        teller, settings = Teller(target.name), {"data": target.dataset.name}
        for record, pictures in run_any_suite(arena, suite, seed, context, settings, finished, folder.path, kmeans):
            if lead:
                # With its first record a folder is begun: one whose job is killed before is free for any other.
                folder.keep(record, anew=record.key in finished, begin=lambda: target.begin(context))
                _save_pictures(folder, record, pictures)
                teller.tell(record)
        teller.finish()
    if lead:
        _say_last(target, suite, finished, arena, seed)


def _refuse_folder_of_another(target: Target) -> None:
    """Refuse a folder that holds records of another model, by whose name a report would show those of this one."""
    folder = target.folder
    there = folder.read_recipe() if folder.finished() and folder.recipe.exists() else target.spec
    if differing := [key for key in OF_MODEL if there.get(key) != target.spec.get(key)]:
        raise InputError(
            f"{folder.path} is the folder of another model (its recipe has another {' and '.join(differing)}); name "
            "another folder with --out"
        )


def _say_first(target: Target, suite: str, surrogate: str | None) -> None:
    """What a reader of the results has to know."""
    target.say_if_as_built()
    if surrogate is None and (left_out := asking_for_surrogate(suite)):
        say(f"left out without --surrogate RUN: {', '.join(left_out)}")


def _say_last(target: Target, suite: Suite, before: Mapping[str, Record], arena: Arena, seed: int) -> None:
    """Whether all was there before, and what was found, in plain words."""
    found = list(target.folder.finished().values())
    if before and len(before) == len(found):
        say(f"{target.folder.path}: nothing to do, every trial of {suite.name} is there")
    if sentence := closing(found, suite.name, arena.settings(), seed):
        say(f"{target.name}: {sentence}")


def _backend(spec: Mapping[str, Spec], given: str | None, suite: Suite) -> Backend:
    """Whose k-means: the command line's, else the recipe's; one that is to cluster and is not there is refused."""
    if not is_clustering(suite):
        if given is not None:
            raise InputError(f"--kmeans {given} is for suites on clustering; {suite.name!r} is none, leave it out")
        return "torch"
    backend = given or str(spec.get("kmeans", "torch"))
    check_backend(backend)
    return cast(Backend, backend)


def find_target(
    name: str, *, data: str | None, out: Path | None, skip_unreadable: bool = False, view: str | None = None
) -> Target:
    """A run folder, a recipe (its model as built, untrained or pretrained), or the dotted path of a model factory.

    `view` is what images go through before a model of one's own; a recipe says so itself. Data are read before the
    model, whose weights may be a download: that they are missing is said at once.
    """
    path = Path(name)
    mine = is_own(name)
    seen = {} if view is None else {"view": view_of(view, name, is_own=mine)}
    if data is not None:
        refuse_unknown_data(data)
    spec, home, load = _of_own(name, seen, data) if mine else _of_recipe(name, data)
    if data is None:
        spec = skipping(spec, name) if skip_unreadable else spec
        dataset, shown = assemble.load_data(spec, name), assemble.load_view(spec, name)
    else:
        dataset, guessed = own_data(data, skip_unreadable)
        shown = assemble.load_view(spec, name) if "view" in spec else guessed
        spec = {**spec, "data": {"name": data}}
        home = home if path.is_dir() else home.with_name(f"{home.name}-{dataset.name}")
    place, model = RunFolder(out or home), load()
    if data is not None and not isinstance(model, Classifies):
        check_searchable(dataset, data)
    # A model of one's own, which has a dot in its name, may have been trained before.
    is_as_built = not path.is_dir() and "." not in str(spec["model"]["name"])
    return Target(model, dataset, shown, place, spec, place.path.name, is_as_built=is_as_built)


Found = tuple[dict[str, Spec], Path, Callable[[], nn.Module]]
"""Settings, where results go, and what loads the model; nothing is loaded yet, but every name is looked up."""


def _of_own(name: str, seen: Mapping[str, Spec], data: str | None) -> Found:
    refuse_file(name)
    if data is None:
        raise InputError(f"{name!r} brings no data; name some with --data FOLDER, FILE.csv or a data set")
    return {"model": {"name": name}, **seen}, Path("runs") / f"evaluate-{name}", own_model(name)


def _of_recipe(name: str, data: str | None) -> Found:
    """Of a run folder, or of a recipe by its name."""
    path, where = Path(name), name
    if path.is_dir():
        folder = RunFolder(path)
        spec = folder.read_recipe()
        folder.check_weights()
    else:
        _refuse_missing_run(name)
        spec, where = assemble.resolve(name, [])
    needed = ("model", "view", *(() if data is not None else ("data",)))
    recipe.look_over({key: spec[key] for key in needed if key in spec}, NAMES, where)
    if path.is_dir():
        return spec, path, lambda: assemble.load_run(path)[0]
    return spec, Path("runs") / f"evaluate-{assemble.title(where)}", lambda: assemble.load_model(spec, where)


def refuse_unknown_target(name: str) -> None:
    """Refuse what is no run folder, no recipe and no model of one's own, by the nearest name there is."""
    if not Path(name).is_dir() and not is_own(name):
        _refuse_missing_run(name)
        recipe.locate(name)


def _refuse_missing_run(name: str) -> None:
    """What is no recipe, nor like one, was meant as a run folder or a model: the list of recipes would not help."""
    refuse_file(name)
    path = Path(name)
    short = path.as_posix().removeprefix("recipes/")
    is_like_recipe = path.parts[:1] != ("runs",) and get_close_matches(short, recipe.listing(), n=1)
    if not name or path.suffix in {".yaml", ".yml"} or is_like_recipe:
        return
    if "/" in name:
        raise InputError(f"no run folder {name!r} exists; recipes are listed by `robustmetric list recipes`")
    raise InputError(f"{name!r} is no run folder and no recipe (`robustmetric list recipes`); {OWN_MODEL}")


def _save_pictures(folder: RunFolder, record: Record, pictures: Pictures | None) -> None:
    if pictures is None:
        return
    precision = str(record.settings.get("search", record.settings["precision"])).replace("fp32", "")
    parts = [record.settings["suite"], record.name, f"{record.settings['radius'] * 255:.2f}", precision]
    label = "-".join(str(part) for part in parts if part).replace("/", "_")
    save_arrays(folder.examples / f"{label.replace('+', 'plus')}.npz", pictures)
