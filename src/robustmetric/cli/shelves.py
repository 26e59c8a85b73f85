"""What recipes can name, with a sentence for each: read from source and headers, so that nothing is imported."""

import ast
import functools
import re
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from robustmetric import recipe
from robustmetric.catalogue import CATALOGUE, NAMES

PACKAGE = Path(__file__).parents[1]
SENTENCE = re.compile(r".*?(?<!\bal)(?<!\b[A-Z])\.(?=\s|$)")
"""Up to a full stop that ends something: not that of `et al.` or `L. Wang`"""
EXAMPLES = {"data": ["digits", "mnist", "cub"], "defences": ["madry", "act", "hm"], "suites": ["demo", "ers224"]}
"""Shown first in the summary; of other kinds, the first three."""


def shelves() -> dict[str, list[str]]:
    """Names by kind."""
    found = {kind: sorted(members) for kind, members in CATALOGUE.items()}
    return found | {"suites": recipe.listing("suites"), "recipes": recipe.listing()}


def summary(names: Mapping[str, Sequence[str]]) -> list[str]:
    """A line for each kind: how many there are, a few of them, and the command that lists all."""
    widest = max(map(len, names))
    lines = []
    for kind, members in names.items():
        shown = EXAMPLES.get(kind, members[:3])
        some = ", ".join(shown) + (", ..." if len(shown) < len(members) else "")
        lines.append(_cut(f"robustmetric list {kind:<{widest}}  {len(members):>4}  {some}"))
    return lines


def described(kind: str, names: Sequence[str]) -> list[str]:
    """A line for each name of a kind, with its sentence; on a terminal, cut to its width."""
    widest = max(map(len, names), default=0)
    return [_cut(f"{name:<{widest}}  {_sentence(kind, name)}".rstrip()) for name in names]


def _sentence(kind: str, name: str) -> str:
    if kind in ("suites", "recipes"):
        return _first(_header(recipe.locate(name, "suites" if kind == "suites" else "")))
    return _first(docstring(CATALOGUE[kind][name]))


def docstring(path: str) -> str:
    """Of what a dotted path names. A file that holds nothing else to name says it best: method, paper, data."""
    module, attribute = _home(path)
    tree = _parsed(module)
    alone = sum(_home(other)[0] == module for other in NAMES.values()) <= 1
    return (alone and ast.get_docstring(tree)) or _of_member(tree, attribute) or ast.get_docstring(tree) or ""


def _of_member(tree: ast.Module, name: str) -> str | None:
    """Of a class or function or, below it, of a value: `adam = partial(...)`."""
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == name:
            return ast.get_docstring(node)
        is_named = isinstance(node, ast.Assign) and any(ast.unparse(one) == name for one in node.targets)
        if is_named and isinstance(after, ast.Expr):
            return str(ast.literal_eval(after.value))
    return None


@functools.cache
def _home(path: str) -> tuple[str, str]:
    """Module and name where it is defined: `robustmetric.learn.ARML` is imported there from its own file."""
    module, _, attribute = path.rpartition(".")
    for node in _parsed(module).body:
        if not isinstance(node, ast.ImportFrom):
            continue
        for one in node.names:
            if (one.asname or one.name) == attribute:
                return _home(f"{node.module}.{one.name}")
    return module, attribute


@functools.cache
def _parsed(module: str) -> ast.Module:
    place = PACKAGE.joinpath(*module.split(".")[1:])
    file = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    return ast.parse(file.read_text(encoding="utf-8"))


def _header(path: Path) -> str:
    """The comment that a recipe begins with."""
    lines = []
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.removeprefix("#").strip())
    return "\n".join(lines)


def _first(text: str) -> str:
    """The first sentence of the first paragraph, in one line."""
    line = " ".join(text.split("\n\n")[0].split())
    found = SENTENCE.match(line)
    return (found.group()[:-1] if found else line).rstrip()


def _cut(line: str) -> str:
    """On a terminal, no longer than it is wide."""
    width = shutil.get_terminal_size().columns
    return line if not sys.stdout.isatty() or len(line) <= width else f"{line[: width - 1].rstrip()}…"
