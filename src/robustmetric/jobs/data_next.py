"""The command to type after a check of data: with this very path, or the same check again where something is amiss."""

import json
import shlex
from collections.abc import Sequence
from dataclasses import replace

from robustmetric import recipe
from robustmetric.data.folder import Folder
from robustmetric.data.listing import ImageFiles
from robustmetric.data.manifest import Manifest
from robustmetric.errors import InputError
from robustmetric.jobs.findings import Report
from robustmetric.jobs.own import OWN_MODEL

VOTERS = 11
"""As many rows of train are needed where a recipe names no certificates; 1-NN alone needs one."""
FIRST = ("act", "plain")
"""Recipes to begin with, the first that a data set of ours has."""
SHORT = ("epochs=15", "optimiser.rate=3e-5")
"""The protocol `short` of recipes for photographs: a fifth of the published 75 epochs, which take a CPU hours."""
IS_SHORT = f"{' '.join(SHORT)} is the short form, a fifth of the published length, as no GPU is here"


def of_images(report: Report, source: ImageFiles, *, can_train: bool, is_short: bool = False) -> Report:
    """Of image files: attack a model on them; harden one, if they can be trained on, shortly where that is asked."""
    skip = ["--skip-unreadable"] if source.skip_unreadable else []
    if not report.is_usable:
        mended = {one.kind for one in report.findings if one.weight == "mend"}
        left_out = ["--skip-unreadable"] if mended == {"unreadable"} else skip
        return replace(report, next=(_typed("data", "check", report.path, *left_out),))
    if not isinstance(source, Folder | Manifest):
        return of_ours(report, skip)
    words = ["company.build", "ers_sketch224", "--data", report.path, "--queries", "32"]
    commands = [_typed("evaluate", *words, *skip)]
    if can_train:
        place = (
            f"data.file={_value(source.file)}" if isinstance(source, Manifest) else f"data.root={_value(source.root)}"
        )
        kind = "manifest" if isinstance(source, Manifest) else "folder"
        model = "model={name: company.build}"
        length = SHORT if is_short else ()
        commands.append(_typed("train", "cub/act", f"data.name={kind}", place, model, *length, *skip))
    note = f"{IS_SHORT}; {OWN_MODEL}" if can_train and is_short else OWN_MODEL
    return replace(report, next=tuple(commands), note=note)


def of_ours(report: Report, options: Sequence[str] = ()) -> Report:
    """Of a data set of ours: a recipe that we ship for it."""
    if not report.is_usable:
        return replace(report, next=(_typed("data", "check", report.path, *options),))
    shipped = recipe.listing()
    trained = [f"{report.path}/{name}" for name in FIRST if f"{report.path}/{name}" in shipped]
    table = f"tabular/{report.path.removesuffix('_table')}-arml"
    command = _typed("train", trained[0], *options) if trained else _typed("certify", table)
    return replace(report, next=(command,))


def of_table(report: Report, settings: Sequence[str]) -> Report:
    """Of a table: prove radii on it, in a unit that lets every column speak."""
    if not report.is_usable:
        return replace(report, next=(_typed("data", "check", report.path, *settings),))
    exact = ["--method", "exact"] if report.parts[0].samples < VOTERS else []
    scaled = ["data.scale=true"] if any(one.kind == "units" for one in report.findings) else []
    words = ["tabular/digits-arml", "--data", report.path, *settings, *scaled, *exact]
    return replace(report, next=(_typed("certify", *words),))


def _typed(*words: str) -> str:
    return shlex.join(["robustmetric", *words])


def _value(path: str) -> str:
    """As a setting, where a folder called 2024 would be a number."""
    try:
        is_word = recipe.parse(path) == path
    except InputError:
        is_word = False
    return path if is_word else json.dumps(path)
