"""Every recipe and suite we ship builds, and its header says what it is and how to run it."""

import json
import statistics
from pathlib import Path
from typing import Any

import pytest

import certified_rows
from ensemble_rows import IN_ROWS
from robustmetric import recipe
from robustmetric.attacks.base import Attack
from robustmetric.attacks.margin import WON, Misclassify
from robustmetric.catalogue import NAMES
from robustmetric.data.protocols import Sampler, Source, Transform
from robustmetric.defences.base import Defence
from robustmetric.jobs.assemble import load_model, resolve
from robustmetric.jobs.certify import load
from robustmetric.jobs.certify import resolve as resolve_certified
from robustmetric.jobs.suites import asking_for_surrogate, load_suite
from robustmetric.models.checkpoint import find_weights
from robustmetric.optimise import Optimiser
from robustmetric.perturb.local_search import LocalSearch

ROOT = Path(__file__).parents[1]
ALL = recipe.listing()
CERTIFIED = [name for name in ALL if "learner" in recipe.load(recipe.locate(name))]
RECIPES = [name for name in ALL if name not in CERTIFIED]
SUITES = recipe.listing("suites")
KINDS = {"data": Source, "defence": Defence, "sampler": Sampler, "optimiser": Optimiser}


def header(path: Path) -> list[str]:
    """The comment lines at the top."""
    lines = path.read_text().splitlines()
    return [line[1:].strip() for line in lines[: next(i for i, line in enumerate(lines) if not line.startswith("#"))]]


@pytest.mark.parametrize("name", RECIPES)
def test_every_part_of_a_recipe_builds_without_its_data(name: str) -> None:
    spec, where = resolve(name, [])
    recipe.look_over(spec, NAMES, where)
    variables = {"classes": 10, "dim": 16}
    for key, kind in KINDS.items():
        # The models inside a defence are built here; that of the recipe, which takes longer, is below.
        part = weightless(spec[key]) if key == "defence" else spec[key]
        assert isinstance(recipe.build(part, NAMES, f"{where}.{key}", variables), kind), key
    for key in ("augment", "view"):
        if key in spec:
            assert isinstance(recipe.build(spec[key], NAMES, f"{where}.{key}"), Transform)
    assert isinstance(spec["epochs"], int) and spec["epochs"] > 0
    assert spec.get("suite", "ers224") in SUITES


def models() -> list[str]:
    """One recipe for each model there is: to build MobileNetV2 once for each of eighty rows would take a minute."""
    first = {json.dumps(resolve(name, [])[0]["model"], sort_keys=True): name for name in reversed(RECIPES)}
    return sorted(first.values())


def weightless(part: recipe.Spec) -> recipe.Spec:
    """Pretrained weights are files or downloads that need not be here; the architecture must be right all the same."""
    if isinstance(part, list):
        return [weightless(item) for item in part]
    if not isinstance(part, dict):
        return part
    return {key: None if key == "weights" else weightless(value) for key, value in part.items()}


@pytest.mark.parametrize("name", models())
def test_the_model_of_a_recipe_builds_with_weights_to_be_found_elsewhere(name: str) -> None:
    spec, where = resolve(name, [])
    built = load_model({**spec, "model": weightless(spec["model"])}, where)
    assert sum(parameter.numel() for parameter in built.parameters()) > 0


@pytest.mark.parametrize("name", CERTIFIED)
def test_every_part_of_a_certified_recipe_builds(name: str) -> None:
    plan = load(*resolve_certified(name, []))
    assert plan.certificates and plan.radii[0] == 0 and list(plan.radii) == sorted(plan.radii)


def test_certified_recipes_are_those_of_the_list() -> None:
    written = {path: path.read_text() for path in certified_rows.FOLDER.glob("*-*.yaml")}
    assert written == certified_rows.files(), "run python tests/certified_rows.py"


