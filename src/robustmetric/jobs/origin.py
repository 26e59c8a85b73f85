"""How a run was made: the recipe file and the command, as anybody would type them."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from robustmetric import recipe
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
