"""Train: recipe -> data -> model -> [defence -> step] -> checkpoint -> records."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from robustmetric import recipe, records
from robustmetric.catalogue import NAMES
from robustmetric.data.base import Dataset
from robustmetric.diagnose import collapse
from robustmetric.errors import InputError
from robustmetric.jobs import assemble
from robustmetric.jobs.answer import check_answer
from robustmetric.jobs.arena import Arena
from robustmetric.jobs.collapsing import Collapsed, mark, mind
from robustmetric.jobs.evaluate import measure_clean
from robustmetric.jobs.feed import Feed
from robustmetric.jobs.folder import RunFolder, summarise
from robustmetric.jobs.hurry import channels_last, compiled_updates
from robustmetric.jobs.origin import differing, origin
from robustmetric.jobs.own import warn_of_lengths
from robustmetric.jobs.progress import Bar, Stop, interruptible, say, terms
from robustmetric.jobs.state import Log, Meter, Saver, State
from robustmetric.jobs.step import Step
from robustmetric.jobs.workers import Hardware, Workers, anywhere, describe, lead_first, quiet
from robustmetric.models.classifier import Classifies
from robustmetric.numerics.randomness import generator
from robustmetric.recipe import Spec

if TYPE_CHECKING:
    from lightning.fabric import Fabric

AGREE_EVERY = 8
"""Steps between two meetings of several ranks, where they read the loss, save and stop together."""


class Interrupted(Exception):
    """Training stopped between two steps, its state saved."""


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
    recipe.look_over(spec, NAMES, where)
    folder = RunFolder(out or Path("runs") / f"{assemble.title(where)}-seed{spec.get('seed', 0)}")
    _refuse_to_overwrite(folder, spec, resume)
    fabric = hardware.fabric()
    with lead_first(fabric):
        plan, dataset = assemble.load_plan(spec, where)
    check_classes(plan.model, dataset)
    shape = _input_shape(plan, dataset)
    check_answer(plan.model, shape)
    if fabric.global_rank == 0:
        warn_of_lengths(plan.model, str(spec["model"]["name"]), shape)
    context = records.context(describe(fabric.device, fabric.world_size))
    begins = fabric.global_rank == 0 and not resume
    with _alone(fabric, folder):
        if begins:
            summary = summarise(spec, folder.path.name, context, shape)
            folder.begin(spec, {**summary, **origin(where, [*(overrides or []), *differing(hardware)])})
        fabric.barrier()
        with folder.left_free_by_failure(begins):
            fit(fabric, plan, dataset, folder, context, resume=resume, tensorboard=tensorboard)
    return folder.path


@contextmanager
def _alone(fabric: "Fabric", folder: RunFolder) -> Iterator[None]:
    """Hold the folder, by the first rank for all; a folder that another training writes is refused by every rank."""
    with folder.held() if fabric.global_rank == 0 else nullcontext(True) as is_ours:
        if anywhere(fabric, not is_ours):
            raise InputError(
                f"{folder.path} is being written by another process that still runs; expected none: wait for its end, "
                "or choose another folder with --out"
            )
        yield


def fit(
    fabric: "Fabric",
    plan: assemble.Plan,
    dataset: Dataset,
    folder: RunFolder,
    context: Mapping[str, Any],
    *,
    resume: bool = False,
    tensorboard: bool = False,
) -> None:
    """The loop: every epoch, every batch, one step; saved as it goes, measured at the end."""
    module, optimizer = _set_up(fabric, plan, dataset)
    feed = Feed(dataset.train, fabric.device)
    saver = Saver(folder, plan, optimizer, fabric)
    state = saver.restore() if resume and folder.state.exists() else State()
    lead = fabric.global_rank == 0
    log = Log(folder, plan, context, tensorboard) if lead else None
    steps = plan.sampler.steps(dataset.train.labels, fabric.world_size)
    done, total = state.epoch * steps + state.step, plan.epochs * steps
    watch, evidence = collapse.Watch(), None
    try:
        with (
            interruptible(lead) as stop,
            compiled_updates(plan.defence.repeated(plan.model), plan.defence.steady) as settle,
            Bar("training", total, done, lead) as bar,
        ):
            for epoch in range(state.epoch, plan.epochs):
                for values in _epoch(fabric, plan, module, optimizer, feed, state, saver, stop, watch):
                    bar.advance(note=progress_note(epoch, plan.epochs, values, state))
                    if state.step < steps or steps == 1:  # not after an epoch's last, smaller batch
                        settle()
                if log is not None:
                    log.epoch(state)
                state = replace(State(), epoch=epoch + 1)
                saver.maybe(state)
                if _due(plan.validate_every, epoch) and epoch + 1 < plan.epochs:
                    mind(saver, state, _validate(fabric, plan, dataset, folder, context, epoch + 1))
    except Collapsed as collapsed:
        evidence = str(collapsed)
        if log is not None and state.step:
            log.epoch(state)
    saver.now(state)
    _share_buffers(fabric, plan.model)
    if lead:
        folder.save_weights(plan.model)
    fabric.barrier()
    seen = _validate(fabric, plan, dataset, folder, context, state.epoch + bool(state.step))
    if lead:
        mark(folder, evidence, seen)


def _set_up(fabric: "Fabric", plan: assemble.Plan, dataset: Dataset) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The step and its optimiser as the hardware runs them; model and defence are made ready for it."""
    with fabric.autocast():
        is_mixed = torch.is_autocast_enabled(fabric.device.type)
    if fabric.device.type == "cuda" or is_mixed:
        for network in (plan.model, *plan.defence.beside):
            channels_last(network)
    plan.defence.view, plan.defence.steady = plan.attack_view, plan.update == "compiled"
    plan.defence.prepare(dataset.train.labels)
    optimiser = plan.optimiser.build(plan.model, plan.defence, plan.defence.beside)
    with quiet():
        module, optimizer = fabric.setup(Step(plan.model, plan.defence), optimiser)
    return module, optimizer


