"""A suite's file to its trials: each attack, the engine that climbs it, and the radii it runs at."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import reduce
from pathlib import Path

from robustmetric import recipe
from robustmetric.attacks.base import Attack, Engine
from robustmetric.attacks.modes import Mode, check_mode
from robustmetric.attacks.suite import Suite, Trial
from robustmetric.attacks.transfer import Source, source_name
from robustmetric.catalogue import NAMES
from robustmetric.errors import InputError, nearest
from robustmetric.jobs.assemble import build, check_whole
from robustmetric.recipe import Spec

SUITE_KEYS = ("engine", "attacks", "modes", "survivors", "rounded")
TRIAL_KEYS = ("attack", "engine", "radii", "repeats", "on_all")
SURROGATE = "$surrogate"
"""What a suite writes where the user is to name another model."""
SURROGATES = "$surrogates"
"""What it writes where one may be named: those that were, none or one."""


def load_suite(
    name: str, radius: float | None = None, modes: Sequence[str] | None = None, surrogate: Source | None = None
) -> Suite:
    """A suite by short name or file: a default `engine`, and `attacks`, each with its own changes and radii.

    It runs in the modes its file names, or in those given here. Attacks that ask for a `$surrogate`, another model, are
    left out where none is given; those that take `$surrogates` are run without. One that is null in a file over a
    `base` is dropped.
    """
    path, spec, dropped = _read_suite(name)
    asking = [label for label, entry in spec["attacks"].items() if _mentions(entry, SURROGATE)]
    taking = [label for label, entry in spec["attacks"].items() if _mentions(entry, SURROGATES)]
    if surrogate is not None and not asking and not taking:
        raise InputError(
            f"{path}: no attack asks for a surrogate; leave {source_name(surrogate)!r} out, or run transfer (of "
            "classifiers), transfer28, transfer224, masking or clustering_adaptive"
        )
    variables = {"surrogate": surrogate, "surrogates": () if surrogate is None else (surrogate,)}
    entries = {k: entry for k, entry in spec["attacks"].items() if surrogate is not None or k not in asking}
    if not entries:
        raise InputError(
            f"{path}: every attack asks for a surrogate; name a run folder with --surrogate RUN, or a model of your "
            "own with --surrogate FILE.FUNCTION (in Python: surrogate=MODULE)"
        )
    trials: list[Trial] = []
    for label, entry in entries.items():
        shown = f"{label} from {source_name(surrogate)}" if surrogate and label in asking + taking else str(label)
        trials += _trials(shown, entry, spec["engine"], f"{path}.attacks.{label}", variables)
    rounded, survivors = spec.get("rounded", True), _survivors(spec, dropped, str(path))
    _check_survivors(rounded, survivors, str(path))
    parts = {
        "name": path.stem if Path(name).suffix else name,
        "trials": [replace(trial, rounded=rounded) for trial in trials],
        "modes": _modes(spec, modes, str(path)),
        "survivors": survivors,
        "left_out": dropped,
    }
    suite = recipe.call(Suite, parts, str(path))
    recipe.call(suite.runs, {}, str(path))
    return suite if radius is None else suite.at(radius)


def asking_for_surrogate(name: str) -> list[str]:
    """The labels of a suite's attacks that are left out where no surrogate is given."""
    return [str(label) for label, entry in _read_suite(name)[1]["attacks"].items() if _mentions(entry, SURROGATE)]


def labels_of(name: str) -> list[str]:
    """The labels of all attacks of a suite, those that ask for a surrogate among them."""
    return [str(label) for label in _read_suite(name)[1]["attacks"]]


def _read_suite(name: str) -> tuple[Path, dict[str, Spec], list[str]]:
    """Its file, what stands there, and the labels of attacks of its base that it drops."""
    path = recipe.locate(name, "suites")
    layers = recipe.layers_of(path, "suites")
    spec = reduce(recipe.merge, layers)
    for key in spec:
        if key not in SUITE_KEYS:
            raise InputError(f"{path}: {key!r} is not a setting of a suite{nearest(str(key), SUITE_KEYS)}")
    for key in ("engine", "attacks"):
        if not isinstance(spec.get(key), dict) or not spec[key]:
            raise InputError(f"{path}: a suite needs {key!r}, a mapping; see recipes/suites/demo.yaml")
    dropped = [str(label) for label, entry in spec["attacks"].items() if entry is None]
    _check_dropped(dropped, layers, str(path))
    spec["attacks"] = {label: entry for label, entry in spec["attacks"].items() if entry is not None}
    if not spec["attacks"]:
        raise InputError(f"{path}: every attack is dropped; expected one or more without null")
    return path, spec, dropped


