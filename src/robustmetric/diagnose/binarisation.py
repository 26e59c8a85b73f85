"""Binarisation test of attack strength (Zimmermann et al., "Increasing confidence in adversarial robustness
evaluations", NeurIPS 2022): a two-class readout of the model's features, an adversarial example planted in the ball.

Around each input, points inside a smaller ball are one class and a single corner of the ball is the other. A readout of
the features that tells them apart has an adversarial example by construction, so an attack that finds none is too weak.
The paper fits the readout by logistic regression; here it is a ridge discriminant, which has a closed form for all
inputs at once, and its threshold lies so far towards the corner that random points do not cross it.
"""

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from robustmetric.attacks.base import Engine, Scores, Targets, run
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import View, frozen
from robustmetric.types import Batch, Embed, Embeddings, Gallery, Inputs

INNER = 64
"""Points of the first class, per input."""
SHRUNK = 0.9
"""The ball they lie in, in radii."""
TOWARDS = 0.95
"""Where between the outermost inner point (0) and the corner (1) the threshold lies."""
RIDGE = 0.1
"""Of the mean variance of the features, added to all of them."""


@dataclass(frozen=True)
class Planted:
    """Readouts by input, f . weight > threshold at the corner; `valid` where they do tell the corner apart."""

    weight: Float[Tensor, "images features"]
    threshold: Float[Tensor, " images"]
    valid: Bool[Tensor, " images"]


@dataclass(frozen=True)
class CrossReadout:
    """Climb f(x) . weight - threshold: at 0 or above the planted class is found."""

    planted: Planted
    role: ClassVar[Literal["query", "candidate"]] = "query"

    def choose(self, clean: Embeddings, batch: Batch, gallery: Gallery, generator: torch.Generator | None) -> Targets:
        return {"weight": self.planted.weight[batch.index], "threshold": self.planted.threshold[batch.index]}

    def value(self, z: Embeddings, targets: Targets, gallery: Gallery) -> Float[Tensor, " batch"]:
        return (z * targets["weight"]).sum(dim=1) - targets["threshold"]

    def score(self, z: Embeddings, targets: Targets, batch: Batch, gallery: Gallery) -> Scores:
        return {"missed": 100.0 * (self.value(z, targets, gallery) < 0).float()}


def plant(features: Embed, clean: Inputs, ball: Ball, generator: torch.Generator | None) -> Planted:
    """A readout for each input: w ~ (S + ridge)^-1 (corner - mean), S the covariance of the inner points."""
    smaller = Ball(SHRUNK * ball.radius, ball.norm, ball.bounds)
    with torch.no_grad():
        inner = torch.stack([_seen(features, smaller.random_point(clean, generator)) for _ in range(INNER)], dim=1)
        corner = _seen(features, _corner(clean, ball, generator))
        mean = inner.mean(dim=1)
        weight = _discriminant(inner - mean[:, None], corner - mean)
        outermost = (inner * weight[:, None]).sum(dim=2).amax(dim=1)
        planted = (corner * weight).sum(dim=1)
        clean_side = (_seen(features, clean) * weight).sum(dim=1) < planted
    # Rounding must not be what tells them apart.
    gap = planted - outermost
    valid = clean_side & (gap > 1e-5 * planted.abs().clamp_min(1e-12)) & weight.isfinite().all(dim=1)
    return Planted(weight.nan_to_num(), outermost + TOWARDS * gap, valid)


def find_planted(
    features: nn.Module,
    batch: Batch,
    engine: Engine,
    generator: torch.Generator | None,
    *,
    tries: int,
    view: View = "exact",
) -> tuple[Bool[Tensor, " planted"], Bool[Tensor, " planted"]]:
    """Of the inputs with a planted example: whether the engine finds it, and whether `tries` random points do."""
    own = Batch(batch.inputs, batch.labels, torch.arange(len(batch), device=batch.inputs.device))
    with frozen(features, view) as embed:
        planted = plant(embed, own.inputs, engine.ball, generator)
        by_chance = torch.zeros_like(planted.valid)
        with torch.no_grad():
            for _ in range(tries):
                z = embed(_corner(own.inputs, engine.ball, generator))
                by_chance |= (z * planted.weight).sum(dim=1) >= planted.threshold
    nothing = Gallery(planted.weight[:0], batch.labels[:0])
    outcome = run(
        CrossReadout(planted), engine, features, own, nothing, generator, rounded=False, view=view
    )  # fmt: skip
    return outcome.scores["missed"][planted.valid] < 50, by_chance[planted.valid]


def _seen(features: Embed, x: Inputs) -> Embeddings:
    """In float32 or better: systems of equations have no solver in half precision."""
    z = features(x)
    return z.to(torch.promote_types(z.dtype, torch.float32))


def _discriminant(
    centred: Float[Tensor, "images points features"], apart: Float[Tensor, "images features"]
) -> Float[Tensor, "images features"]:
    """(C'C / n + r)^-1 d at unit length, r a share of the mean variance, by a system of the points, not the features.

    Woodbury: r (C'C / n + r)^-1 d = d - C' (C C' + n r)^-1 C d.
    """
    points, tiny = centred.shape[1], torch.finfo(centred.dtype).tiny
    ridge = RIDGE * centred.square().mean(dim=(1, 2)).clamp_min(tiny)
    identity = torch.eye(points, device=centred.device, dtype=centred.dtype)
    system = centred @ centred.mT + points * ridge[:, None, None] * identity
    explained = torch.linalg.solve(system, (centred * apart[:, None]).sum(dim=2))
    weight = apart - (centred * explained[..., None]).sum(dim=1)
    return weight / weight.norm(dim=1, keepdim=True).clamp_min(tiny)


def _corner(clean: Inputs, ball: Ball, generator: torch.Generator | None) -> Inputs:
    """A random point of the ball's surface: of an l-inf ball a corner."""
    direction = torch.empty_like(clean).normal_(generator=generator)
    return ball.project(clean + ball.radius * ball.steepest(direction), clean)