@pytest.mark.parametrize("name", [*ALL, *(f"suites/{suite}" for suite in SUITES)])
def test_a_header_says_what_it_is_and_how_to_run_it(name: str) -> None:
    lines = header(recipe.shelf() / f"{name}.yaml")
    assert len(lines[0]) > 20, "what it is"
    commands = [line for line in lines if line.startswith("command: robustmetric ")]
    assert len(commands) == 1
    assert name.removeprefix("suites/") in commands[0].split()[3:], "the command runs this very file"
    job = "evaluate" if name.startswith("suites/") else "certify" if name in CERTIFIED else "train"
    assert commands[0].split()[2] == job


@pytest.mark.parametrize("name", SUITES)
def test_every_suite_loads(name: str) -> None:
    suite = load_suite(name, surrogate="runs/other" if asking_for_surrogate(name) else None)
    assert suite.name == name and suite.trials
    for trial in suite.trials:
        assert isinstance(trial.attack, Attack)
        assert 0 < trial.engine.ball.radius <= 1


@pytest.mark.parametrize("name", ["classification", "local_search"])
def test_local_search_ranks_its_probes_by_the_probability_of_the_label(name: str) -> None:
    trials = [trial for trial in load_suite(name).trials if isinstance(trial.engine, LocalSearch)]
    assert trials and all(trial.attack == Misclassify("cross_entropy") for trial in trials)
    assert all(isinstance(t.engine, LocalSearch) and t.engine.goal == WON for t in trials), "and ends where it is wrong"


def test_weights_that_are_nowhere_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from robustmetric.errors import InputError

    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="neither a file here nor under ROBUSTMETRIC_DATA"):
        find_weights("gone.pth")


def measured_rows() -> dict[str, list[dict[str, Any]]]:
    """By recipe, the rows of CUB and CARS that it makes as it stands, but for the protocol."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted(path for data in ("cub", "cars") for path in (ROOT / "results" / data).glob("*.json")):
        row = json.loads(path.read_text())
        stem = Path(row["recipe"]).stem.removeprefix(f"{row['model']}-").removeprefix("eat_")
        method = stem.partition("-eta")[0].partition("-r16")[0]
        if ("clustering" in row or "attacks" in row) and row["defence"] == method:
            found.setdefault(row["recipe"], []).append(row)
        for kind in (kind for kind, name in IN_ROWS.items() if name == row["defence"]):
            # Made by settings of another recipe, before there was this one.
            found.setdefault(f"recipes/{row['data']}/eat_{kind}.yaml", []).append(row)
    return found


MEASURED = measured_rows()


@pytest.mark.parametrize("name", MEASURED)
def test_the_header_of_a_recipe_has_what_was_measured(name: str) -> None:
    (line,) = [line for line in header(ROOT / name) if line.startswith("measured: ")]
    said = dict(part.split(", seed", 1) for part in line.removeprefix("measured: ").split("; "))
    by_protocol: dict[str, list[dict[str, Any]]] = {}
    for row in MEASURED[name]:
        by_protocol.setdefault(row["protocol"], []).append(row)
    assert set(said) == set(by_protocol), "a protocol is missing, or was not measured"
    for protocol, rows in by_protocol.items():
        assert f": R@1 {statistics.mean(row['clean']['R@1'] for row in rows):.1f}" in said[protocol]
        if "clustering" in rows[0]:
            attacked = statistics.mean(row["clustering"]["pgd10"]["R@1"] for row in rows)
            assert f"under PGD-10 {attacked:.1f}" in said[protocol]
    assert len(MEASURED) > 30


@pytest.mark.parametrize("path", sorted((ROOT / "results" / "cifar10").glob("*.json")), ids=lambda path: path.stem)
def test_the_header_of_a_classifier_has_what_was_measured(path: Path) -> None:
    row = json.loads(path.read_text())
    (line,) = [line for line in header(ROOT / row["recipe"]) if line.startswith("measured: ")]
    scores = {"clean": row["clean"]["accuracy"], **row["classification"]["accuracy"]}
    numbers = ", ".join(f"{name} {scores[name]:.1f}" for name in ("clean", "PGD-20", "AutoAttack") if name in scores)
    assert f"{row['protocol']}, seed {row['seed']}: {numbers}" in line
