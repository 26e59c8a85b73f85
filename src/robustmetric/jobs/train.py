"""Train: recipe -> data -> model -> [defence -> step] -> checkpoint -> records."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn

from robustmetric import records
from robustmetric.data.base import Dataset
from robustmetric.defences.base import Defence
from robustmetric.errors import InputError
from robustmetric.jobs import assemble
from robustmetric.jobs.arena import Arena
from robustmetric.jobs.evaluate import measure_clean
from robustmetric.jobs.feed import Feed
from robustmetric.jobs.folder import RunFolder, summarise
from robustmetric.jobs.progress import Bar, Stop, console, interruptible, terms
from robustmetric.jobs.workers import Hardware, Workers, describe, generator
from robustmetric.recipe import Spec
from robustmetric.types import Batch

AGREE_EVERY = 8
"""Steps between two questions to all ranks whether somebody asked to stop."""


class Interrupted(Exception):
    """Training stopped between two steps, its state saved."""


class Step(nn.Module):
    """Model and defence as one module: one forward per step, so that DDP synchronises both."""

    def __init__(self, model: nn.Module, defence: Defence) -> None:
        super().__init__()
        self.model = model
        self.defence = defence

    def forward(self, inputs: Tensor, labels: Tensor, index: Tensor, seed: tuple[int, ...]) -> dict[str, Tensor]:
        return self.defence(self.model, Batch(inputs, labels, index), generator(inputs.device, *seed))


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
    """Loss terms summed over this epoch's steps."""


def train(
    name: str,
    overrides: list[str] | None = None,
    out: Path | None = None,
    *,
    resume: bool = False,
    hardware: Hardware = Hardware(),  # noqa: B008  # frozen
    tensorboard: bool = False,
) -> Path:
    """Train a recipe; returns the run folder. `resume` goes on from the saved state, or begins where none was saved."""
    spec, where = assemble.resolve(name, overrides or [])
    folder = RunFolder(out or Path("runs") / f"{assemble.title(where)}-seed{spec.get('seed', 0)}")
    _refuse_to_overwrite(folder, spec, resume)
    fabric = hardware.fabric()
    plan, dataset = assemble.load_plan(spec, where)
    context = records.context(describe(fabric.device, fabric.world_size))
    if fabric.global_rank == 0 and not resume:
        folder.begin(spec, summarise(spec, folder.path.name, context))
    fabric.barrier()
    fit(fabric, plan, dataset, folder, context, resume=resume, tensorboard=tensorboard)
    return folder.path


def fit(
    fabric: Fabric,
    plan: assemble.Plan,
    dataset: Dataset,
    folder: RunFolder,
    context: Mapping[str, Any],
    *,
    resume: bool = False,
    tensorboard: bool = False,
) -> None:
    """The loop: every epoch, every batch, one step; saved as it goes, measured at the end."""
    torch.backends.cudnn.benchmark = fabric.device.type == "cuda"
    optimiser = plan.optimiser.build(plan.model, plan.defence)
    module, optimizer = fabric.setup(Step(plan.model, plan.defence), optimiser)
    feed = Feed(dataset.train, fabric.device)
    saver = Saver(folder, plan, optimizer, fabric)
    state = State()
    if resume and folder.state.exists():
        state = _restore(folder, plan, optimizer, fabric.device)
        saver.note(state)
    lead = fabric.global_rank == 0
    log = Log(folder, plan, context, tensorboard) if lead else None
    steps = plan.sampler.steps(dataset.train.labels, fabric.world_size)
    with interruptible() as stop, Bar("training", plan.epochs * steps, state.epoch * steps + state.step, lead) as bar:
        for epoch in range(state.epoch, plan.epochs):
            for values in _epoch(fabric, plan, module, optimizer, feed, state, saver, stop):
                bar.advance(note=_note(epoch, plan.epochs, values, state))
            if log is not None:
                log.epoch(state)
            state = replace(State(), epoch=epoch + 1)
            saver.maybe(state)
            if _due(plan.validate_every, epoch) and epoch + 1 < plan.epochs:
                _validate(fabric, plan, dataset, folder, context, epoch + 1)
    saver.now(state)
    if lead:
        folder.save_weights(plan.model)
    fabric.barrier()
    _validate(fabric, plan, dataset, folder, context, plan.epochs)


