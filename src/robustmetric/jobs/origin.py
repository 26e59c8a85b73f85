"""How a run was made: the recipe file and the command, as anybody would type them."""

import shlex
from collections.abc import Sequence
from pathlib import Path

from robustmetric import recipe
from robustmetric.jobs.workers import Hardware


def origin(where: str, overrides: Sequence[str], hardware: Hardware) -> dict[str, str]:
    """`recipe_file` and `command` of a training, for run.json; a recipe we ship goes by its short name."""
    path, shelf = Path(where), recipe.shelf()
    shipped = path.resolve().is_relative_to(shelf.resolve())
    short = path.resolve().relative_to(shelf.resolve()) if shipped else path
    name = short.with_suffix("").as_posix() if shipped else str(path)
    words = ["robustmetric", "train", name, *overrides, *differing(hardware)]
    return {"recipe_file": (Path("recipes") / short if shipped else path).as_posix(), "command": shlex.join(words)}


def differing(hardware: Hardware) -> list[str]:
    """The options that ask for other hardware than the default."""
    given, usual = vars(hardware), vars(Hardware())
    return [word for key in given if given[key] != usual[key] for word in (f"--{key}", str(given[key]))]
