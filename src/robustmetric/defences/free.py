"""Free adversarial training (Shafahi et al. 2019) with hardness manipulation: future work I of Zhou & Patel 2022."""

import math
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from robustmetric.defences.base import Defence, require
from robustmetric.defences.destinations import Destination, Moment
from robustmetric.defences.groups import check_mining, group_means, groups_in, mine_in_groups, spread
from robustmetric.defences.hardness import FIRST_LOSS
from robustmetric.errors import InputError
from robustmetric.losses.mining import Miner
from robustmetric.losses.triplet import hardness, triplet_values
from robustmetric.perturb.ball import Ball
from robustmetric.types import Batch, Inputs, Triplets


class FreeHardness(Defence):
    """HM at the cost of ordinary training: each batch is replayed, and one backward pass moves weights and images.

    The perturbation of each place in the batch (anchor, positive or negative of the i-th triplet) is kept from replay
    to replay and from batch to batch. After a step it climbs the loss that the step came down, in triplets that are
    short of their goal; a triplet whose loss is 0 has no gradient to climb. Triplets and goals are those of the first
    replay. The caller gives the same batch `replays` times, each time with its own backward pass.
    """

    last_loss: Tensor

    def __init__(
        self,
        source: Miner,
        destination: Destination,
        ball: Ball,
        step_size: float,
        replays: int = 4,
        margin: float = 0.2,
        groups: int = 1,
    ) -> None:
        super().__init__()
        require(destination, Destination, "destination")
        require(ball, Ball, "ball")
        check_mining(source, margin, groups)
        if replays < 1 or not 0 <= step_size < math.inf:
            raise InputError(f"replays {replays}, step_size {step_size}; expected replays >= 1 and step_size >= 0")
        self.source, self.destination, self.ball, self.step_size = source, destination, ball, step_size
        self.replays, self.margin, self.groups = replays, margin, groups
        self.register_buffer("last_loss", torch.full((groups,), FIRST_LOSS))
        # Outside the bounds too: the next image in this place may have room where this one has none.
        self._offsets = replace(ball, bounds=(-math.inf, math.inf))
        self._replay = 0
        self._kept: dict[str, Tensor] = {}

    def forward(self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        groups = groups_in(batch, self.groups)
        if self._replay == 0:
            self._begin(model, batch, groups, generator)
        self._replay = (self._replay + 1) % self.replays
        clean = torch.cat(Triplets(*self._kept["triplets"]).of(batch.inputs))
        delta = self._delta(clean)
        adversarial = self.ball.project(clean + delta, clean).requires_grad_()
        a, p, n = model(adversarial).chunk(3)
        before, goal, after = self._kept["before"], self._kept["goal"], hardness(a, p, n)
        short = (after.detach() < goal).repeat(3)
        adversarial.register_hook(lambda gradient: self._climb(delta, gradient, short))
        losses = group_means(triplet_values(a, p, n, self.margin), groups)
        self.last_loss[:groups] = losses.detach()
        self.note(before=before, goal=goal, after=after)
        return {"triplet": losses.mean()}

    def _begin(self, model: nn.Module, batch: Batch, groups: int, generator: torch.Generator | None) -> None:
        """Triplets of a new batch, and their goals."""
        with self.attacked(model) as embed, torch.no_grad():
            z = embed(batch.inputs)
        triplets = mine_in_groups(self.source, z, batch.labels, groups, generator)
        before = hardness(*triplets.of(z))
        last_loss = spread(self.last_loss[:groups], len(before))
        goal = self.destination(Moment(z, batch.labels, last_loss, groups, generator))
        places = torch.stack([triplets.anchor, triplets.positive, triplets.negative])
        self._kept |= {"triplets": places, "before": before, "goal": goal}

    def _delta(self, clean: Inputs) -> Inputs:
        """The perturbation of the places that this batch fills; a place never filled before has none."""
        count = len(clean) // 3
        kept = self._kept.get("delta", clean.new_zeros(3, 0, *clean.shape[1:]))
        if kept.shape[1] < count:
            missing = clean.new_zeros(3, count - kept.shape[1], *clean.shape[1:])
            kept = self._kept["delta"] = torch.cat([kept, missing], dim=1)
        return kept[:, :count].flatten(0, 1)

    @torch.no_grad()
    def _climb(self, delta: Inputs, gradient: Inputs, short: Bool[Tensor, " inputs"]) -> None:
        """One step up for the triplets that are short of their goal."""
        higher = self._offsets.ascent(torch.zeros_like(delta), self.step_size)(delta, gradient)
        moved = torch.where(short.view(-1, *[1] * (delta.dim() - 1)), higher, delta)
        count = len(delta) // 3
        kept = self._kept["delta"]
        self._kept["delta"] = torch.cat([moved.unflatten(0, (3, count)), kept[:, count:]], dim=1)

    def get_extra_state(self) -> dict[str, Any]:
        """Where the replays stand, and the perturbation, whose shape the first batch decides."""
        return {"replay": self._replay, **self._kept}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self._replay = state["replay"]
        self._kept = {name: value for name, value in state.items() if name != "replay"}
