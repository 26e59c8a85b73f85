"""The surrogate of a transferred attack: the model of a run folder, and the arena's gallery as it embeds it."""

from pathlib import Path
from typing import Any

from torch import nn

from robustmetric.attacks.joint import WholeSet
from robustmetric.attacks.suite import Trial
from robustmetric.attacks.transfer import Surrogate, Transfer
from robustmetric.errors import InputError
from robustmetric.jobs import assemble
from robustmetric.jobs.arena import Arena, embed
from robustmetric.jobs.folder import fingerprint
from robustmetric.models.classifier import Classifies
from robustmetric.types import Gallery


def find_surrogate(trial: Trial, arena: Arena) -> Surrogate | None:
    """What a transferred attack climbs on; None for every other attack."""
    if not isinstance(trial.attack, Transfer):
        return None
    model = _load(trial.attack.surrogate).to(arena.workers.device)
    if isinstance(arena.model, Classifies):
        if not isinstance(model, Classifies) or model.classes != arena.model.classes:
            raise InputError(
                f"the surrogate {trial.attack.surrogate!r} is no classifier of the target's {arena.model.classes} "
                "classes; expected a run that was trained on the same data"
            )
        return Surrogate(model, arena.gallery)
    items = embed(model, arena.items, arena.view, arena.workers, arena.batch_size, seen=arena.seen)
    return Surrogate(model, Gallery(items, arena.gallery.labels))


def load_surrogate(trial: Trial, arena: Arena) -> nn.Module | None:
    """The model on which an attack on a whole set climbs instead of its target; None where it has none."""
    path = _folder(trial)
    return None if path is None else _load(path).to(arena.workers.device)


def surrogate_settings(trial: Trial) -> dict[str, Any]:
    """What a record must say of it: which weights lie in the folder now."""
    path = _folder(trial)
    return {} if path is None else {"surrogate_weights": fingerprint(_load(path))[:16]}


def _folder(trial: Trial) -> str | None:
    return trial.attack.surrogate if isinstance(trial.attack, Transfer | WholeSet) else None


def _load(path: str) -> nn.Module:
    return assemble.load_run(Path(path))[0]
