"""The boundary attack (Brendel et al. 2018): along the decision boundary towards the input, from votes alone."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from robustmetric.certify.voting import Limits, Voter, clamp, foreign_starts, shorten
from robustmetric.errors import InputError
from robustmetric.numerics.numbers import LARGEST_SEED, is_whole
from robustmetric.numerics.settings import check_counts, check_factors, check_parts, check_positive


@dataclass(frozen=True)
class Boundary:
    """Random steps on the sphere around the input, then towards it; a step that loses the foreign vote is undone.

    Starts from the nearest training point with a foreign vote, where the paper starts from noise.
    """

    steps: int = 1000
    spherical_step: float = 0.01
    source_step: float = 0.01
    adaptation: float = 1.5
    """Steps grow or shrink by this when more than half, or less than a fifth, of the last ten succeeded."""
    seed: int = 0

    def __post_init__(self) -> None:
        check_counts(0, steps=self.steps)
        check_positive(spherical_step=self.spherical_step)
        check_parts(source_step=self.source_step)
        check_factors(adaptation=self.adaptation)
        if not is_whole(self.seed, 0, LARGEST_SEED):
            raise InputError(f"seed = {self.seed!r}; expected a whole number from 0 to {LARGEST_SEED}")

    @torch.no_grad()
    def __call__(
        self, voter: Voter, x: Float[Tensor, "n features"], labels: Int[Tensor, " n"], limits: Limits | None = None
    ) -> Float[Tensor, "n features"]:
        """A perturbation of each row; NaN where no start has a foreign vote."""
        generator = torch.Generator(x.device).manual_seed(self.seed)
        best = shorten(voter, x, labels, foreign_starts(voter, x, labels, limits), limits)
        reached = ~best.isnan().any(dim=1)
        index = reached.nonzero().flatten()
        best[index] = self._walk(voter, x[index], labels[index], best[index], limits, generator)
        return best

    def _walk(
        self, voter: Voter, x: Tensor, labels: Tensor, best: Tensor, limits: Limits | None, generator: torch.Generator
    ) -> Tensor:
        sphere = torch.full_like(best[:, 0], self.spherical_step)
        source = torch.full_like(sphere, self.source_step)
        success = torch.zeros((2, 10, len(x)), dtype=torch.bool, device=x.device)
        for step in range(self.steps if len(x) else 0):
            length = torch.linalg.vector_norm(best, dim=1)
            around = _on_sphere(best, sphere, generator)
            towards = around * (1 - source)[:, None]
            around, towards = (clamp(x + delta, limits) - x for delta in (around, towards))
            stays, nearer = voter.differs(torch.cat([x + around, x + towards]), labels.repeat(2)).chunk(2)
            nearer = stays & nearer & (torch.linalg.vector_norm(towards, dim=1) < length)
            best = torch.where(nearer[:, None], towards, best)
            success[0, step % 10], success[1, step % 10] = stays, nearer
            if step % 10 == 9:
                sphere = self._adapt(sphere, success[0], 0.5, 0.2)
                source = self._adapt(source, success[1], 0.25, 0.1)
        return shorten(voter, x, labels, best, limits)

    def _adapt(self, size: Tensor, success: Tensor, often: float, seldom: float) -> Tensor:
        share = success.double().mean(dim=0)
        size = torch.where(share > often, size * self.adaptation, size)
        return torch.where(share < seldom, size / self.adaptation, size).clamp_max(0.5)


def _on_sphere(delta: Tensor, size: Tensor, generator: torch.Generator) -> Tensor:
    """A random step of relative `size` at a right angle to delta, drawn back to its length."""
    length = torch.linalg.vector_norm(delta, dim=1, keepdim=True)
    unit = delta / length.clamp_min(torch.finfo(delta.dtype).tiny)
    noise = torch.randn(delta.shape, dtype=delta.dtype, device=delta.device, generator=generator)
    noise -= (noise * unit).sum(dim=1, keepdim=True) * unit
    noise /= torch.linalg.vector_norm(noise, dim=1, keepdim=True).clamp_min(torch.finfo(delta.dtype).tiny)
    moved = unit + size[:, None] * noise
    return moved / torch.linalg.vector_norm(moved, dim=1, keepdim=True) * length