def _epoch(
    fabric: "Fabric",
    plan: assemble.Plan,
    module: nn.Module,
    optimizer: torch.optim.Optimizer,
    feed: Feed,
    state: State,
    saver: Saver,
    stop: Stop,
    watch: collapse.Watch,
) -> Iterator[dict[str, float]]:
    """One pass over the sampler's batches from `state.step` on; yields the mean loss terms now and then read."""
    rank, ranks = fabric.global_rank, fabric.world_size
    batches = list(plan.sampler.batches(feed.labels, state.epoch, plan.seed, rank, ranks))
    meter = Meter(state, fabric)
    module.train()
    for raw in meter.wait.on(feed.stream(batches[state.step :])):
        passed = state.epoch + state.step / len(batches)
        _set_rate(optimizer, plan, passed)
        plan.defence.progress = passed / plan.epochs
        seed = (plan.seed, state.epoch, state.step, rank)
        batch = feed.transformed(raw, plan.augment, generator(feed.device, *seed, 1))
        for replay in range(plan.defence.replays):
            named = module(batch.inputs, batch.labels, batch.index, (*seed, 2, replay))
            loss = torch.stack(list(named.values())).sum()
            optimizer.zero_grad(set_to_none=True)
            fabric.backward(loss)
            plan.optimiser.hold_back(optimizer, passed)
            if plan.optimiser.clip is not None:
                fabric.clip_gradients(module, optimizer, clip_val=plan.optimiser.clip)
            optimizer.step()
        state.step += 1
        meter.add(named, len(batch) * ranks, plan.defence.measures)
        # Logits have no unit length, and close ones are no collapse: accuracy tells.
        if not isinstance(plan.model, Classifies) and watch.look(plan.model, batch.inputs, plan.attack_view):
            evidence = watch.judge()
            if anywhere(fabric, evidence is not None):
                meter.read(saver, force=True)
                mind(saver, state, evidence or "clean embeddings fell together on another rank")
        if ranks > 1 and state.step % AGREE_EVERY:
            yield meter.shown
            continue
        yield meter.read(saver)
        saver.maybe(state, meter)
        # Asked of all ranks, so that none waits for one that has left.
        if anywhere(fabric, stop.asked):
            saver.now(state, meter)
            raise Interrupted(str(saver.folder.path))
    meter.read(saver, force=True)


