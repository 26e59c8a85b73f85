"""Masking diagnostics: model + data -> [check -> verdict] -> records, one for each check and one for all of them."""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from robustmetric.attacks.base import Attack
from robustmetric.attacks.feature_match import Featured, shows_features
from robustmetric.attacks.suite import Suite, Trial
from robustmetric.attacks.transfer import Source, Surrogate, Transfer, source_name
from robustmetric.diagnose.examine import NAMES, Ended, go_on
from robustmetric.diagnose.masking import Masking
from robustmetric.diagnose.randomised import one_draw
from robustmetric.diagnose.subject import Subject, classifier_subject, retrieval_subject
from robustmetric.diagnose.verdict import Verdict, overall
from robustmetric.errors import InputError
from robustmetric.jobs.answer import answering, check_features
from robustmetric.jobs.arena import Arena, as_bytes
from robustmetric.jobs.checked import keep, recall, recorded
from robustmetric.jobs.evaluate import chance_of
from robustmetric.jobs.progress import waiting
from robustmetric.jobs.restarts import voters
from robustmetric.jobs.resume import find
from robustmetric.jobs.surrogate import find_surrogate, surrogate_settings
from robustmetric.jobs.warned import warned_context
from robustmetric.jobs.workers import full_precision
from robustmetric.models.classifier import Classifies
from robustmetric.numerics.randomness import generator
from robustmetric.perturb.pgd import PGD
from robustmetric.records import Record
from robustmetric.report.masking_flag import ALL_WORDS, EFFORT, SAID
from robustmetric.types import Inputs

KIND = "masking"
"""Of these records. The one named `verdict` has the others' in its context."""


def is_masking(suite: Suite) -> bool:
    """Whether a suite asks for the diagnostics, which this job runs."""
    return any(isinstance(trial.attack, Masking) for trial in suite.trials)


def run_masking(
    arena: Arena,
    suite: Suite,
    seed: int,
    context: Mapping[str, Any],
    settings: Mapping[str, Any] | None = None,
    finished: Mapping[str, Record] | None = None,
    folder: Path | None = None,
) -> Iterator[Record]:
    """Every check of every trial as it ends, then what they say together; what is in `finished` is not run again.

    In `folder` is kept what a check leaves for the others: without it, a trial that was cut begins anew.
    """
    if arena.workers.ranks > 1:
        raise InputError(f"the checks are run by one process, not {arena.workers.ranks}; expected --devices 1")
    if arena.fast:
        raise InputError("bfloat16 hides gradients by itself; expected the masking suite without --fast")
    done, warned = finished or {}, None
    for trial in suite.runs():
        described = {"suite": suite.name, **(settings or {}), **trial.settings(), **arena.settings()}
        described |= _surrogates_settings(trial)
        last = Record(KIND, "verdict", {}, {**described, "trial": trial.label}, seed=seed, context=dict(context))
        if find(last, done) is not None:
            continue
        if warned is None:
            warned = warned_context(arena, suite, is_randomised=False)
        yield from _diagnose(arena, trial, replace(last, context={**context, **warned}), done, folder)


@contextmanager
def _apart(device: torch.device, seed: int) -> Iterator[None]:
    """Full precision, and the global randomness, which a randomised model draws from, seeded; both restored after."""
    with full_precision(), one_draw(device, seed):
        yield


def _verdicts(
    arena: Arena, trial: Trial, seed: int, source: torch.Generator, done: Mapping[str, Ended]
) -> Iterator[tuple[Ended, int]]:
    masking, engine = trial.attack, trial.engine
    if not isinstance(masking, Masking) or not isinstance(engine, PGD):
        raise InputError(f"trial {trial.label!r}: {masking!r} with {engine!r}; expected masking with the engine pgd")
    if engine.restarts > 1 or not engine.random_start:
        raise InputError(
            f"trial {trial.label!r}: the checks start each climb at random, as often as `restarts` of masking says; "
            "expected an engine without restarts and random_start"
        )
    device = arena.workers.device
    with _apart(device, seed):
        subject = subject_of(arena, masking, trial)
    checks = go_on(subject, engine, masking, source, done)
    for place in itertools.count():
        shown = waiting(f"{NAMES[place]} (check {place + 1} of {len(NAMES)})") if place < len(NAMES) else nullcontext()
        # Around each step of the generator: held open across a yield, it would be the caller's state too.
        with shown, _apart(device, seed + place):
            ended = next(checks, None)
        if ended is None:
            return
        yield ended, len(subject.batch)


