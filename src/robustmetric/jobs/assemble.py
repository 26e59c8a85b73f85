"""Recipe to objects: data, model, defence and the rest, built in the order in which one needs the other."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, Protocol, cast, get_args, runtime_checkable

import torch
from torch import nn

from robustmetric import recipe
from robustmetric.attacks.base import Attack, Engine
from robustmetric.attacks.modes import Mode, check_mode
from robustmetric.attacks.suite import Suite, Trial
from robustmetric.catalogue import NAMES
from robustmetric.data.base import Dataset
from robustmetric.data.protocols import Sampler, Source, Transform
from robustmetric.data.transforms import Identity
from robustmetric.defences.base import Defence
from robustmetric.errors import InputError, nearest
from robustmetric.jobs.folder import RunFolder
from robustmetric.jobs.words import refuse_words
from robustmetric.numerics.kmeans import Backend
from robustmetric.optimise import Optimiser
from robustmetric.perturb.pgd import View
from robustmetric.recipe import Spec

IDENTITY = Identity()


@runtime_checkable
class Encoding(Protocol):
    """A model that knows the size of its embeddings."""

    @property
    def dim(self) -> int: ...


Update = Literal["eager", "compiled"]
"""How the update of a training step runs."""
OnCollapse = Literal["stop", "continue"]
"""What a training does when the model collapses."""


@dataclass(frozen=True)
class Plan:
    """What a training or evaluation is made of. Its fields are the recipe's top-level keys."""

    data: Source
    model: nn.Module
    defence: Defence
    sampler: Sampler
    optimiser: Optimiser
    epochs: int
    augment: Transform = IDENTITY
    """What training images go through."""
    view: Transform = IDENTITY
    """What evaluated images go through."""
    attack_view: View = "exact"
    """How attacks see the model in training: "fast" and "compiled" fold batch norm and use bfloat16 on a GPU."""
    update: Update = "eager"
    """How the model's own forward and backward pass run: "compiled" once for the first batch's shape (a minute)."""
    seed: int = 0
    validate_every: int = 0
    """Measure clean retrieval every so many epochs; 0: at the end only."""
    checkpoint_seconds: float = 30.0
    """Save the training state at least this often."""
    suite: str = "ers224"
    """The suite `evaluate` runs when none is named."""
    kmeans: Backend = "torch"
    """Whose k-means the scores of clustering suites come from: "torch", ours, or "faiss" (extra)."""
    on_collapse: OnCollapse = "stop"
    """Whether training ends early when all embeddings fall together (diagnose/collapse.py)."""


KINDS: dict[str, type] = {
    "defence": Defence,
    "sampler": Sampler,
    "optimiser": Optimiser,
    "augment": Transform,
    "view": Transform,
}
"""What a plan's parts must be: a name of another kind would fail far from the recipe."""


def title(where: str) -> str:
    """The name a recipe gives its run folders: `digits-plain`."""
    path = Path(where)
    return f"{path.parent.name}-{path.stem}" if path.parent.name else path.stem


def resolve(name: str, overrides: list[str]) -> tuple[dict[str, Spec], str]:
    """The plain settings of a recipe, its base and overrides applied, and the name for errors."""
    path = recipe.locate(name)
    spec = recipe.override(recipe.load(path), overrides)
    if "learner" in spec:
        raise InputError(f"{path} is fitted and proved, not trained; run `robustmetric certify {name}`")
    known = [field.name for field in fields(Plan)]
    for key in spec:
        if key not in known:
            raise InputError(f"{path}: {key!r} is not a setting of a recipe{nearest(str(key), known)}")
    refuse_words(spec, str(path))
    return spec, str(path)


def load_data(spec: Mapping[str, Spec], where: str) -> Dataset:
    """The data set of a recipe, read."""
    return _source(spec, where).load()


def _source(spec: Mapping[str, Spec], where: str) -> Source:
    source = build(spec, "data", where)
    if not isinstance(source, Source):
        raise InputError(f"{where}.data: {type(source).__name__} is not a data set; it has no load()")
    return source