def _epoch(
    fabric: Fabric,
    plan: assemble.Plan,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    feed: Feed,
    state: State,
    saver: "Saver",
    stop: Stop,
) -> Iterator[dict[str, float]]:
    """One pass over the sampler's batches from `state.step` on; yields the mean loss terms now and then read."""
    rank, ranks = fabric.global_rank, fabric.world_size
    batches = list(plan.sampler.batches(feed.labels, state.epoch, plan.seed, rank, ranks))
    meter = Meter(state)
    module.train()
    for rows in batches[state.step :]:
        _set_rate(optimizer, plan, state.epoch + state.step / len(batches))
        seed = (plan.seed, state.epoch, state.step, rank)
        batch = feed.batch(rows, plan.augment, generator(feed.device, *seed, 1))
        for replay in range(plan.defence.replays):
            named = module(batch.inputs, batch.labels, batch.index, (*seed, 2, replay))
            loss = torch.stack(list(named.values())).sum()
            optimizer.zero_grad(set_to_none=True)
            fabric.backward(loss)
            if plan.optimiser.clip is not None:
                torch.nn.utils.clip_grad_value_(module.parameters(), plan.optimiser.clip)
            optimizer.step()
        state.step += 1
        meter.add(named, len(rows) * ranks)
        yield meter.read(saver)
        saver.maybe(state, meter)
        if _agreed(fabric, stop, state.step):
            saver.now(state, meter)
            raise Interrupted(str(saver.folder.path))
    meter.read(saver, force=True)


def _agreed(fabric: Fabric, stop: Stop, step: int) -> bool:
    """Whether to stop here. Several ranks agree on it every few steps, so that none waits for one that has left."""
    if fabric.world_size == 1:
        return stop.asked
    if step % AGREE_EVERY:
        return False
    asked = fabric.all_reduce(torch.tensor(float(stop.asked), device=fabric.device), reduce_op="sum")
    return bool(torch.as_tensor(asked) > 0)


class Meter:
    """Sums loss terms on the device and reads them twice a second, so that the loop does not wait for numbers."""

    def __init__(self, state: State) -> None:
        self.state = state
        self._pending: dict[str, Tensor] = {}
        self._first_bad: Tensor | None = None
        self._read = self._started = time.monotonic()
        self._shown: dict[str, float] = {}

    def add(self, named: Mapping[str, Tensor], images: int) -> None:
        """Take in one step's terms; note the first step whose loss is not a number."""
        for name, value in named.items():
            value = value.detach()
            self._pending[name] = self._pending[name] + value if name in self._pending else value
        bad = ~torch.isfinite(torch.stack([value.detach() for value in named.values()])).all()
        step = torch.where(bad, self.state.step, torch.iinfo(torch.int64).max)
        self._first_bad = step if self._first_bad is None else torch.minimum(self._first_bad, step)
        self.state.images += images

    def read(self, saver: "Saver", *, force: bool = False) -> dict[str, float]:
        """Mean terms of the epoch so far; stops the training where a loss was NaN or infinite."""
        now = time.monotonic()
        if not force and now - self._read < 0.5:
            return self._shown
        self.state.seconds += now - self._started
        self._started = self._read = now
        if self._first_bad is not None and int(self._first_bad) < torch.iinfo(torch.int64).max:
            raise InputError(
                f"the loss became NaN or infinite at epoch {self.state.epoch + 1}, step {int(self._first_bad)}; "
                f"{saver.last_good()}; lower the learning rate or use --precision 32-true"
            )
        for name, value in self._pending.items():
            self.state.sums[name] = self.state.sums.get(name, 0.0) + float(value)
        self._pending, self._first_bad = {}, None
        self._shown = {name: total / max(self.state.step, 1) for name, total in self.state.sums.items()}
        return self._shown


