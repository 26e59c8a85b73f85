"""Recipe to objects: data, model, defence and the rest, built in the order in which one needs the other."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

import torch
from torch import nn

from robustmetric import recipe
from robustmetric.attacks.suite import Suite, Trial
from robustmetric.catalogue import NAMES
from robustmetric.data.base import Dataset
from robustmetric.data.protocols import Sampler, Source, Transform
from robustmetric.data.transforms import Identity
from robustmetric.defences.base import Defence
from robustmetric.errors import InputError, nearest
from robustmetric.optimise import Optimiser
from robustmetric.recipe import Spec

IDENTITY = Identity()


@runtime_checkable
class Encoding(Protocol):
    """A model that knows the size of its embeddings."""

    @property
    def dim(self) -> int: ...


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
    seed: int = 0
    validate_every: int = 0
    """Measure clean retrieval every so many epochs; 0: at the end only."""
    checkpoint_seconds: float = 30.0
    """Save the training state at least this often."""
    suite: str = "ers224"
    """The suite `evaluate` runs when none is named."""


def resolve(name: str, overrides: list[str]) -> tuple[dict[str, Spec], str]:
    """The plain settings of a recipe, its base and overrides applied, and the name for errors."""
    path = recipe.locate(name)
    spec = recipe.override(recipe.load(path), overrides)
    known = [field.name for field in fields(Plan)]
    for key in spec:
        if key not in known:
            raise InputError(f"{path}: {key!r} is not a setting of a recipe{nearest(str(key), known)}")
    return spec, str(path)


def load_data(spec: Mapping[str, Spec], where: str) -> Dataset:
    """The data set of a recipe, read."""
    source = build(spec, "data", where)
    if not isinstance(source, Source):
        raise InputError(f"{where}.data: {type(source).__name__} is not a data set; it has no load()")
    return source.load()


def load_model(spec: Mapping[str, Spec], where: str) -> nn.Module:
    """The model of a recipe, freshly initialised from the recipe's seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(spec.get("seed", 0)))
        model = build(spec, "model", where)
    if not isinstance(model, nn.Module):
        raise InputError(f"{where}.model: {type(model).__name__} is not a torch module")
    return model


def load_plan(spec: Mapping[str, Spec], where: str) -> tuple[Plan, Dataset]:
    """Everything a training needs. A recipe may refer to `$classes` (of the training set) and `$dim` (of the model)."""
    recipe.check(Plan, spec, where)
    dataset = load_data(spec, where)
    model = load_model(spec, where)
    dim = model.dim if isinstance(model, Encoding) else None
    variables = {"classes": dataset.train.classes, "dim": dim}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(spec.get("seed", 0)) + 1)
        rest = {
            key: recipe.build(value, NAMES, f"{where}.{key}", variables)
            for key, value in spec.items()
            if key not in ("data", "model")
        }
    return Plan(data=build(spec, "data", where), model=model, **rest), dataset


def load_view(spec: Mapping[str, Spec], where: str) -> Transform:
    """What evaluated images go through."""
    return cast(Transform, build(spec, "view", where)) if "view" in spec else IDENTITY


def build(spec: Mapping[str, Spec], key: str, where: str) -> Any:
    """The object under one top-level key."""
    if key not in spec:
        raise InputError(f"{where}: the recipe has no {key!r}")
    return recipe.build(spec[key], NAMES, f"{where}.{key}")


def load_suite(name: str, radius: float | None = None) -> Suite:
    """A suite by short name or file: a default `engine`, and `attacks`, each with its own changes and radii."""
    path = recipe.locate(name, "suites")
    spec = recipe.load(path)
    for key in spec:
        if key not in ("engine", "attacks"):
            raise InputError(f"{path}: {key!r} is not a setting of a suite{nearest(key, ('engine', 'attacks'))}")
    trials: list[Trial] = []
    for label, entry in spec["attacks"].items():
        trials += _trials(label, entry, spec["engine"], f"{path}.attacks.{label}")
    suite = Suite(path.stem if Path(name).suffix else name, trials)
    return suite if radius is None else suite.at(radius)


def _trials(label: str, entry: dict[str, Spec], engine: dict[str, Spec], where: str) -> list[Trial]:
    """One suite entry: `attack`, changes to the `engine`, and the `radii` to run it at."""
    for key in entry:
        if key not in ("attack", "engine", "radii"):
            raise InputError(f"{where}: {key!r} is not known{nearest(key, ('attack', 'engine', 'radii'))}")
    merged = recipe.merge(engine, entry.get("engine", {}))
    trial = Trial(label, build(entry, "attack", where), recipe.build(merged, NAMES, f"{where}.engine"))
    radii = entry.get("radii")
    return [trial.at(radius) for radius in radii] if radii else [trial]