def load_model(spec: Mapping[str, Spec], where: str) -> nn.Module:
    """The model of a recipe, freshly initialised from the recipe's seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_seed(spec, where))
        model = build(spec, "model", where)
    if not isinstance(model, nn.Module):
        raise InputError(f"{where}.model: {type(model).__name__} is not a torch module")
    return model


def load_run(path: Path) -> tuple[nn.Module, dict[str, Spec]]:
    """The model of a run folder with the weights that its training ended with, and its recipe."""
    folder = RunFolder(path)
    spec = folder.read_recipe()
    model = load_model(spec, str(path))
    folder.load_weights(model)
    return model, spec


def load_plan(spec: Mapping[str, Spec], where: str) -> tuple[Plan, Dataset]:
    """Everything a training needs. A recipe may refer to `$classes` (of the training set) and `$dim` (of the model)."""
    recipe.check(Plan, spec, where)
    source = _source(spec, where)
    dataset = source.load()
    model = load_model(spec, where)
    variables = {"classes": dataset.train.classes, **_dim(model)}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_seed(spec, where) + 1)
        rest = {
            key: recipe.build(value, NAMES, f"{where}.{key}", variables)
            for key, value in spec.items()
            if key not in ("data", "model")
        }
    parts = {"data": source, "model": model, **rest}
    recipe.call(_check_parts, {"parts": parts}, where)
    return recipe.call(Plan, parts, where), dataset


def load_view(spec: Mapping[str, Spec], where: str) -> Transform:
    """What evaluated images go through."""
    return cast(Transform, build(spec, "view", where)) if "view" in spec else IDENTITY


def build(spec: Mapping[str, Spec], key: str, where: str, variables: Mapping[str, Spec] | None = None) -> Any:
    """The object under one top-level key."""
    if key not in spec:
        raise InputError(f"{where}: the recipe has no {key!r}")
    return recipe.build(spec[key], NAMES, f"{where}.{key}", variables)


SUITE_KEYS = ("engine", "attacks", "modes", "survivors", "rounded")
TRIAL_KEYS = ("attack", "engine", "radii", "repeats", "on_all")


SURROGATE = "$surrogate"
"""What a suite writes where the user is to name a run folder."""


def load_suite(
    name: str, radius: float | None = None, modes: Sequence[str] | None = None, surrogate: str | None = None
) -> Suite:
    """A suite by short name or file: a default `engine`, and `attacks`, each with its own changes and radii.

    It runs in the modes its file names, or in those given here. Attacks that ask for a `$surrogate`, a run folder, are
    left out where none is given.
    """
    path, spec = _read_suite(name)
    asking = [label for label, entry in spec["attacks"].items() if _mentions(entry, SURROGATE)]
    if surrogate is not None and not asking:
        raise InputError(
            f"{path}: no attack asks for a surrogate; leave {surrogate!r} out, or run transfer or clustering_adaptive"
        )
    entries = {k: entry for k, entry in spec["attacks"].items() if surrogate is not None or k not in asking}
    if not entries:
        raise InputError(f"{path}: every attack asks for a surrogate; name a run folder with --surrogate RUN")
    trials: list[Trial] = []
    for label, entry in entries.items():
        shown = f"{label} from {Path(surrogate).name}" if surrogate and label in asking else str(label)
        trials += _trials(shown, entry, spec["engine"], f"{path}.attacks.{label}", {"surrogate": surrogate})
    rounded, survivors = spec.get("rounded", True), spec.get("survivors", {})
    _check_survivors(rounded, survivors, str(path))
    parts = {
        "name": path.stem if Path(name).suffix else name,
        "trials": [replace(trial, rounded=rounded) for trial in trials],
        "modes": _modes(spec, modes, str(path)),
        "survivors": survivors,
    }
    suite = recipe.call(Suite, parts, str(path))
    recipe.call(suite.runs, {}, str(path))
    return suite if radius is None else suite.at(radius)


def asking_for_surrogate(name: str) -> list[str]:
    """The labels of a suite's attacks that are left out where no surrogate is given."""
    return [str(label) for label, entry in _read_suite(name)[1]["attacks"].items() if _mentions(entry, SURROGATE)]


def _read_suite(name: str) -> tuple[Path, dict[str, Spec]]:
    path = recipe.locate(name, "suites")
    spec = recipe.load(path)
    for key in spec:
        if key not in SUITE_KEYS:
            raise InputError(f"{path}: {key!r} is not a setting of a suite{nearest(str(key), SUITE_KEYS)}")
    for key in ("engine", "attacks"):
        if not isinstance(spec.get(key), dict) or not spec[key]:
            raise InputError(f"{path}: a suite needs {key!r}, a mapping; see recipes/suites/demo.yaml")
    return path, spec


def _mentions(spec: Spec, word: str) -> bool:
    if isinstance(spec, dict | list):
        return any(_mentions(part, word) for part in (spec.values() if isinstance(spec, dict) else spec))
    return bool(spec == word)


