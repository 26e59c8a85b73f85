"""A few queries of an attack, as bytes, for the report."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from robustmetric.attacks.base import Outcome
from robustmetric.attacks.suite import Trial
from robustmetric.jobs.arena import Arena, as_bytes
from robustmetric.numerics.distances import nearest
from robustmetric.perturb.pgd import frozen
from robustmetric.records import is_bounded
from robustmetric.report.scores import title
from robustmetric.types import Batch

Pictures = dict[str, npt.NDArray[Any]]
"""What the report shows of an attack; see `pictures_of`."""
EXAMPLES = 6
"""Queries kept as pictures per trial."""


def pictures_of(arena: Arena, trial: Trial, batch: Batch, outcome: Outcome) -> Pictures | None:
    """A few queries before and after, with their five nearest items as bytes, for the report."""
    if batch.inputs.dim() != 4:
        return None
    few = torch.linspace(0, len(batch) - 1, min(EXAMPLES, len(batch))).long().to(batch.inputs.device)
    k = min(5, len(arena.gallery) - 1)
    with frozen(arena.model, arena.seen) as network, torch.no_grad():
        clean = network(batch.inputs[few])
    found = {"query_label": batch.labels[few], "query": _to_uint8(batch.inputs[few])}
    found["perturbed"] = _to_uint8(outcome.inputs[few])
    for when, z in (("before", clean), ("after", outcome.embeddings[few])):
        _, top = nearest(z, arena.gallery.embeddings, k=k, exclude=batch.index[few])
        images = as_bytes(arena.items.batch(top.flatten().cpu(), arena.view)).inputs
        found[when] = _to_uint8(images).view(*top.shape, *images.shape[1:])
        found[f"{when}_label"] = arena.gallery.labels[top]
    arrays = {name: value.cpu().numpy() for name, value in found.items()}
    arrays["class_names"] = np.array(arena.class_names)
    bounded = is_bounded(trial.settings())
    arrays |= {"radius": np.array(trial.engine.ball.radius)} if bounded else {}
    arrays["attack"] = np.array(trial.label if bounded else title(trial.label, trial.settings()))
    return arrays


def _to_uint8(images: Tensor) -> Tensor:
    return (images * 255).round().to(torch.uint8)
