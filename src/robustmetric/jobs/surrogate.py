"""The surrogate of a transferred attack: a run folder's model or one's own, and the gallery as it embeds it."""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import nn

from robustmetric.attacks.joint import WholeSet
from robustmetric.attacks.margin import check_logits
from robustmetric.attacks.suite import Suite, Trial
from robustmetric.attacks.transfer import AtHand, Source, Surrogate, Transfer, source_name
from robustmetric.diagnose.masking import Masking
from robustmetric.errors import InputError
from robustmetric.jobs import assemble
from robustmetric.jobs.answer import checked_logits
from robustmetric.jobs.arena import Arena, as_bytes, embed
from robustmetric.jobs.folder import RunFolder, fingerprint, state_fingerprint
from robustmetric.jobs.own import is_own, own_model, unit
from robustmetric.models.classifier import Classifies
from robustmetric.models.encoder import Encoder
from robustmetric.numerics.randomness import repeatable
from robustmetric.perturb.apgd import APGD
from robustmetric.perturb.fab import FAB
from robustmetric.perturb.gradient import has_gradient
from robustmetric.perturb.pgd import PGD, frozen
from robustmetric.types import Gallery

MODULE = "surrogate_module"
"""In the settings of a record, the name of a surrogate that lies in no run folder."""


def named_surrogate(given: str | Path | nn.Module | None) -> Source | None:
    """What a command or a notebook names, looked up: a run folder, a module, or the name of what builds one."""
    if isinstance(given, nn.Module):
        return AtHand(type(given).__name__, unit(given))
    if given is None:
        return None
    if not isinstance(given, str | Path):
        raise InputError(
            f"the surrogate is a {type(given).__name__}; expected a torch.nn.Module or the path of a run folder"
        )
    if is_own(str(given)):
        # Built once: every trial climbs on the same weights, also where building draws them.
        return AtHand(str(given), own_model(str(given), "surrogate")())
    RunFolder(Path(given)).read_recipe()
    return str(given)


def refuse_itself(suite: Suite, model: nn.Module) -> None:
    """Refuse a suite that would transfer to a model from itself: white-box attacks under the name of black-box ones."""
    for source in dict.fromkeys(one for trial in suite.trials for one in _sources(trial)):
        if _is_same(_load(source), model):
            raise InputError(
                f"the surrogate {_shown(source)!r} is the model under attack itself, with the same weights, so that "
                "transfer from it is white-box; expected another model: name an undefended run, or one of another seed"
            )


def find_surrogate(trial: Trial, arena: Arena) -> Surrogate | None:
    """What a transferred attack climbs on; None for every other attack."""
    if not isinstance(trial.attack, Transfer):
        return None
    name = _shown(trial.attack.surrogate)
    model = _load(trial.attack.surrogate).to(arena.workers.device)
    if isinstance(arena.model, Classifies):
        if not isinstance(model, Classifies) or model.classes != arena.model.classes:
            raise InputError(
                f"the surrogate {name!r} is no classifier of the target's {arena.model.classes} classes; expected a "
                f"run that was trained on the same data, or a module with classes = {arena.model.classes}"
            )
        _check_answers(model, arena, name)
        found = Surrogate(model, arena.gallery)
    else:
        items = embed(model, arena.items, arena.view, arena.workers, arena.batch_size, seen=arena.seen)
        found = Surrogate(model, Gallery(items, arena.gallery.labels))
    if isinstance(trial.engine, PGD | APGD | FAB):
        _check_gradient(model, arena, name)
    return found


def _check_gradient(model: nn.Module, arena: Arena, name: str) -> None:
    """Refuse at once a model that autograd cannot follow; its climb may be hours away."""
    images = arena.queries.batch(arena.rows[:1], arena.view).inputs
    with frozen(model) as embed, repeatable(arena.workers.device, 0):
        if not has_gradient(embed, images):
            raise InputError(
                f"the surrogate {name!r} gives no gradient of its output with respect to the input, so that nothing "
                "can be climbed on it; expected a model that autograd follows, such as an undefended run"
            )


