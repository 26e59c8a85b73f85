"""The margin of a triplet (ARML, Eq. 8): how far z must move in l2 before n is as near as p under M = G^T G.

With c = p - n and h = z - (p + n) / 2, d_M(z, n) - d_M(z, p) = 2 c^T M h; so m = v . h / |v| with v = M c, the signed
distance of z to the hyperplane where both are equally far.
"""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

FLOOR = 1e-6
"""|M c|^2 is taken as at least this, for G of unit mean square row and rows of unit mean square length."""

Loss = Callable[[Float[Tensor, " n"]], Float[Tensor, " n"]]
LOSSES = ("neg", "hinge", "logistic", "exp")


def margins(
    factor: Float[Tensor, "rank dim"],
    x: Float[Tensor, "rows dim"],
    anchor: Int[Tensor, " n"],
    positive: Int[Tensor, " n"],
    negative: Int[Tensor, " n"],
) -> Float[Tensor, " n"]:
    """m of each triplet of rows, negative where n is nearer than p; differentiable in G, at more cost than below."""
    z, p, n = x[anchor], x[positive], x[negative]
    to_n, to_p = (((z - other) @ factor.T).square().sum(dim=1) for other in (n, p))
    length = ((p - n) @ factor.T @ factor).square().sum(dim=1).clamp_min(_floor(factor)).sqrt()
    return (to_n - to_p) / (2 * length)


def margins_with_pullback(
    factor: Float[Tensor, "rank dim"],
    x: Float[Tensor, "rows dim"],
    anchor: Int[Tensor, " n"],
    positive: Int[Tensor, " n"],
    negative: Int[Tensor, " n"],
) -> tuple[Float[Tensor, " n"], Callable[[Float[Tensor, " n"]], Float[Tensor, "rank dim"]]]:
    """`margins`, and the map from weights w to the gradient of sum_t w_t m_t in G: two products of n x dim x dim.

    dm = g^T dM c with g = (h - m v / |v|) / |v|, so the gradient is G (P + P^T) with P = sum_t w_t c_t g_t^T.
    """
    with torch.no_grad():
        p, n = x[positive], x[negative]
        middle = x[anchor].sub_(p, alpha=0.5).sub_(n, alpha=0.5)
        apart = p.sub_(n)
        normal = apart @ (factor.T @ factor)
        squared = normal.square().sum(dim=1)
        floor = _floor(factor)
        length = squared.clamp_min(floor).sqrt()
        m = (normal * middle).sum(dim=1) / length

    @torch.no_grad()
    def pullback(weights: Float[Tensor, " n"]) -> Float[Tensor, "rank dim"]:
        # Below the floor the denominator stands still.
        turn = torch.where(squared > floor, m / length, 0)
        slope = (middle - turn[:, None] * normal).mul_((weights / length)[:, None])
        outer = apart.T @ slope
        return factor @ (outer + outer.T)

    return m, pullback


def loss_of(name: str, radius: float) -> Loss:
    """A non-increasing function of the margin; the hinge asks for margins of `radius`."""
    losses: dict[str, Loss] = {
        "neg": torch.neg,
        "hinge": lambda m: (radius - m).relu(),
        "logistic": lambda m: torch.nn.functional.softplus(-m),
        "exp": lambda m: (-m).exp(),
    }
    return losses[name]


def value_and_slope(loss: Loss, m: Float[Tensor, " n"]) -> tuple[Float[Tensor, ""], Float[Tensor, " n"]]:
    """The mean loss, and its derivative by each margin."""
    m = m.detach().requires_grad_()
    with torch.enable_grad():
        value = loss(m).mean()
    (slope,) = torch.autograd.grad(value, m)
    return value.detach(), slope


@torch.no_grad()
def _floor(factor: Float[Tensor, "rank dim"]) -> Float[Tensor, ""]:
    """The margin does not change with the length of G; relative to it, neither does the floor."""
    return FLOOR * (factor.square().sum() / len(factor)).square()
