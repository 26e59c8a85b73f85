"""What the exhibits of `fresh_exhibits.py` are made of: images of 14 x 14, layers, and ways to train."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from masking_zoo import Images, Switched, Zoo, adversary, classifier, encoder
from robustmetric.data.base import Dataset, Split, keep_classes
from robustmetric.data.mnist import Mnist
from robustmetric.defences.base import Defence
from robustmetric.losses.base import MetricLoss
from robustmetric.losses.cross_entropy import CrossEntropy
from robustmetric.perturb.pgd import PGD
from robustmetric.types import Batch, Embeddings, Labels, Triplets

SIDE = 14
SOURCES = {"fresh": ("fashion", 0.1), "again": ("mnist", 0.1)}
"""By group: whose images, and the radius of the attacks on exhibits."""
TRAIN, TEST = 2000, 600
"""At most so many images of each split."""

network = partial(classifier, width=8, side=SIDE)
embedder = partial(encoder, width=8, side=SIDE)


def trained_against(zoo: Zoo) -> PGD:
    """The adversary of a training, in half as much again as the exhibits are attacked in."""
    return adversary(7, radius=1.5 * zoo.images.radius)


# Images.


def shown(group: str) -> Images:
    """Ten classes to classify; 0 to 4 to learn to search by and 5 to 9 to search."""
    name, radius = SOURCES[group]
    whole = Mnist(variant=name).load()
    seen, unseen = torch.arange(5), torch.arange(5, 10)
    closed = Dataset(name, _few(whole.train, TRAIN), _few(whole.queries, TEST))
    parted = _few(keep_classes(whole.train, seen), TRAIN), _few(keep_classes(whole.queries, unseen), TEST)
    return Images(closed, Dataset(f"{name}, unseen", *parted), radius)


def halved(inputs: Tensor) -> Tensor:
    """Bytes of half the side, each the mean of four."""
    return functional.avg_pool2d(inputs.float(), 2).round().to(torch.uint8)


def _few(split: Split, count: int) -> Split:
    """At most so many rows, spread evenly, at half the side."""
    count = min(count, len(split))
    rows = split.subset(torch.arange(count) * len(split) // count)
    return replace(rows, inputs=halved(rows.inputs), sizes=rows.sizes // 2)


# Inputs changed.


def median(x: Tensor) -> Tensor:
    """Of the 3 x 3 pixels around each."""
    around = functional.pad(x, (1, 1, 1, 1), mode="replicate").unfold(2, 3, 1).unfold(3, 3, 1)
    return around.flatten(4).median(dim=4).values


def blind_median(x: Tensor) -> Tensor:
    """The same without a gradient."""
    return median(x.detach())


def sawtooth(x: Tensor, tooth: float = 0.02) -> Tensor:
    """Moved by at most a tooth, with a slope of -1 everywhere but at the jumps."""
    return 2 * tooth * (x / tooth).round() - x


def dropped(x: Tensor, share: float = 0.3) -> Tensor:
    """Pixels set to 0, others each time."""
    return x * (torch.rand_like(x) >= share)


def dithered(x: Tensor) -> Tensor:
    """Each pixel 1 with a probability of its value, else 0."""
    return (x > torch.rand_like(x)).float()


class Thermometer(Switched):
    """A pixel as so many: the l-th is 1 where it is above (l + 1/2) / count. Opened by the gradient of a sigmoid."""

    def __init__(self, count: int = 8) -> None:
        super().__init__()
        self.count = count

    def forward(self, x: Tensor) -> Tensor:
        above = x - ((torch.arange(self.count) + 0.5) / self.count)[:, None, None]
        hard = (above > 0).float()
        if not self.straight:
            return hard + 0 * above
        soft = torch.sigmoid(2 * self.count * above)
        return hard + soft - soft.detach()


# Answers changed.


def twice_softmax(z: Tensor) -> Tensor:
    """Sure at once: what follows takes a softmax again."""
    return 10 * torch.softmax(100 * z, dim=1)


def clipped(z: Tensor) -> Tensor:
    """Log probabilities between -2 and -0.2: flat where the model is sure."""
    return torch.log_softmax(z, dim=1).clamp(-2, -0.2)


def some_coordinates(z: Tensor) -> Tensor:
    """Nine in ten of an embedding's coordinates, others each time."""
    return z * (torch.rand_like(z) >= 0.1)


class Prototypes(nn.Module):
    """-10 |z - c|^2 for the mean embedding c of each class."""

    def __init__(self, embed: nn.Module, split: Split) -> None:
        super().__init__()
        self.embed = embed
        z = _embedded(embed, split)
        self.register_buffer("centres", torch.stack([z[split.labels == c].mean(dim=0) for c in range(split.classes)]))

    def forward(self, inputs: Tensor) -> Tensor:
        return -10 * (self.embed(inputs)[:, None] - self.get_buffer("centres")).square().sum(dim=2)


class Neighbours(nn.Module):
    """How many of the five nearest training items are of each class; `soft`: log of the sum of e^(20 cosine)."""

    def __init__(self, embed: nn.Module, split: Split, soft: bool = False) -> None:
        super().__init__()
        self.embed, self.soft = embed, soft
        self.register_buffer("items", _embedded(embed, split))
        self.register_buffer("own", functional.one_hot(split.labels, split.classes).float())

    def forward(self, inputs: Tensor) -> Tensor:
        cosine, own = self.embed(inputs) @ self.get_buffer("items").T, self.get_buffer("own")
        if self.soft:
            return torch.log((20 * cosine - 20).exp() @ own + 1e-12)
        return own[cosine.topk(5, dim=1).indices].sum(dim=1)


class HalfSeen(nn.Module):
    """The mean of the logits of two networks, one of which has no gradient."""

    def __init__(self, seen: nn.Module, blind: nn.Module) -> None:
        super().__init__()
        self.seen, self.blind = seen, blind

    def forward(self, inputs: Tensor) -> Tensor:
        return (self.seen(inputs) + self.blind(inputs.detach())) / 2


@torch.no_grad()
def _embedded(embed: nn.Module, split: Split) -> Tensor:
    return embed(split.inputs.float() / 255)


# Ways to train.


class Hinge(MetricLoss):
    """mean_{j != y} max(0, 1 - z_y + z_j), over all classes."""

    def forward(
        self,
        embeddings: Embeddings,
        labels: Labels,
        triplets: Triplets | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        return functional.multi_margin_loss(embeddings, labels)


class FlatLoss(Defence):
    """Cross entropy, and the squared length of its gradient by the input (Ross & Doshi-Velez, AAAI 2018)."""

    def __init__(self, weight: float = 1.0) -> None:
        super().__init__()
        self.weight, self.loss = weight, CrossEntropy()

    def forward(self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        x = batch.inputs.clone().requires_grad_()
        loss = self.loss(model(x), batch.labels)
        # Of the mean over the batch: times its size, each image's own.
        slope = len(x) * torch.autograd.grad(loss, x, create_graph=True)[0]
        return {"metric": loss, "slope": self.weight * slope.square().flatten(1).sum(dim=1).mean()}


class Distilled(Defence):
    """Cross entropy with a teacher's probabilities (Papernot et al., S&P 2016); both models divide their logits."""

    def __init__(self, teach: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.teach = teach

    def forward(self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        with torch.no_grad():
            wanted = self.teach(batch.inputs).softmax(dim=1)
        return {"metric": functional.cross_entropy(model(batch.inputs), wanted)}


def fresh_zoo(epochs: int, seed: int, group: str = "fresh") -> Zoo:
    """The zoo on a group's images; without the data it says which files are missing."""
    return Zoo(epochs, seed, shown(group))
