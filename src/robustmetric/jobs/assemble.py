"""Recipe to objects: data, model, defence and the rest, built in the order in which one needs the other."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, Protocol, cast, get_args, runtime_checkable

import torch
from torch import nn

from robustmetric import recipe
from robustmetric.catalogue import NAMES
from robustmetric.data.base import Dataset
from robustmetric.data.protocols import Sampler, Source, Transform
from robustmetric.data.transforms import Identity
from robustmetric.defences.base import Defence
from robustmetric.errors import InputError, nearest
from robustmetric.jobs.folder import RunFolder
from robustmetric.jobs.words import refuse_words
from robustmetric.models.encoder import has_auxiliary
from robustmetric.numerics.kmeans import Backend
from robustmetric.optimise import Optimiser
from robustmetric.overrides import override
from robustmetric.perturb.pgd import View
from robustmetric.recipe import Spec

IDENTITY = Identity()
PRETRAINED = (NAMES["backbone"], NAMES["bn_inception"])
"""Models that may begin from a file (`weights`), wherever a recipe names them by their path."""


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
    """How attacks see the model in training: "fast" and "compiled" fold batch norm and use bfloat16 on a GPU, and on a
    CPU where the training does."""
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
    spec = override(recipe.load(path), overrides)
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
    model = load_model(without_pretrained(spec), str(path))
    folder.load_weights(model)
    return model, spec


def without_pretrained(spec: Mapping[str, Spec]) -> dict[str, Spec]:
    """A recipe whose model begins from no file, nor a download, since weights of its own will replace them.

    "package" stays: it also says by which pixel statistics images are normalised.
    """
    return {**spec, "model": _bare(spec["model"])} if "model" in spec else dict(spec)


def _bare(part: Spec) -> Spec:
    if isinstance(part, list):
        return [_bare(one) for one in part]
    if not isinstance(part, dict):
        return part
    name = part.get("name")
    is_pretrained = NAMES.get(str(name), name) in PRETRAINED and part.get("weights") != "package"
    return {key: _bare(value) for key, value in part.items() if not (is_pretrained and key == "weights")}


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


def _dim(model: nn.Module) -> dict[str, int]:
    """The size of an embedding, where the model knows it: most recipes do not ask."""
    try:
        return {"dim": model.dim} if isinstance(model, Encoding) else {}
    except InputError:
        return {}


def _check_parts(parts: Mapping[str, Any]) -> None:
    """Refuse parts of the wrong kind here, where the recipe can be named, not at the first step."""
    check_whole(parts["epochs"], "epochs", least=1)
    check_whole(parts.get("validate_every", 0), "validate_every", least=0)
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
    if has_auxiliary(parts["model"]) and not parts["defence"].separates:
        raise InputError(
            f"batch_norm 'auxiliary' keeps clean and perturbed images apart, and {type(parts['defence']).__name__} as "
            "set does not learn from both; expected eat or madry with a clean_share between 0 and 1, iat or trades"
        )


def _seed(spec: Mapping[str, Spec], where: str) -> int:
    seed = spec.get("seed", 0)
    recipe.call(check_whole, {"value": seed, "name": "seed", "least": 0}, where)
    return int(seed)


def check_whole(value: Spec, name: str, least: int) -> None:
    """Refuse a setting that must be a whole number of `least` or more."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise InputError(f"{name} {value!r} is not known; expected a whole number >= {least}")
