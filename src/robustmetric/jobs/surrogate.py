"""The surrogate of a transferred attack: a run folder's model or one's own, and the gallery as it embeds it."""

from pathlib import Path
from typing import Any

from torch import nn

from robustmetric.attacks.joint import WholeSet
from robustmetric.attacks.suite import Trial
from robustmetric.attacks.transfer import AtHand, Source, Surrogate, Transfer, source_name
from robustmetric.errors import InputError
from robustmetric.jobs import assemble
from robustmetric.jobs.arena import Arena, embed
from robustmetric.jobs.folder import RunFolder, fingerprint
from robustmetric.jobs.own import is_own, own_model, unit
from robustmetric.models.classifier import Classifies
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


def find_surrogate(trial: Trial, arena: Arena) -> Surrogate | None:
    """What a transferred attack climbs on; None for every other attack."""
    if not isinstance(trial.attack, Transfer):
        return None
    model = _load(trial.attack.surrogate).to(arena.workers.device)
    if isinstance(arena.model, Classifies):
        if not isinstance(model, Classifies) or model.classes != arena.model.classes:
            raise InputError(
                f"the surrogate {_shown(trial.attack.surrogate)!r} is no classifier of the target's "
                f"{arena.model.classes} classes; expected a run that was trained on the same data, or a module with "
                f"classes = {arena.model.classes}"
            )
        return Surrogate(model, arena.gallery)
    items = embed(model, arena.items, arena.view, arena.workers, arena.batch_size, seen=arena.seen)
    return Surrogate(model, Gallery(items, arena.gallery.labels))


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


def _source(trial: Trial) -> Source | None:
    return trial.attack.surrogate if isinstance(trial.attack, Transfer | WholeSet) else None


def _shown(source: Source) -> str:
    return source if isinstance(source, str) else source_name(source)


def _load(source: Source) -> nn.Module:
    return source.model if isinstance(source, AtHand) else assemble.load_run(Path(source))[0]
