"""Optimal transport between two batches: Sinkhorn (Cuturi 2013), IPOT (Xie et al. 2019), and plans without a choice.

A plan T >= 0 moves weights mu to weights nu, T 1 = mu and T' 1 = nu, at the cost <T, C>. All is in float32 or better,
also under autocast: at a regularisation of 0.01 exponents run to some 200.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol, get_args, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from robustmetric.errors import InputError, nearest
from robustmetric.numerics.distances import pairwise

Cost = Literal["cosine", "euclidean", "squared"]
"""What it costs to move one row to another: 1 - cosine (at least 0), the distance, or its square."""
Stop = Literal["abs-sum-0.1", "never"]
"""When Sinkhorn ends before its last iteration."""

MOVED = 0.1
"""Sinkhorn with `stop="abs-sum-0.1"` ends once the potentials of a problem's rows move less than this, in all."""
FLOOR = 1e-6
"""Added to every sum of exponentials by the published Sinkhorn; also the least product of two lengths in a cosine."""
LOOK = 4
"""Iterations between two looks at whether all problems have ended: each makes the host wait for the device."""

Costs = Float[Tensor, "*groups n m"]
Weights = Float[Tensor, "... _"]


@runtime_checkable
class Matching(Protocol):
    """How two batches are coupled: costs (of one problem, or of several at once) to plans."""

    def __call__(self, cost: Costs, mu: Weights | None = None, nu: Weights | None = None) -> Costs: ...


@dataclass(frozen=True)
class Sinkhorn:
    """Entropic transport by scaling, in the log domain; differentiable through all its iterations.

    The defaults are those of feature scattering (Zhang & Wang 2019), whose log(sum(exp) + 1e-6) loses mass in rows that
    cost more than 0.01 ln 1e6 = 0.14 everywhere, and which mostly stops after a handful of iterations, long before its
    marginals hold; a plan without any mass is refused. `stop="never"` is a fixed count, without a host synchronisation
    and so without that look. `stable` is another algorithm, and the textbook's: no floor, and the largest exponent
    taken out first.
    """

    regularisation: float = 0.01
    iterations: int = 100
    stop: Stop = "abs-sum-0.1"
    stable: bool = False

    def __post_init__(self) -> None:
        _check_positive(self.regularisation, "regularisation")
        _check_positive(self.iterations, "iterations")
        if self.stop not in get_args(Stop):
            raise InputError(f"stop {self.stop!r} is not known{nearest(str(self.stop), get_args(Stop))}")

    def __call__(self, cost: Costs, mu: Weights | None = None, nu: Weights | None = None) -> Costs:
        cost, mu, nu = _problem(cost, mu, nu)
        if 1 in cost.shape[-2:]:
            return mu[..., :, None] * nu[..., None, :]  # one row or column leaves no choice
        log_sum = torch.logsumexp if self.stable else _floored_log_sum

        def exponents(u: Tensor, v: Tensor) -> Tensor:
            return (u[..., :, None] + v[..., None, :] - cost) / self.regularisation

        u, v = torch.zeros_like(mu), torch.zeros_like(nu)
        moves = torch.ones_like(mu[..., :1], dtype=torch.bool)
        for iteration in range(self.iterations):
            higher = u + self.regularisation * (mu.log() - log_sum(exponents(u, v), -1))
            wider = v + self.regularisation * (nu.log() - log_sum(exponents(higher, v), -2))
            if self.stop == "never":
                u, v = higher, wider
                continue
            step = (higher - u).detach().abs().sum(dim=-1, keepdim=True)
            u, v = torch.where(moves, higher, u), torch.where(moves, wider, v)
            moves = moves & (step >= MOVED)
            # A problem that has ended stands still, so a late look changes nothing.
            if iteration % LOOK == LOOK - 1 and not bool(moves.any()):
                break
        plan = exponents(u, v).exp()
        # Asked so that NaN fails too, which is below nothing.
        if self.stop != "never" and not bool((plan.detach().sum(dim=(-2, -1)) >= FLOOR).all()):
            _check_numbers(cost)
            raise InputError(
                f"costs of up to {float(cost.detach().max()):.3g} lose all mass in {self.iterations} iterations at "
                f"regularisation {self.regularisation:g}; expected smaller costs, such as cosine, or "
                + ("a larger regularisation" if self.stable else "stable: true")
            )
        return plan


@dataclass(frozen=True)
class IPOT:
    """Inexact proximal point iterations, which reach the plan of least cost without a regularisation left over."""

    beta: float = 1.0
    iterations: int = 50

    def __post_init__(self) -> None:
        _check_positive(self.beta, "beta")
        _check_positive(self.iterations, "iterations")

    def __call__(self, cost: Costs, mu: Weights | None = None, nu: Weights | None = None) -> Costs:
        cost, mu, nu = _problem(cost, mu, nu)
        # Without the least of each row and column, or e^(-cost / beta) is 0 in all of one that costs over 88 beta. The
        # plans are the same: delta and sigma undo such scales, the first sigma when it is given them.
        rows = cost.detach().amin(dim=-1, keepdim=True)
        columns = (cost.detach() - rows).amin(dim=-2, keepdim=True)
        kernel = (-(cost - rows - columns) / self.beta).exp()
        plan, sigma = torch.ones_like(cost), (-columns.squeeze(-2) / self.beta).exp() / cost.shape[-1]
        for _ in range(self.iterations):
            # The elementwise product; sums, not matrix products, which a GPU may round to fewer digits.
            q = kernel * plan
            delta = mu / (q * sigma[..., None, :]).sum(dim=-1)
            sigma = nu / (q * delta[..., :, None]).sum(dim=-2)
            plan = delta[..., :, None] * q * sigma[..., None, :]
        return plan


