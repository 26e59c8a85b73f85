"""Small models whose robustness is real, or only hidden: what `detector.py` tries the masking checks on.

Every exhibit comes with what an adaptive attacker climbs in its place: the same model with a straight-through gradient
(BPDA), the logits before a temperature or a vote, the mean over draws. Who is masked is measured, not named.
"""

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from robustmetric.data.base import Dataset, Split
from robustmetric.data.digits import Digits
from robustmetric.data.sampler import Pairs, Shuffled
from robustmetric.defences.base import Defence
from robustmetric.defences.plain import Plain
from robustmetric.losses.cross_entropy import CrossEntropy
from robustmetric.losses.mining import SemiHard
from robustmetric.losses.triplet import Triplet
from robustmetric.models.classifier import Classifier
from robustmetric.models.convnet import ConvNet
from robustmetric.models.encoder import Encoder
from robustmetric.numerics.randomness import generator
from robustmetric.perturb.ball import Ball
from robustmetric.perturb.pgd import PGD
from robustmetric.types import Batch

RADIUS, TRAINED = 0.1, 0.15
"""Of the attacks on exhibits, and of those that some are trained against."""
CPU = torch.device("cpu")

Transform = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Exhibit:
    """A model, and what an adaptive attacker climbs in its place; none: the model itself is open."""

    name: str
    model: nn.Module
    is_classifier: bool
    open: tuple[nn.Module, ...] = ()


@dataclass(frozen=True)
class Images:
    """What a zoo is shown, ten classes to classify and five unseen ones to search, and the radius it is attacked at."""

    closed: Dataset
    unseen: Dataset
    radius: float


# Ways to hide a gradient.


class Transformed(nn.Module):
    """Inputs go through a transform first; `straight` passes gradients by it."""

    def __init__(self, base: nn.Module, transform: Transform, straight: bool = False) -> None:
        super().__init__()
        self.base, self.transform, self.straight = base, transform, straight

    def forward(self, inputs: Tensor) -> Tensor:
        changed = self.transform(inputs)
        return self.base(inputs + (changed - inputs).detach() if self.straight else changed)


class Changed(nn.Module):
    """What comes out goes through a transform; `straight` passes gradients by it."""

    def __init__(self, base: nn.Module, transform: Transform, straight: bool = False) -> None:
        super().__init__()
        self.base, self.transform, self.straight = base, transform, straight

    def forward(self, inputs: Tensor) -> Tensor:
        z = self.base(inputs)
        return z + (self.transform(z) - z).detach() if self.straight else self.transform(z)


class Votes(nn.Module):
    """How many members name each class; `soft`: the mean of their logits."""

    def __init__(self, members: Sequence[nn.Module], soft: bool = False) -> None:
        super().__init__()
        self.members, self.soft = nn.ModuleList(members), soft

    def forward(self, inputs: Tensor) -> Tensor:
        logits = torch.stack([member(inputs) for member in self.members])
        if self.soft:
            return logits.mean(dim=0)
        return nn.functional.one_hot(logits.argmax(dim=2), logits.shape[2]).float().sum(dim=0)


class Averaged(nn.Module):
    """The mean over draws of a randomised model."""

    def __init__(self, base: nn.Module, draws: int = 10) -> None:
        super().__init__()
        self.base, self.draws = base, draws

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.stack([self.base(inputs) for _ in range(self.draws)]).mean(dim=0)


class Switched(nn.Module):
    """A layer that hides its gradient or, `straight`, passes another on in its place."""

    straight = False


class Step(Switched):
    """1 above 0, else 0; trained, and opened, by the gradient of a sigmoid."""

    straight = True

    def forward(self, x: Tensor) -> Tensor:
        hard = (x > 0).float()
        return hard + torch.sigmoid(4 * x) - torch.sigmoid(4 * x).detach() if self.straight else hard + 0 * x


