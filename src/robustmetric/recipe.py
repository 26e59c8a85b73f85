"""Recipes: YAML to objects. Constructors are the schema; a misspelt key fails at once, naming the nearest valid one."""

import functools
import importlib
import inspect
import os
import re
from collections.abc import Callable, Collection, Mapping
from difflib import get_close_matches
from fractions import Fraction
from pathlib import Path
from types import NoneType
from typing import Any, Literal, cast, get_args, get_origin

import yaml

from robustmetric.errors import InputError, nearest

try:
    from yaml import CSafeLoader as Loader  # libyaml's, nine times as fast; a board reads all recipes more than once
except ImportError:
    from yaml import SafeLoader as Loader  # type: ignore[assignment]

Spec = Any
"""Plain YAML: numbers, strings, lists and mappings; a mapping with `name` is an object to build."""

FRACTION = re.compile(r"-?\d+(\.\d+)?/\d+")


class _Loader(Loader):
    """YAML 1.1 reads 1e-5 as a string; ours reads it as the number everybody means."""


class _Dumper(yaml.SafeDumper):
    """Writes a word that `_Loader` would read as a number in quotes."""


for _one in (_Loader, _Dumper):
    _one.add_implicit_resolver(
        "tag:yaml.org,2002:float",
        re.compile(r"^[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
        list("-+0123456789."),
    )


def parse(text: str) -> Spec:
    """One YAML value; `8/255` becomes a number."""
    try:
        return _numbers(yaml.load(text, Loader=_Loader))
    except yaml.YAMLError as error:
        mark = error.problem_mark if isinstance(error, yaml.MarkedYAMLError) else None
        # What is missing at the end of a text is missed in the line behind it.
        at = f" at line {min(mark.line + 1, len(text.splitlines()))}" if mark else ""
        raise InputError(f"not valid YAML{at}") from error


def load(path: Path, kind: str = "") -> dict[str, Spec]:
    """A recipe file as plain data, over the one its `base:` names: a path relative to this, or short (of its kind)."""
    return functools.reduce(merge, layers_of(path, kind))


def layers_of(path: Path, kind: str = "") -> list[dict[str, Spec]]:
    """A recipe file and those it lies over, as plain data, the lowest first."""
    layers: list[dict[str, Spec]] = []
    seen: list[Path] = []
    while True:
        spec = _read(path)
        seen.append(path.resolve())
        base = spec.pop("base", None)
        layers.append(spec)
        if base is None:
            return layers[::-1]
        path = _base(path, str(base), kind)
        if path.resolve() in seen:
            raise InputError(f"{path}: its base leads back to itself; expected a chain that ends")


def _base(path: Path, name: str, kind: str) -> Path:
    """The file that `base: name` in the recipe at `path` means: one beside it, else one we ship."""
    beside = path.parent / name
    try:
        return beside if beside.is_file() else locate(name.removeprefix(f"{kind}/"), kind)
    except InputError as error:
        raise InputError(f"{path}: base: {error}") from error


def _read(path: Path) -> dict[str, Spec]:
    """One file as plain data."""
    try:
        spec = parse(path.read_text())
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: is not a text file; expected a recipe in YAML") from error
    if not isinstance(spec, dict):
        raise InputError(f"{path}: expected a mapping of settings, found {type(spec).__name__}")
    return spec


def merge(base: dict[str, Spec], changes: Mapping[str, Spec]) -> dict[str, Spec]:
    """`changes` laid over `base`, mapping by mapping; a change of `name` replaces the whole object."""
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        same_kind = (
            isinstance(old, dict) and isinstance(value, dict) and value.get("name", old.get("name")) == old.get("name")
        )
        merged[key] = merge(old, value) if same_kind and isinstance(old, dict) else value
    return merged


def build(spec: Spec, names: Mapping[str, str], where: str, variables: Mapping[str, Spec] | None = None) -> Any:
    """The object a spec describes: each mapping with a `name` becomes that constructor called with the other keys.

    `names` maps short names to dotted paths; a dotted path may also be written as the name itself. `$classes` and the
    like are looked up in `variables`. `where` says which file and key we are at, for errors.
    """
    if isinstance(spec, str) and spec.startswith("$"):
        known = variables or {}
        if spec[1:] not in known:
            raise InputError(f"{where}: {spec!r} is not known here{nearest(spec[1:], known)}")
        return known[spec[1:]]
    if isinstance(spec, list):
        return [build(item, names, f"{where}[{i}]", variables) for i, item in enumerate(spec)]
    if not isinstance(spec, dict):
        return spec
    if "name" not in spec:
        return {key: build(value, names, f"{where}.{key}", variables) for key, value in spec.items()}
    constructor = find(spec["name"], names, where)
    arguments = {key: value for key, value in spec.items() if key != "name"}
    check(constructor, arguments, where)
    return call(
        constructor, {key: build(value, names, f"{where}.{key}", variables) for key, value in arguments.items()}, where
    )


def look_over(spec: Spec, names: Mapping[str, str], where: str) -> None:
    """Refuse what `build` would, of names, keys and words, without building anything: before data are read."""
    if isinstance(spec, list):
        for place, part in enumerate(spec):
            look_over(part, names, f"{where}[{place}]")
    if not isinstance(spec, dict):
        return
    arguments = {key: value for key, value in spec.items() if key != "name"}
    if "name" in spec:
        check(find(spec["name"], names, where), arguments, where)
    for key, value in arguments.items():
        look_over(value, names, f"{where}.{key}")


def call(constructor: Callable[..., Any], arguments: Mapping[str, Any], where: str) -> Any:
    """`constructor(**arguments)`; what it refuses is reported as a fault of the recipe at `where`."""
    declared = inspect.signature(constructor).parameters
    for key, value in arguments.items():
        _refuse_unbuilt(value, declared.get(key), where)
    try:
        return constructor(**{key: _as_declared(value, declared.get(key)) for key, value in arguments.items()})
    except InputError as error:
        raise InputError(f"{where}: {error}") from error
    except (AttributeError, TypeError, ValueError, RuntimeError) as error:
        for key, value in arguments.items():
            if isinstance(value, str) and _is_number(declared.get(key)):
                raise InputError(f"{where}: {key} {value!r} is a word; expected a number") from error
        reason = " ".join(str(error).split())
        raise InputError(f"{where}: {_title(constructor)} refused its settings: {reason}") from error


def _as_declared(value: Any, parameter: inspect.Parameter | None) -> Any:
    """A float where the constructor declares one and YAML wrote a whole number: `rate: 1`."""
    kinds = () if parameter is None else (get_args(parameter.annotation) or (parameter.annotation,))
    return float(value) if type(value) is int and float in kinds and int not in kinds else value


def _is_number(parameter: inspect.Parameter | None) -> bool:
    """Whether the constructor declares a number, or one that may be left out."""
    kinds = set() if parameter is None else set(get_args(parameter.annotation)) or {parameter.annotation}
    return bool(kinds & {int, float}) and kinds <= {int, float, NoneType}


def _refuse_unbuilt(value: Any, parameter: inspect.Parameter | None, where: str) -> None:
    """A word, or settings without a name, where the constructor declares an object: `loss: triplet`, `ball: {...}`."""
    kind = None if parameter is None else parameter.annotation
    if parameter is None or kind is Any or not isinstance(kind, type) or kind.__module__ == "builtins":
        return
    if isinstance(value, str) and not issubclass(kind, str | os.PathLike):
        raise InputError(f"{where}: {parameter.name} {value!r} is a word; write {{name: {value}}}")
    if isinstance(value, dict) and not issubclass(kind, Mapping):
        given = "".join(f", {key}: ..." for key in value)
        raise InputError(f"{where}: {parameter.name} does not say what it is; write {{name: ...{given}}}")


def find(name: Any, names: Mapping[str, str], where: str) -> Callable[..., Any]:
    """The constructor behind a short name or a dotted path."""
    path = names.get(name, name) if isinstance(name, str) else ""
    refuse_file(path, f"{where}: ")
    module, dot, attribute = path.rpartition(".")
    if not dot:
        raise InputError(f"{where}: {name!r} is not a known name{_closest(str(name), names)}")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError, SyntaxError) as error:
        raise InputError(f"{where}: cannot import {path!r} ({error})") from error
    if not callable(found):
        raise InputError(f"{where}: {path!r} is a {type(found).__name__}; expected a class or a function")
    return cast(Callable[..., Any], found)


