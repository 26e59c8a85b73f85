"""Collapse: a model that maps everything to one point. It resists every attack and finds nothing.

A collapsed model can still rank its tiny differences well (digits: R@1 98.5 at a mean cosine of 1.0000), so that R@1 at
chance alone would miss it; and ERS rewards it (Zhou & Patel 2022, HM[S,0]: ERS 29.7 with R@1 0.8).
"""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from robustmetric.numerics.distances import are_unit
from robustmetric.perturb.pgd import View, frozen
from robustmetric.records import Record
from robustmetric.types import Embeddings, Inputs

THRESHOLD = 0.9995
"""Mean pairwise cosine: two unit vectors then lie 0.03 apart (root mean square), a sixth of the usual margin of 0.2.

Between the models that collapse (CUB, HM's pairs: 0.9999 and more) and those that only contract, as many hardened ones
do, and still rank (CUB: 0.995 to 0.9992, with R@1 of 44 to 51; `digits/madry`, 0.995).
"""
EVERY = 16
"""Steps between two checks: one forward pass each, under 1 % of an adversarial training."""
CHECKS = 5
"""Checks in a row that must all be above the threshold: an untrained model may begin there and leave."""


def mean_cosine(embeddings: Embeddings) -> Float[Tensor, ""]:
    """Mean cosine over pairs of different rows, from the length of the sum of unit vectors: no pair is formed.

    Not a number where the rows are not of unit length: what is apart in length need not be apart in direction.
    """
    n = len(embeddings)
    unit = functional.normalize(embeddings.double(), dim=1)
    cosine = (unit.sum(dim=0).square().sum() - n) / (n * max(n - 1, 1))
    return torch.where(are_unit(embeddings) & (n > 1), cosine, torch.nan).float()


class Watch:
    """Looks at clean batches during training now and then; the numbers stay on the device until they are judged."""

    def __init__(self) -> None:
        self._steps = 0
        self._seen: list[Tensor] = []

    def look(self, model: nn.Module, inputs: Inputs, view: View) -> bool:
        """After a training step; whether it is time to judge, which is so on every rank at once."""
        self._steps += 1
        if self._steps % EVERY:
            return False
        # Compiling for this one shape would cost more than it saves.
        with frozen(model, "fast" if view == "compiled" else view) as embed, torch.no_grad():
            self._seen.append(mean_cosine(embed(inputs)))
        return len(self._seen) == CHECKS

    def judge(self) -> str | None:
        """The evidence of a collapse, in words, in all of the last looks; None where there is none."""
        least = float(torch.stack(self._seen).amin())
        self._seen = []
        return f"mean pairwise cosine of {CHECKS} clean batches {least:.4f} or more" if least > THRESHOLD else None


def evidence(record: Record) -> str | None:
    """What in a validation record speaks of a collapse, in words; None where nothing does.

    R@1 is at chance when the lower end of its interval is not above it; where all queries are right, however few they
    are, only when chance is that good.
    """
    cosine = record.scores.get("mean_cosine", 0.0)
    if cosine > THRESHOLD:
        return f"mean pairwise cosine {cosine:.4f}"
    chance, recall = record.settings.get("chance", 0.0), record.scores.get("R@1", 100.0)
    low = record.intervals["R@1"][0] if recall < 100 and "R@1" in record.intervals else 100.0
    return f"R@1 {recall:.1f} at chance ({chance:.1f})" if chance > 0 and low <= chance else None
