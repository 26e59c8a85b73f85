"""Randomised smoothing (Cohen et al., ICML 2019): an l2 radius for the class a classifier mostly gives under noise."""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.special import ndtri

from robustmetric.errors import InputError
from robustmetric.models.smoothed import check_noise
from robustmetric.numerics.intervals import check_alpha, clopper_pearson_lower
from robustmetric.numerics.randomness import Purpose, generator, noise
from robustmetric.perturb.pgd import frozen
from robustmetric.types import Batch, Embed, Inputs, Progress


@dataclass(frozen=True)
class SmoothedClasses:
    """What randomised smoothing says of each input: its class, and how far no l2 perturbation changes it."""

    label: Int[Tensor, " batch"]
    """The smoothed classifier's class; -1 where it abstains."""
    radius: Float[Tensor, " batch"]
    """Certified l2 radius of that class, in float64; 0 where it abstains."""

    @property
    def abstained(self) -> Bool[Tensor, " batch"]:
        """Where the sample does not show which class is the likeliest."""
        return self.label < 0


@dataclass(frozen=True)
class Smoothing:
    """The classifier c(x) = the class that `model` gives most often at x + sigma * noise, and its certificate.

    `selection` draws guess that class; `samples` further ones bound its probability from below by p, wrong with chance
    at most `alpha` per input. Where p > 1/2, c is constant within sigma * Phi^-1(p); elsewhere it abstains. The
    certificate is of c, not of `model`, and of c as defined by probabilities, not of a later majority vote.
    """

    sigma: float
    samples: int = 100_000
    selection: int = 100
    alpha: float = 0.001
    batch: int = 10_000
    """Noisy inputs that are classified at a time."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_noise(self.sigma, min(self.samples, self.selection), self.batch)
        check_alpha(self.alpha)

    def certify(
        self, model: nn.Module, inputs: Inputs, *, first: int = 0, progress: Progress | None = None
    ) -> SmoothedClasses:
        """Class and radius of each input; `first` is the number of the first one, so that parts give what a whole does.

        `model` maps inputs to one logit per class.
        """
        labels = torch.full((len(inputs),), -1, dtype=torch.long)
        radii = torch.zeros(len(inputs), dtype=torch.float64)
        with torch.no_grad(), frozen(model) as classify:
            for row, x in enumerate(inputs):
                source = generator(x.device, self.seed, first + row, purpose=Purpose.SMOOTHED_CLASSES)
                labels[row], radii[row] = self._certify_one(classify, x, source)
                if progress is not None:
                    progress(row + 1, len(inputs))
        return SmoothedClasses(labels.to(inputs.device), radii.to(inputs.device))

    def radius(self, model: nn.Module, queries: Batch, references: Batch | None = None) -> Float[Tensor, " batch"]:
        """The certified radius where the smoothed class is the query's label, 0 elsewhere."""
        found = self.certify(model, queries.inputs)
        return found.radius.where(found.label == queries.labels, torch.zeros_like(found.radius))

    def _certify_one(self, classify: Embed, x: Tensor, source: torch.Generator) -> tuple[int, float]:
        guess = int(self._count(classify, x, self.selection, source).argmax())
        counts = self._count(classify, x, self.samples, source)
        lower = clopper_pearson_lower(counts[guess], self.samples, self.alpha)
        return (guess, self.sigma * float(ndtri(lower))) if lower > 0.5 else (-1, 0.0)

    def _count(self, classify: Embed, x: Tensor, count: int, source: torch.Generator) -> Int[Tensor, " classes"]:
        """How often each class is given, in `count` draws."""
        total: Tensor | int = 0
        for part in noise(x.shape, count, self.batch, source, x.dtype):
            logits = classify(x + self.sigma * part)
            if logits.dim() != 2 or logits.shape[1] < 2:
                raise InputError(
                    f"outputs of shape {tuple(logits.shape)} are no logits; expected (batch, 2 or more classes)"
                )
            if bool(logits.isnan().any()):
                raise InputError("the model's outputs hold NaN; expected numbers: check the model and its input")
            total = total + torch.bincount(logits.argmax(dim=1), minlength=logits.shape[1])
        return torch.as_tensor(total)
