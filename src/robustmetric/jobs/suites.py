"""A suite's file to its trials: each attack, the engine that climbs it, and the radii it runs at."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from robustmetric import recipe
from robustmetric.attacks.base import Attack, Engine
from robustmetric.attacks.modes import Mode, check_mode
from robustmetric.attacks.suite import Suite, Trial
from robustmetric.catalogue import NAMES
from robustmetric.errors import InputError, nearest
from robustmetric.jobs.assemble import build, check_whole
from robustmetric.recipe import Spec

SUITE_KEYS = ("engine", "attacks", "modes", "survivors", "rounded")
TRIAL_KEYS = ("attack", "engine", "radii", "repeats", "on_all")
SURROGATE = "$surrogate"
"""What a suite writes where the user is to name a run folder."""
SURROGATES = "$surrogates"
"""What it writes where one may be named: the folders that were, none or one."""


def load_suite(
    name: str, radius: float | None = None, modes: Sequence[str] | None = None, surrogate: str | None = None
) -> Suite:
    """A suite by short name or file: a default `engine`, and `attacks`, each with its own changes and radii.

    It runs in the modes its file names, or in those given here. Attacks that ask for a `$surrogate`, a run folder, are
    left out where none is given; those that take `$surrogates` are run without.
    """
    path, spec = _read_suite(name)
    asking = [label for label, entry in spec["attacks"].items() if _mentions(entry, SURROGATE)]
    taking = [label for label, entry in spec["attacks"].items() if _mentions(entry, SURROGATES)]
    if surrogate is not None and not asking and not taking:
        raise InputError(
            f"{path}: no attack asks for a surrogate; leave {surrogate!r} out, or run transfer (of classifiers), "
            "transfer28, transfer224, masking or clustering_adaptive"
        )
    variables = {"surrogate": surrogate, "surrogates": () if surrogate is None else (surrogate,)}
    entries = {k: entry for k, entry in spec["attacks"].items() if surrogate is not None or k not in asking}
    if not entries:
        raise InputError(f"{path}: every attack asks for a surrogate; name a run folder with --surrogate RUN")
    trials: list[Trial] = []
    for label, entry in entries.items():
        shown = f"{label} from {Path(surrogate).name}" if surrogate and label in asking + taking else str(label)
        trials += _trials(shown, entry, spec["engine"], f"{path}.attacks.{label}", variables)
    rounded, survivors = spec.get("rounded", True), spec.get("survivors", {})
    _check_survivors(rounded, survivors, str(path))
    parts = {
        "name": path.stem if Path(name).suffix else name,
        "trials": [replace(trial, rounded=rounded) for trial in trials],
        "modes": _modes(spec, modes, str(path)),
        "survivors": survivors,
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


def _read_suite(name: str) -> tuple[Path, dict[str, Spec]]:
    path = recipe.locate(name, "suites")
    spec = recipe.load(path, "suites")
    for key in spec:
        if key not in SUITE_KEYS:
            raise InputError(f"{path}: {key!r} is not a setting of a suite{nearest(str(key), SUITE_KEYS)}")
    for key in ("engine", "attacks"):
        if not isinstance(spec.get(key), dict) or not spec[key]:
            raise InputError(f"{path}: a suite needs {key!r}, a mapping; see recipes/suites/demo.yaml")
    return path, spec


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
