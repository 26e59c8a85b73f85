"""Do the tests notice a wrong formula? Change one sign, comparison or constant at a time, and see whether they fail.

Run by `make mutation`, or `python tests/mutation.py --count 100 --seed 1`. The work tree is never touched: every mutant
lives in a copy. Exit code 1 where fewer than nine of ten mutants are caught.
"""

import argparse
import ast
import copy
import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "src/robustmetric"
FILES = ("numerics/*.py", "losses/*.py", "metrics/*.py", "perturb/*.py", "attacks/objectives.py")
THRESHOLD = 90.0
LIMIT = 180.0
"""Seconds per mutant; one that runs longer (an endless loop) counts as caught."""

OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
}
COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
}
CALLS = {"min": "max", "amin": "amax", "argmin": "argmax", "minimum": "maximum", "clamp_min": "clamp_max"}
CALLS |= {after: before for before, after in CALLS.items()}

EITHER_WAY = "chooses between two exact ways; only the time differs"
EQUIVALENT: dict[tuple[str, str, str], str] = {
    ("numerics/distances.py", "width < 4 * k * GROUP", "width <= 4 * k * GROUP"): EITHER_WAY,
    ("numerics/distances.py", "4 * k", "4 / k"): EITHER_WAY,
    (
        "numerics/distances.py",
        "min(k, distances.shape[1])",
        "max(k, distances.shape[1])",
    ): "more candidates per chunk, of which the same k are kept",
    (
        "numerics/distances.py",
        "rows.amin() + rows.amax()",
        "rows.amin() - rows.amax()",
    ): "either is finite only if both extremes are",
    (
        "metrics/verification.py",
        "gap >= 0",
        "gap > 0",
    ): "the gap rises strictly, and a zero is then the point before, with weight 1",
    (
        "metrics/clustering.py",
        "label * len(names) + cluster",
        "label * len(names) - cluster",
    ): "also a number of its own for each (label, cluster)",
    (
        "perturb/ball.py",
        "(levels - levels.round()).abs() < 0.001",
        "(levels - levels.round()).abs() <= 0.001",
    ): "where rounding and truncation differ, no float lies exactly 0.001 below a whole number",
}
"""(file, before, after) of mutants that compute the same, with the reason. Not counted."""


@dataclass(frozen=True)
class Mutant:
    """One change to one file."""

    file: str
    """Relative to the package."""
    line: int
    before: str
    after: str
    source: str
    """The whole file, changed."""

    def __str__(self) -> str:
        return f"{PACKAGE}/{self.file}:{self.line}: {self.before} -> {self.after}"

    @property
    def tests(self) -> list[str]:
        """The file's own tests first, as they are the likeliest to fail; then those of its folder."""
        path = Path(self.file)
        folder = Path("tests") / path.parent
        own = folder / f"test_{path.stem}.py"
        return [str(place) for place in (own, folder) if (ROOT / place).exists()]


def mutants_of(file: str, source: str) -> list[Mutant]:
    """Every mutant of a file."""
    tree = ast.parse(source)
    apart = _not_formulas(tree)
    found = []
    for number, node in enumerate(ast.walk(tree)):
        for change in _changes(node) if id(node) not in apart else ():
            twin = copy.deepcopy(tree)
            target = next(other for place, other in enumerate(ast.walk(twin)) if place == number)
            # A bare constant says little; what it stands in says more.
            shown = _parent(twin, target) if isinstance(target, ast.Constant) else target
            before = ast.unparse(shown)
            other = change(target)
            if other is not None:
                _replace(twin, target, other)
            after = ast.unparse(other if other is not None else shown)
            found.append(Mutant(file, getattr(node, "lineno", 0), before, after, ast.unparse(twin) + "\n"))
    return found


Change = Callable[[Any], ast.AST | None]
"""Changes a node in place and returns None, or returns the node that takes its place."""


def _changes(node: ast.AST) -> Iterator[Change]:
    """What can be changed about this very node."""
    if isinstance(node, ast.BinOp | ast.AugAssign) and type(node.op) in OPERATORS:
        yield lambda n: setattr(n, "op", OPERATORS[type(n.op)]())
    elif isinstance(node, ast.Compare):
        for place, operator in enumerate(node.ops):
            for other in COMPARISONS.get(type(operator), ()):
                yield lambda n, place=place, other=other: n.ops.__setitem__(place, other())
    elif isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in CALLS:
            yield lambda n: setattr(n.func, "attr", CALLS[n.func.attr])
        elif isinstance(node.func, ast.Name) and node.func.id in CALLS:
            yield lambda n: setattr(n.func, "id", CALLS[n.func.id])
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        yield lambda n: n.operand
    elif isinstance(node, ast.Constant):
        if isinstance(node.value, bool):
            yield lambda n: setattr(n, "value", not n.value)
        elif isinstance(node.value, int | float) and node.value in (0, 1):
            yield lambda n: setattr(n, "value", type(n.value)(1 - n.value))


