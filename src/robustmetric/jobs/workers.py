"""Devices, ranks and randomness: the plumbing shared by the jobs, on Lightning Fabric."""

import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from robustmetric.errors import InputError
from robustmetric.numerics.precision import products

if TYPE_CHECKING:
    from lightning.fabric import Fabric


@dataclass(frozen=True)
class Hardware:
    """Where a job runs; the same words as Lightning Fabric's."""

    accelerator: str = "auto"
    devices: str = "1"
    nodes: int = 1
    precision: str = "32-true"
    strategy: str = "auto"

    def fabric(self) -> "Fabric":
        """A launched Fabric. Several processes use DDP without buffer broadcast: each rank keeps its own state."""
        made = self._made()
        with quiet():
            made.launch()
        return made

    def check(self) -> None:
        """Refuse words that mean no hardware, or none that is here, before anything is read or downloaded for it."""
        if self != Hardware():  # which there always is, and to make it takes seconds
            self._made()

    def _made(self) -> "Fabric":
        # Here, not above: it takes seconds to import, which commands that run nothing need not wait for.
        from lightning.fabric import Fabric
        from lightning.fabric.strategies.ddp import DDPStrategy
        from lightning.fabric.utilities.exceptions import MisconfigurationException

        devices: int | str = int(self.devices) if self.devices.lstrip("-").isdigit() else self.devices
        several = devices not in (1, "1") or self.nodes > 1
        plain = self.strategy in ("auto", "ddp")
        strategy = DDPStrategy(broadcast_buffers=False) if several and plain else self.strategy
        for name in ("lightning.fabric", "lightning.pytorch"):
            logging.getLogger(name).setLevel(logging.WARNING)
        with quiet():
            try:
                return Fabric(
                    accelerator=self.accelerator,
                    devices=devices,
                    num_nodes=self.nodes,
                    precision=self.precision,  # type: ignore[arg-type]  # checked by Fabric, whose message we pass on
                    strategy=strategy,
                )
            except (ValueError, RuntimeError, TypeError, ImportError, MisconfigurationException) as error:
                words = ", ".join(f"{key} {value!r}" for key, value in vars(self).items())
                raise InputError(f"this hardware cannot be had ({words}): {' '.join(str(error).split())}") from error


@dataclass(frozen=True)
class Workers:
    """This process among its peers; alone unless a Fabric says otherwise."""

    device: torch.device
    rank: int = 0
    ranks: int = 1
    total: Callable[[Tensor], Tensor] = lambda x: x
    """Sum of a tensor over ranks."""

    @staticmethod
    def of(fabric: "Fabric") -> "Workers":
        """The workers of a launched Fabric."""

        def total(x: Tensor) -> Tensor:
            summed = fabric.all_reduce(x.to(fabric.device), reduce_op="sum")
            return torch.as_tensor(summed).to(x.device)

        alone = fabric.world_size == 1
        return Workers(fabric.device, fabric.global_rank, fabric.world_size, (lambda x: x) if alone else total)


def least(fabric: "Fabric", number: int) -> int:
    """The smallest of the ranks' whole numbers; every rank must ask."""
    if fabric.world_size == 1:
        return number
    return int(torch.as_tensor(fabric.all_reduce(torch.tensor(number, device=fabric.device), reduce_op="min")))


def anywhere(fabric: "Fabric", fact: bool) -> bool:
    """Whether something holds on any rank; every rank must ask."""
    return least(fabric, int(not fact)) == 0


@contextmanager
def lead_first(fabric: "Fabric") -> Iterator[None]:
    """The first rank goes ahead and the others find what it cached.

    Unlike `fabric.rank_zero_first`, a rank that fails in here leaves nobody waiting.
    """
    if fabric.global_rank > 0:
        fabric.barrier()
    try:
        yield
    finally:
        if fabric.global_rank == 0:
            fabric.barrier()


def leads() -> bool:
    """Whether this process speaks for its peers: the first rank, or the only process."""
    return not (torch.distributed.is_available() and torch.distributed.is_initialized()) or (
        torch.distributed.get_rank() == 0
    )


def describe(device: torch.device, ranks: int = 1) -> str:
    """The hardware in words, for records: `1 x NVIDIA H200`, `CPU, 2 threads`."""
    if device.type == "cuda":
        return f"{ranks} x {torch.cuda.get_device_name(device)}"
    return f"CPU, {torch.get_num_threads()} threads" + (f", {ranks} processes" if ranks > 1 else "")


@contextmanager
def full_precision() -> Iterator[None]:
    """fp32 as it stands: convolutions and products without TF32, which would change an attack's outcome."""
    with products(tf32=False):
        yield


@contextmanager
def quiet() -> Iterator[None]:
    """Hold back Lightning's set-up remarks; ours are on the progress line."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
