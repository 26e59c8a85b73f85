"""A differentiable substitute of k-NN (after Li et al. 2019): soft neighbours, and a gradient to descend."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from robustmetric.certify.geometry import Sites
from robustmetric.certify.voting import Limits, Voter, clamp, foreign_starts, shorten
from robustmetric.numerics.distances import nearest
from robustmetric.numerics.settings import check_counts, check_parts, check_positive


@dataclass(frozen=True)
class Substitute:
    """Descend log p(label) - max log p(other), where p are the class shares of soft neighbours exp(-d / temperature).

    Li et al. train a network to give the soft neighbours; here they are the softmax itself. The norm is decoupled from
    the direction (Rony et al. 2019): a little shorter after each success, a little longer after each failure.
    """

    steps: int = 100
    temperature: float | None = None
    """In units of each point's distance to its k-th neighbour; None is 0.05 for 1-NN, 0.3 for k-NN."""
    norm_step: float = 0.1

    def __post_init__(self) -> None:
        check_counts(0, steps=self.steps)
        check_parts(norm_step=self.norm_step)
        if self.temperature is not None:
            check_positive(temperature=self.temperature)

    @torch.no_grad()
    def __call__(
        self, voter: Voter, x: Float[Tensor, "n features"], labels: Int[Tensor, " n"], limits: Limits | None = None
    ) -> Float[Tensor, "n features"]:
        """The shortest perturbation found; NaN where nothing changed the vote."""
        if voter.classes == 1:
            return torch.full_like(x, float("nan"))
        coordinates = voter.sites.coordinates
        temperature = (0.05 if voter.n_neighbors == 1 else 0.3) if self.temperature is None else self.temperature
        away = kth_distance(voter, x)
        softness, delta = temperature * away, torch.zeros_like(x)
        best = shorten(voter, x, labels, foreign_starts(voter, x, labels, limits), limits)
        shortest = torch.linalg.vector_norm(best, dim=1)
        # The first length tried: half the way to a foreign vote, or, where none was met, to the k-th neighbour.
        length = torch.where(shortest.isnan(), away.sqrt(), shortest / 2)
        shortest = shortest.nan_to_num(nan=float("inf"))
        for step in range(self.steps):
            gradient = coordinates.leave(margin_gradient(voter.sites, coordinates.enter(x + delta), labels, softness))
            # The step falls from the whole length to a hundredth of it along a cosine.
            size = length * (0.01 + 0.495 * (1 + torch.cos(torch.tensor(torch.pi * step / self.steps)).item()))
            delta = delta - size[:, None] * _unit(gradient)
            delta = clamp(x + _unit(delta) * length[:, None], limits) - x
            flipped = voter.differs(x + delta, labels)
            norm = torch.linalg.vector_norm(delta, dim=1)
            better = flipped & (norm < shortest)
            best, shortest = torch.where(better[:, None], delta, best), torch.where(better, norm, shortest)
            length = length * torch.where(flipped, 1 - self.norm_step, 1 + self.norm_step)
        found = (shortest < float("inf")).nonzero().flatten()
        best[found] = shorten(voter, x[found], labels[found], best[found], limits)
        return best


def kth_distance(voter: Voter, x: Float[Tensor, "n features"]) -> Float[Tensor, " n"]:
    """The squared distance of each row to its k-th nearest site (of 1-NN: at least that of the second)."""
    k = min(max(2, voter.n_neighbors), len(voter.inputs))
    distance, _ = nearest(voter.embed(x), voter.embedding, k)
    return distance[:, -1].square().clamp_min(torch.finfo(x.dtype).eps)


def margin_gradient(
    sites: Sites, z: Float[Tensor, "n dim"], labels: Int[Tensor, " n"], softness: Float[Tensor, " n"]
) -> Float[Tensor, "n dim"]:
    """d/dz of log p(label) - max of log p(other), p(c) ~ sum over its sites of exp(-d_M(z, site) / softness)."""
    logits = sites.relative(z).neg_().div_(softness[:, None])
    classes = len(sites.first) - 1
    parts = [logits[:, sites.members(c)] for c in range(classes)]
    shares = torch.stack([part.logsumexp(dim=1) for part in parts], dim=1)
    rival = shares.scatter(1, labels[:, None], float("-inf")).argmax(dim=1)
    pull = torch.zeros_like(z)
    for c, part in enumerate(parts):
        sign = (labels == c).to(z.dtype) - (rival == c).to(z.dtype)
        rows = sign.nonzero().flatten()
        if len(rows):
            # d/dz log p(c) = 2 / softness * (mean of u over soft neighbours - u_z); u_z cancels in the difference.
            pull[rows] += sign[rows, None] * (part[rows].softmax(dim=1) @ sites.u[sites.members(c)])
    return 2 * pull / softness[:, None]


def _unit(x: Tensor) -> Tensor:
    return x / torch.linalg.vector_norm(x, dim=1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny)
