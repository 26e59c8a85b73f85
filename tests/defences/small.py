"""A small real encoder, a paired batch of real digits, and an engine that can be watched."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from robustmetric.data.digits import Digits
from robustmetric.defences.base import Defence
from robustmetric.models.convnet import ConvNet
from robustmetric.models.encoder import Encoder
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD, evaluate
from robustmetric.types import Batch, Value

DIM = 6
CLASSES = 5
# With the nearest negatives: (0, 1, 3) of hardness 1 - 3 = -2, and (3, 3.5, 1) of hardness 0.5 - 2 = -1.5.
LINE = Batch(torch.tensor([[0.0], [1.0], [3.0], [3.5]]), torch.tensor([0, 0, 1, 1]), torch.arange(4))


def encoder(seed: int = 0) -> Encoder:
    """In train mode, as a training loop has it; weights by seed without touching the global generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Encoder(ConvNet(side=8, kernel=3, widths=(4, 8), hidden=16, dim=DIM))


def paired_batch(pairs_per_class: int = 2) -> Batch:
    """Rows 2i and 2i + 1 share a class, as the sampler `pairs` lays them out."""
    train = Digits().load().train
    rows = torch.cat([(train.labels == c).nonzero()[: 2 * pairs_per_class, 0] for c in range(CLASSES)])
    return Batch(train.inputs[rows].float() / 255, train.labels[rows], rows)


@dataclass(frozen=True)
class Watched:
    """A real PGD that also notes what it climbed: the value at the clean inputs and at the result."""

    engine: PGD
    before: list[Tensor] = field(default_factory=list)
    after: list[Tensor] = field(default_factory=list)
    moved: list[Tensor] = field(default_factory=list)

    @property
    def ball(self) -> Ball:
        return self.engine.ball

    def __call__(self, value: Value, clean: Tensor, generator: torch.Generator | None = None) -> Tensor:
        result = self.engine(value, clean, generator)
        self.before.append(evaluate(value, clean))
        self.after.append(evaluate(value, result))
        self.moved.append(result)
        return result


def pgd(radius: float, steps: int = 6) -> PGD:
    return PGD(Ball(radius), steps=steps, step_size=radius / 3)


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def quarters(steps: int, **settings: Any) -> Watched:
    """Steps of 0.25, which floats hold exactly, from a clean start."""
    ball = Ball(9.0, bounds=(-9.0, 9.0))
    return Watched(PGD(ball, **{"steps": steps, "step_size": 0.25, "random_start": False, **settings}))


def figures(defence: Defence) -> dict[str, float]:
    """What the last step noted."""
    return {name: figure.item() for name, figure in defence.measures.items()}
