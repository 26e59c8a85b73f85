"""The wheel as a user gets it: installed elsewhere, run from an empty folder, and the whole demo once."""

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DISTRIBUTIONS = {"yaml": "pyyaml", "sklearn": "scikit-learn", "PIL": "pillow", "markupsafe": "jinja2"}
"""What a package is installed by, where that is not its own name; jinja2 requires markupsafe."""


def run(words: list[str], folder: Path, seconds: float = 600) -> str:
    """Standard output of a command that must succeed, away from this checkout's environment."""
    hidden = ("PYTHONPATH", "ROBUSTMETRIC_DATA", "VIRTUAL_ENV")
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    environment |= {"OMP_NUM_THREADS": "1", "COLUMNS": "120"}
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A fresh environment with the wheel in it; what it depends on comes from the present one."""
    home = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    # With the build backend at hand nothing is fetched.
    local = ["--no-build-isolation"] if importlib.util.find_spec("hatchling") else []
    run([*pip, "wheel", str(ROOT), "--no-deps", *local, "-w", str(home)], home)
    (wheel,) = home.glob("robustmetric-*.whl")
    venv.create(home / "env", with_pip=False)
    run([*pip, "--python", str(home / "env" / "bin" / "python"), "install", "--no-deps", str(wheel)], home)
    site = next((home / "env").glob("lib/python*/site-packages"))
    # Comes after its own folder on the path, so that the wheel's package is found first.
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    yield home / "env" / "bin"


def imported_at_once(node: ast.AST) -> Iterator[str]:
    """Top-level packages that importing a module imports: those named outside functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (name.name.split(".")[0] for name in child.names)
        elif isinstance(child, ast.ImportFrom) and child.level == 0 and child.module:
            yield child.module.split(".")[0]
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield from imported_at_once(child)


def test_every_package_imported_at_once_is_a_declared_dependency() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    declared = {re.split(r"[^\w-]", line)[0].lower() for line in project["dependencies"]}
    found = {
        package: file.relative_to(ROOT).as_posix()
        for file in (ROOT / "src" / "robustmetric").rglob("*.py")
        for package in imported_at_once(ast.parse(file.read_text()))
        if package != "robustmetric" and package not in sys.stdlib_module_names
    }
    assert {"torch", "yaml", "PIL"} <= found.keys(), "or nothing was scanned"
    # Triton comes with torch where there are GPUs; who imports this file has looked for it (the next test).
    assert found.pop("triton") == "src/robustmetric/perturb/kernels.py"
    assert {p: file for p, file in found.items() if DISTRIBUTIONS.get(p, p).lower() not in declared} == {}


def test_kernels_are_imported_by_their_launches_alone_and_these_by_nobody_at_once() -> None:
    importers = {"kernels": set[str](), "fused": set[str]()}
    for file in (ROOT / "src" / "robustmetric").rglob("*.py"):
        for node in ast.parse(file.read_text()).body:
            for name, found in importers.items():
                if isinstance(node, ast.ImportFrom) and node.module == f"robustmetric.perturb.{name}":
                    found.add(file.stem)
    assert importers == {"kernels": {"fused"}, "fused": set()}


def test_the_wheel_brings_code_and_recipes(installed: Path, tmp_path: Path) -> None:
    code = "import robustmetric, robustmetric.recipe as r; print(robustmetric.__file__); print(r.shelf())"
    found = run([str(installed / "python"), "-c", code], tmp_path).split()
    assert all(path.startswith(str(installed.parent)) for path in found), found
    assert "demo" in run([str(installed / "robustmetric"), "list", "suites"], tmp_path).split()


def test_the_wheel_brings_the_ledger(installed: Path, tmp_path: Path) -> None:
    assert run([str(installed / "robustmetric"), "leaderboard"], tmp_path).split() == ["leaderboard/index.html"]
    assert "cub-mobilenet_v2-act-eta8-full_3e-5-seed0" in (tmp_path / "leaderboard" / "index.html").read_text()


def test_a_short_name_trains_in_an_empty_folder(installed: Path, tmp_path: Path) -> None:
    out = run([str(installed / "robustmetric"), "train", "digits/plain", "epochs=1"], tmp_path)
    assert out.split() == ["runs/digits-plain-seed0"]
    assert (tmp_path / "runs" / "digits-plain-seed0" / "model.safetensors").is_file()


def test_the_demo_shows_a_plain_model_fall_and_a_hardened_one_hold(installed: Path, tmp_path: Path) -> None:
    table = run([str(installed / "robustmetric"), "demo"], tmp_path)
    assert "ES:R" in table
    page = (tmp_path / "demo" / "index.html").read_text()
    assert "plain" in page and "hm" in page and "has collapsed" not in page
    clean, chance, curve = {}, {}, {}
    for name in ("plain", "hm"):
        lines = (tmp_path / "demo" / name / "results.jsonl").read_text().splitlines()
        found = [json.loads(line) for line in lines]
        attacked = next(r for r in found if r["kind"] == "clean")
        clean[name], chance[name] = attacked["scores"]["R@1"], attacked["settings"]["chance"]
        curve[name] = {r["settings"]["radius"]: r["scores"]["ES:R"] for r in found if r["name"] == "ES"}
        assert {"CA+", "CA-"} <= {r["name"] for r in found}
        assert json.loads((tmp_path / "demo" / name / "run.json").read_text())["collapsed"] is False
    radii = sorted(curve["plain"])
    assert len(radii) == 5
    assert curve["hm"][radii[2]] >= curve["plain"][radii[2]] + 20
    assert clean["hm"] >= clean["plain"] - 5
    for name in ("plain", "hm"):
        assert curve[name][radii[-1]] <= chance[name] + 3
