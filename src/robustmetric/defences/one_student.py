"""One student on an ensemble's adversaries: what of EAT (arXiv 2501.01025) is owed to them, and what to the vote."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from robustmetric.defences.base import Defence, require
from robustmetric.defences.eat import EnsembleAdversarial
from robustmetric.errors import InputError
from robustmetric.losses.base import MetricLoss
from robustmetric.models.encoder import has_auxiliary
from robustmetric.models.ensemble import Ensemble, members_of
from robustmetric.types import Batch, Labels


class OneStudent(Defence):
    """AT, L(F(x~), y), on the images x~ that an ensemble, trained by EAT beside the model, makes for its own members.

    The model, the student, trains on all of them, whatever a member may see, and has no part in making them: a student
    that had would be a member of EAT without the split. Where each member has an image moved for itself (`shared:
    false`), the student has it as the last of them does. The ensemble ends with the training.
    """

    def __init__(self, loss: MetricLoss, ensemble: nn.Module, trained_by: EnsembleAdversarial) -> None:
        super().__init__()
        require(loss, MetricLoss, "loss")
        require(ensemble, Ensemble, "ensemble")
        require(trained_by, EnsembleAdversarial, "trained_by")
        if has_auxiliary(ensemble) and not trained_by.separates:
            raise InputError(
                "batch_norm 'auxiliary' of the ensemble keeps clean and perturbed images apart, and it trains on one "
                "kind alone; expected trained_by with a clean_share between 0 and 1"
            )
        self.loss, self.trained_by = loss, trained_by
        self.ensemble = members_of(ensemble, len(trained_by.losses))

    @property
    def beside(self) -> Sequence[nn.Module]:
        """The ensemble."""
        return [self.ensemble]

    def repeated(self, model: nn.Module) -> Sequence[nn.Module]:
        """The student, and the members."""
        return [model, *self.trained_by.repeated(self.ensemble)]

    def prepare(self, labels: Labels) -> None:
        """Cut the training set into the members' parts."""
        self.trained_by.prepare(labels)

    def forward(self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        inner = self.trained_by
        inner.view, inner.steady, inner.progress = self.view, self.steady, self.progress
        terms, moved = inner.step(self.ensemble, batch, generator)
        # An image is in the part of one member, so another has it.
        images = batch.inputs.clone()
        for i, rows in inner.rows(batch).items():
            images[rows] = moved[i]
        student = self.loss(model(images), batch.labels, generator=generator)
        return {"student": student, **{f"ensemble_{name}": term for name, term in terms.items()}}
