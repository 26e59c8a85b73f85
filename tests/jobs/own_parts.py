"""Parts as a user would write them in a file of one's own, named in recipes by dotted path."""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from robustmetric.data.base import Dataset
from robustmetric.data.digits import Digits
from robustmetric.defences.base import Defence
from robustmetric.errors import InputError
from robustmetric.jobs.folder import fingerprint
from robustmetric.types import Batch, Gallery


class Signalled(Defence):
    """Another defence; at step `at` the process sends itself a signal. The count is a buffer: a resume goes on."""

    count: Tensor

    def __init__(self, inner: Defence, at: int, number: int = 2, pause: float = 0.0) -> None:
        super().__init__()
        self.inner, self.at, self.number, self.pause = inner, at, number, pause
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        self.count += 1
        time.sleep(self.pause)
        if int(self.count) == self.at:
            os.kill(os.getpid(), self.number)
        return dict(self.inner(model, batch, generator))


class Witness(Defence):
    """Another defence; each rank writes the fingerprint of its weights before every step."""

    def __init__(self, inner: Defence, folder: str) -> None:
        super().__init__()
        self.inner, self.folder = inner, folder

    def forward(self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        with (Path(self.folder) / f"rank{torch.distributed.get_rank()}.txt").open("a") as file:
            file.write(fingerprint(model) + "\n")
        return dict(self.inner(model, batch, generator))


class Lost:
    """A matching whose plans are NaN, as those of costs with NaN are on a device, where nobody looks at them."""

    def __call__(self, cost: Tensor, mu: Tensor | None = None, nu: Tensor | None = None) -> Tensor:
        return cost * float("nan")


class Broken(Defence):
    """A plain sum of embeddings whose loss, or gradient alone, is NaN from step `at` on (on one `rank`, if given)."""

    count: Tensor

    def __init__(self, at: int, where: Literal["loss", "gradient"] = "loss", rank: int | None = None) -> None:
        super().__init__()
        self.at, self.where, self.rank = at, where, rank
        self.register_buffer("count", torch.zeros((), dtype=torch.long))

    def forward(self, model: nn.Module, batch: Batch, generator: torch.Generator | None = None) -> dict[str, Tensor]:
        self.count += 1
        z = model(batch.inputs)
        elsewhere = self.rank is not None and self.rank != torch.distributed.get_rank()
        if int(self.count) < self.at or elsewhere:
            return {"own": z.sum()}
        if self.where == "loss":
            return {"own": z.sum() * float("nan")}
        # d sqrt(x) / dx at 0 is infinite, and infinity times 0 is NaN; the value itself is 0.
        return {"own": (0 * z).sum().sqrt()}


class Boom:
    """An attack that fails when it begins."""

    role: ClassVar[Literal["query", "candidate"]] = "query"

    def choose(
        self, clean: Tensor, batch: Batch, gallery: Gallery, generator: torch.Generator | None
    ) -> Mapping[str, Tensor]:
        raise InputError("boom")

    def value(self, z: Tensor, targets: Mapping[str, Tensor], gallery: Gallery) -> Tensor:
        return z.sum(dim=1)

    def score(self, z: Tensor, targets: Mapping[str, Tensor], batch: Batch, gallery: Gallery) -> Mapping[str, Tensor]:
        return {}


class Net(nn.Module):
    """A plain module of one's own: its embeddings are not of unit length, and it does not know its size."""

    def __init__(self, scale: float = 50.0) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.layer = nn.Linear(3, 8)
        self.scale = scale

    def forward(self, images: Tensor) -> Tensor:
        return self.scale * self.layer(images.mean(dim=(2, 3)))


class Normed(nn.Module):
    """A network with live batch norm, whose statistics follow the images a process has seen."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.BatchNorm1d(16, momentum=0.9))

    def forward(self, images: Tensor) -> Tensor:
        return torch.as_tensor(self.layers(images))


class Cached:
    """Digits that the first process to load them writes slowly to a cache; later ones find it."""

    built: ClassVar[int] = 0

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        Cached.built += 1

    def load(self) -> Dataset:
        cache = self.folder / "cache"
        with (self.folder / "loads.txt").open("a") as file:
            file.write("found\n" if cache.exists() else "decoded\n")
        time.sleep(0.5)
        cache.touch()
        return Digits().load()


def make_net() -> nn.Module:
    """A factory of the same."""
    return Net()


def make_nothing() -> int:
    """A factory that makes no model."""
    return 3


NUMBER = 3