def refuse_file(name: str, where: str = "") -> None:
    """A file of Python where what is in it was to be named: `company.py` would be looked for as `py` in `company`."""
    path = Path(name)
    if path.suffix == ".py":
        parts = (path.stem,) if path.is_absolute() or ".." in path.parts else path.with_suffix("").parts
        raise InputError(f"{where}{name!r} is a file; name the function in it, such as {'.'.join(parts)}.build")


def _closest(word: str, names: Collection[str], most: int = 8) -> str:
    """As `nearest`, but of many names only those that are close."""
    if len(names) <= most:
        return nearest(word, names)
    close = get_close_matches(word, names, n=most)
    return f"{nearest(word, close) if close else ''}; see `robustmetric list`"


def check(constructor: Callable[..., Any], arguments: Mapping[str, Any], where: str) -> None:
    """Refuse a key the constructor does not take, the lack of one it needs, and a word other than those it declares."""
    parameters = inspect.signature(constructor).parameters
    title = _title(constructor)
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for key in arguments:
        if key not in parameters:
            raise InputError(f"{where}: {key!r} is not a setting of {title}{nearest(str(key), parameters)}")
    missing = [
        k
        for k, p in parameters.items()
        if p.default is p.empty and p.kind is not p.VAR_POSITIONAL and k not in arguments
    ]
    if missing:
        raise InputError(f"{where}: {title} needs {', '.join(map(repr, missing))}")
    for key, value in arguments.items():
        declared = parameters[key].annotation
        words = get_args(declared) if get_origin(declared) is Literal else ()
        if words and isinstance(value, str) and not value.startswith("$") and value not in words:
            raise InputError(f"{where}: {key} {value!r} is not known{nearest(value, map(str, words))}")