def _share_buffers(fabric: "Fabric", model: nn.Module) -> None:
    """The first rank's buffers on every rank: batch-norm statistics grow apart, and only one model is saved."""
    if fabric.world_size > 1:
        for buffer in model.buffers():
            torch.distributed.broadcast(buffer, src=0)


def check_classes(model: nn.Module, dataset: Dataset) -> None:
    """Refuse a classifier whose logits are of other classes than the data's."""
    if not isinstance(model, Classifies):
        return
    trained, tested = dataset.train.class_names, dataset.queries.class_names
    if model.classes != len(trained):
        raise InputError(
            f"a classifier of {model.classes} classes cannot learn the {len(trained)} of {dataset.name}; "
            f"set model.classes={len(trained)}"
        )
    if trained != tested:
        raise InputError(
            f"{dataset.name} is tested on classes that it is not trained on; a classifier needs the same ones, as in "
            "cifar10 or {name: digits, closed: true}"
        )


def _input_shape(plan: assemble.Plan, dataset: Dataset) -> list[int]:
    """The shape of one input as the model sees it: [channels, height, width], or [features]."""
    queries = Feed(dataset.queries, torch.device("cpu"))
    return list(queries.batch(torch.arange(1), plan.view).inputs.shape[1:])


def _refuse_to_overwrite(folder: RunFolder, spec: Mapping[str, Spec], resume: bool) -> None:
    """A run is neither lost by accident nor continued under another recipe (more epochs are fine)."""
    if not resume:
        if folder.recipe.exists():
            raise InputError(f"{folder.path} exists; continue it with --resume, or choose another folder with --out")
        return
    old = folder.read_recipe()
    free = ("epochs", "validate_every", "checkpoint_seconds", "on_collapse")
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
    fabric: "Fabric",
    plan: assemble.Plan,
    dataset: Dataset,
    folder: RunFolder,
    context: Mapping[str, Any],
    epoch: int,
) -> str | None:
    """Clean retrieval, or a classifier's accuracy, as the model stands: recorded and shown; evidence of a collapse."""
    _share_buffers(fabric, plan.model)
    arena = Arena.prepare(plan.model, dataset, plan.view, Workers.of(fabric))
    # A kind of its own: a glance during training is not the evaluation that tables compare.
    record = replace(measure_clean(arena, {"epoch": epoch}, plan.seed, context)[0], kind="validation")
    cosine = math.nan if isinstance(plan.model, Classifies) else float(collapse.mean_cosine(arena.gallery.embeddings))
    if not math.isnan(cosine):
        record.scores["mean_cosine"] = cosine
    if fabric.global_rank == 0:
        records.append(folder.results, record)
        shown = "  ".join(
            f"{name} {record.scores[name]:.1f}" for name in ("accuracy", "R@1", "mAP@R", "NMI") if name in record.scores
        )
        say(f"{folder.path.name}, epoch {epoch}: {shown}")
    return collapse.evidence(record)


def _due(every: int, epoch: int) -> bool:
    return every > 0 and (epoch + 1) % every == 0


def progress_note(epoch: int, epochs: int, values: Mapping[str, float], state: State) -> str:
    """What stands beside the bar."""
    # In the first half second of an epoch nothing was read yet.
    rate = f"{state.images / state.seconds:.0f} images/s" if state.seconds else ""
    return "  ".join(part for part in (f"epoch {epoch + 1}/{epochs}", terms(values), rate) if part)
