"""Recipe to objects: every piece is what it should be, or the recipe is at fault at a named place."""

from pathlib import Path

import pytest
import torch

from commands import Command
from robustmetric.errors import InputError
from robustmetric.jobs.assemble import load_data, load_model, load_plan, load_suite, resolve, title

SUITE = "engine: {name: pgd, ball: {name: ball, radius: 0.1}, steps: 1, step_size: 0.1}\n"


def test_the_same_seed_makes_the_same_model_and_leaves_the_global_randomness_alone() -> None:
    spec, where = resolve("digits/plain", [])
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, two = load_model(spec, where), load_model(spec, where)
    assert torch.equal(torch.rand(1), expected)
    other = load_model({**spec, "seed": 1}, where)
    weights = [next(model.parameters()) for model in (one, two, other)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_a_plan_knows_classes_and_dimension() -> None:
    spec, where = resolve("digits/plain", [])
    loss = {"name": "proxy_anchor", "classes": "$classes", "dim": "$dim"}
    plan, dataset = load_plan({**spec, "defence": {"name": "plain", "loss": loss}}, where)
    assert dataset.train.classes == 5
    assert {tuple(p.shape) for p in plan.defence.parameters()} == {(5, 64)}


def test_a_model_that_does_not_know_its_size_trains_unless_the_recipe_asks(command: Command) -> None:
    spec, where = resolve("digits/plain", ["model={name: encoder, trunk: {name: own_parts.Net}}"])
    load_plan(spec, where)
    loss = {"name": "proxy_anchor", "classes": "$classes", "dim": "$dim"}
    with pytest.raises(InputError, match=r"defence.loss.dim: '\$dim' is not known here"):
        load_plan({**spec, "defence": {"name": "plain", "loss": loss}}, where)


def test_a_recipe_in_the_working_folder_names_its_run_plainly() -> None:
    assert title("own.yaml") == "own"
    assert title("recipes/digits/plain.yaml") == "digits-plain"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["epocs=3"], "'epocs' is not a setting of a recipe; did you mean 'epochs'"),
        (["defense.steps=3"], "'defense' is not a setting of a recipe; did you mean 'defence'"),
        (
            ["defence.loss.margn=3"],
            r"plain.yaml.defence.loss: 'margn' is not a setting of Triplet; did you mean 'margin'",
        ),
        (["defence.loss.name=triplets"], "'triplets' is not a known name; did you mean 'triplet'"),
        (["epochs=0"], "epochs 0 is not known; expected a whole number >= 1"),
        (["epochs=many"], "epochs 'many' is not known"),
        (["seed=x"], "seed 'x' is not known; expected a whole number >= 0"),
        (["seed=-1"], "seed -1 is not known"),
        (["checkpoint_seconds=-1"], "checkpoint_seconds -1 is no time"),
        (["validate_every=0.5"], "validate_every 0.5 is not known"),
        (["optimiser.rate=0.0"], "learning rate 0.0 does not train"),
        (["sampler=3"], "sampler: int is not a sampler"),
        (["defence={name: convnet}"], "defence: ConvNet is not a defence"),
        (["data={name: convnet}"], "ConvNet is not a data set"),
        (["model={name: digits}"], "Digits is not a torch module"),
        (["view={name: digits}"], "view: Digits is not a transform"),
    ],
)
def test_a_recipe_at_fault_says_where(overrides: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        load_plan(*resolve("digits/plain", overrides))


def test_the_data_set_is_built_once(tmp_path: Path, command: Command) -> None:
    import own_parts

    before = own_parts.Cached.built
    load_plan(*resolve("digits/plain", [f"data={{name: own_parts.Cached, folder: {tmp_path}}}"]))
    assert own_parts.Cached.built == before + 1


def test_what_a_recipe_lacks_is_named() -> None:
    with pytest.raises(InputError, match=r"needs .*'defence'"):
        load_plan({"data": {"name": "digits"}}, "own.yaml")
    with pytest.raises(InputError, match=r"own\.yaml: the recipe has no 'data'"):
        load_data({}, "own.yaml")


def test_a_suite_scales_the_step_with_each_radius(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(
        SUITE + "attacks:\n  ES: {attack: {name: embedding_shift}, radii: [0.1, 0.05], engine: {steps: 4}}\n"
    )
    suite = load_suite(str(path))
    assert suite.name == "s"
    found = [(t.engine.ball.radius, t.engine.step_size, t.engine.steps) for t in suite.trials]
    assert found == [(0.1, pytest.approx(0.1), 4), (0.05, pytest.approx(0.05), 4)]
    moved = load_suite(str(path), 0.2)
    assert [(t.engine.ball.radius, t.engine.step_size) for t in moved.trials] == [(0.2, pytest.approx(0.2))]


def test_a_suite_runs_in_the_modes_of_its_file_or_in_those_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SUITE + "modes: [fixed, compat]\nattacks:\n  ES: {attack: {name: embedding_shift}}\n")
    assert [t.mode for t in load_suite(str(path)).runs()] == ["fixed", "compat"]
    assert [t.mode for t in load_suite(str(path), modes=["compat"]).runs()] == ["compat"]
    assert [t.mode for t in load_suite(str(path), 0.2).runs()] == ["fixed", "compat"]
    assert [t.mode for t in load_suite(str(path)).trials] == ["fixed"], "one trial, whatever the modes"
    assert load_suite("ers224").modes == load_suite("ers28").modes == ("fixed", "compat")
    assert load_suite("demo").modes == ()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SUITE, "a suite needs 'attacks'"),
        ("attacks: {ES: {attack: {name: embedding_shift}}}", "a suite needs 'engine'"),
        (SUITE + "modes: compat\nattacks: {ES: {attack: {name: embedding_shift}}}", "modes 'compat' are not a list"),
        (SUITE + "modes: [fixed, fixed]\nattacks: {ES: {attack: {name: embedding_shift}}}", "list of different modes"),
        (SUITE + "modes: [compact]\nattacks: {ES: {attack: {name: embedding_shift}}}", "did you mean 'compat'"),
        (
            SUITE + "modes: [compat]\nattacks: {ES: {attack: {name: own_parts.Boom}}}",
            "s.yaml: trial 'ES'.*has no mode 'compat'",
        ),
        (SUITE + "atacks: {}", "'atacks' is not a setting of a suite; did you mean 'attacks'"),
        (SUITE + "attacks: {ES: {name: embedding_shift}}", "'name' is not known"),
        (SUITE + "attacks: {ES: embedding_shift}", "attacks.ES: expected a mapping with 'attack'"),
        (SUITE + "attacks: {ES: {radii: [0.1]}}", "the recipe has no 'attack'"),
        (SUITE + "attacks: {ES: {attack: {name: ball, radius: 0.1}}}", "is not an attack with an engine"),
        (SUITE + "attacks: {ES: {attack: {name: embedding_shift}, radii: 0.1}}", "radii 0.1 are not a list"),
        (SUITE + "attacks: {ES: {attack: {name: embedding_shift}, radii: [far]}}", "are not a list of numbers"),
        (
            SUITE + "attacks: {ES: {attack: {name: embedding_shift}, radii: [-0.1]}}",
            "ES: radius -0.1 is not a distance",
        ),
        (SUITE + "attacks: {ES: {attack: {name: embedding_shfit}}}", "did you mean 'embedding_shift'"),
    ],
)
def test_a_suite_at_fault_says_where(tmp_path: Path, command: Command, text: str, message: str) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        load_suite(str(path))


def test_a_negative_radius_is_refused_for_a_whole_suite() -> None:
    with pytest.raises(InputError, match=r"radius -1\.0 is not a distance"):
        load_suite("demo", -1.0)