def _title(constructor: Callable[..., Any]) -> str:
    inner = constructor.func if isinstance(constructor, functools.partial) else constructor
    return str(getattr(inner, "__name__", type(inner).__name__))


def save(spec: Mapping[str, Spec], path: Path) -> None:
    """Write a resolved recipe whole or not at all, keys in the order given."""
    partial = path.with_suffix(path.suffix + ".part")
    partial.write_text(yaml.dump(dict(spec), Dumper=_Dumper, sort_keys=False))
    partial.replace(path)


def locate(name: str, kind: str = "") -> Path:
    """The file of a recipe given as a path or as a short name (`digits/est`, or a suite's `ers224`)."""
    path = Path(name)
    if path.suffix in {".yaml", ".yml"} and path.is_file():
        return path
    short = path.as_posix().removesuffix(".yaml").removesuffix(".yml").removeprefix("recipes/")
    found = shelf() / kind / f"{short}.yaml"
    if found.is_file():
        return found
    raise InputError(
        f"{name!r} is no file and no {kind.rstrip('s') or 'recipe'} we ship{_closest(short, listing(kind))}"
    )


def listing(kind: str = "") -> list[str]:
    """Short names of the recipes we ship; `kind="suites"` lists the suites, otherwise everything but suites."""
    root = shelf() / kind
    found = (p.relative_to(root).with_suffix("").as_posix() for p in sorted(root.rglob("*.yaml")))
    return [name for name in found if kind or not name.startswith("suites/")]


def shelf() -> Path:
    """Where recipes lie: inside an installed wheel, or at the root of a source checkout."""
    inside = Path(__file__).parent / "recipes"
    return inside if inside.is_dir() else Path(__file__).parents[2] / "recipes"


def _numbers(value: Spec) -> Spec:
    if isinstance(value, dict):
        return {key: _numbers(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_numbers(item) for item in value]
    if isinstance(value, str) and FRACTION.fullmatch(value):
        try:
            return float(Fraction(value.split("/")[0]) / Fraction(value.split("/")[1]))
        except ZeroDivisionError as error:
            raise InputError(f"{value!r} divides by zero") from error
    return value
