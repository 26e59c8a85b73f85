"""A model and data of one's own, from what a command names: `company.build`, `--data photos`, `--view identity`."""

import inspect
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from robustmetric import recipe
from robustmetric.catalogue import NAMES
from robustmetric.data.base import Dataset
from robustmetric.data.folder import Folder
from robustmetric.data.manifest import Manifest
from robustmetric.data.protocols import Source, Transform
from robustmetric.data.transforms import CentreCrop, Identity
from robustmetric.errors import InputError
from robustmetric.jobs.answer import check_weights
from robustmetric.jobs.named import refuse_unknown_data
from robustmetric.jobs.progress import say
from robustmetric.models.classifier import Classifies
from robustmetric.models.encoder import Encoder
from robustmetric.models.ensemble import Ensemble
from robustmetric.models.mahalanobis import Mahalanobis
from robustmetric.numerics.distances import are_unit
from robustmetric.perturb.pgd import frozen
from robustmetric.recipe import Spec


def skipping(spec: Mapping[str, Spec], where: str) -> dict[str, Spec]:
    """The recipe with unreadable images left out, which only data sets of image files can do."""
    data = spec.get("data")
    if not isinstance(data, dict) or "name" not in data:
        return dict(spec)  # building it gives the clearer error
    constructor = recipe.find(data["name"], NAMES, f"{where}.data")
    return {**spec, "data": {**data, **skip_setting(constructor, data["name"])}}


def skip_setting(constructor: Callable[..., Any], name: str) -> dict[str, bool]:
    """The setting that leaves unreadable images out; refused where there is none."""
    parameters = inspect.signature(constructor).parameters
    if "skip_unreadable" not in parameters and not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        raise InputError(f"--skip-unreadable is for data sets of image files; {name!r} reads none, leave it out")
    return {"skip_unreadable": True}


def own_data(name: str, skip_unreadable: bool = False) -> tuple[Dataset, Transform]:
    """Data named on the command line: a folder or zip of class folders, a CSV manifest, or a data set of ours.

    Every image of a folder is a query; nothing is held back for training. The view is a guess from the images' size.
    """
    dataset = own_source(name, skip_unreadable).load()
    side = dataset.queries.inputs.shape[-1] if dataset.queries.inputs.dim() == 4 else 0
    return dataset, CentreCrop(224) if side == 256 else Identity()


def own_source(name: str, skip_unreadable: bool = False, where: str = "--data ") -> Source:
    """The same, not loaded yet; `where` stands before the name in errors."""
    path = Path(name)
    refuse_unknown_data(name, where)
    if path.suffix == ".csv":
        return Manifest(str(path), skip_unreadable=skip_unreadable)
    if path.exists():
        return Folder(str(path), test_share=1.0, skip_unreadable=skip_unreadable)
    return _named_source(name, skip_unreadable, f"{where}{name}")


def check_searchable(dataset: Dataset, name: str) -> None:
    """Refuse data in which nothing can be searched for, before an attack on a search is run on it."""
    counts = (dataset.gallery or dataset.queries).labels.bincount()
    if why := unsearchable(counts[counts > 0].tolist(), has_gallery=dataset.gallery is not None):
        raise InputError(f"--data {name!r} has {why}")


def unsearchable(sizes: Collection[int], *, has_gallery: bool) -> str:
    """Why nothing can be searched for among classes of these sizes; "" where something can."""
    if len(sizes) < 2:
        return "images of one class only; expected two classes or more to tell apart"
    if not has_gallery and max(sizes) < 2:
        return "one image of each class, so no search can be right; expected two or more of most"
    return ""


def _named_source(name: str, skip_unreadable: bool, where: str) -> Source:
    constructor = recipe.find(name, NAMES, where)
    arguments = skip_setting(constructor, name) if skip_unreadable else {}
    try:
        recipe.check(constructor, arguments, where)
    except InputError as error:
        raise InputError(f"{error}; give the path of a folder, zip or CSV manifest, or evaluate a recipe") from error
    source: Source = recipe.call(constructor, arguments, where)
    return source


def is_own(name: str) -> bool:
    """Whether a name means somebody's own model, `company.build`, and neither a run folder nor a recipe."""
    path = Path(name)
    return not path.is_dir() and path.suffix not in {"", ".yaml", ".yml"} and "/" not in name


OWN_MODEL = "your own model is named FILE.FUNCTION, as in company.build for `def build()` in ./company.py"


def refuse_file(name: str) -> None:
    """Refuse `company.py`, before anything is looked for in it or beside it, by what to type instead."""
    try:
        recipe.refuse_file(name)
    except InputError as error:
        raise InputError(f"{error}; {OWN_MODEL}") from error


def own_model(name: str, where: str = "model") -> Callable[[], nn.Module]:
    """What builds somebody's own model, found by its name; it is called when the model is needed."""
    try:
        made = recipe.find(name, {}, where)
    except InputError as error:
        raise InputError(f"{error}; {OWN_MODEL}, which builds it and loads its weights") from error
    return partial(_built, made, name)


def _built(made: Any, name: str) -> nn.Module:
    try:
        model = made if isinstance(made, nn.Module) else made()
    except InputError:
        raise
    except Exception as error:  # whatever somebody's own function may raise
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        wanted = "a function that needs no argument" if isinstance(error, TypeError) else "a model"
        raise InputError(
            f"{name!r} could not be built ({reason}); expected {wanted}; "
            "`robustmetric --debug evaluate ...` shows where it failed"
        ) from error
    if not isinstance(model, nn.Module):
        raise InputError(
            f"{name!r} gave a {type(model).__name__}; expected a torch module or a function that makes one"
        )
    return unit(model)


def unit(model: nn.Module) -> nn.Module:
    """The model with unit-length embeddings; one of ours, or a classifier, is left with the lengths it gives."""
    check_weights(model)
    if isinstance(model, Classifies):
        _check_count(model)
    return model if has_own_lengths(model) else Encoder(model)


def has_own_lengths(model: nn.Module) -> bool:
    """Whether a model is one of ours, which says itself how long its embeddings are, or a classifier."""
    return isinstance(model, Encoder | Ensemble | Mahalanobis | Classifies)


def warn_of_lengths(model: nn.Module, name: str, shape: Sequence[int]) -> None:
    """Say that a bare network of one's own is trained on other distances than `evaluate` measures of it by its name."""
    if has_own_lengths(model) or not any(weights.requires_grad for weights in model.parameters()):
        return  # the second is refused in a moment
    device = next(model.parameters(), torch.empty(0)).device
    inputs = torch.rand(2, *shape, generator=torch.Generator().manual_seed(0)).to(device)
    with torch.random.fork_rng(devices=[]), frozen(model) as network, torch.no_grad():
        is_unit = are_unit(network(inputs).flatten(1).float())
    if not bool(is_unit):
        say(
            f"warning: the embeddings of {name} are not of unit length and are trained as they are, while `evaluate "
            f"{name}` scales them: the two do not compare; have it return robustmetric.Encoder(network)"
        )


def _check_count(model: Classifies) -> None:
    """Refuse a classifier whose `classes` are their names, say, and not how many there are."""
    try:
        operator.index(model.classes)
    except TypeError as error:
        raise InputError(
            f"{type(model).__name__}.classes is a {type(model.classes).__name__}; expected a whole number, how many "
            "classes its logits are of; an encoder has no such attribute"
        ) from error
