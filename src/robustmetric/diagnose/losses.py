"""Climbs of several losses from random starts, side by side: does one stall where another goes on?

Evidence beside the check of loss curves and no part of its verdict: it draws from a generator of its own, so that all
checks are what they are without it.
"""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from robustmetric.attacks.base import Attack
from robustmetric.diagnose.masking import Examination
from robustmetric.diagnose.subject import Subject
from robustmetric.diagnose.unlifted import ToFeatures
from robustmetric.numerics.randomness import generator
from robustmetric.perturb.pgd import frozen
from robustmetric.types import Batch, Gallery

LOSSES = "losses"
"""In the context of a record: these curves."""
FEATURE_TARGET = "feature target"
PURPOSE = 9
"""Of draws, beside the examination's own (8)."""

Lines = dict[str, list[float]]
"""`climbed`: the mean of a loss at every step; `right`: percent of the images that no step so far has fooled."""


def by_loss(this: Examination) -> dict[str, Any]:
    """Under `losses`: climbs of each loss that the subject has, in the mean over starts and images; {} of no starts.

    A loss that is NaN or infinite on every image cannot be drawn, and is left out.
    """
    if not this.effort.loss_starts:
        return {}
    subject = this.subject
    lines = {name: _lines(this, subject, loss) for name, loss in subject.followed.items()}
    shown = _with_features(subject)
    if shown is not None:
        classes = subject.gallery.embeddings.shape[1]
        lines[FEATURE_TARGET] = _lines(this, shown, ToFeatures(classes))
    lines = {name: line for name, line in lines.items() if all(map(math.isfinite, line["climbed"]))}
    return {LOSSES: {"starts": this.effort.loss_starts, "lines": lines}} if lines else {}


def _lines(this: Examination, subject: Subject, loss: Attack) -> Lines:
    # Begun anew for each loss: those that draw no targets are climbed from the same starts.
    own = replace(this, subject=replace(subject, loss=loss, watched=loss), generator=_drawn_apart(this))
    engine = this.usual(this.effort.start_steps)
    climbs = [own.recorded(engine) for _ in range(this.effort.loss_starts)]
    values = torch.stack([climb.values for climb in climbs])
    # Lost once is lost.
    right = torch.stack([100 * climb.is_right.int() for climb in climbs]).cummin(dim=1).values
    # One NaN would be that of every mean.
    drawn = values[:, :, values.isfinite().all(dim=1).all(dim=0)]
    return {"climbed": _mean(drawn), "right": _mean(right)}


def _mean(values: Tensor) -> list[float]:
    """At every step, over starts and images."""
    found: list[float] = values.double().mean(dim=(0, 2)).tolist()
    return found


def _drawn_apart(this: Examination) -> torch.Generator:
    """Randomness that hangs on the examination's seed alone, not on what it has drawn."""
    source = this.generator
    if source is None:
        return generator(this.subject.batch.inputs.device, PURPOSE)
    return generator(source.device, source.initial_seed(), PURPOSE)


def _with_features(subject: Subject) -> Subject | None:
    """The classifier with its features behind the logits, and those of its images to aim at, where it shows any."""
    labels, classes = subject.batch.labels, subject.gallery.embeddings.shape[1]
    if subject.exposed is None or len(labels.unique()) < 2:
        return None
    with frozen(subject.exposed, subject.view) as embed, torch.no_grad():
        items = torch.cat([embed(batch.inputs) for batch in subject.batches()])

    def right(z: Tensor, batch: Batch, gallery: Gallery) -> Tensor:
        return subject.right(z[:, :classes], batch, gallery)

    return replace(subject, model=subject.exposed, gallery=Gallery(items, labels), right=right)