@dataclass(frozen=True)
class IdentityMatching:
    """Each row with its own: T = diag(mu), whatever it costs."""

    def __call__(self, cost: Costs, mu: Weights | None = None, nu: Weights | None = None) -> Costs:
        cost, mu, nu = _problem(cost, mu, nu)
        if cost.shape[-1] != cost.shape[-2] or not (mu is nu or torch.equal(mu, nu)):
            raise InputError("rows are matched with their own only where both sides have the same number and weights")
        return torch.diag_embed(mu).expand_as(cost)


@dataclass(frozen=True)
class UniformMatching:
    """Each row with all others in proportion to their weights: T = mu nu', whatever it costs."""

    def __call__(self, cost: Costs, mu: Weights | None = None, nu: Weights | None = None) -> Costs:
        cost, mu, nu = _problem(cost, mu, nu)
        return mu[..., :, None] * nu[..., None, :]


def cost_matrix(
    a: Float[Tensor, "*groups n dim"], b: Float[Tensor, "*groups m dim"], cost: Cost = "cosine"
) -> Float[Tensor, "*groups n m"]:
    """The cost of moving every row of `a` to every row of `b`."""
    if cost not in COSTS:
        raise InputError(f"cost {cost!r} is not known{nearest(str(cost), list(COSTS))}")
    precise = torch.promote_types(a.dtype, torch.float32)
    with torch.autocast(a.device.type, enabled=False):
        return COSTS[cost](a.to(precise), b.to(precise))


def _cosine(a: Tensor, b: Tensor) -> Tensor:
    """max(0, 1 - cos); rounding alone makes it negative."""
    lengths = a.norm(dim=-1)[..., :, None] * b.norm(dim=-1)[..., None, :]
    return (1 - a @ b.mT / lengths.clamp_min(FLOOR)).relu()


def _euclidean(a: Tensor, b: Tensor) -> Tensor:
    if a.dim() == 2:
        return pairwise(a, b)
    return torch.stack([_euclidean(one, other) for one, other in zip(a, b, strict=True)])


def _squared(a: Tensor, b: Tensor) -> Tensor:
    return _euclidean(a, b).square()


COSTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cosine": _cosine,
    "euclidean": _euclidean,
    "squared": _squared,
}


def _floored_log_sum(exponents: Tensor, dim: int) -> Tensor:
    return (exponents.exp().sum(dim=dim) + FLOOR).log()


def _problem(cost: Tensor, mu: Tensor | None, nu: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Costs in float32 or better, with weights for every problem; uniform where none are given, one tensor for both."""
    if cost.dim() < 2 or not cost.numel():
        raise InputError(
            f"costs of shape {tuple(cost.shape)} hold no problem; expected (rows, columns) or more of them"
        )
    cost = cost.to(torch.promote_types(cost.dtype, torch.float32))
    if cost.device.type == "cpu":
        _check_numbers(cost)  # on a device it would make the host wait: there Sinkhorn's last look, or the loss, tells
    if mu is None and nu is None and cost.shape[-1] == cost.shape[-2]:
        both = _weights(None, cost, -2)
        return cost, both, both
    same = mu is nu
    mu = _weights(mu, cost, -2)
    nu = mu if same and cost.shape[-1] == cost.shape[-2] else _weights(nu, cost, -1)
    if not torch.allclose(mu.sum(dim=-1), nu.sum(dim=-1), rtol=1e-4):
        raise InputError(
            f"weights of {float(mu.sum(dim=-1).max()):g} cannot be moved to weights of "
            f"{float(nu.sum(dim=-1).max()):g}; expected mu and nu with the same sum"
        )
    return cost, mu, nu


def _weights(weights: Tensor | None, cost: Tensor, side: int) -> Tensor:
    count = cost.shape[side]
    if weights is None:
        return cost.new_full((*cost.shape[:-2], count), 1 / count)
    if weights.shape[-1] != count or not bool((weights > 0).all()):
        raise InputError(
            f"{weights.shape[-1]} weights, the least {float(weights.min()):g}, do not fit {count} rows; "
            "expected one number > 0 for each"
        )
    return weights.to(cost).expand(*cost.shape[:-2], count)


def _check_numbers(cost: Tensor) -> None:
    """One way may be barred by an infinite cost, not all ways of a row or column."""
    cost = cost.detach()
    if bool(cost.isnan().any()):
        raise InputError("the costs of a transport hold NaN; expected finite outputs of the model on both sides")
    if bool(cost.amin(dim=-1).isinf().any() | cost.amin(dim=-2).isinf().any()):
        raise InputError(
            "the costs of a transport are infinite in all of a row or column, whose mass has nowhere to go; expected "
            "finite outputs of the model on both sides"
        )


def _check_positive(value: float | int, name: str) -> None:
    if not value > 0:
        raise InputError(f"{name} {value} solves nothing; expected a number > 0")
