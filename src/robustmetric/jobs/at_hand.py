"""A model and images at hand in Python as a target of `evaluate`: the folder of its records holds no other's."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from torch import nn

from robustmetric.data.base import Dataset
from robustmetric.data.transforms import Identity
from robustmetric.errors import InputError
from robustmetric.jobs.arena import data_fingerprint
from robustmetric.jobs.folder import RunFolder, fingerprint
from robustmetric.jobs.own import unit
from robustmetric.jobs.surrogate import construction
from robustmetric.jobs.target import Target


def target_at_hand(encoder: nn.Module, dataset: Dataset, out: Any) -> Target:
    """The encoder as a target whose records go to the folder `out`; one that holds those of another is refused."""
    if not isinstance(out, str | Path) or not str(out):
        raise InputError(f"out {out!r} is no folder; expected a path, such as 'runs/mine'")
    folder = RunFolder(Path(out))
    if folder.path.exists() and not folder.path.is_dir():
        raise InputError(f"out {str(out)!r} is a file; expected a folder, which need not exist")
    model = unit(encoder)
    spec = {
        "model": {"name": type(encoder).__name__, "construction": construction(model)},
        "data": {"name": dataset.name},
    }
    target = Target(model, dataset, Identity(), folder, spec, folder.path.resolve().name)
    if others := ", ".join(_others(target)):
        raise InputError(f"{out} is the folder of {others}; name another folder with out=")
    return target


def _others(target: Target) -> Iterator[str]:
    """What else the folder is of; nothing where it may be added to."""
    folder = target.folder
    there = [record.settings for record in folder.finished().values()]
    is_built_alike = not folder.recipe.exists() or folder.read_recipe().get("model") == target.spec["model"]
    weights, images = fingerprint(target.model)[:16], data_fingerprint(target.dataset)
    if not is_built_alike or any(settings.get("weights") != weights for settings in there):
        yield "another model"
    if any(settings.get("data_fingerprint") != images for settings in there):
        yield "other images or labels"