class Saver:
    """Writes the training state every so often, never a broken one."""

    def __init__(
        self, folder: RunFolder, plan: assemble.Plan, optimizer: torch.optim.Optimizer, fabric: Fabric
    ) -> None:
        self.folder, self.plan, self.optimizer, self.fabric = folder, plan, optimizer, fabric
        self._saved = time.monotonic()
        self._good: str | None = None

    def maybe(self, state: State, meter: Meter | None = None) -> None:
        """Save if the last save is old enough."""
        if time.monotonic() - self._saved >= self.plan.checkpoint_seconds:
            self.now(state, meter)

    def now(self, state: State, meter: Meter | None = None) -> None:
        """Save; meter and weights are looked at first, so that a NaN is never saved."""
        if meter is not None:
            meter.read(self, force=True)
        weights = [*self.plan.model.parameters(), *self.plan.defence.parameters()]
        if not all(bool(torch.isfinite(weight).all()) for weight in weights):
            # A finite loss can have a gradient that is not.
            raise InputError(
                f"the weights became NaN or infinite by epoch {state.epoch + 1}, step {state.step}; "
                f"{self.last_good()}; lower the learning rate or use --precision 32-true"
            )
        if self.fabric.global_rank == 0:
            self.folder.save_state(
                {
                    **vars(state),
                    "model": self.plan.model.state_dict(),
                    "defence": self.plan.defence.state_dict(),
                    "optimiser": self.optimizer.state_dict(),
                }
            )
        self.note(state)

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
        record = records.Record(
            kind="train",
            name="epoch",
            scores=scores,
            settings={"epoch": state.epoch + 1},
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


def _restore(folder: RunFolder, plan: assemble.Plan, optimizer: torch.optim.Optimizer, device: torch.device) -> State:
    """Weights, optimiser and place from the saved state."""
    saved = folder.load_state(device)
    try:
        plan.model.load_state_dict(saved.pop("model"))
        plan.defence.load_state_dict(saved.pop("defence"))
        optimizer.load_state_dict(saved.pop("optimiser"))
        return State(**saved)
    except (RuntimeError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{folder.state} is of another model or version ({' '.join(str(error).split())[:200]}); "
            "resume with the recipe that began it"
        ) from error


def _refuse_to_overwrite(folder: RunFolder, spec: Mapping[str, Spec], resume: bool) -> None:
    """A run is neither lost by accident nor continued under another recipe (more epochs are fine)."""
    if not resume:
        if folder.recipe.exists():
            raise InputError(f"{folder.path} exists; continue it with --resume, or choose another folder with --out")
        return
    old = folder.read_recipe()
    free = ("epochs", "validate_every", "checkpoint_seconds")
    changed = [key for key in {**old, **spec} if key not in free and old.get(key) != spec.get(key)]
    if changed:
        raise InputError(
            f"{folder.path} was begun with other settings for {', '.join(map(repr, changed))}; "
            "resume with the same recipe and overrides, or start anew with --out"
        )


def _set_rate(optimizer: torch.optim.Optimizer, plan: assemble.Plan, progress: float) -> None:
    factor = plan.optimiser.schedule(progress, plan.epochs)
    for group in optimizer.param_groups:
        group["lr"] = group["base_rate"] * factor


def _validate(
    fabric: Fabric,
    plan: assemble.Plan,
    dataset: Dataset,
    folder: RunFolder,
    context: Mapping[str, Any],
    epoch: int,
) -> None:
    """Clean retrieval of the model as it stands, into the records and onto the screen."""
    arena = Arena.prepare(plan.model, dataset, plan.view, Workers.of(fabric))
    # A kind of its own: a glance during training is not the evaluation that tables compare.
    record = replace(measure_clean(arena, {"epoch": epoch}, plan.seed, context), kind="validation")
    if fabric.global_rank == 0:
        records.append(folder.results, record)
        shown = "  ".join(
            f"{name} {record.scores[name]:.1f}" for name in ("R@1", "mAP@R", "NMI") if name in record.scores
        )
        console.print(f"{folder.path.name}, epoch {epoch}: {shown}", highlight=False)


def _due(every: int, epoch: int) -> bool:
    return every > 0 and (epoch + 1) % every == 0


def _note(epoch: int, epochs: int, values: Mapping[str, float], state: State) -> str:
    rate = state.images / state.seconds if state.seconds else 0.0
    return f"epoch {epoch + 1}/{epochs}  {terms(values)}  {rate:.0f} images/s"