def _diagnose(
    arena: Arena, trial: Trial, last: Record, done: Mapping[str, Record], folder: Path | None
) -> Iterator[Record]:
    source = generator(arena.workers.device, last.seed, 8)
    known = {} if folder is None else recall(folder, last, done, source)
    found: list[tuple[Record, Verdict]] = []
    before = time.monotonic()
    for ended, count in _verdicts(arena, trial, last.seed, source, {name: one for name, (_, one) in known.items()}):
        name = ended.verdict.name
        if name in known:
            record = known[name][0]
        else:
            record = recorded(last, ended, count, time.monotonic() - before)
            if folder is not None:
                keep(folder, record, ended)
            yield record
        found.append((record, ended.verdict))
        before = time.monotonic()
    words = {verdict.name: verdict.verdict for _, verdict in found}
    told = {SAID: {verdict.name: verdict.said for _, verdict in found if verdict.verdict in ("unclear", "fail")}}
    spent = {EFFORT: trial.attack.effort()} if isinstance(trial.attack, Masking) else {}
    yield replace(
        last,
        scores={word: float(sum(said == word for said in words.values())) for word in ALL_WORDS},
        count=count,
        seconds=sum(record.seconds for record, _ in found),
        context={
            **last.context,
            **spent,
            "verdict": overall([verdict for _, verdict in found]),
            "checks": words,
            **told,
        },
    )


def subject_of(arena: Arena, masking: Masking, trial: Trial) -> Subject:
    """The arena's model on some of its queries."""
    count = len(arena.rows)
    rows = torch.linspace(0, count - 1, min(count, masking.images)).long()
    batch = as_bytes(arena.queries.batch(arena.rows[rows], arena.view, index=arena.places[rows]))
    model, sources = arena.model, _surrogates(arena, masking, trial)
    if isinstance(model, Classifies):
        if masking.by_vote:
            raise InputError(
                "by_vote is for ensembles of encoders; a classifier's members vote inside it: leave it out"
            )
        features = _features(model, batch.inputs)
        subject = classifier_subject(model, batch, model.classes, features=features, view=arena.seen)
        return replace(subject, surrogates=sources, together=arena.batch_size, search=arena.search)
    chance = chance_of(batch.labels, arena.gallery.labels, own=arena.items is arena.queries)
    members = 1
    if masking.by_vote:
        members = voters(model)
        if members == 1:
            raise InputError("by_vote is for ensembles, and this is a single encoder, without members: leave it out")
        sources = {name: replace(source, members=voters(source.model)) for name, source in sources.items()}
    subject = retrieval_subject(
        model, batch, arena.gallery, chance, members=members, view=arena.seen, surrogates=sources
    )  # fmt: skip
    return replace(subject, together=arena.batch_size, search=arena.search)


def _features(model: nn.Module, inputs: Inputs) -> Callable[[Tensor], Tensor] | None:
    """The model's features where it has any."""
    with answering(model, inputs[:1]):
        if not isinstance(model, Featured) or not shows_features(model, inputs):
            return None
    check_features(model, inputs)
    return model.features


def _surrogates(arena: Arena, masking: Masking, trial: Trial) -> dict[str, Surrogate]:
    found = {
        one if isinstance(one, str) else source_name(one): find_surrogate(_transferring(trial, one), arena)
        for one in masking.surrogates
    }
    return {name: source for name, source in found.items() if source is not None}


def _surrogates_settings(trial: Trial) -> dict[str, Any]:
    if not isinstance(trial.attack, Masking) or not trial.attack.surrogates:
        return {}
    each = [surrogate_settings(_transferring(trial, one)) for one in trial.attack.surrogates]
    weights = {"surrogate_weights": [settings["surrogate_weights"] for settings in each]}
    return {key: value for settings in each for key, value in settings.items()} | weights


def _transferring(trial: Trial, source: Source) -> Trial:
    return replace(trial, attack=cast(Attack, Transfer(trial.attack, source)))
