"""A model and images at hand in Python as a target of `evaluate`: the folder of its records holds no other's."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from robustmetric.data.base import Dataset
from robustmetric.data.transforms import Identity
from robustmetric.diagnose.randomised import difference, one_draw
from robustmetric.diagnose.thresholds import SWAYED
from robustmetric.errors import InputError
from robustmetric.jobs.answer import answering, checked_logits
from robustmetric.jobs.arena import data_fingerprint
from robustmetric.jobs.folder import RunFolder, fingerprint, load_arrays
from robustmetric.jobs.own import unit
from robustmetric.jobs.surrogate import construction
from robustmetric.jobs.target import ANSWERS, NumPy, Target
from robustmetric.jobs.workers import full_precision
from robustmetric.models.classifier import Classifies
from robustmetric.perturb.pgd import frozen
from robustmetric.types import Embeddings, Inputs

SOME = 8
"""Images, spread over all, whose answers are kept in the folder."""
ALIKE = 1e-3
"""Relative difference up to which one model may round its answers apart on two devices."""


def target_at_hand(encoder: nn.Module, dataset: Dataset, out: Any, device: torch.device) -> Target:
    """The encoder as a target whose records go to the folder `out`; one that holds those of another is refused."""
    if not isinstance(out, str | Path) or not str(out):
        raise InputError(f"out {out!r} is no folder; expected a path, such as 'runs/mine'")
    folder = RunFolder(Path(out))
    if folder.path.exists() and not folder.path.is_dir():
        raise InputError(f"out {str(out)!r} is a file; expected a folder, which need not exist")
    model, images = unit(encoder).to(device), _some(dataset).to(device)
    spec = {
        "model": {
            "name": type(encoder).__name__,
            "construction": construction(model, lambda: _answer(model, images, 0)),
        },
        "data": {"name": dataset.name},
    }
    name = folder.path.resolve().name
    target = Target(model, dataset, Identity(), folder, spec, name, answers=_answers(model, images))
    if others := ", ".join(_others(target)):
        raise InputError(f"{out} is the folder of {others}; name another folder with out=")
    return target


def _others(target: Target) -> Iterator[str]:
    """What else the folder is of; nothing where it may be added to."""
    folder = target.folder
    there = [record.settings for record in folder.finished().values()]
    is_free = folder.is_nobodys or not folder.recipe.exists()
    is_built_alike = is_free or folder.read_recipe().get("model") == target.spec["model"]
    weights, images = fingerprint(target.model)[:16], data_fingerprint(target.dataset)
    is_of_these = all(settings.get("data_fingerprint") == images for settings in there)
    is_of_this = is_built_alike and all(settings.get("weights") == weights for settings in there)
    # Of other images answers say nothing; without records nothing is there that could be taken for this model's.
    if not is_of_this or (there and is_of_these and not _answers_alike(target)):
        yield "another model"
    if not is_of_these:
        yield "other images or labels"


def _answers_alike(target: Target) -> bool:
    """Whether what is kept are this model's answers: code, and settings that are no plain values, are seen in them."""
    arrays = load_arrays(target.folder.answers)
    if arrays is None or target.answers is None:
        return arrays is None and target.answers is None  # a model that draws at random has none
    first, second = torch.from_numpy(arrays[ANSWERS]), torch.from_numpy(target.answers)
    return first.shape == second.shape and difference(first, second) <= ALIKE


def _answers(model: nn.Module, images: Inputs) -> NumPy | None:
    """What the model answers, as it is in every process; None where it draws at random."""
    first, second = (_answer(model, images, seed) for seed in (0, 1))
    return first.cpu().numpy() if difference(first, second) <= SWAYED else None


@full_precision()
@torch.no_grad()
def _answer(model: nn.Module, images: Inputs, seed: int) -> Embeddings:
    """The model's answers under one draw of the global randomness, which goes on after as before."""
    with one_draw(images.device, seed):
        if isinstance(model, Classifies):
            return checked_logits(model, images, model.classes).float()
        with frozen(model) as network, answering(model, images):
            return network(images).float()


def _some(dataset: Dataset) -> Inputs:
    inputs = dataset.queries.inputs
    return inputs[torch.linspace(0, len(inputs) - 1, min(SOME, len(inputs))).long()]
