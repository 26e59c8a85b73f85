"""What an evaluation names, looked up before its model and data: a misspelt word costs no download."""

from collections.abc import Sequence
from pathlib import Path

from robustmetric import recipe
from robustmetric.attacks.modes import check_mode
from robustmetric.catalogue import CATALOGUE, NAMES
from robustmetric.errors import InputError, nearest
from robustmetric.jobs.arena import known_search
from robustmetric.jobs.workers import Hardware
from robustmetric.numerics.kmeans import check_backend
from robustmetric.recipe import Spec

VIEWS = ("identity", "centre_crop", "aspect_centre_crop")
"""What evaluated images may go through: of the transforms, those that draw nothing at random."""


def refuse_unknown(modes: Sequence[str] | None, search: str, kmeans: str | None, hardware: Hardware) -> None:
    """Refuse options of `evaluate` that mean nothing, whatever the suite."""
    for mode in modes or ():
        check_mode(mode)
    known_search(search)
    if kmeans is not None:
        check_backend(kmeans)
    hardware.check()


def refuse_unknown_data(name: str, where: str = "--data ") -> None:
    """Refuse what is neither a place on disk nor a data set of ours."""
    path = Path(name)
    if path.suffix != ".csv" and not path.exists() and name not in CATALOGUE["data"]:
        known = nearest(name, CATALOGUE["data"])
        raise InputError(f"{where}{name!r} is no folder, no CSV file and no data set{known}")


def view_of(text: str, model: str, *, is_own: bool) -> dict[str, Spec]:
    """What images go through before a model of one's own, as a recipe has it: a name, or `{name: identity, ...}`."""
    if not is_own:
        raise InputError(f"--view {text} is for a model of your own; {model!r} has a recipe, which says what it sees")
    value = recipe.parse(text)
    spec = value if isinstance(value, dict) else {"name": value}
    name = spec.get("name")
    if name not in VIEWS and "." not in str(name):
        raise InputError(f"--view {text!r} is not known{nearest(name, VIEWS)}")
    recipe.look_over(spec, NAMES, f"--view {text}")
    return spec
