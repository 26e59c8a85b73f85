"""What the adversary inside a defence climbs: the shift, the clean embeddings as proxies, or the training loss."""

from collections.abc import Sequence
from dataclasses import dataclass, is_dataclass, replace
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from robustmetric.attacks.base import Engine
from robustmetric.attacks.objectives import clean_proxies, nudged, shift
from robustmetric.defences.base import require_word
from robustmetric.errors import InputError
from robustmetric.losses.base import MetricLoss
from robustmetric.models.ensemble import split
from robustmetric.perturb.engine import in_ball
from robustmetric.types import Batch, Embed, Embeddings, Inputs, Triplets

Objective = Literal["shift", "clean_proxy", "clean_class", "label"]
"""What is climbed; see `Adversary`."""


@dataclass(frozen=True)
class Adversary:
    """Inputs that raise an objective, summed over the members of an ensemble; a model alone is an ensemble of one.

    "shift": the distance from the clean embedding. "clean_proxy": Proxy-Anchor with the clean embeddings for proxies,
    each image's own its only positive; "clean_class": positive are all of its class. "label": the training loss.
    `growing`: over this share of the training the radius grows from 0 to that of the attack, and its step with it. (A
    run that is resumed for more epochs has done a smaller share of them, and goes back in this as in its rate.)
    """

    attack: Engine
    objective: Objective = "shift"
    growing: float = 0.0

    def __post_init__(self) -> None:
        require_word(self.objective, get_args(Objective), "objective")
        if not 0 <= self.growing <= 1:
            raise InputError(f"growing {self.growing} is not a share of the training; expected 0 to 1, such as 0.4")
        if self.growing and not is_dataclass(self.attack):
            raise InputError(
                f"the radius of {type(self.attack).__name__} cannot grow, since it is no dataclass; expected "
                "growing: 0, or an engine such as pgd"
            )

    def at(self, progress: float) -> "Adversary":
        """The adversary when this share of the training is done."""
        if progress >= self.growing:
            return self
        ball = self.attack.ball
        small = replace(ball, radius=ball.radius * progress / self.growing)
        return replace(self, attack=in_ball(self.attack, small))

    @property
    def has_origin(self) -> bool:
        """Whether clean embeddings matter to what is climbed."""
        return self.objective != "label"

    def origin(self, clean: Embeddings, generator: torch.Generator | None) -> Embeddings:
        """What the embeddings are driven from; nudged where a clean start would have no gradient."""
        return nudged(clean, generator) if self.objective == "shift" else clean

    def __call__(
        self,
        embed: Embed,
        batch: Batch,
        origin: Embeddings | None,
        losses: Sequence[MetricLoss],
        triplets: Sequence[Triplets | None],
        generator: torch.Generator | None = None,
    ) -> Inputs:
        """The perturbed inputs; `losses` and `triplets`, one per member, matter to the training loss alone, to which
        `origin` does not."""
        if origin is None and self.has_origin:
            raise InputError(f"{self.objective!r} leads away from clean embeddings; expected them, found none")
        if self.objective == "shift" and origin is not None:
            # An ensemble's squared distance is the mean of its members', so this climbs the sum of theirs.
            return self.attack(lambda x: shift(embed(x), origin), batch.inputs, generator)
        alike = batch.labels[:, None] == batch.labels
        own = alike if self.objective == "clean_class" else torch.eye(len(batch), device=alike.device).bool()
        origins = [] if origin is None else split(origin, len(losses))

        def value(x: Inputs) -> Float[Tensor, " batch"]:
            members = split(embed(x), len(losses))
            if self.objective != "label":
                heights = [clean_proxies(z, clean, own) for z, clean in zip(members, origins, strict=True)]
            else:
                # The loss couples the rows of a batch, so every row climbs the same number.
                heights = [
                    loss(z, batch.labels, chosen).expand(len(z))
                    for loss, z, chosen in zip(losses, members, triplets, strict=True)
                ]
            return torch.stack(heights).sum(dim=0)

        return self.attack(value, batch.inputs, generator)
