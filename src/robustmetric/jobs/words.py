"""A word where a recipe has an object, `data=photos`: what to write instead."""

from collections.abc import Mapping
from pathlib import Path

from robustmetric import recipe
from robustmetric.catalogue import CATALOGUE, NAMES
from robustmetric.errors import InputError, nearest
from robustmetric.recipe import Spec

PARTS = {
    "data": "data",
    "model": "models",
    "defence": "defences",
    "sampler": "samplers",
    "optimiser": "optimisers",
    "augment": "transforms",
    "view": "transforms",
    "learner": "learners",
}
"""The parts of a recipe that are objects, and the kind that each is listed under."""


def refuse_words(spec: Mapping[str, Spec], where: str, csv: str = "manifest") -> None:
    """Refuse a bare word for a part, and a name of none; `csv` is what reads a CSV file here."""
    for part, kind in PARTS.items():
        word = spec.get(part)
        if isinstance(word, str):
            raise InputError(f"{where}: {part} {word!r} is a word; {_instead(part, word, kind, csv)}")
        name = word.get("name") if isinstance(word, dict) else None
        if isinstance(name, str) and name not in NAMES and "." not in name:
            raise InputError(f"{where}.{part}: {name!r} is not a known name{nearest(name, CATALOGUE[kind])}")
    if isinstance(spec.get("suite"), str):
        try:
            recipe.locate(spec["suite"], "suites")
        except InputError as error:
            raise InputError(f"{where}: suite {error}") from error
    _refuse_bytes(spec, where)


def _refuse_bytes(spec: Spec, where: str) -> None:
    """A radius of 8 in a box of pixels from 0 to 1, where 8/255 was meant: the defence would train on noise alone."""
    if isinstance(spec, list):
        for place, part in enumerate(spec):
            _refuse_bytes(part, f"{where}[{place}]")
    if not isinstance(spec, Mapping):
        return
    radius = spec.get("radius")
    is_box = spec.get("name") == "ball" and spec.get("norm", "linf") == "linf" and "bounds" not in spec
    if is_box and isinstance(radius, int | float) and radius > 1:
        raise InputError(
            f"{where}: radius {radius:g} is wider than a pixel's whole range, 0 to 1; did you mean {radius:g}/255?"
        )
    for key, part in spec.items():
        _refuse_bytes(part, f"{where}.{key}")


def _instead(part: str, word: str, kind: str, csv: str) -> str:
    if word in NAMES or ("." in word and part != "data"):
        return f"write {part}.name={word}, and its settings as {part}.SETTING=VALUE"
    if part == "data" and Path(word).suffix.lower() in (".csv", ".npz"):
        return f"write data.name={csv} data.file={word}"
    if part == "data" and Path(word).exists():
        return f"write data.name=folder data.root={word}"
    return f"expected {part}.name=NAME{nearest(word, CATALOGUE[kind])}"