def _check_answers(model: nn.Module, arena: Arena, name: str) -> None:
    """Refuse a classifier that nothing can be climbed on: what it left of the target would look like robustness."""
    some = arena.rows[: arena.batch_size]
    batch = as_bytes(arena.queries.batch(some, arena.view, index=arena.places[: arena.batch_size]))
    try:
        with repeatable(arena.workers.device, 0):
            logits = checked_logits(model, batch.inputs, arena.gallery.embeddings.shape[1])
        check_logits(logits, batch.labels, first=True)
    except InputError as error:
        raise InputError(f"the surrogate {name!r} cannot be climbed on: {error}") from error


def find_surrogates(suite: Suite, arena: Arena) -> dict[str, Surrogate]:
    """By name, what the transferred attacks of a suite climb on, each once; the checks of masking ask their own."""
    firsts = {_shown(source): trial for trial in suite.trials if (source := _source(trial)) is not None}
    found = {name: find_surrogate(trial, arena) for name, trial in firsts.items()}
    return {name: one for name, one in found.items() if one is not None}


def load_surrogate(trial: Trial, arena: Arena) -> nn.Module | None:
    """The model on which an attack on a whole set climbs instead of its target; None where it has none."""
    source = _source(trial)
    return None if source is None else _load(source).to(arena.workers.device)


def surrogate_settings(trial: Trial) -> dict[str, Any]:
    """What a record must say of it: which weights it has now, and its name where it lies in no run folder."""
    source = _source(trial)
    if source is None:
        return {}
    named = {MODULE: source.name} if isinstance(source, AtHand) else {}
    return {"surrogate_weights": fingerprint(_load(source))[:16], **named}


def _sources(trial: Trial) -> list[Source]:
    """All that a trial climbs on instead of its target."""
    if isinstance(trial.attack, Masking):
        return list(trial.attack.surrogates)
    source = _source(trial)
    return [] if source is None else [source]


def _is_same(one: nn.Module, other: nn.Module) -> bool:
    """Whether two models are one: the same module, or equal weights in models that are built alike."""
    if list(_built(one)) != list(_built(other)):
        return False
    if _bare(one) is _bare(other):
        return True
    # Modules without weights have equal ones whatever they do.
    return bool(one.state_dict()) and fingerprint(one) == fingerprint(other)


def _built(model: nn.Module) -> Iterator[tuple[str, type[nn.Module], dict[str, str], str]]:
    """Of every part its name, class, plain settings and buffers, of which pixel statistics are in no checkpoint.

    A transform's straight gradient makes another model of it.
    """
    for name, part in model.named_modules():
        settings = {key: value for key, value in vars(part).items() if isinstance(value, str | int | float | tuple)}
        told = {key: repr(value) for key, value in settings.items() if key != "training"}
        yield name, type(part), told, state_fingerprint(dict(part.named_buffers(recurse=False)))


def construction(model: nn.Module, answer: Callable[[], object]) -> str:
    """16 hex digits of how a model is built, which its weights do not say: parts, plain settings, pixel statistics.

    What changes as it gives an `answer`, such as a count of its calls, is no part of how it is built.
    """
    answer()  # some parts are built by the first
    before = {name: (told, buffers) for name, _, told, buffers in _built(model)}
    answer()
    parts = []
    for name, kind, told, buffers in _built(model):
        was_told, were = before.get(name, ({}, ""))
        # What is shown by its address is shown otherwise in the next process.
        lasting = {key: value for key, value in told.items() if " at 0x" not in value and was_told.get(key) == value}
        parts.append((name, kind.__qualname__, lasting, buffers if buffers == were else ""))
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _bare(model: nn.Module) -> nn.Module:
    """A module as it was given, before `unit`."""
    return model.trunk if isinstance(model, Encoder) else model


def _source(trial: Trial) -> Source | None:
    return trial.attack.surrogate if isinstance(trial.attack, Transfer | WholeSet) else None


def _shown(source: Source) -> str:
    return source if isinstance(source, str) else source_name(source)


def _load(source: Source) -> nn.Module:
    return source.model if isinstance(source, AtHand) else assemble.load_run(Path(source))[0]