def _check_survivors(rounded: Spec, survivors: Spec, where: str) -> None:
    if not isinstance(rounded, bool):
        raise InputError(f"{where}: rounded {rounded!r} is not known; expected true (8-bit images) or false")
    lists = isinstance(survivors, dict) and all(isinstance(group, list) and group for group in survivors.values())
    if not lists:
        raise InputError(f"{where}: survivors {survivors!r} are no lists of attacks under names; see autoattack.yaml")


def _modes(spec: Mapping[str, Spec], given: Sequence[str] | None, where: str) -> tuple[Mode, ...]:
    """The modes asked for, else those of the suite's file."""
    modes = spec.get("modes", []) if given is None else list(given)
    if not isinstance(modes, list) or len(set(map(str, modes))) < len(modes):
        raise InputError(f"{where}: modes {modes!r} are not a list of different modes, such as [fixed, compat]")
    for mode in modes:
        recipe.call(check_mode, {"mode": str(mode)}, where)
    return tuple(modes)


def _trials(label: str, entry: Spec, engine: dict[str, Spec], where: str, variables: Mapping[str, Spec]) -> list[Trial]:
    """One suite entry: `attack`, changes to the `engine`, the `radii` to run it at, and how it is run."""
    if not isinstance(entry, dict):
        raise InputError(f"{where}: expected a mapping with 'attack', found {entry!r}")
    for key in entry:
        if key not in TRIAL_KEYS:
            raise InputError(f"{where}: {key!r} is not known{nearest(str(key), TRIAL_KEYS)}")
    changes = entry.get("engine", {})
    # Another engine has settings of its own, but climbs in the same ball.
    same = changes.get("name", engine.get("name")) == engine.get("name")
    merged = recipe.merge(engine if same else {k: v for k, v in engine.items() if k == "ball"}, changes)
    attack = build(entry, "attack", where, variables)
    climber = recipe.build(merged, NAMES, f"{where}.engine")
    if not isinstance(attack, Attack) or not isinstance(climber, Engine):
        raise InputError(f"{where}: {attack!r} climbed by {climber!r} is not an attack with an engine such as pgd")
    recipe.call(_check_whole, {"value": entry.get("repeats", 1), "name": "repeats", "least": 1}, where)
    if not isinstance(entry.get("on_all", False), bool):
        raise InputError(f"{where}: on_all {entry['on_all']!r} is not known; expected true or false")
    trial = Trial(label, attack, climber, entry.get("repeats", 1), on_all=entry.get("on_all", False))
    radii = entry.get("radii")
    if radii is not None and (not isinstance(radii, list) or not all(isinstance(r, int | float) for r in radii)):
        raise InputError(f"{where}: radii {radii!r} are not a list of numbers, such as [4/255, 8/255]")
    return [recipe.call(trial.at, {"radius": radius}, where) for radius in radii] if radii else [trial]


def _dim(model: nn.Module) -> dict[str, int]:
    """The size of an embedding, where the model knows it: most recipes do not ask."""
    try:
        return {"dim": model.dim} if isinstance(model, Encoding) else {}
    except InputError:
        return {}


def _check_parts(parts: Mapping[str, Any]) -> None:
    """Refuse parts of the wrong kind here, where the recipe can be named, not at the first step."""
    _check_whole(parts["epochs"], "epochs", least=1)
    _check_whole(parts.get("validate_every", 0), "validate_every", least=0)
    seconds = parts.get("checkpoint_seconds", 0)
    if not isinstance(seconds, int | float) or not seconds >= 0:
        raise InputError(f"checkpoint_seconds {seconds!r} is no time; expected a number >= 0")
    words = {"attack_view": get_args(View), "update": get_args(Update), "on_collapse": get_args(OnCollapse)}
    words["kmeans"] = get_args(Backend)
    for key, known in words.items():
        if parts.get(key, known[0]) not in known:
            raise InputError(f"{key} {parts[key]!r} is not known{nearest(str(parts[key]), known)}")
    for key, kind in KINDS.items():
        if key in parts and not isinstance(parts[key], kind):
            raise InputError(f"{key}: {type(parts[key]).__name__} is not a {kind.__name__.lower()}")


def _seed(spec: Mapping[str, Spec], where: str) -> int:
    seed = spec.get("seed", 0)
    recipe.call(_check_whole, {"value": seed, "name": "seed", "least": 0}, where)
    return int(seed)


def _check_whole(value: Spec, name: str, least: int) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InputError(f"{name} {value!r} is not known; expected a whole number >= {least}")