class Winners(Switched):
    """The largest tenth of all units, the others 0 (k-winners-take-all); opened by a gradient for every unit."""

    def forward(self, x: Tensor) -> Tensor:
        flat = x.flatten(1)
        least = flat.topk(max(1, flat.shape[1] // 10), dim=1).values[:, -1:]
        kept = (flat * (flat >= least)).view_as(x)
        return x + (kept - x).detach() if self.straight else kept


class Noisy(torch.autograd.Function):
    """Identity whose gradient drowns in noise."""

    @staticmethod
    def forward(context: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(context: object, gradient: Tensor) -> Tensor:  # type: ignore[override]  # torch has *args
        return gradient + 20 * gradient.abs().amax() * torch.randn_like(gradient)


class Reversed(torch.autograd.Function):
    """Identity whose gradient points down."""

    @staticmethod
    def forward(context: object, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(context: object, gradient: Tensor) -> Tensor:  # type: ignore[override]  # torch has *args
        return -gradient


def levels(count: int) -> Transform:
    """So many steps from 0 to 1."""
    return lambda x: (x * count).round() / count


def floors(bits: int) -> Transform:
    """Bit depth: the lower bits are cut off."""
    return lambda x: (x * 2**bits).clamp_max(2**bits - 1).floor() / (2**bits - 1)


def frequencies(step: float) -> Transform:
    """As JPEG does with a block of 8 x 8: its cosine coefficients, rounded."""
    k, n = torch.arange(8.0)[:, None], torch.arange(8.0)
    basis = torch.cos(math.pi / 8 * (n + 0.5) * k) * math.sqrt(2 / 8)
    basis[0] /= math.sqrt(2)
    return lambda x: basis.T @ (((basis @ x @ basis.T) / step).round() * step) @ basis


def shattered(x: Tensor) -> Tensor:
    """Moved by 0.01 at most, with a slope of up to 11 either way."""
    return x + 0.01 * torch.sin(1000 * x)


def randomly(sigma: float, shifts: int = 0) -> Transform:
    """Noise, and a shift by up to so many pixels, drawn anew at every call."""

    def change(x: Tensor) -> Tensor:
        down, right = (int(torch.randint(-shifts, shifts + 1, ())) for _ in range(2))
        return torch.roll(x, (down, right), dims=(2, 3)) + sigma * torch.randn_like(x)

    return change


# Training.


def classifier(activation: Callable[[], nn.Module] | None = None, width: int = 16, side: int = 8) -> Classifier:
    trunk = ConvNet(side=side, kernel=3, widths=(width, 2 * width), hidden=128, dim=64)
    if activation is not None:
        for layers in (trunk.features, trunk.head):
            for place, layer in enumerate(layers):
                if isinstance(layer, nn.ReLU):
                    layers[place] = activation()
    return Classifier(nn.Sequential(trunk, activation() if activation else nn.ReLU()), 10, shape=(1, side, side))


def encoder(width: int = 16, side: int = 8) -> Encoder:
    return Encoder(ConvNet(side=side, kernel=3, widths=(width, 2 * width), hidden=128, dim=32))


def fit(model: nn.Module, defence: Defence, split: Split, *, epochs: int, seed: int, pairs: bool = False) -> nn.Module:
    """Adam at 1e-3; the order of batches and every draw follow from the seed."""
    sampler = Pairs(112) if pairs else Shuffled(100)
    inputs = split.inputs.float() / 255
    optimiser = torch.optim.Adam([*model.parameters(), *defence.parameters()], lr=1e-3)
    defence.prepare(split.labels)
    model.train()
    for epoch in range(epochs):
        for step, rows in enumerate(sampler.batches(split.labels, epoch, seed)):
            batch = Batch(inputs[rows], split.labels[rows], rows)
            terms = defence(model, batch, generator(CPU, seed, epoch, step))
            optimiser.zero_grad()
            torch.stack(list(terms.values())).sum().backward()
            optimiser.step()
    return model.eval()


def adversary(steps: int = 7, radius: float = TRAINED, size: float = 0.25) -> PGD:
    return PGD(Ball(radius), steps, size * radius)


def opened(model: nn.Module) -> nn.Module:
    """A copy whose activations pass gradients on."""
    other = copy.deepcopy(model)
    for layer in other.modules():
        if isinstance(layer, Switched):
            layer.straight = True
    return other


def closed(model: nn.Module) -> nn.Module:
    for layer in model.modules():
        if isinstance(layer, Switched):
            layer.straight = False
    return model


class Zoo:
    """Trains what exhibits share once, on digits unless other images are given; another `seed` trains all anew."""

    def __init__(self, epochs: int = 20, seed: int = 0, images: Images | None = None) -> None:
        self.epochs, self.seed = epochs, seed
        self.images = images or Images(Digits(closed=True).load(), Digits().load(), RADIUS)
        self._kept: dict[str, nn.Module] = {}

    def classifier(
        self, kind: str, make: Callable[[], nn.Module] = classifier, defence: Defence | None = None, seed: int = 0
    ) -> nn.Module:
        """A trained classifier, by name."""
        return self._once(
            f"{kind}-{seed}", make, defence or Plain(CrossEntropy()), self.images.closed.train, seed, pairs=False
        )

    def encoder(
        self, kind: str, make: Callable[[], nn.Module] = encoder, defence: Defence | None = None, pairs: bool = True
    ) -> nn.Module:
        """A trained encoder, by name."""
        chosen = defence or Plain(Triplet(SemiHard()))
        return self._once(f"{kind}, retrieval", make, chosen, self.images.unseen.train, 0, pairs=pairs)

    def _once(
        self, name: str, make: Callable[[], nn.Module], defence: Defence, split: Split, seed: int, pairs: bool
    ) -> nn.Module:
        if name not in self._kept:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed + 100 * self.seed)
                made = make()
                seed += 100 * self.seed
                self._kept[name] = fit(made, defence, split, epochs=self.epochs, seed=seed, pairs=pairs)
        return self._kept[name]
