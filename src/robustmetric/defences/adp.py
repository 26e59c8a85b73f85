"""Adaptive diversity promoting, ADP (Pang et al., ICML 2019), for proxies: members that agree on the class alone."""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from robustmetric.defences.base import Defence, require_each, require_weight
from robustmetric.errors import InputError
from robustmetric.losses.proxy_anchor import ProxyAnchor, cosines
from robustmetric.models.ensemble import members_of
from robustmetric.types import Batch, Labels

Scores = Float[Tensor, "members batch classes"]
LOG_OFFSET = 1e-20
DETERMINANT_OFFSET = 1e-6


class DiversityPromoting(Defence):
    """sum_i L(F_i(x), y) - entropy_weight H(mean_i p_i) - diversity_weight log det(M M' + 1e-6 I), on clean images.

    A member predicts by its proxies, p_i = softmax(sharpness s(F_i(x), P_i)); M's rows are the members' predictions
    without the true class, at unit length.
    """

    def __init__(
        self,
        losses: Sequence[ProxyAnchor],
        entropy_weight: float = 2.0,
        diversity_weight: float = 0.5,
        sharpness: float = 16.0,
    ) -> None:
        super().__init__()
        require_each(losses, ProxyAnchor, "losses")
        for role, value in (("entropy_weight", entropy_weight), ("diversity_weight", diversity_weight)):
            require_weight(value, role)
        if not sharpness > 0:
            raise InputError(f"sharpness {sharpness} makes no prediction; expected a number > 0, such as 16")
        classes = {len(loss.proxies) for loss in losses}
        if len(classes) > 1 or min(classes) < 2:
            raise InputError(f"losses with {sorted(classes)} proxies; expected as many in each, and 2 or more")
        self.losses = nn.ModuleList(losses)
        self.entropy_weight, self.diversity_weight, self.sharpness = entropy_weight, diversity_weight, sharpness

    def repeated(self, model: nn.Module) -> Sequence[nn.Module]:
        """The members."""
        return list(members_of(model, len(self.losses)).members)

    def forward(self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        members = members_of(model, len(self.losses)).split(model(batch.inputs))
        losses = [loss for loss in self.losses if isinstance(loss, ProxyAnchor)]
        pairs = list(zip(losses, members, strict=True))
        scores = self.sharpness * torch.stack([cosines(z, loss.proxies) for loss, z in pairs])
        uncertainty, volume = entropy(scores.softmax(dim=2).mean(dim=0)), log_volume(scores, batch.labels)
        self.note(uncertainty=uncertainty, volume=volume)
        return {
            "metric": torch.stack([loss(z, batch.labels) for loss, z in pairs]).sum(),
            "entropy": -self.entropy_weight * uncertainty.mean(),
            "diversity": -self.diversity_weight * volume.mean(),
        }


def entropy(prediction: Float[Tensor, "batch classes"]) -> Float[Tensor, " batch"]:
    """H(p) = -sum p log p."""
    return -(prediction * (prediction + LOG_OFFSET).log()).sum(dim=1)


def log_volume(scores: Scores, labels: Labels) -> Float[Tensor, " batch"]:
    """log det(M M' + 1e-6 I): 0 where the members' second choices have nothing in common, low where they agree.

    M's rows are the softmax of a member's scores without the true class, at unit length.
    """
    members, _, classes = scores.shape
    true = labels[:, None] == torch.arange(classes, device=labels.device)
    # In doubles: next to an offset of 1e-6, the rounding of floats would show. Over the wrong classes alone, which is
    # the same at unit length: beside a true class that is all but certain, their own probabilities would vanish.
    rows = functional.normalize(scores.double().masked_fill(true, -torch.inf).softmax(dim=2), dim=2)
    gram = torch.einsum("ibc,jbc->bij", rows, rows)
    offset = DETERMINANT_OFFSET * torch.eye(members, device=gram.device, dtype=gram.dtype)
    return torch.linalg.slogdet(gram + offset).logabsdet.to(scores.dtype)
