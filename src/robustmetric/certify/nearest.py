"""The certificates of a k-NN classifier as settings, for recipes: how many neighbours, and which proof."""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from robustmetric.certify.knn import METHODS, RobustKNN
from robustmetric.errors import InputError, nearest
from robustmetric.models.mahalanobis import Mahalanobis
from robustmetric.numerics.majority import majority_ranks
from robustmetric.numerics.numbers import is_whole
from robustmetric.types import Batch


@dataclass(frozen=True)
class KNearest:
    """Certify k-NN under a learned metric: "exact" for one neighbour, "bound" (Theorem 1 of ARML) for any number.

    `positives` looks at that many nearest rows of the own class alone: sound, looser, faster.
    """

    neighbours: int = 1
    method: str = "exact"
    positives: int | None = None

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise InputError(f"method {self.method!r} does not certify k-NN{nearest(self.method, METHODS)}")
        if not is_whole(self.neighbours) or (self.method == "exact" and self.neighbours > 1):
            raise InputError(
                f"neighbours={self.neighbours!r} with method {self.method!r}; expected 1, or method 'bound' and 1 or "
                "more"
            )
        least, _ = majority_ranks(self.neighbours)
        if self.positives is not None and not is_whole(self.positives, least):
            raise InputError(
                f"positives={self.positives!r} prove nothing for {least} votes; expected {least} or more, or none given"
            )

    @property
    def name(self) -> str:
        """As tables call it: `1-NN exact`, or `1-NN, 3 near positives`, which is no exact radius."""
        if self.positives is None:
            return f"{self.neighbours}-NN {self.method}"
        return f"{self.neighbours}-NN{' bound' if self.method == 'bound' else ''}, {self.positives} near positives"

    def check_rows(self, count: int) -> None:
        """Refuse fewer rows than neighbours."""
        if self.neighbours > count:
            raise InputError(
                f"neighbours={self.neighbours} cannot vote among {count} rows; expected at most {count}, in the "
                "recipe's certificates; --method exact asks the nearest alone"
            )

    def fit(self, metric: Any, x: Any, y: Any, device: str = "cpu") -> RobustKNN:
        """The classifier on these rows, ready to certify."""
        return RobustKNN(metric, self.neighbours, device=device).fit(x, y)

    def radius(self, model: nn.Module, queries: Batch, references: Batch) -> Float[Tensor, " batch"]:
        """Of k-NN among the references under a `Mahalanobis` model's metric, in units of the inputs; 0 where wrong."""
        if not isinstance(model, Mahalanobis):
            raise InputError(f"{type(model).__name__} is not linear; expected a Mahalanobis model, or use smoothing")
        rows, labels = (references.inputs.flatten(1).cpu().numpy(), references.labels.cpu().numpy())
        knn = self.fit(model.matrix.detach().cpu().numpy(), rows, labels, str(queries.inputs.device))
        radii = knn.certify(
            queries.inputs.flatten(1).cpu().numpy(), queries.labels.cpu().numpy(), self.method, positives=self.positives
        )
        assert not isinstance(radii, tuple)  # no perturbation was asked for
        return torch.from_numpy(radii).to(queries.inputs.device)
