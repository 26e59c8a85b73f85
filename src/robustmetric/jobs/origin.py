"""How a run was made: the recipe file and the command, as anybody would type them, written and read back."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robustmetric import recipe
from robustmetric.errors import InputError
from robustmetric.jobs.workers import Hardware


def origin(where: str, words: Sequence[str], job: str = "train") -> dict[str, str]:
    """`recipe_file` and `command` of a job, for run.json; a recipe we ship goes by its short name.

    `words` are the overrides and options.
    """
    path, shelf = Path(where), recipe.shelf()
    shipped = path.resolve().is_relative_to(shelf.resolve())
    short = path.resolve().relative_to(shelf.resolve()) if shipped else path
    name = short.with_suffix("").as_posix() if shipped else str(path)
    command = shlex.join(["robustmetric", job, name, *words])
    return {"recipe_file": (Path("recipes") / short if shipped else path).as_posix(), "command": command}


def differing(hardware: Hardware) -> list[str]:
    """The options that ask for other hardware than the default."""
    given, usual = vars(hardware), vars(Hardware())
    return [word for key in given if given[key] != usual[key] for word in (f"--{key}", str(given[key]))]


@dataclass(frozen=True)
class Typed:
    """One command as it was typed: `robustmetric train cub/act seed=1 --precision bf16-mixed`."""

    job: str
    target: str
    words: list[str]
    """What stands without an option: overrides, or the suite."""
    options: dict[str, str]
    """By name, without the dashes; empty for a flag."""


def typed(command: str) -> list[Typed]:
    """The commands that `&&` joins, read back: what `origin` and the ledger write."""
    found: list[list[str]] = [[]]
    for word in shlex.split(command):
        if word == "&&":
            found.append([])
        else:
            found[-1].append(word)
    return [_typed(words, command) for words in found]


def _typed(words: list[str], command: str) -> Typed:
    if len(words) < 3 or words[0] != "robustmetric":
        raise InputError(f"{command!r} cannot be read; expected `robustmetric JOB TARGET ...`, joined by &&")
    plain: list[str] = []
    options: dict[str, str] = {}
    name = ""
    for word in words[3:]:
        if word.startswith("--"):
            name = word[2:]
            options[name] = ""
        elif name and "=" not in word:
            options[name], name = word, ""
        else:
            plain.append(word)
            name = ""
    return Typed(words[1], words[2], plain, options)


def check_trained(path: Path, spec: Mapping[str, Any]) -> None:
    """Refuse what was measured of a model of one's own, which no recipe trained: a row compares trainings."""
    missing = [key for key in ("defence", "epochs", "optimiser") if key not in spec]
    if missing:
        raise InputError(
            f"{path} was not trained by a recipe (its recipe.yaml has no {missing[0]!r}), so that it is no row; "
            "expected a folder that `robustmetric train` made; `report` and `compare` set any two folders side by side"
        )