def _check_dropped(dropped: Sequence[str], layers: Sequence[Mapping[str, Spec]], where: str) -> None:
    """Refuse to drop what is not there: a misspelt label would leave the attack in."""
    tables = [layer["attacks"] for layer in layers if isinstance(layer.get("attacks"), dict)]
    known = {str(label) for table in tables for label, entry in table.items() if entry is not None}
    for label in dropped:
        if label not in known:
            raise InputError(
                f"{where}.attacks.{label}: expected a mapping with 'attack', or a label of the `base` that null "
                f"drops{nearest(label, known)}"
            )


def _survivors(spec: Mapping[str, Spec], dropped: Sequence[str], where: str) -> Spec:
    """Its groups, without those that are null; one that counts by a dropped attack would not be what its name says."""
    survivors = spec.get("survivors", {})
    if not isinstance(survivors, dict):
        return survivors
    for name, group in survivors.items():
        lost = [label for label in dropped if isinstance(group, list) and label in group]
        if lost:
            raise InputError(
                f"{where}: {name!r} is not itself without {', '.join(map(repr, lost))}, which is dropped; expected "
                f"`survivors: {{{name}: null}}` too, and a group of another name where one is wanted"
            )
    return {name: group for name, group in survivors.items() if group is not None}


def _mentions(spec: Spec, word: str) -> bool:
    if isinstance(spec, dict | list):
        return any(_mentions(part, word) for part in (spec.values() if isinstance(spec, dict) else spec))
    return bool(spec == word)


def _check_survivors(rounded: Spec, survivors: Spec, where: str) -> None:
    if not isinstance(rounded, bool):
        raise InputError(f"{where}: rounded {rounded!r} is not known; expected true (8-bit images) or false")
    lists = isinstance(survivors, dict) and all(isinstance(group, list) and group for group in survivors.values())
    if not lists:
        raise InputError(f"{where}: survivors {survivors!r} are no lists of attacks under names; see autoattack.yaml")


def _modes(spec: Mapping[str, Spec], given: Sequence[str] | None, where: str) -> tuple[Mode, ...]:
    """The modes asked for, else those of the suite's file."""
    modes = spec.get("modes", []) if given is None else list(given)
    if not isinstance(modes, list) or len(set(map(str, modes))) < len(modes):
        raise InputError(f"{where}: modes {modes!r} are not a list of different modes, such as [fixed, compat]")
    for mode in modes:
        recipe.call(check_mode, {"mode": str(mode)}, where)
    return tuple(modes)


def _trials(label: str, entry: Spec, engine: dict[str, Spec], where: str, variables: Mapping[str, Spec]) -> list[Trial]:
    """One suite entry: `attack`, changes to the `engine`, the `radii` to run it at, and how it is run."""
    if not isinstance(entry, dict):
        raise InputError(f"{where}: expected a mapping with 'attack', found {entry!r}")
    for key in entry:
        if key not in TRIAL_KEYS:
            raise InputError(f"{where}: {key!r} is not known{nearest(str(key), TRIAL_KEYS)}")
    changes = entry.get("engine", {})
    # Another engine has settings of its own, but climbs in the same ball.
    same = changes.get("name", engine.get("name")) == engine.get("name")
    merged = recipe.merge(engine if same else {k: v for k, v in engine.items() if k == "ball"}, changes)
    attack = build(entry, "attack", where, variables)
    climber = recipe.build(merged, NAMES, f"{where}.engine")
    if not isinstance(attack, Attack) or not isinstance(climber, Engine):
        raise InputError(f"{where}: {attack!r} climbed by {climber!r} is not an attack with an engine such as pgd")
    recipe.call(check_whole, {"value": entry.get("repeats", 1), "name": "repeats", "least": 1}, where)
    if not isinstance(entry.get("on_all", False), bool):
        raise InputError(f"{where}: on_all {entry['on_all']!r} is not known; expected true or false")
    trial = Trial(label, attack, climber, entry.get("repeats", 1), on_all=entry.get("on_all", False))
    radii = entry.get("radii")
    if radii is not None and (not isinstance(radii, list) or not all(isinstance(r, int | float) for r in radii)):
        raise InputError(f"{where}: radii {radii!r} are not a list of numbers, such as [4/255, 8/255]")
    return [recipe.call(trial.at, {"radius": radius}, where) for radius in radii] if radii else [trial]
