"""What an evaluation names, looked up before its model and data: a misspelt word costs no download."""

from collections.abc import Sequence
from pathlib import Path

from robustmetric.attacks.modes import check_mode
from robustmetric.catalogue import CATALOGUE
from robustmetric.errors import InputError, nearest
from robustmetric.jobs.arena import known_search
from robustmetric.jobs.folder import RunFolder
from robustmetric.jobs.workers import Hardware
from robustmetric.numerics.kmeans import check_backend


def refuse_unknown(
    modes: Sequence[str] | None, search: str, kmeans: str | None, surrogate: str | None, hardware: Hardware
) -> None:
    """Refuse options of `evaluate` that mean nothing, whatever the suite."""
    for mode in modes or ():
        check_mode(mode)
    known_search(search)
    if kmeans is not None:
        check_backend(kmeans)
    if surrogate is not None:
        RunFolder(Path(surrogate)).read_recipe()
    hardware.check()


def refuse_unknown_data(name: str) -> None:
    """Refuse what is neither a place on disk nor a data set of ours."""
    path = Path(name)
    if path.suffix != ".csv" and not path.exists() and name not in CATALOGUE["data"]:
        raise InputError(f"--data {name!r} is no folder, no CSV file and no data set{nearest(name, CATALOGUE['data'])}")