def _parent(tree: ast.AST, child: ast.AST) -> ast.AST:
    parent = next(node for node in ast.walk(tree) if any(other is child for other in ast.iter_child_nodes(node)))
    return parent if isinstance(parent, ast.expr | ast.keyword) else child


def _replace(tree: ast.AST, old: ast.AST, new: ast.AST) -> None:
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, name, new)
            elif isinstance(value, list):
                value[:] = [new if item is old else item for item in value]


def _not_formulas(tree: ast.AST) -> set[int]:
    """The nodes (by id) of types, error messages, decorators and `strict=`: no result depends on them."""
    apart: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.arg | ast.AnnAssign) and node.annotation is not None:
            apart.append(node.annotation)
        elif isinstance(node, ast.FunctionDef):
            apart += [*node.decorator_list, *([node.returns] if node.returns else [])]
        elif isinstance(node, ast.ClassDef):
            apart += node.decorator_list
        elif isinstance(node, ast.Raise):
            apart.append(node)
        elif isinstance(node, ast.keyword) and node.arg == "strict":
            apart.append(node.value)
    return {id(child) for part in apart for child in ast.walk(part)}


def sample(count: int, seed: int) -> list[Mutant]:
    """That many mutants, file by file in turn, so that a long file does not crowd out a short one."""
    chance = random.Random(seed)
    piles = []
    for pattern in FILES:
        for path in sorted((ROOT / PACKAGE).glob(pattern)):
            file = path.relative_to(ROOT / PACKAGE).as_posix()
            pile = mutants_of(file, path.read_text())
            chance.shuffle(pile)
            # After the shuffle, so that the list of equivalents does not change which others are chosen.
            pile = [m for m in pile if (m.file, m.before, m.after) not in EQUIVALENT]
            if pile:
                piles.append(pile)
    chosen: list[Mutant] = []
    while piles and len(chosen) < count:
        chosen += [pile.pop() for pile in piles][: count - len(chosen)]
        piles = [pile for pile in piles if pile]
    return chosen


def make_copy(home: Path) -> Path:
    """Sources, tests and settings in a folder of their own."""
    home.mkdir()
    for folder in ("src", "tests", "recipes"):
        shutil.copytree(ROOT / folder, home / folder, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    shutil.copy(ROOT / "pyproject.toml", home)
    return home


def passes(home: Path, tests: list[str]) -> bool | None:
    """Whether these tests pass in this copy; None where they ran into the time limit."""
    command = [sys.executable, "-m", "pytest", "-x", "-p", "no:cacheprovider", "--hypothesis-seed=0", *tests]
    environment = os.environ | {
        "PYTHONPATH": str(home / "src"),
        "PYTHONDONTWRITEBYTECODE": "1",  # two mutants of one second and one size would share a cached file
        "OMP_NUM_THREADS": "1",
    }
    try:
        done = subprocess.run(
            command, cwd=home, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=LIMIT
        )
    except subprocess.TimeoutExpired:
        return None
    return done.returncode == 0


def survives(mutant: Mutant, homes: "queue.Queue[Path]") -> bool | None:
    """Whether no test fails with this mutant in place of its file, in whichever copy is free; None: too slow to say."""
    home = homes.get()
    place = home / PACKAGE / mutant.file
    original = place.read_text()
    try:
        place.write_text(mutant.source)
        return passes(home, mutant.tests)
    finally:
        place.write_text(original)
        homes.put(home)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60, help="mutants to try (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="which ones (default: %(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="mutants at a time (default: %(default)s)")
    options = parser.parse_args()
    chosen = sample(options.count, options.seed)
    with tempfile.TemporaryDirectory(prefix="mutation-") as scratch:
        homes: queue.Queue[Path] = queue.Queue()
        for job in range(options.jobs):
            homes.put(make_copy(Path(scratch) / str(job)))
        first = homes.queue[0]
        folders = sorted({mutant.tests[-1] for mutant in chosen})
        if not passes(first, folders):
            print(f"the tests fail without any mutant; expected them to pass first: pytest {' '.join(folders)}")
            return 2
        caught = slow = 0
        with ThreadPoolExecutor(options.jobs) as pool:
            for mutant, survived in pool.map(lambda mutant: (mutant, survives(mutant, homes)), chosen):
                caught += not survived
                slow += survived is None
                if survived:
                    print(f"survived  {mutant}", flush=True)
    share = 100 * caught / max(1, len(chosen))
    print(
        f"{caught} of {len(chosen)} mutants caught ({share:.0f} %)"
        + (f", {slow} of them by the time limit" if slow else "")
    )
    return 0 if share >= THRESHOLD else 1


if __name__ == "__main__":
    sys.exit(main())
