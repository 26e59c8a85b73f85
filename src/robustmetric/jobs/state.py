"""Where a training stands: its place, its loss terms, its saved state and its log."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from robustmetric import records
from robustmetric.errors import InputError
from robustmetric.jobs import assemble
from robustmetric.jobs.folder import RunFolder
from robustmetric.jobs.loading import Wait
from robustmetric.jobs.workers import anywhere, least

if TYPE_CHECKING:
    from lightning.fabric import Fabric

NEVER = torch.iinfo(torch.int64).max
"""The first bad step of a training that had none."""


@dataclass
class State:
    """Where a training stands. Every draw depends on (seed, epoch, step, rank) alone, so this is all a resume needs."""

    epoch: int = 0
    step: int = 0
    images: int = 0
    """Images seen this epoch."""
    seconds: float = 0.0
    """Time spent on this epoch."""
    sums: dict[str, float] = field(default_factory=dict)
    """Loss terms, and other figures of the defence, summed over this epoch's steps."""
    terms: list[str] = field(default_factory=list)
    """Which of the sums are loss terms."""
    data_wait: float = 0.0
    """Share of this epoch's time that this process waited for data; after a resume, of the time since then."""


class Meter:
    """Sums loss terms on the device and reads them twice a second, so that the loop does not wait for numbers.

    Several ranks read together, whenever they are asked to, so that all of them stop at a NaN that one of them met.
    """

    def __init__(self, state: State, fabric: "Fabric") -> None:
        self.state, self.fabric = state, fabric
        self._pending: dict[str, Tensor] = {}
        self._first_bad: Tensor | None = None
        self._read = self._started = time.monotonic()
        self.wait = Wait()
        self.shown: dict[str, float] = {}
        """The means last read."""

    def add(self, named: Mapping[str, Tensor], images: int, measures: Mapping[str, Tensor] | None = None) -> None:
        """Take in one step's terms, and other figures; note the first step whose loss is not a number."""
        self.state.terms = list(named)
        for name, value in {**(measures or {}), **named}.items():
            value = value.detach()
            self._pending[name] = self._pending[name] + value if name in self._pending else value
        bad = ~torch.isfinite(torch.stack([value.detach() for value in named.values()])).all()
        step = torch.where(bad, self.state.step, NEVER)
        self._first_bad = step if self._first_bad is None else torch.minimum(self._first_bad, step)
        self.state.images += images

    def read(self, saver: "Saver", *, force: bool = False) -> dict[str, float]:
        """Mean terms of the epoch so far; stops the training where a loss was NaN or infinite."""
        now = time.monotonic()
        if not force and self.fabric.world_size == 1 and now - self._read < 0.5:
            return self.shown
        self.state.seconds += now - self._started
        self.state.data_wait = self.wait.share
        self._started = self._read = now
        first_bad = least(self.fabric, NEVER if self._first_bad is None else int(self._first_bad))
        if first_bad < NEVER:
            raise InputError(
                f"the loss became NaN or infinite at epoch {self.state.epoch + 1}, step {first_bad}; "
                f"{saver.last_good()}; lower the learning rate or use --precision 32-true"
            )
        for name, value in self._pending.items():
            self.state.sums[name] = self.state.sums.get(name, 0.0) + float(value)
        self._pending, self._first_bad = {}, None
        self.shown = {name: total / max(self.state.step, 1) for name, total in self.state.sums.items()}
        return self.shown


class Saver:
    """Writes the training state every so often, never a broken one, and reads it back."""

    def __init__(
        self, folder: RunFolder, plan: assemble.Plan, optimizer: torch.optim.Optimizer, fabric: "Fabric"
    ) -> None:
        self.folder, self.plan, self.optimizer, self.fabric = folder, plan, optimizer, fabric
        self._saved = time.monotonic()
        self._good: str | None = None

    def maybe(self, state: State, meter: Meter | None = None) -> None:
        """Save if the last save is old enough, by the clock of any rank."""
        if anywhere(self.fabric, time.monotonic() - self._saved >= self.plan.checkpoint_seconds):
            self.now(state, meter)

    def now(self, state: State, meter: Meter | None = None) -> None:
        """Save; meter and weights are looked at first, so that a NaN is never saved."""
        if meter is not None:
            meter.read(self, force=True)
        weights = [*self.plan.model.parameters(), *self.plan.defence.parameters()]
        if anywhere(self.fabric, not all(bool(torch.isfinite(weight).all()) for weight in weights)):
            # A finite loss can have a gradient that is not.
            raise InputError(
                f"the weights became NaN or infinite by epoch {state.epoch + 1}, step {state.step}; "
                f"{self.last_good()}; lower the learning rate or use --precision 32-true"
            )
        if self.fabric.global_rank == 0:
            self.folder.save_state(
                {
                    **vars(state),
                    "ranks": self.fabric.world_size,
                    "model": self.plan.model.state_dict(),
                    "defence": self.plan.defence.state_dict(),
                    "optimiser": self.optimizer.state_dict(),
                }
            )
        self.note(state)

    def restore(self) -> State:
        """Weights, optimiser and place from the saved state."""
        saved = self.folder.load_state(self.fabric.device)
        # States of older versions do not say; they are taken for those of one process.
        ranks = saved.pop("ranks", 1)
        if saved.get("step") and ranks != self.fabric.world_size:
            raise InputError(
                f"{self.folder.state} is in the middle of an epoch shared by {ranks} process(es), not "
                f"{self.fabric.world_size}; resume with as many, as in --devices {ranks}"
            )
        try:
            self.plan.model.load_state_dict(saved.pop("model"))
            self.plan.defence.load_state_dict(saved.pop("defence"))
            self.optimizer.load_state_dict(saved.pop("optimiser"))
            state = State(**saved)
        except (RuntimeError, KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"{self.folder.state} is of another model or version ({' '.join(str(error).split())[:200]}); "
                "resume with the recipe that began it"
            ) from error
        self.note(state)
        return state

    def note(self, state: State) -> None:
        """Remember that this state is on disk."""
        self._saved = time.monotonic()
        self._good = f"epoch {state.epoch + 1}, step {state.step}"

    def last_good(self) -> str:
        """Where the last good state is, in words."""
        if self._good is None:
            return "no state had been saved yet"
        return f"the last good state ({self._good}) is in {self.folder.state}"


class Log:
    """One record per epoch, on disk and, if asked for, in TensorBoard."""

    def __init__(self, folder: RunFolder, plan: assemble.Plan, context: Mapping[str, Any], tensorboard: bool) -> None:
        self.folder, self.plan, self.context = folder, plan, context
        self.writer = _tensorboard(folder.path) if tensorboard else None

    def epoch(self, state: State) -> None:
        """Write the finished epoch."""
        scores = {name: total / max(state.step, 1) for name, total in state.sums.items()}
        scores["images_per_second"] = state.images / max(state.seconds, 1e-9)
        scores["data_wait"] = state.data_wait
        record = records.Record(
            kind="train",
            name="epoch",
            scores=scores,
            settings={"epoch": state.epoch + 1, "terms": state.terms},
            count=state.images,
            seconds=state.seconds,
            seed=self.plan.seed,
            context=dict(self.context),
        )
        records.append(self.folder.results, record)
        if self.writer is not None:
            for name, value in scores.items():
                self.writer.add_scalar(f"train/{name}", value, state.epoch + 1)
            self.writer.flush()


def _tensorboard(path: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise InputError("--tensorboard needs the extra: pip install 'robustmetric[tensorboard]'") from error
    return SummaryWriter(str(path))
